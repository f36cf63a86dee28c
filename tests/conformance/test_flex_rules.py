"""FlexAttention's rules, unchanged: regard agrees with torch's own `flex_attention`, forward and backward."""

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import regard
from regard.engine.native import builds
from regard.errors import TraceError

from .flex_rules import (
    BATCH,
    HEADS,
    KEYS,
    MASKS,
    QUERIES,
    SCORES,
    UNTRACEABLE_MASKS,
    UNTRACEABLE_SCORES,
    Rule,
)

WIDTH = 8
# Both sides compute in float64, in different orders: some hundred roundings of 1e-16 each.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
# In float32 the same holds with roundings of 6e-8.
# Scores times distances reach some hundreds, where float32 is 3e-5 wide; gradients are differences of such numbers.
CLOSE_SINGLE_GRADIENT = {"rtol": 1e-3, "atol": 5e-5}
CLOSE_SINGLE = {"rtol": 1e-4, "atol": 1e-5}

EVERY_RULE = [*(("mask", name) for name in MASKS), *(("score", name) for name in SCORES)]
NAMES = [f"{kind}-{name}" for kind, name in EVERY_RULE]
every_rule = pytest.mark.parametrize(("kind", "name"), EVERY_RULE, ids=NAMES)
every_engine = pytest.mark.parametrize("engine", regard.engines())
AT_HAND = [name for name in regard.engines() if name != "native" or builds()]  # the compiled core may be missing


def build(kind: str, name: str) -> Rule:
    return (MASKS if kind == "mask" else SCORES)[name]()


def inputs(queries: int = QUERIES, key_heads: int = HEADS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(17)
    shapes = [
        (BATCH, HEADS, queries, WIDTH),
        (BATCH, key_heads, KEYS, WIDTH),
        (BATCH, key_heads, KEYS, WIDTH),
    ]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def ask_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of torch's flex_attention, uncompiled."""
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, BATCH, HEADS, q.shape[-2], k.shape[-2], device="cpu")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled is the point
        output, extra = flex_attention(
            q,
            k,
            v,
            score_mod=score,
            block_mask=blocks,
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
        )
    return output, extra.lse


def finest(engine: str) -> tuple[torch.dtype, dict[str, float]]:
    """The finest precision of an engine, and how close its numbers must be."""
    return (torch.float32, CLOSE_SINGLE) if engine in ("native", "fused") else (torch.float64, CLOSE)


@pytest.mark.parametrize("queries", [QUERIES, 300])
@every_rule
def test_a_flex_rule_gives_what_torch_gives(kind: str, name: str, queries: int) -> None:
    rule = build(kind, name)
    q, k, v = inputs(queries)
    output, lse = ask_torch(q, k, v, **{kind: rule.function})
    for engine in AT_HAND:
        dtype, close = finest(engine)
        attended = regard.attend(*(x.to(dtype) for x in (q, k, v)), engine=engine, **{kind: rule.function})
        torch.testing.assert_close(attended.output.detach().double(), output, **close)
        torch.testing.assert_close(attended.lse.detach().double(), lse, **close)


@every_rule
def test_a_flex_rule_runs_in_single_precision(kind: str, name: str) -> None:
    rule = build(kind, name)
    exact = regard.attention(*inputs(), engine="reference", **{kind: rule.function})
    for engine in AT_HAND:
        single = regard.attention(*inputs(dtype=torch.float32), engine=engine, **{kind: rule.function})
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), exact, **CLOSE_SINGLE)


@every_rule
def test_gradients_of_a_flex_rule_agree_with_the_reference(kind: str, name: str) -> None:
    rule = build(kind, name)
    tensors = [t.requires_grad_() for t in inputs()]
    direction = torch.randn(BATCH, HEADS, QUERIES, WIDTH, dtype=torch.float64)

    def gradients(engine: str) -> tuple[Tensor, ...]:
        dtype = finest(engine)[0]
        output = regard.attention(*(x.to(dtype) for x in tensors), engine=engine, **{kind: rule.function})
        return torch.autograd.grad(output.double(), [*tensors, *rule.learned], direction)

    expected = gradients("reference")
    for engine in (name for name in AT_HAND if name != "reference"):
        for got, want in zip(gradients(engine), expected, strict=True):
            close = CLOSE if finest(engine)[0] == torch.float64 else CLOSE_SINGLE_GRADIENT
            torch.testing.assert_close(got, want, **close)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("score", name) for name in SCORES),
        ("mask", "sliding_window"),
        ("mask", "nothing_for_the_first_queries"),
    ],
)
def test_gradients_of_the_reference_are_the_slope_of_what_torch_computes(kind: str, name: str) -> None:
    # torch has no backward on the CPU for this, but its forward can be asked twice, a small step apart.
    rule = build(kind, name)
    tensors = [*inputs(), *rule.learned]
    weight = torch.randn(BATCH, HEADS, QUERIES, WIDTH, dtype=torch.float64)
    steps = [torch.randn(t.shape, dtype=torch.float64) * 1e-6 for t in tensors]

    def loss_after(sign: int) -> float:
        with torch.no_grad():
            for tensor, step in zip(tensors, steps, strict=True):
                tensor.add_(step, alpha=sign)
            output, _ = ask_torch(*tensors[:3], **{kind: rule.function})
            for tensor, step in zip(tensors, steps, strict=True):
                tensor.sub_(step, alpha=sign)
        return float((output * weight).sum())

    slope = loss_after(+1) - loss_after(-1)
    for tensor in tensors[:3]:
        tensor.requires_grad_()
    output = regard.attention(*tensors[:3], engine="reference", **{kind: rule.function})
    gradients = torch.autograd.grad(output, tensors, weight)
    predicted = 2 * sum(float((g * step).sum()) for g, step in zip(gradients, steps, strict=True))
    # The difference of two sums of some 20,000 terms keeps 6 of 16 digits at least.
    size = sum(float((g * step).abs().sum()) for g, step in zip(gradients, steps, strict=True))
    assert abs(slope - predicted) < 1e-5 * size


