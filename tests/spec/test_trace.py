"""Reading functions as formulas: what reaches a stand-in, values as of torch.vmap, errors that name the line."""

import functools
import math
import random
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import and_masks, create_block_mask, noop_mask, or_masks

from regard import mask
from regard.errors import TraceError
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.term import Term, apply, constant, lookup, variable
from regard.spec.text import text
from regard.spec.trace import MASK_VARIABLES, SCORE_VARIABLES, Traced, trace

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


def by_vmap(function: Callable[..., Any], *, score: Tensor | None = None) -> Tensor:
    """The function at every position, each called for itself, by torch."""
    indices = [torch.arange(n) for n in (BATCH, HEADS, QUERIES, KEYS)]
    prefix = () if score is None else (0,)
    for n in range(3, -1, -1):
        function = torch.vmap(function, in_dims=(*prefix, *(0 if n == m else None for m in range(4))))
    with TransformGetItemToIndex(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of vmap itself
        return function(*(() if score is None else (score,)), *indices)


def by_term(traced: Traced, score: Tensor | None = None) -> Tensor:
    where = Positions(
        *(range(n) for n in (BATCH, HEADS, QUERIES, KEYS)),
        start=0,
        n_q=QUERIES,
        n_k=KEYS,
        device=torch.device("cpu"),
    )
    looking = Evaluation(traced.tensors, where, score, None if score is None else score.dtype)
    found = looking.condition(traced.term) if score is None else looking.number(traced.term)
    return found.expand(where.shape)


def added_in_place(b: Any, h: Any, i: Any, j: Any) -> Any:
    i += 2
    i -= j
    i *= 3
    return i > 4


def counted(b: Any, h: Any, i: Any, j: Any) -> Any:
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
    "inverted conditions": lambda b, h, i, j: ~(i >= j) ^ (j > 4),
    "absolute value": lambda b, h, i, j: (abs(i - j) <= 2) | ((i - j).abs() == 4) | (torch.abs(j - 2 * i) == 3),
    "signs": lambda b, h, i, j: -(i - j) + torch.sign(i - j) + (+i) > torch.neg(j),
    "rounding": lambda b, h, i, j: torch.floor(i / 2) + torch.ceil(j / 2) + torch.round(j / 3) >= torch.trunc(i / 1.5),
    "division with a rounding mode": lambda b, h, i, j: (
        torch.div(i - 4, 3, rounding_mode="floor") + torch.div(j - 6, 2, rounding_mode="trunc") > -2
    ),
    "division by name": lambda b, h, i, j: torch.floor_divide(i, 2) + torch.remainder(j, 3) > torch.true_divide(i, 3),
    "a choice": lambda b, h, i, j: torch.where(i > j, i - j, j) > 2,
    "a choice of numbers": lambda b, h, i, j: torch.where(i > j, 1, 0) == torch.where(j > 4, 0, 1),
    "a choice as a method": lambda b, h, i, j: i.where(i > j, j) > 3,
    "clamped": lambda b, h, i, j: torch.clamp(i - j, -2, 2) + (i - j).clamp(min=0) + torch.clamp(j, max=3) > 2,
    "clipped": lambda b, h, i, j: torch.clip(i - j, min=-1, max=1) == 1,
    "minimum": lambda b, h, i, j: torch.minimum(i, j) + torch.maximum(i, j - 2) > 5,
    "the greater of two": lambda b, h, i, j: torch.max(i, j) - torch.min(i, j) <= 2,
    "logic by name": lambda b, h, i, j: torch.logical_or(
        torch.logical_and(i > j, j > 1), torch.logical_xor(i == 0, torch.logical_not(j > 3))
    ),
    "logic of numbers": lambda b, h, i, j: torch.logical_and(i, j) | torch.logical_not(i + j),
    "like another": lambda b, h, i, j: (torch.zeros_like(i) + torch.ones_like(j) * 2 + torch.full_like(i, 3)) > j,
    "is in a list": lambda b, h, i, j: torch.isin(j, torch.tensor([1, 4, 7])) | torch.isin(i, torch.tensor([0])),
    "filled": lambda b, h, i, j: (i - j).masked_fill(j > 5, 7) > 1,
    "filled by name": lambda b, h, i, j: torch.masked_fill(i - j, j > 5, 7) > 1,
    "casts": lambda b, h, i, j: (i / 2).long() + (j / 2).int() + (i > j).long() > (j.float() / 3).to(torch.int64),
    "casts by dtype": lambda b, h, i, j: i.to(torch.float32) / 2 > j.to(dtype=torch.float64) - i.double(),
    "as a condition": lambda b, h, i, j: (i - j).bool() & j.to(torch.bool),
    "conditions counted": lambda b, h, i, j: (i > j) + (j > 2) * 2 - (i == 3) >= 1,
    "smooth functions": lambda b, h, i, j: (
        torch.exp(-i / 4) + torch.tanh(j / 5) + torch.sqrt(i + 1.0) + torch.sigmoid(j - 3.0) + torch.cos(i * 1.0) > 2.5
    ),
    "more smooth functions": lambda b, h, i, j: (
        torch.log(i + 1.5) + torch.sin(j * 0.7) + torch.exp2(-j / 3) + torch.log2(j + 2.0) + torch.log1p(i * 1.0) > 3.1
    ),
    "names of torch": lambda b, h, i, j: (
        torch.add(i, j, alpha=2) > torch.sub(torch.mul(i, 3), j, alpha=3)
    ) & torch.gt(i, 0) & torch.le(j, 7) & torch.ne(i, 5),
    "long names of torch": lambda b, h, i, j: torch.greater_equal(torch.multiply(i, 2), torch.subtract(j, 1))
    & torch.not_equal(torch.negative(i), torch.absolute(j)),
    "squares": lambda b, h, i, j: torch.square(i - j) < torch.reciprocal(j + 1.0) * 20 + torch.rsqrt(i + 1.0),
    "relu": lambda b, h, i, j: torch.relu(i - j) + nn.functional.relu(j - i) > 2,
    "documents": lambda b, h, i, j: doc[i] == doc[j],
    "documents by batch": lambda b, h, i, j: docs[b, i] == docs[b, j],
    "documents, one index at a time": lambda b, h, i, j: docs[b][i] == docs[b][j],
    "a number and a position": lambda b, h, i, j: docs[0, i] == docs[1][j],
    "three indices": lambda b, h, i, j: cube[b, h, j] + cube[b][h][i] + cube[b, h][j] + cube[b][h, i] > 12,
    "a sliced table": lambda b, h, i, j: table[:, i][h] > table[:, j][h],
    "an ellipsis": lambda b, h, i, j: cube[..., j][b, h] > cube[b, ..., i][h],
    "below zero": lambda b, h, i, j: doc[i - j] > doc[-1 - j],
    "a look-up in a look-up": lambda b, h, i, j: doc[doc[i] + doc[j]] > table[h, doc[j]],
    "a parameter": lambda b, h, i, j: parameter[i] < parameter[j] + 0.4,
    "an embedding": lambda b, h, i, j: embedding(i)[0] > embedding(j)[1],
    "a boolean table": lambda b, h, i, j: flags[i] & flags[j] | ~flags[j] & (i > 2),
    "a tensor of no dimension": lambda b, h, i, j: (i - j <= limit) & (limit > j - i) & (limit + i > limit * j - 9),
    "a tensor on the left": lambda b, h, i, j: (doc[i] + i >= j) & (torch.tensor(6) >= i) & (limit + 2 - i > j - 7),
    "padding": lambda b, h, i, j: j < lengths[b],
    "a loop": counted,
    "and_masks": and_masks(lambda b, h, i, j: i >= j, lambda b, h, i, j: i - j < 4),
    "or_masks": or_masks(lambda b, h, i, j: i < j, lambda b, h, i, j: (i - j) % 3 == 0),
    "noop_mask": noop_mask,
    "both joined": or_masks(and_masks(noop_mask, lambda b, h, i, j: i == j), lambda b, h, i, j: j == 0),
    "new tensors": lambda b, h, i, j: (b.new_ones((), dtype=torch.int64) * 3 > j) | (i.new_full((), 2) == i),
    "a partial": functools.partial(lambda width, b, h, i, j: (i - j).abs() < width, 3),
    "the head": lambda b, h, i, j: (i - j) % (h + 2) == b,
}  # fmt: skip

