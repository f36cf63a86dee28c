"""The call that is worked through: its question, and its tensors in float64, keys and values for every query head."""

import math
from dataclasses import dataclass

from torch import Tensor

from regard.errors import BudgetError, SpecError
from regard.spec.evaluate import Positions
from regard.spec.feature import Kernel
from regard.spec.score import Additive
from regard.spec.spec import Inputs, Question

LARGEST = 4096  # numbers in one matrix of one head: more nobody reads
TURNS = 100  # of sinkhorn
TOGETHER = 2**20  # numbers in all heads of a matrix


@dataclass(frozen=True, eq=False)
class Call:
    """q (batch, heads, n_q, width), k and v (batch, heads, n_k, width); `tensors` are those that masks and rules look
    things up in."""

    question: Question
    q: Tensor
    k: Tensor
    v: Tensor
    positions: Positions
    tensors: tuple[Tensor, ...]

    @property
    def inputs(self) -> Inputs:
        """The same as engines have it."""
        return Inputs(self.q, self.k, self.v, self.tensors, (), None, self.question.start, self.question.seed)


def called(question: Question) -> Call:
    """The call of a question, if it is small enough to be read."""
    _check_size(question)
    spec = question.spec
    q, k, v = (x.detach().double() for x in (question.q, question.k, question.v))
    k, v = (x.repeat_interleave(spec.heads // max(1, x.shape[1]), dim=1) for x in (k, v))
    positions = Positions(
        *(range(n) for n in spec.lengths), start=question.start, n_q=spec.n_q, n_k=spec.n_k, device=q.device
    )
    tensors = tuple(t.detach() for t in question.formula.resolved(spec.lengths, question.start, q))
    return Call(question, q, k, v, positions, tensors)


def check_numbers(name: str, shape: tuple[int, ...]) -> None:
    """Refuses a matrix that nobody could read."""
    numbers = math.prod(shape)
    if numbers > LARGEST:
        size = " x ".join(str(n) for n in shape)
        raise BudgetError(
            f"steps shows every number, so a matrix must have at most {LARGEST:,}; got {name} of {size} = {numbers:,}. "
            "Take a part, as in q[..., :16, :], k[..., :16, :], v[..., :16, :], or ask regard.attend(...).weights."
        )


def _check_size(question: Question) -> None:
    spec, turns = question.spec, question.weigh.iterations
    if 0 in spec.lengths:
        raise SpecError(f"steps needs a query and a key at least; got {spec.n_q} queries and {spec.n_k} keys.")
    if turns > TURNS:
        raise BudgetError(f"steps shows every turn of sinkhorn, at most {TURNS}; got {turns:,}. Take fewer.")
    name, shape = max(_shapes(question).items(), key=lambda item: math.prod(item[1]))
    check_numbers(name, shape)
    numbers, heads = math.prod(shape), spec.batch * spec.heads
    if numbers * heads > TOGETHER:
        size = " x ".join(str(n) for n in shape)
        raise BudgetError(
            f"steps keeps every number of every head, at most {TOGETHER:,} in a matrix; got {name} of {heads} x {size} "
            f"= {numbers * heads:,}. Take some heads, as in q[:1, :2], k[:1, :2], v[:1, :2]."
        )


def _shapes(question: Question) -> dict[str, tuple[int, ...]]:
    """The sizes of the matrices that may be large, of one head."""
    spec, score = question.spec, question.score
    shapes = {name: tuple(x.shape[-2:]) for name, x in (("q", question.q), ("k", question.k), ("v", question.v))}
    shapes["scores"] = (spec.n_q, spec.n_k)
    if isinstance(score, Additive):
        shapes["tanh"] = (spec.n_q, spec.n_k, spec.width)
    if isinstance(score, Kernel):
        shapes["features"] = (max(spec.n_q, spec.n_k), spec.width)
    return shapes
