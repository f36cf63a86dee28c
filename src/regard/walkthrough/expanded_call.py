"""The call of a walkthrough: tensors in float64, with keys and values repeated for every query head."""

import math
from dataclasses import dataclass

from torch import Tensor

from regard.call.spec import BackendInputs, ParsedCall
from regard.errors import ArgumentError, BudgetError
from regard.expr.evaluate import IndexGrid
from regard.feature_map import FeatureMapScore
from regard.score import Additive

MAX_MATRIX_NUMBERS = 4096  # in one matrix of one head, which must be readable
MAX_SINKHORN_ITERATIONS = 100
MAX_TOTAL_NUMBERS = 2**20  # in one matrix, over all heads


@dataclass(frozen=True, eq=False)
class ExpandedCall:
    """A parsed call with q (batch, heads, n_q, head_dim), k and v (batch, heads, n_k, head_dim) in float64.

    `tensors` are the captured tensors of the mask and the score modifiers.
    """

    parsed_call: ParsedCall
    q: Tensor
    k: Tensor
    v: Tensor
    positions: IndexGrid
    tensors: tuple[Tensor, ...]

    @property
    def inputs(self) -> BackendInputs:
        """The tensors as inputs of a backend."""
        return BackendInputs(
            self.q, self.k, self.v, self.tensors, (), None, self.parsed_call.query_offset, self.parsed_call.seed
        )


def expand_call(parsed_call: ParsedCall) -> ExpandedCall:
    """Return the expanded call; raise `BudgetError` if it has too many numbers to read."""
    _check_size(parsed_call)
    spec = parsed_call.spec
    q, k, v = (x.detach().double() for x in (parsed_call.q, parsed_call.k, parsed_call.v))
    k, v = (x.repeat_interleave(spec.num_heads // max(1, x.shape[1]), dim=1) for x in (k, v))
    positions = IndexGrid(
        *(range(n) for n in spec.score_shape),
        query_offset=parsed_call.query_offset,
        n_q=spec.n_q,
        n_k=spec.n_k,
        device=q.device,
    )
    tensors = tuple(
        t.detach() for t in parsed_call.closed_expr.resolve_tensors(spec.score_shape, parsed_call.query_offset, q)
    )
    return ExpandedCall(parsed_call, q, k, v, positions, tensors)


def check_matrix_size(name: str, shape: tuple[int, ...]) -> None:
    """Raise `BudgetError` for a matrix that is too large to read."""
    numbers = math.prod(shape)
    if numbers > MAX_MATRIX_NUMBERS:
        size = " x ".join(str(n) for n in shape)
        raise BudgetError(
            f"steps shows every number, so a matrix must have at most {MAX_MATRIX_NUMBERS:,}; got {name} of {size} = "
            f"{numbers:,}. Pass a part, as in q[..., :16, :], k[..., :16, :], v[..., :16, :], or use "
            "regard.attention_with_weights(...).weights."
        )


def _check_size(parsed_call: ParsedCall) -> None:
    spec, iterations = parsed_call.spec, parsed_call.normalizer.iterations
    if 0 in spec.score_shape:
        raise ArgumentError(f"steps needs at least one query and one key; got {spec.n_q} queries and {spec.n_k} keys.")
    if iterations > MAX_SINKHORN_ITERATIONS:
        raise BudgetError(
            f"steps shows every iteration of sinkhorn, so there must be at most {MAX_SINKHORN_ITERATIONS}; got "
            f"{iterations:,}. Use fewer iterations."
        )
    name, shape = max(_matrix_shapes(parsed_call).items(), key=lambda item: math.prod(item[1]))
    check_matrix_size(name, shape)
    numbers, heads = math.prod(shape), spec.batch_size * spec.num_heads
    if numbers * heads > MAX_TOTAL_NUMBERS:
        size = " x ".join(str(n) for n in shape)
        raise BudgetError(
            f"steps stores every number of every head, so a matrix must have at most {MAX_TOTAL_NUMBERS:,} in all "
            f"heads; got {name} of {heads} x {size} = {numbers * heads:,}. Pass some heads, as in q[:1, :2], "
            "k[:1, :2], v[:1, :2]."
        )


def _matrix_shapes(parsed_call: ParsedCall) -> dict[str, tuple[int, ...]]:
    """The shapes of the matrices of one head that may be large, by name."""
    spec, score = parsed_call.spec, parsed_call.score
    shapes = {
        name: tuple(x.shape[-2:]) for name, x in (("q", parsed_call.q), ("k", parsed_call.k), ("v", parsed_call.v))
    }
    shapes["scores"] = (spec.n_q, spec.n_k)
    if isinstance(score, Additive):
        shapes["tanh"] = (spec.n_q, spec.n_k, spec.head_dim)
    if isinstance(score, FeatureMapScore):
        shapes["features"] = (max(spec.n_q, spec.n_k), spec.head_dim)
    return shapes