SCORES: dict[str, Callable[..., Any]] = {
    "identity": lambda s, b, h, i, j: s,
    "alibi": lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(),
    "softcap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    "relative bias": lambda s, b, h, i, j: s + bias[h, i - j + 8],
    "a distance in the exponent": lambda s, b, h, i, j: s * torch.exp(-0.1 * (i - j).abs()),
    "a choice": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "filled": lambda s, b, h, i, j: s.masked_fill(i < j, -1e9),
    "like the score": lambda s, b, h, i, j: torch.where(s > 0, s, torch.zeros_like(s)) + torch.ones_like(s),
    "clamped": lambda s, b, h, i, j: s.clamp(-1, 1) + torch.clamp(s, max=0.5),
    "powers": lambda s, b, h, i, j: s**2 - 2.0 ** s + 3 / (s * s + 1) + s.abs().sqrt() + s.square(),
    "activations": lambda s, b, h, i, j: torch.relu(s) + torch.sigmoid(s) + nn.functional.softplus(s) + s.tanh(),
    "small changes": lambda s, b, h, i, j: torch.log1p(s * s) + torch.expm1(s) + torch.special.expit(s),
    "a parameter": lambda s, b, h, i, j: s * parameter[j] + parameter[i],
    "a cast": lambda s, b, h, i, j: s + (i > j).to(s.dtype) + (i - j).float() / 8 + (i - j).type_as(s),
    "modulo": lambda s, b, h, i, j: s % 1.5 + torch.remainder(s, 0.7) + s // 0.5,
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_what_vmap_makes_of_the_same_function(name: str) -> None:
    expected = by_vmap(MASKS[name]).bool().expand(BATCH, HEADS, QUERIES, KEYS)
    found = by_term(trace(MASKS[name], MASK_VARIABLES)).bool()
    assert torch.equal(found, expected)
    assert name == "noop_mask" or 0 < expected.sum() < expected.numel()  # a test that could fail


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_what_vmap_makes_of_the_same_function(name: str, dtype: torch.dtype) -> None:
    score = torch.randn(BATCH, HEADS, QUERIES, KEYS, dtype=dtype) * 2
    expected = by_vmap(SCORES[name], score=score).expand(score.shape).to(dtype)
    found = by_term(trace(SCORES[name], SCORE_VARIABLES), score)
    # the same functions on the same numbers; what torch keeps in float32 there is joined in float64 here
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)


