"""The whole way of a call on one screen: read the question, choose how, run it, hand it back."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.again import remember, repeated
from regard.eager import runs_eagerly
from regard.engine.balance import balanced
from regard.engine.fused import Fused
from regard.engine.gradient import Engine, run
from regard.engine.native import Native
from regard.engine.parts import Matrix, Parts, PartsByTorch
from regard.engine.reference import Reference
from regard.engine.relative import relative_output
from regard.engine.threshold import matrix_of
from regard.engine.tiled import Tiled
from regard.heard import listeners
from regard.plan.blocks import blocks
from regard.plan.choose import Plan, choose
from regard.result import Attended
from regard.spec.precision import without_autocast
from regard.spec.read import read
from regard.spec.spec import Inputs, Question, Spec
from regard.traced import NO_NAME, traced
from regard.weights import Weights

TILED = Tiled()
NATIVE = Native(otherwise=TILED)
IN_ORDER: tuple[Engine, ...] = (NATIVE, Fused(otherwise=TILED), TILED, Reference())


def engines() -> tuple[str, ...]:
    """The names of the engines, in the order in which they are tried.

    Those that keep every pair in memory, `reference` and on the CPU `fused`, run only when asked for.
    """
    return tuple(e.name for e in IN_ORDER)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    engine: str | None = None,
) -> Any:
    """The attention of queries over keys and values: o_i = sum_j a_ij g(v_j), exactly, in linear memory.

    q is (..., heads, n_q, width), k and v (..., key heads, n_k, width); 3-D means one head, 2-D one sequence. Fewer
    key heads than query heads are shared in groups. The result has q's dimensions and v's width. NumPy in, NumPy out.

    score: how q and k are compared (`regard.score`; None is q·k/√d), or a rule (s, b, h, i, j) on top of that.
    mask: who may look at whom, True = may (`regard.mask`, a boolean tensor, or a function (b, h, i, j)).
    weigh: how scores become weights (`regard.weigh`; None is softmax).
    value: a function of v. dropout: the share of weights left out, decided by `seed` alone.
    start: where the first query stands among the keys; None is n_k - n_q. engine: None lets the plan choose.

    >>> import torch
    >>> q = torch.eye(2)
    >>> attention(q, q, torch.tensor([[1.0], [0.0]]), mask=lambda b, h, i, j: j <= i)
    tensor([[1.0000],
            [0.3302]])
    """
    if torch.compiler.is_compiling():
        node = traced(q, k, v, score, mask, weigh, value, dropout, seed, start, engine)
        return node if node is not None else _outside(q, k, v, score, mask, weigh, value, dropout, seed, start, engine)
    if not listeners():
        return _now(q, k, v, score, mask, weigh, value, dropout, seed, start, engine)
    told = _told(q, k, v, score, mask, weigh, value, start)
    output = _now(q, k, v, score, mask, weigh, value, dropout, seed, start, engine)
    for then in told:
        output = then(output)
    return output


def _told(
    q: Any, k: Any, v: Any, score: Any, mask: Any, weigh: Any, value: Any, start: Any
) -> list[Callable[[Any], Any]]:
    """Tells who listens what weights and the answer without dropout follow from; what is to be told the answer, and may
    change it."""
    asked = {"q": q, "k": k, "v": v, "score": score, "mask": mask, "weigh": weigh, "value": value, "start": start}
    return [listener(asked) for listener in listeners()]


def _now(
    q: Any,
    k: Any,
    v: Any,
    score: Any,
    mask: Any,
    weigh: Any,
    value: Any,
    dropout: float,
    seed: int | None,
    start: Any,
    engine: str | None,
) -> Any:
    """`attention` outside of any graph."""
    plain = weigh is None and value is None and start is None and engine is None
    # by type, not by truth: None, [] and "x" are refused on a repeated call as well
    plain = plain and (type(dropout) is float or type(dropout) is int) and not dropout
    plain = plain and (seed is None or type(seed) is int)
    if plain and (known := repeated(q, k, v, score, mask)) is not None:
        return known
    question = read(q, k, v, score=score, mask=mask, weigh=weigh, value=value, dropout=dropout, seed=seed, start=start)
    plan = choose(question.spec, IN_ORDER, engine)
    output, _, _, inputs = answer(question, plan)
    if plain and plan.engine == NATIVE.name:
        remember(q, k, v, score, mask, lambda: NATIVE.repeated(plan.spec, inputs, plan.tiles))
    return question.shaped(output)


_outside = runs_eagerly(_now, NO_NAME)


@runs_eagerly
def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    engine: str | None = None,
) -> Attended:
    """The same as `attention`, kept open: `.output`, `.weights` (any part, on request), `.lse`, `.plan`.

    >>> import torch
    >>> q = torch.eye(2)
    >>> attend(q, q, q).weights[0].tolist()
    [0.6697615385055542, 0.3302384614944458]
    """
    told = _told(q, k, v, score, mask, weigh, value, start)
    question = read(q, k, v, score=score, mask=mask, weigh=weigh, value=value, dropout=dropout, seed=seed, start=start)
    plan = choose(question.spec, IN_ORDER, engine)
    output, statistic, ran, inputs = answer(question, plan)
    exact = torch.float64 if plan.spec.dtype == torch.float64 else torch.float32
    shaped = None if statistic is None else question.shaped(statistic.to(exact))
    matrix = partial(_matrix, ran, inputs, statistic)
    weights = Weights(question, plan, inputs, statistic, matrix, partial(_parts, ran))
    given = question.shaped(output)
    for then in told:
        given = then(given)
    return Attended(given, weights, question.seed, shaped)


@runs_eagerly
def explain(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    engine: str | None = None,
) -> Plan:
    """What would run, why, and what it costs; nothing is computed. q, k, v may be shapes alone.

    >>> print(explain((8, 4096, 64), (8, 4096, 64), (8, 4096, 64), engine="tiled").engine)
    tiled
    """
    question = read(q, k, v, score=score, mask=mask, weigh=weigh, value=value, dropout=dropout, seed=seed, start=start)
    plan = choose(question.spec, IN_ORDER, engine)
    return plan.covering(blocks(question.spec, question.captured(), question.start, plan.tiles))


def _matrix(plan: Plan, inputs: Inputs, statistic: Tensor | None) -> Matrix:
    """What any weight follows from."""
    return matrix_of(_engine(plan), plan.spec, inputs, plan.tiles, statistic)


def _parts(plan: Plan, matrix: Matrix) -> Parts:
    """Who computes parts of the matrix of weights."""
    found = None
    if plan.engine == NATIVE.name and matrix.statistic is not None:
        found = NATIVE.parts(matrix.spec, matrix.inputs, plan.tiles, matrix.statistic)
    return found or PartsByTorch(matrix, TILED.tiles(matrix.spec))


def _engine(plan: Plan) -> Engine:
    return next(e for e in IN_ORDER if e.name == plan.engine)


def answer(
    question: Question, plan: Plan, n_k: int | Tensor | None = None, places: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor | None, Plan, Inputs]:
    """Output (batch, heads, n_q, width), row statistic, and what the engine was asked in the end and given.

    `n_k` is the number of keys a weighing counts, where it differs by query; `places` where queries and keys stand, if
    not where they lie.
    """
    engine = _engine(plan)
    with without_autocast(question.q.device.type):
        plan, inputs = asked(question, plan, engine)
        output, statistic = run(engine, spec_to_run(question, plan), plan.tiles, inputs)
        return finished(question, plan, inputs, output, statistic, n_k, places), statistic, plan, inputs


def asked(question: Question, plan: Plan, engine: Engine) -> tuple[Plan, Inputs]:
    """What the engine is asked and given. Where rows and columns are normalised in turn, all passes but the last are
    over then."""
    inputs = question.inputs(engine.exact)
    if question.weigh.iterations == 1:
        return plan, inputs
    spec, inputs = balanced(engine, plan.spec, inputs, question.weigh.iterations)
    return replace(plan, spec=spec), inputs


def spec_to_run(question: Question, plan: Plan) -> Spec:
    """The spec that the engine runs: where a factor follows, the output is rounded after the factor, not before."""
    spec = plan.spec
    return spec if question.weigh.factor is None else replace(spec, dtype=spec.precision)


def finished(
    question: Question,
    plan: Plan,
    inputs: Inputs,
    output: Tensor,
    statistic: Tensor | None,
    n_k: int | Tensor | None = None,
    places: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """What an engine gave, with what is done to it afterwards: relative values, the factor of a weighing."""
    if question.relative_values is not None:
        output = output + relative_output(Matrix(plan.spec, inputs, statistic), question.relative_values, places)
    if question.weigh.factor is not None:
        share = question.weigh.factor(statistic, plan.spec.n_k if n_k is None else n_k)
        # in the precision of the sums: the gradient of a learned factor is a sum over all rows
        output = output.to(torch.promote_types(output.dtype, plan.spec.precision)) * (
            share.unsqueeze(-1) if isinstance(share, Tensor) and share.dim() else share
        )
    return output.to(plan.spec.dtype)
