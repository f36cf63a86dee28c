"""`attention`, `attention_with_weights` and `explain`: the three ways to call regard.

A call is parsed, planned and executed:

    AttentionCall --parse_call--> ParsedCall --choose_backend--> Plan --execute--> Execution
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from regard.backends.execute import execute
from regard.backends.fast_path import run_stored_call, store_fast_call
from regard.backends.registry import BACKENDS, BACKENDS_BY_NAME, FAST_PATH_BACKENDS, weight_tile_source
from regard.backends.shared.thresholds import weight_inputs
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.hooks import active_hooks
from regard.mask import MaskLike
from regard.normalizer import NormalizerLike
from regard.plan.choose import Plan, choose_backend
from regard.plan.tiling import call_coverage
from regard.result import AttentionResult
from regard.score import ScoreLike, ValueLike
from regard.tensors.convert import Array
from regard.torch_ops.compile_guard import disable_compile
from regard.torch_ops.compile_lowering import NOT_SERIALIZABLE_MESSAGE, emit_graph_node
from regard.weights import AttentionWeights

QueryOffsetLike = int | Sequence[int] | Tensor | np.ndarray[Any, Any]
ShapeOrArray = tuple[int, ...] | Tensor | np.ndarray[Any, Any]


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `attention`."""

    score: ScoreLike | None
    mask: MaskLike | None
    normalizer: NormalizerLike | None
    value: ValueLike | None
    dropout: float
    seed: int | None
    query_offset: QueryOffsetLike | None
    backend: str | None


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: QueryOffsetLike | None = None,
    backend: str | None = None,
) -> Array:
    """Compute attention exactly, in memory linear in the sequence length: o_i = sum_j a_ij v_j.

    By default the weights are a = softmax(q·k/√d), as in `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        q: Queries of shape (..., num_heads, n_q, head_dim). A 3-D q is (batch, n_q, head_dim) with one head; a 2-D q is
            (n_q, head_dim).
        k: Keys of shape (..., num_kv_heads, n_k, head_dim). num_kv_heads must divide num_heads.
        v: Values of shape (..., num_kv_heads, n_k, value_dim).
        score: How queries and keys are compared: a score of `regard.score`, or a function (s, b, h, i, j) that modifies
            the default score. Default: q·k/√head_dim.
        mask: Which keys each query may attend to: a mask of `regard.mask`, a boolean tensor (True = may attend), or a
            function (b, h, i, j). Default: all keys.
        normalizer: How scores become weights: one of `regard.normalizer`. Default: softmax.
        value: A function applied to v, or `regard.score.shaw_values`. Default: none.
        dropout: The probability of dropping a weight. Default: 0.
        seed: The seed that determines which weights are dropped. Default: a new one in each call.
        query_offset: The position of the first query among the keys, one integer or one per batch element.
            Default: n_k - n_q, so that the last query is at the last key.
        backend: The name of a backend (see `regard.available_backends`). Default: the first that supports the call.

    Returns:
        The output of shape (..., num_heads, n_q, value_dim), a NumPy array if q is one.

    >>> import torch
    >>> q = torch.eye(2)
    >>> attention(q, q, torch.tensor([[1.0], [0.0]]), mask=lambda b, h, i, j: j <= i)
    tensor([[1.0000],
            [0.3302]])
    """
    call = AttentionCall(q, k, v, score, mask, normalizer, value, dropout, seed, query_offset, backend)
    output: Array
    if torch.compiler.is_compiling():
        node: Any = emit_graph_node(call)
        output = _graph_break(call) if node is None else node
        return output
    hooks = active_hooks.get()
    callbacks = [hook(call) for hook in hooks] if hooks else ()
    output = _run(call)
    for callback in callbacks:
        output = callback(output)
    return output


def _run(call: AttentionCall) -> Any:
    output = run_stored_call(call)
    if output is not None:
        return output
    parsed = parse_call(call)
    execution = execute(parsed, choose_backend(parsed.spec, BACKENDS, call.backend))
    plan, inputs = execution.plan, execution.inputs
    backend = FAST_PATH_BACKENDS.get(plan.backend)
    if backend is not None:
        store_fast_call(call, lambda: backend.make_fast_call(plan.spec, inputs, plan.tiling))
    return parsed.restore_shape(execution.output)


_graph_break = disable_compile(_run, NOT_SERIALIZABLE_MESSAGE)


@disable_compile
def attention_with_weights(
    q: Array,
    k: Array,
    v: Array,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: QueryOffsetLike | None = None,
    backend: str | None = None,
) -> AttentionResult[Array]:
    """Compute attention and return it with its weights, which are computed when they are indexed or measured.

    The arguments are those of `attention`. The result has the attributes `output`, `weights`, `lse`, `statistic`,
    `plan` and `seed`. Any row, tile or measure of the weights is exact, at any length.

    >>> import torch
    >>> q = torch.eye(2)
    >>> attention_with_weights(q, q, q).weights[0].tolist()
    [0.6697615385055542, 0.3302384614944458]
    """
    call = AttentionCall(q, k, v, score, mask, normalizer, value, dropout, seed, query_offset, backend)
    callbacks = [hook(call) for hook in active_hooks.get()]
    parsed = parse_call(call)
    output, _, statistic, plan, softmax_plan, inputs = execute(parsed, choose_backend(parsed.spec, BACKENDS, backend))
    make_inputs = partial(
        weight_inputs, BACKENDS_BY_NAME[plan.backend], softmax_plan.spec, inputs, plan.tiling, statistic
    )
    weights = AttentionWeights(parsed, plan, inputs, statistic, make_inputs, partial(weight_tile_source, softmax_plan))
    exact = torch.float64 if plan.spec.dtype == torch.float64 else torch.float32
    row_statistic = None if statistic is None else parsed.restore_shape(statistic.to(exact))
    result = parsed.restore_shape(output)
    for callback in callbacks:
        result = callback(result)
    return AttentionResult(result, weights, parsed.seed, row_statistic)


@disable_compile
def explain(
    q: ShapeOrArray,
    k: ShapeOrArray,
    v: ShapeOrArray,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: QueryOffsetLike | None = None,
    backend: str | None = None,
) -> Plan:
    """Return the plan of a call: the backend, why the others do not run, the tiles and the cost. Nothing is computed.

    The arguments are those of `attention`; q, k and v may also be shapes. Print the plan to read it, or
    `plan.report(debug=True)` to list the caches as well.

    >>> explain((8, 4096, 64), (8, 4096, 64), (8, 4096, 64), backend="tiled").backend
    'tiled'
    """
    call = AttentionCall(q, k, v, score, mask, normalizer, value, dropout, seed, query_offset, backend)
    parsed = parse_call(call)
    plan = choose_backend(parsed.spec, BACKENDS, backend)
    coverage = call_coverage(parsed.spec, parsed.captured_tensors(), parsed.query_offset, plan.tiling)
    return plan.with_coverage(coverage)