@every_engine
@pytest.mark.parametrize("mask_name", ["causal", "documents_of_every_sequence", "nothing_for_the_first_queries"])
@pytest.mark.parametrize("score_name", ["alibi_with_slopes_in_a_table", "softcap", "t5_buckets"])
def test_a_mask_and_a_score_rule_together_give_what_torch_gives(mask_name: str, score_name: str, engine: str) -> None:
    mask, score = MASKS[mask_name]().function, SCORES[score_name]().function
    q, k, v = inputs()
    output, lse = ask_torch(q, k, v, mask=mask, score=score)
    attended = regard.attend(q, k, v, mask=mask, score=score, engine=engine)
    torch.testing.assert_close(attended.output.detach(), output, **CLOSE)
    torch.testing.assert_close(attended.lse.detach(), lse, **CLOSE)


@every_engine
@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mask", "a_window_of_its_own_for_every_head"),
        ("mask", "a_boolean_matrix_for_each_head"),
        ("score", "alibi_with_slopes_in_a_table"),
        ("score", "relative_bias_table"),
    ],
)
def test_in_grouped_attention_a_rule_gets_the_query_head(kind: str, name: str, key_heads: int, engine: str) -> None:
    rule = build(kind, name)
    q, k, v = inputs(key_heads=key_heads)
    output, lse = ask_torch(q, k, v, **{kind: rule.function})
    attended = regard.attend(q, k, v, engine=engine, **{kind: rule.function})
    torch.testing.assert_close(attended.output.detach(), output, **CLOSE)
    torch.testing.assert_close(attended.lse.detach(), lse, **CLOSE)


@every_engine
def test_a_rule_gets_the_index_of_the_query_and_not_its_position(engine: str) -> None:
    q, k, v = inputs(queries=40)
    output, _ = ask_torch(q, k, v, mask=lambda b, h, i, j: i >= j)
    for start in (None, 0, 17):
        got = regard.attention(q, k, v, mask=lambda b, h, i, j: i >= j, start=start, engine=engine)
        torch.testing.assert_close(got, output, **CLOSE)


@every_engine
def test_a_rule_reads_what_its_closure_holds_at_the_time_of_the_call(engine: str) -> None:
    q, k, v = inputs()
    table = torch.zeros(KEYS, dtype=torch.bool)
    size = 5

    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i - j).abs() < size if size < 10 else table[j] | (i == j)

    for size in (5, 9, 10):  # the closure reads it
        table[::size] = True
        output, _ = ask_torch(q, k, v, mask=rule)
        torch.testing.assert_close(regard.attention(q, k, v, mask=rule, engine=engine), output, **CLOSE)


def test_there_are_enough_rules() -> None:
    assert len(MASKS) >= 16 and len(SCORES) >= 16


UNTRACEABLE = [
    *(("mask", name, function) for name, function in UNTRACEABLE_MASKS.items()),
    *(("score", name, function) for name, function in UNTRACEABLE_SCORES.items()),
]


@pytest.mark.parametrize(
    ("kind", "function"),
    [(kind, function) for kind, _, function in UNTRACEABLE],
    ids=[f"{kind}-{name}" for kind, name, _ in UNTRACEABLE],
)
def test_a_rule_that_is_no_formula_is_refused_with_its_line(kind: str, function: Callable[..., Any]) -> None:
    lines, first = inspect.getsourcelines(function)
    at_fault = [first + n for n, line in enumerate(lines) if line.rstrip().endswith("# here")]
    accepted = at_fault or range(first, first + len(lines))
    q, k, v = inputs(queries=4)
    # A rule that draws random numbers may look like a formula once; it must not get through on any day.
    for _ in range(12):
        with pytest.raises(TraceError, match=function.__name__) as refusal:
            regard.attention(q, k, v, **{kind: function})
        named = [int(line) for line in re.findall(r"flex_rules\.py\D{1,9}(\d+)", str(refusal.value))]
        assert any(line in accepted for line in named), str(refusal.value)


@pytest.mark.parametrize("engine", [None, *regard.engines()])
def test_a_refused_rule_is_refused_by_every_engine_and_by_explain(engine: str | None) -> None:
    q, k, v = inputs(queries=4)
    for ask in (regard.attention, regard.attend, regard.explain):
        with pytest.raises(TraceError, match=r"if i >= j"):
            ask(q, k, v, mask=UNTRACEABLE_MASKS["an_if_on_positions"], engine=engine)
