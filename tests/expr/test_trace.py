"""Tracing: traced functions agree with torch.vmap, and errors name the line that cannot be traced."""

import functools
import math
import random
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import and_masks, create_block_mask, noop_mask, or_masks

from regard import mask
from regard.errors import TraceError
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import Expr, apply, constant, lookup, variable
from regard.expr.printing import to_text
from regard.expr.trace import MASK_VARIABLES, SCORE_VARIABLES, TraceResult, trace

BATCH, HEADS, QUERIES, KEYS = 2, 3, 7, 9
B, H, I, J, S = (variable(name) for name in "bhijs")

doc = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3])
docs = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 3, 3], [0, 1, 1, 1, 1, 1, 2, 2, 2]])
table = torch.arange(HEADS * KEYS).view(HEADS, KEYS) % 5 - 2
cube = torch.arange(BATCH * HEADS * KEYS).view(BATCH, HEADS, KEYS) % 7
slopes = torch.tensor([0.5, 0.25, 0.125])
parameter = nn.Parameter(torch.linspace(-1, 1, 9))
embedding = nn.Embedding(9, 2)
lengths = torch.tensor([4, 8])
flags = torch.tensor([True, False, True, True, False, True, False, True, True])
limit = torch.tensor(3)
bias = torch.linspace(-1, 1, HEADS * 17).view(HEADS, 17)
numbers = np.array([1, 2, 3])