def test_a_stand_in_may_be_changed_in_place() -> None:
    """vmap cannot: it would have to write to a position that many share."""
    expected = by_vmap(lambda b, h, i, j: (i + 2 - j) * 3 > 4).expand(BATCH, HEADS, QUERIES, KEYS)
    assert torch.equal(by_term(trace(added_in_place, MASK_VARIABLES)), expected)


def test_pythons_own_rounding_is_that_of_torch() -> None:
    """A tensor has no `__round__`, so vmap is no measure; half goes to the even one in both."""
    rule = lambda b, h, i, j: round(i / 2) + math.floor(j / 2) + math.ceil(j / 3) > math.trunc(i / 2)
    by_name = lambda b, h, i, j: torch.round(i / 2) + torch.floor(j / 2) + torch.ceil(j / 3) > torch.trunc(i / 2)
    assert trace(rule, MASK_VARIABLES).term is trace(by_name, MASK_VARIABLES).term


def test_the_mask_of_a_block_mask_can_be_read() -> None:
    block = create_block_mask(lambda b, h, i, j: doc[i] == doc[j], 1, 1, 9, 9, device="cpu")
    traced = trace(block.mask_mod, MASK_VARIABLES)
    assert traced.term is apply("eq", lookup(0, (I,), "int"), lookup(0, (J,), "int"))