def vmap_reference(function: Callable[..., Any], *, score: Tensor | None = None) -> Tensor:
    """Evaluate the function at every position with torch.vmap."""
    indices = [torch.arange(n) for n in (BATCH, HEADS, QUERIES, KEYS)]
    prefix = () if score is None else (0,)
    for n in range(3, -1, -1):
        function = torch.vmap(function, in_dims=(*prefix, *(0 if n == m else None for m in range(4))))
    with TransformGetItemToIndex(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # from vmap
        return function(*(() if score is None else (score,)), *indices)


def evaluate(traced: TraceResult, score: Tensor | None = None) -> Tensor:
    grid = IndexGrid(
        *(range(n) for n in (BATCH, HEADS, QUERIES, KEYS)),
        query_offset=0,
        n_q=QUERIES,
        n_k=KEYS,
        device=torch.device("cpu"),
    )
    evaluator = Evaluator(traced.tensors, grid, score, None if score is None else score.dtype)
    value = evaluator.mask_value(traced.expr) if score is None else evaluator.score_value(traced.expr)
    return value.expand(grid.shape)


def in_place_arithmetic(b: Any, h: Any, i: Any, j: Any) -> Any:
    i += 2
    i -= j
    i *= 3
    return i > 4


def loop(b: Any, h: Any, i: Any, j: Any) -> Any:
    total = torch.zeros_like(i)
    for step in (1, 2, 4):
        total = total + (i % (step + 1) == j % (step + 1))
    return total >= 2


MASKS: dict[str, Callable[..., Any]] = {
    "comparisons": lambda b, h, i, j: (i >= j) & (i != 3) | (j < 2) & (i == j + 1) | (i <= 1) & (j > 7),
    "numbers on the left": lambda b, h, i, j: (3 <= i) & (5 > j) | (4 == i) & (4 != j) | (1 >= i) & (6 < j),  # noqa: SIM300
    "sums": lambda b, h, i, j: 3 - i + 2 * j - -1 > i + j - 4,
    "a NumPy number": lambda b, h, i, j: np.int64(3) + i > j * np.int32(2),
    "a NumPy float": lambda b, h, i, j: i * np.float32(0.5) >= j - np.float64(1.5),
    "divisions": lambda b, h, i, j: (i - 5) // 3 + (j - 4) % 3 >= 20 // (i + 1) - 7 % (j + 1),
    "a float division": lambda b, h, i, j: i / 3 >= 2 / (j + 1),
    "powers": lambda b, h, i, j: i**2 + 2**j > 20,
    "bits": lambda b, h, i, j: ((i & 3) ^ (j | 1)) > 2,
    "shifts": lambda b, h, i, j: (i >> 1) + (j << 2) > 10,
    "shifts of numbers": lambda b, h, i, j: ((0b1011011 >> j) & 1) + (1 << (i % 3)) > 2,
    "a shifted tensor": lambda b, h, i, j: ((doc[i] << 1) >> (j % 2)) > torch.tensor(1) << (i % 2),
    "inverted bits": lambda b, h, i, j: ~i + j > 0,
    "inverted booleans": lambda b, h, i, j: ~(i >= j) ^ (j > 4),
    "absolute value": lambda b, h, i, j: (abs(i - j) <= 2) | ((i - j).abs() == 4) | (torch.abs(j - 2 * i) == 3),
    "signs": lambda b, h, i, j: -(i - j) + torch.sign(i - j) + (+i) > torch.neg(j),
    "rounding": lambda b, h, i, j: torch.floor(i / 2) + torch.ceil(j / 2) + torch.round(j / 3) >= torch.trunc(i / 1.5),
    "division with a rounding mode": lambda b, h, i, j: (
        torch.div(i - 4, 3, rounding_mode="floor") + torch.div(j - 6, 2, rounding_mode="trunc") > -2
    ),
    "division by name": lambda b, h, i, j: torch.floor_divide(i, 2) + torch.remainder(j, 3) > torch.true_divide(i, 3),
    "where": lambda b, h, i, j: torch.where(i > j, i - j, j) > 2,
    "where with numbers": lambda b, h, i, j: torch.where(i > j, 1, 0) == torch.where(j > 4, 0, 1),
    "where as a method": lambda b, h, i, j: i.where(i > j, j) > 3,
    "clamped": lambda b, h, i, j: torch.clamp(i - j, -2, 2) + (i - j).clamp(min=0) + torch.clamp(j, max=3) > 2,
    "clipped": lambda b, h, i, j: torch.clip(i - j, min=-1, max=1) == 1,
    "minimum": lambda b, h, i, j: torch.minimum(i, j) + torch.maximum(i, j - 2) > 5,
    "max and min": lambda b, h, i, j: torch.max(i, j) - torch.min(i, j) <= 2,
    "logic by name": lambda b, h, i, j: torch.logical_or(
        torch.logical_and(i > j, j > 1), torch.logical_xor(i == 0, torch.logical_not(j > 3))
    ),
    "logic of numbers": lambda b, h, i, j: torch.logical_and(i, j) | torch.logical_not(i + j),
    "zeros_like": lambda b, h, i, j: (torch.zeros_like(i) + torch.ones_like(j) * 2 + torch.full_like(i, 3)) > j,
    "isin": lambda b, h, i, j: torch.isin(j, torch.tensor([1, 4, 7])) | torch.isin(i, torch.tensor([0])),
    "isin, inverted": lambda b, h, i, j: torch.isin(j, torch.tensor([1, 4, 7]), invert=True),
    "isin of nothing": lambda b, h, i, j: torch.isin(j, torch.tensor([], dtype=torch.int64)) | (i < 3),
    "truncated quotients": lambda b, h, i, j: (
        torch.div(i - j, 3, rounding_mode="trunc") + torch.div(j - i, -2, rounding_mode="trunc") >= -1
    ),
    "truncated quotients of large integers": lambda b, h, i, j: (
        torch.div((i - j) * (2**25 + 1) - 1, 2**25 + 1, rounding_mode="trunc") == 2
    ),
    "truncated quotients of floats": lambda b, h, i, j: torch.div((i - j) * 0.5, 2.0, rounding_mode="trunc") == -1,
    "masked_fill as a method": lambda b, h, i, j: (i - j).masked_fill(j > 5, 7) > 1,
    "masked_fill": lambda b, h, i, j: torch.masked_fill(i - j, j > 5, 7) > 1,
    "casts": lambda b, h, i, j: (i / 2).long() + (j / 2).int() + (i > j).long() > (j.float() / 3).to(torch.int64),
    "casts by dtype": lambda b, h, i, j: i.to(torch.float32) / 2 > j.to(dtype=torch.float64) - i.double(),
    "casts to bool": lambda b, h, i, j: (i - j).bool() & j.to(torch.bool),
    "sums of booleans": lambda b, h, i, j: (i > j) + (j > 2) * 2 - (i == 3) >= 1,
    "elementary functions": lambda b, h, i, j: (
        torch.exp(-i / 4) + torch.tanh(j / 5) + torch.sqrt(i + 1.0) + torch.sigmoid(j - 3.0) + torch.cos(i * 1.0) > 2.5
    ),
    "more elementary functions": lambda b, h, i, j: (
        torch.log(i + 1.5) + torch.sin(j * 0.7) + torch.exp2(-j / 3) + torch.log2(j + 2.0) + torch.log1p(i * 1.0) > 3.1
    ),
    "torch functions": lambda b, h, i, j: (
        torch.add(i, j, alpha=2) > torch.sub(torch.mul(i, 3), j, alpha=3)
    ) & torch.gt(i, 0) & torch.le(j, 7) & torch.ne(i, 5),
    "long names of torch functions": lambda b, h, i, j: torch.greater_equal(torch.multiply(i, 2), torch.subtract(j, 1))
    & torch.not_equal(torch.negative(i), torch.absolute(j)),
    "squares": lambda b, h, i, j: torch.square(i - j) < torch.reciprocal(j + 1.0) * 20 + torch.rsqrt(i + 1.0),
    "relu": lambda b, h, i, j: torch.relu(i - j) + nn.functional.relu(j - i) > 2,
    "document ids": lambda b, h, i, j: doc[i] == doc[j],
    "document ids per batch element": lambda b, h, i, j: docs[b, i] == docs[b, j],
    "document ids, one index at a time": lambda b, h, i, j: docs[b][i] == docs[b][j],
    "a number and a position": lambda b, h, i, j: docs[0, i] == docs[1][j],
    "three indices": lambda b, h, i, j: cube[b, h, j] + cube[b][h][i] + cube[b, h][j] + cube[b][h, i] > 12,
    "a sliced table": lambda b, h, i, j: table[:, i][h] > table[:, j][h],
    "an ellipsis": lambda b, h, i, j: cube[..., j][b, h] > cube[b, ..., i][h],
    "negative indices": lambda b, h, i, j: doc[i - j] > doc[-1 - j],
    "nested lookups": lambda b, h, i, j: doc[doc[i] + doc[j]] > table[h, doc[j]],
    "a parameter": lambda b, h, i, j: parameter[i] < parameter[j] + 0.4,
    "an embedding": lambda b, h, i, j: embedding(i)[0] > embedding(j)[1],
    "a boolean table": lambda b, h, i, j: flags[i] & flags[j] | ~flags[j] & (i > 2),
    "a scalar tensor": lambda b, h, i, j: (i - j <= limit) & (limit > j - i) & (limit + i > limit * j - 9),
    "a tensor on the left": lambda b, h, i, j: (doc[i] + i >= j) & (torch.tensor(6) >= i) & (limit + 2 - i > j - 7),
    "padding": lambda b, h, i, j: j < lengths[b],
    "a loop": loop,
    "and_masks": and_masks(lambda b, h, i, j: i >= j, lambda b, h, i, j: i - j < 4),
    "or_masks": or_masks(lambda b, h, i, j: i < j, lambda b, h, i, j: (i - j) % 3 == 0),
    "noop_mask": noop_mask,
    "and_masks in or_masks": or_masks(and_masks(noop_mask, lambda b, h, i, j: i == j), lambda b, h, i, j: j == 0),
    "new tensors": lambda b, h, i, j: (b.new_ones((), dtype=torch.int64) * 3 > j) | (i.new_full((), 2) == i),
    "a partial": functools.partial(lambda width, b, h, i, j: (i - j).abs() < width, 3),
    "the head": lambda b, h, i, j: (i - j) % (h + 2) == b,
}  # fmt: skip

SCORES: dict[str, Callable[..., Any]] = {
    "identity": lambda s, b, h, i, j: s,
    "alibi": lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(),
    "softcap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    "relative bias": lambda s, b, h, i, j: s + bias[h, i - j + 8],
    "exponential decay": lambda s, b, h, i, j: s * torch.exp(-0.1 * (i - j).abs()),
    "where": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "masked_fill as a method": lambda s, b, h, i, j: s.masked_fill(i < j, -1e9),
    "zeros_like the score": lambda s, b, h, i, j: torch.where(s > 0, s, torch.zeros_like(s)) + torch.ones_like(s),
    "clamped": lambda s, b, h, i, j: s.clamp(-1, 1) + torch.clamp(s, max=0.5),
    "powers": lambda s, b, h, i, j: s**2 - 2.0 ** s + 3 / (s * s + 1) + s.abs().sqrt() + s.square(),
    "activations": lambda s, b, h, i, j: torch.relu(s) + torch.sigmoid(s) + nn.functional.softplus(s) + s.tanh(),
    "log1p and expm1": lambda s, b, h, i, j: torch.log1p(s * s) + torch.expm1(s) + torch.special.expit(s),
    "a parameter": lambda s, b, h, i, j: s * parameter[j] + parameter[i],
    "a cast": lambda s, b, h, i, j: s + (i > j).to(s.dtype) + (i - j).float() / 8 + (i - j).type_as(s),
    "modulo": lambda s, b, h, i, j: s % 1.5 + torch.remainder(s, 0.7) + s // 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_traced_mask_agrees_with_vmap(name: str) -> None:
    expected = vmap_reference(MASKS[name]).bool().expand(BATCH, HEADS, QUERIES, KEYS)
    actual = evaluate(trace(MASKS[name], MASK_VARIABLES)).bool()
    assert torch.equal(actual, expected)
    assert name == "noop_mask" or 0 < expected.sum() < expected.numel()  # otherwise the test could not fail


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SCORES)
def test_traced_score_agrees_with_vmap(name: str, dtype: torch.dtype) -> None:
    score = torch.randn(BATCH, HEADS, QUERIES, KEYS, dtype=dtype) * 2
    expected = vmap_reference(SCORES[name], score=score).expand(score.shape).to(dtype)
    actual = evaluate(trace(SCORES[name], SCORE_VARIABLES), score)
    # vmap keeps some intermediate results in float32 that are float64 here
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=2e-6)


def test_symbol_supports_in_place_arithmetic() -> None:
    """vmap cannot write to an index in place, so the reference is out of place."""
    expected = vmap_reference(lambda b, h, i, j: (i + 2 - j) * 3 > 4).expand(BATCH, HEADS, QUERIES, KEYS)
    assert torch.equal(evaluate(trace(in_place_arithmetic, MASK_VARIABLES)), expected)


def test_python_rounding_equals_torch_rounding() -> None:
    """Tensors have no `__round__`, so vmap is no reference; both round half to even."""
    function = lambda b, h, i, j: round(i / 2) + math.floor(j / 2) + math.ceil(j / 3) > math.trunc(i / 2)
    torch_function = lambda b, h, i, j: torch.round(i / 2) + torch.floor(j / 2) + torch.ceil(j / 3) > torch.trunc(i / 2)
    assert trace(function, MASK_VARIABLES).expr is trace(torch_function, MASK_VARIABLES).expr


def test_mask_mod_of_a_block_mask_can_be_traced() -> None:
    block = create_block_mask(lambda b, h, i, j: doc[i] == doc[j], 1, 1, 9, 9, device="cpu")
    traced = trace(block.mask_mod, MASK_VARIABLES)
    assert traced.expr is apply("eq", lookup(0, (I,), "int"), lookup(0, (J,), "int"))