def test_what_is_read_is_the_formula_itself() -> None:
    assert trace(lambda b, h, i, j: j <= i, MASK_VARIABLES) == (apply("le", J, I), (), ())
    assert trace(lambda s, b, h, i, j: s * 2, SCORE_VARIABLES).term is apply("mul", S, constant(2))
    assert trace(lambda s, b, h, i, j: 7, SCORE_VARIABLES).term is constant(7)


@pytest.mark.parametrize("make", [torch.tensor, np.float32, float])
def test_a_rule_may_give_a_number(make: Callable[[float], Any]) -> None:
    found = trace(lambda s, b, h, i, j: make(2.5), SCORE_VARIABLES)
    assert by_term(found, torch.zeros(BATCH, HEADS, QUERIES, KEYS)).eq(2.5).all()


def test_tensors_are_captured_once_each_and_called_as_the_function_calls_them() -> None:
    own = torch.arange(9)
    traced = trace(lambda b, h, i, j: (own[i] == own[j]) & (doc[i] == doc[j]) & (table[h, i] > own[j]), MASK_VARIABLES)
    assert [id(t) for t in traced.tensors] == [id(own), id(doc), id(table)]
    assert traced.names == ("own", "doc", "table")
    assert text(traced.term, traced.names) == "own[i] == own[j] and doc[i] == doc[j] and table[h, i] > own[j]"


def test_a_sliced_tensor_keeps_the_name_of_the_tensor_it_is_part_of() -> None:
    traced = trace(lambda b, h, i, j: table[:, i][h] > 0, MASK_VARIABLES)
    assert traced.names == ("table",)
    assert traced.tensors[0].shape == (KEYS, HEADS)


def test_a_tensor_without_a_name_is_numbered() -> None:
    tables = {"first": torch.arange(9)}
    traced = trace(lambda b, h, i, j: tables["first"][i] > j, MASK_VARIABLES)
    assert traced.names == ("t0",)


def test_a_parameter_is_captured_itself_so_that_gradients_reach_it() -> None:
    traced = trace(lambda s, b, h, i, j: s + parameter[j], SCORE_VARIABLES)
    assert traced.tensors[0] is parameter
    (weight,) = trace(lambda b, h, i, j: embedding(i)[0] > 0, MASK_VARIABLES).tensors
    assert weight is embedding.weight


def test_a_bound_method_and_an_object_that_can_be_called_are_read() -> None:
    class Rule:
        def __init__(self) -> None:
            self.width = 3

        def near(self, b: Any, h: Any, i: Any, j: Any) -> Any:
            return abs(i - j) < self.width

        __call__ = near

    near = apply("lt", apply("abs", apply("sub", I, J)), constant(3))
    assert trace(Rule().near, MASK_VARIABLES).term is near
    assert trace(Rule(), MASK_VARIABLES).term is near


def test_python_branches_that_do_not_depend_on_positions_are_taken() -> None:
    def rule(causal: bool) -> Term:
        return trace(lambda b, h, i, j: i >= j if causal else i == i, MASK_VARIABLES).term

    assert rule(True) is apply("ge", I, J)


def test_a_stand_in_answers_what_torch_code_asks_of_a_scalar() -> None:
    asked: dict[str, Any] = {}

    def rule(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        asked.update(
            shape=s.shape, dim=i.dim(), numel=j.numel(), device=b.device, kinds=(s.dtype, i.dtype, (i > j).dtype)
        )
        return s.contiguous().clone().detach() + i.size().numel() + s.ndim

    trace(rule, SCORE_VARIABLES)
    assert asked["shape"] == torch.Size(()) and asked["dim"] == 0 and asked["numel"] == 1
    assert asked["device"] == torch.device("cpu") and asked["kinds"] == (torch.float32, torch.int64, torch.bool)


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
def test_a_decision_by_python_is_an_error_that_names_the_line(function: Callable[..., Any]) -> None:
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(TraceError, match="a position has no value while the rule is being read") as caught:
        trace(function, MASK_VARIABLES)
    message = str(caught.value)
    assert f"{function.__name__}(b, h, i, j) could not be read as a formula" in message
    assert f"{__file__}:{line}: " in message
    assert "torch.where" in message and "score.custom" in message


def at_depth(b: Any, h: Any, i: Any, j: Any) -> Any:
    def inner(x: Any) -> Any:
        return x.item()

    return inner(i) > j


def test_the_line_named_is_the_one_that_failed_not_the_one_that_called() -> None:
    with pytest.raises(TraceError, match="a position has no value") as caught:
        trace(at_depth, MASK_VARIABLES)
    assert f"{__file__}:{at_depth.__code__.co_firstlineno + 2}: return x.item()" in str(caught.value)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "item": (lambda b, h, i, j: i.item() > 2, "a position has no value while the rule is being read"),
    "int": (lambda b, h, i, j: int(i) > 2, "a position has no value"),
    "float": (lambda b, h, i, j: float(i) > 2, "a position has no value"),
    "tolist": (lambda b, h, i, j: i.tolist() > 2, "a position has no value"),
    "numpy": (lambda b, h, i, j: i.numpy() > 2, "a position has no value"),
    "a list": (lambda b, h, i, j: [1, 2, 3][i] > j, "a position has no value"),
    "a range": (lambda b, h, i, j: sum(range(i)) > j, "a position has no value"),
    "math": (lambda b, h, i, j: math.sqrt(i) > j, "a position has no value"),
    "a NumPy array": (lambda b, h, i, j: numbers[i] > j, "could not be read as a formula"),
    "a NumPy function": (lambda b, h, i, j: np.exp(i) > j, "could not be read as a formula"),
    "a dictionary": (lambda b, h, i, j: {0: 1}[i] > j, "KeyError"),
    "torch.tensor": (lambda b, h, i, j: torch.tensor(i) > j, "could not be read as a formula"),
    "iteration": (lambda b, h, i, j: list(i), "a position has no value"),
    "length": (lambda b, h, i, j: len(i) > 2, "a position has no value"),
    "an index of a position": (lambda b, h, i, j: i[0] > j, "a position is a single number and cannot be indexed"),
    "an unknown function": (lambda b, h, i, j: torch.cumsum(i, 0) > j, r"torch\.cumsum is not among the operations"),
    "another unknown function": (lambda b, h, i, j: torch.lgamma(i + 1.0) > j, r"torch\.lgamma is not among"),
    "a whole tensor": (
        lambda b, h, i, j: doc > i,
        r"a tensor of shape \(9,\) is used whole; index it with b, h, i or j",
    ),
    "a tensor half indexed": (
        lambda b, h, i, j: table[h] > i,
        r"a tensor of shape \(3, 9\) has 1 indices; index it fully",
    ),
    "a function of a tensor half indexed": (
        lambda b, h, i, j: torch.sum(table[h]) > i,
        r"torch\.sum of a tensor that is not fully indexed",
    ),
    "too many indices": (lambda b, h, i, j: doc[i, j] > 0, "a tensor of 1 dimensions got 2 indices"),
    "a float index": (lambda b, h, i, j: doc[i / 2] > 0, r"an index must be a whole number; use \.long\(\) or //"),
    "a condition as an index": (lambda b, h, i, j: doc[i > j] > 0, "an index must be a whole number"),
    "part of a slice": (
        lambda b, h, i, j: table[1:, i][h] > 0,
        "an index in a rule must be a position, a number or a full",
    ),
    "a new dimension": (
        lambda b, h, i, j: doc[None, i] > 0,
        "an index in a rule must be a position, a number or a full",
    ),
    "complex numbers": (
        lambda b, h, i, j: torch.zeros(9, dtype=torch.complex64)[i] == 0,
        "a captured tensor must hold real numbers; got complex ones",
    ),
    "nothing given": (lambda b, h, i, j: None, "a NoneType cannot be part of a rule"),
    "a word given": (lambda b, h, i, j: "seen", "a str cannot be part of a rule"),
    "a tensor given": (lambda b, h, i, j: doc, r"a tensor of shape \(9,\) is used whole"),
    "a wrong number of arguments": (lambda i, j: i > j, r"TypeError: .* takes 2 positional arguments but 4 were given"),
    "its own error": (lambda b, h, i, j: 1 // 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_formula_is_refused_with_the_reason_and_the_line(name: str) -> None:
    function, reason = REFUSED[name]
    with pytest.raises(TraceError, match=reason) as caught:
        trace(function, MASK_VARIABLES)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)


def test_an_error_of_tracing_is_a_type_error_and_hides_its_own_frames() -> None:
    with pytest.raises(TypeError, match="branching") as caught:
        trace(branching, MASK_VARIABLES)
    assert caught.value.__suppress_context__


def draws_a_tensor(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (torch.rand(9)[j] > 0.5)


def draws_a_coin(b: Any, h: Any, i: Any, j: Any) -> Any:
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


CHANGING = [draws_a_tensor, draws_a_coin, draws_in_python, draws_in_numpy, reads_the_clock, counts_its_calls]


@pytest.mark.parametrize("function", CHANGING, ids=lambda f: f.__name__)
def test_a_rule_that_changes_from_call_to_call_is_found(function: Callable[..., Any]) -> None:
    for seed in range(6):  # a coin falls the same way twice every other time
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        with pytest.raises(
            TraceError, match=f"{function.__name__}, defined at .*{function.__code__.co_firstlineno}, gave two"
        ):
            trace(function, MASK_VARIABLES)


def test_a_rule_that_makes_the_same_tensor_anew_each_time_is_not_changing() -> None:
    made = trace(lambda b, h, i, j: torch.tensor([1.0, float("nan"), 3.0] * 3)[j] > 0, MASK_VARIABLES)
    assert by_term(made)[0, 0, 0].int().tolist() == [1, 0, 1] * 3
    viewed = trace(lambda b, h, i, j: docs.T[i, b] == docs[:, j][b], MASK_VARIABLES)
    assert torch.equal(by_term(viewed), by_vmap(lambda b, h, i, j: docs[b, i] == docs[b, j]))


def test_tracing_is_done_at_the_call_so_a_changed_closure_is_seen() -> None:
    width = 2
    rule = lambda b, h, i, j: i - j < width
    before = mask.where(rule)
    width = 3
    assert str(before) == "i - j < 2" and str(mask.where(rule)) == "i - j < 3"


def test_a_cast_of_a_position_to_float_divides_as_torch_does() -> None:
    rule = lambda b, h, i, j: (i.float() / 3) * 3 == i.double()
    assert torch.equal(by_term(trace(rule, MASK_VARIABLES)), by_vmap(rule).expand(BATCH, HEADS, QUERIES, KEYS))


def test_conditions_may_be_clamped_and_compared_as_numbers() -> None:
    rule = lambda b, h, i, j: torch.clamp((i > j).long(), min=2) + (i > j).long().clamp(max=0) == 2
    assert by_term(trace(rule, MASK_VARIABLES)).all()


def test_a_constant_condition_joins_like_any_other() -> None:
    yes, no = True, False
    expected = by_vmap(lambda b, h, i, j: i > j).expand(BATCH, HEADS, QUERIES, KEYS)
    for function, seen in (
        (lambda b, h, i, j: (i > j) ^ yes, ~expected),
        (lambda b, h, i, j: no ^ (i > j), expected),
        (lambda b, h, i, j: (i > j) & yes | no, expected),
    ):
        assert torch.equal(by_term(trace(function, MASK_VARIABLES)), seen)