def test_trace_returns_the_expression() -> None:
    assert trace(lambda b, h, i, j: j <= i, MASK_VARIABLES) == (apply("le", J, I), (), ())
    assert trace(lambda s, b, h, i, j: s * 2, SCORE_VARIABLES).expr is apply("mul", S, constant(2))
    assert trace(lambda s, b, h, i, j: 7, SCORE_VARIABLES).expr is constant(7)


@pytest.mark.parametrize("make", [torch.tensor, np.float32, float])
def test_function_may_return_a_number(make: Callable[[float], Any]) -> None:
    traced = trace(lambda s, b, h, i, j: make(2.5), SCORE_VARIABLES)
    assert evaluate(traced, torch.zeros(BATCH, HEADS, QUERIES, KEYS)).eq(2.5).all()


def test_each_tensor_is_captured_once_under_its_variable_name() -> None:
    ids = torch.arange(9)
    traced = trace(lambda b, h, i, j: (ids[i] == ids[j]) & (doc[i] == doc[j]) & (table[h, i] > ids[j]), MASK_VARIABLES)
    assert [id(t) for t in traced.tensors] == [id(ids), id(doc), id(table)]
    assert traced.tensor_names == ("ids", "doc", "table")
    assert to_text(traced.expr, traced.tensor_names) == "ids[i] == ids[j] and doc[i] == doc[j] and table[h, i] > ids[j]"


def test_sliced_tensor_keeps_the_name_of_its_base() -> None:
    traced = trace(lambda b, h, i, j: table[:, i][h] > 0, MASK_VARIABLES)
    assert traced.tensor_names == ("table",)
    assert traced.tensors[0].shape == (KEYS, HEADS)


def test_tensor_without_a_variable_name_is_numbered() -> None:
    tables = {"first": torch.arange(9)}
    traced = trace(lambda b, h, i, j: tables["first"][i] > j, MASK_VARIABLES)
    assert traced.tensor_names == ("t0",)


def test_parameter_is_captured_without_a_copy() -> None:
    traced = trace(lambda s, b, h, i, j: s + parameter[j], SCORE_VARIABLES)
    assert traced.tensors[0] is parameter
    (weight,) = trace(lambda b, h, i, j: embedding(i)[0] > 0, MASK_VARIABLES).tensors
    assert weight is embedding.weight


def test_bound_method_and_callable_object_can_be_traced() -> None:
    class Window:
        def __init__(self) -> None:
            self.width = 3

        def near(self, b: Any, h: Any, i: Any, j: Any) -> Any:
            return abs(i - j) < self.width

        __call__ = near

    near = apply("lt", apply("abs", apply("sub", I, J)), constant(3))
    assert trace(Window().near, MASK_VARIABLES).expr is near
    assert trace(Window(), MASK_VARIABLES).expr is near


def test_python_branch_on_a_constant_is_resolved_while_tracing() -> None:
    def traced_expr(causal: bool) -> Expr:
        return trace(lambda b, h, i, j: i >= j if causal else i == i, MASK_VARIABLES).expr

    assert traced_expr(True) is apply("ge", I, J)


def test_symbol_has_the_attributes_of_a_scalar_tensor() -> None:
    attributes: dict[str, Any] = {}

    def function(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        attributes.update(
            shape=s.shape, dim=i.dim(), numel=j.numel(), device=b.device, kinds=(s.dtype, i.dtype, (i > j).dtype)
        )
        return s.contiguous().clone().detach() + i.size().numel() + s.ndim

    trace(function, SCORE_VARIABLES)
    assert attributes["shape"] == torch.Size(()) and attributes["dim"] == 0 and attributes["numel"] == 1
    assert attributes["device"] == torch.device("cpu") and attributes["kinds"] == (
        torch.float32,
        torch.int64,
        torch.bool,
    )


def branching(b: Any, h: Any, i: Any, j: Any) -> Any:
    if i > j:
        return j > 2
    return j > 3


def joined_by_and(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i > j and j > 2


def negated(b: Any, h: Any, i: Any, j: Any) -> Any:
    return not i > j


def chained(b: Any, h: Any, i: Any, j: Any) -> Any:
    return 0 <= i < j


def least(b: Any, h: Any, i: Any, j: Any) -> Any:
    return min(i, j) > 2


def contained(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j in (1, 2, 3)


def conditional(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i if i > j else j


def asserting(b: Any, h: Any, i: Any, j: Any) -> Any:
    assert i >= 0
    return i > j


DECISIONS = [branching, joined_by_and, negated, chained, least, contained, conditional, asserting]


@pytest.mark.parametrize("function", DECISIONS, ids=lambda f: f.__name__)
def test_python_control_flow_raises_error_with_the_line(function: Callable[..., Any]) -> None:
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(TraceError, match="a symbol has no value while the function is traced") as error:
        trace(function, MASK_VARIABLES)
    message = str(error.value)
    assert f"{function.__name__}(b, h, i, j) could not be traced" in message
    assert f"{__file__}:{line}: " in message
    assert "torch.where" in message


@pytest.mark.parametrize(
    ("variables", "alternative"),
    [
        (MASK_VARIABLES, r"pass a boolean tensor\."),
        (SCORE_VARIABLES, r"use score\.bias\(tensor\), or score\.custom\(fn\)"),
    ],
    ids=["mask", "score"],
)
def test_error_names_an_alternative(variables: Sequence[str], alternative: str) -> None:
    with pytest.raises(TraceError, match=f"For anything else, {alternative}"):
        trace(lambda *arguments: arguments[-1].item(), variables)


def nested(b: Any, h: Any, i: Any, j: Any) -> Any:
    def inner(x: Any) -> Any:
        return x.item()

    return inner(i) > j


def test_error_names_the_innermost_line() -> None:
    with pytest.raises(TraceError, match="a symbol has no value") as error:
        trace(nested, MASK_VARIABLES)
    assert f"{__file__}:{nested.__code__.co_firstlineno + 2}: return x.item()" in str(error.value)


INVALID: dict[str, tuple[Callable[..., Any], str]] = {
    "item": (lambda b, h, i, j: i.item() > 2, "a symbol has no value while the function is traced"),
    "int": (lambda b, h, i, j: int(i) > 2, "a symbol has no value"),
    "float": (lambda b, h, i, j: float(i) > 2, "a symbol has no value"),
    "tolist": (lambda b, h, i, j: i.tolist() > 2, "a symbol has no value"),
    "numpy": (lambda b, h, i, j: i.numpy() > 2, "a symbol has no value"),
    "a list": (lambda b, h, i, j: [1, 2, 3][i] > j, "a symbol has no value"),
    "a range": (lambda b, h, i, j: sum(range(i)) > j, "a symbol has no value"),
    "math": (lambda b, h, i, j: math.sqrt(i) > j, "a symbol has no value"),
    "a NumPy array": (lambda b, h, i, j: numbers[i] > j, "could not be traced"),
    "a NumPy function": (lambda b, h, i, j: np.exp(i) > j, "could not be traced"),
    "a dictionary": (lambda b, h, i, j: {0: 1}[i] > j, "KeyError"),
    "torch.tensor": (lambda b, h, i, j: torch.tensor(i) > j, "could not be traced"),
    "iteration": (lambda b, h, i, j: list(i), "a symbol has no value"),
    "length": (lambda b, h, i, j: len(i) > 2, "a symbol has no value"),
    "an index of a position": (lambda b, h, i, j: i[0] > j, "a symbol is a scalar and cannot be indexed"),
    "an unknown function": (
        lambda b, h, i, j: torch.cumsum(i, 0) > j,
        r"torch\.cumsum is not supported in a mask or score function",
    ),
    "another unknown function": (lambda b, h, i, j: torch.lgamma(i + 1.0) > j, r"torch\.lgamma is not supported"),
    "an unindexed tensor": (
        lambda b, h, i, j: doc > i,
        r"a tensor of shape \(9,\) is used without indices; index it with b, h, i or j",
    ),
    "a partially indexed tensor": (
        lambda b, h, i, j: table[h] > i,
        r"a tensor of shape \(3, 9\) is used with 1 of 2 indices; index every dimension",
    ),
    "a function of a partially indexed tensor": (
        lambda b, h, i, j: torch.sum(table[h]) > i,
        r"torch\.sum is applied to a tensor with unindexed dimensions",
    ),
    "too many indices": (lambda b, h, i, j: doc[i, j] > 0, "a tensor with 1 dimensions has 2 indices"),
    "a float index": (lambda b, h, i, j: doc[i / 2] > 0, r"an index must be an integer; use \.long\(\) or //"),
    "a boolean index": (lambda b, h, i, j: doc[i > j] > 0, "an index must be an integer"),
    "a partial slice": (
        lambda b, h, i, j: table[1:, i][h] > 0,
        "an index of a captured tensor must be an integer expression or a full slice",
    ),
    "a new dimension": (
        lambda b, h, i, j: doc[None, i] > 0,
        "an index of a captured tensor must be an integer expression or a full slice",
    ),
    "complex numbers": (
        lambda b, h, i, j: torch.zeros(9, dtype=torch.complex64)[i] == 0,
        "a captured tensor must be real; got a complex one",
    ),
    "a result of None": (lambda b, h, i, j: None, "a NoneType cannot be part of an expression"),
    "a string as the result": (lambda b, h, i, j: "visible", "a str cannot be part of an expression"),
    "a tensor as the result": (lambda b, h, i, j: doc, r"a tensor of shape \(9,\) is used without indices"),
    "a wrong number of arguments": (lambda i, j: i > j, r"TypeError: .* takes 2 positional arguments but 4 were given"),
    "an error in the function": (lambda b, h, i, j: 1 // 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_function_raises_error_with_reason_and_line(name: str) -> None:
    function, reason = INVALID[name]
    with pytest.raises(TraceError, match=reason) as error:
        trace(function, MASK_VARIABLES)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(error.value)


def test_trace_error_is_a_type_error_without_internal_frames() -> None:
    with pytest.raises(TypeError, match="branching") as error:
        trace(branching, MASK_VARIABLES)
    assert error.value.__suppress_context__


def draws_a_tensor(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (torch.rand(9)[j] > 0.5)


def draws_a_scalar(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (torch.rand(()) < 0.5)


def draws_in_python(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i - j < random.randint(1, 2)


def draws_in_numpy(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i - j < np.random.randint(1, 3)


def reads_the_clock(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i - j < time.perf_counter_ns()


calls = 0


def counts_its_calls(b: Any, h: Any, i: Any, j: Any) -> Any:
    global calls
    calls += 1
    return docs[calls % 2][i] > j


NONDETERMINISTIC = [draws_a_tensor, draws_a_scalar, draws_in_python, draws_in_numpy, reads_the_clock, counts_its_calls]


@pytest.mark.parametrize("function", NONDETERMINISTIC, ids=lambda f: f.__name__)
def test_nondeterministic_function_raises_error(function: Callable[..., Any]) -> None:
    for seed in range(6):  # with some seeds both calls draw the same number
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        with pytest.raises(
            TraceError, match=f"{function.__name__}, defined at .*{function.__code__.co_firstlineno}, gave two"
        ):
            trace(function, MASK_VARIABLES)


def test_function_that_creates_an_equal_tensor_each_time_is_deterministic() -> None:
    traced = trace(lambda b, h, i, j: torch.tensor([1.0, float("nan"), 3.0] * 3)[j] > 0, MASK_VARIABLES)
    assert evaluate(traced)[0, 0, 0].int().tolist() == [1, 0, 1] * 3
    view = trace(lambda b, h, i, j: docs.T[i, b] == docs[:, j][b], MASK_VARIABLES)
    assert torch.equal(evaluate(view), vmap_reference(lambda b, h, i, j: docs[b, i] == docs[b, j]))


def test_changed_closure_is_traced_again() -> None:
    width = 2
    function = lambda b, h, i, j: i - j < width
    before = mask.from_function(function)
    width = 3
    assert str(before) == "i - j < 2" and str(mask.from_function(function)) == "i - j < 3"


def test_position_cast_to_float_divides_as_in_torch() -> None:
    function = lambda b, h, i, j: (i.float() / 3) * 3 == i.double()
    assert torch.equal(
        evaluate(trace(function, MASK_VARIABLES)), vmap_reference(function).expand(BATCH, HEADS, QUERIES, KEYS)
    )


def test_booleans_can_be_clamped_as_numbers() -> None:
    function = lambda b, h, i, j: torch.clamp((i > j).long(), min=2) + (i > j).long().clamp(max=0) == 2
    assert evaluate(trace(function, MASK_VARIABLES)).all()


def test_constant_boolean_operands_are_supported() -> None:
    yes, no = True, False
    expected = vmap_reference(lambda b, h, i, j: i > j).expand(BATCH, HEADS, QUERIES, KEYS)
    for function, visible in (
        (lambda b, h, i, j: (i > j) ^ yes, ~expected),
        (lambda b, h, i, j: no ^ (i > j), expected),
        (lambda b, h, i, j: (i > j) & yes | no, expected),
    ):
        assert torch.equal(evaluate(trace(function, MASK_VARIABLES)), visible)
