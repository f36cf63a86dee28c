"""mask_mod and score_mod functions of FlexAttention run unchanged and agree with torch's `flex_attention`."""

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
from regard.backends.native.backend import builds
from regard.errors import TraceError

from .flex_mods import (
    BATCH,
    HEADS,
    KEYS,
    MASKS,
    QUERIES,
    SCORES,
    UNTRACEABLE_MASKS,
    UNTRACEABLE_SCORES,
    FlexMod,
)

HEAD_DIM = 8
# both sides compute in float64, in different orders: a few hundred roundings of 1e-16
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
# scores times distances reach several hundred, where float32 has steps of 3e-5; gradients are differences of these
CLOSE_FLOAT32_GRADIENT = {"rtol": 1e-3, "atol": 5e-5}
CLOSE_FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}

MODS = [*(("mask", name) for name in MASKS), *(("score", name) for name in SCORES)]
NAMES = [f"{kind}-{name}" for kind, name in MODS]
every_mod = pytest.mark.parametrize(("kind", "name"), MODS, ids=NAMES)
every_backend = pytest.mark.parametrize("backend", regard.available_backends())
AVAILABLE_BACKENDS = [
    name for name in regard.available_backends() if name != "native" or builds()
]  # the compiled core may be missing


def build(kind: str, name: str) -> FlexMod:
    return (MASKS if kind == "mask" else SCORES)[name]()


def inputs(queries: int = QUERIES, num_kv_heads: int = HEADS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(17)
    shapes = [
        (BATCH, HEADS, queries, HEAD_DIM),
        (BATCH, num_kv_heads, KEYS, HEAD_DIM),
        (BATCH, num_kv_heads, KEYS, HEAD_DIM),
    ]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def torch_flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp of the uncompiled flex_attention."""
    block_mask = None
    if mask is not None:
        block_mask = create_block_mask(mask, BATCH, HEADS, q.shape[-2], k.shape[-2], device="cpu")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is not compiled
        output, aux = flex_attention(
            q,
            k,
            v,
            score_mod=score,
            block_mask=block_mask,
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
        )
    return output, aux.lse


def precision_of(backend: str) -> tuple[torch.dtype, dict[str, float]]:
    """Return the most precise dtype of a backend and the tolerance of its numbers."""
    return (torch.float32, CLOSE_FLOAT32) if backend in ("native", "flex") else (torch.float64, CLOSE)


@pytest.mark.parametrize("queries", [QUERIES, pytest.param(160, marks=pytest.mark.long)])
@every_mod
def test_flex_mods_equal_torch(kind: str, name: str, queries: int) -> None:
    mod = build(kind, name)
    q, k, v = inputs(queries)
    output, lse = torch_flex_attention(q, k, v, **{kind: mod.function})
    for backend in AVAILABLE_BACKENDS:
        dtype, close = precision_of(backend)
        result = regard.attention_with_weights(
            *(x.to(dtype) for x in (q, k, v)), backend=backend, **{kind: mod.function}
        )
        torch.testing.assert_close(result.output.detach().double(), output, **close)
        torch.testing.assert_close(result.lse.detach().double(), lse, **close)


@every_mod
def test_flex_mods_run_in_float32(kind: str, name: str) -> None:
    mod = build(kind, name)
    exact = regard.attention(*inputs(), backend="reference", **{kind: mod.function})
    for backend in AVAILABLE_BACKENDS:
        output = regard.attention(*inputs(dtype=torch.float32), backend=backend, **{kind: mod.function})
        assert output.dtype == torch.float32
        torch.testing.assert_close(output.double(), exact, **CLOSE_FLOAT32)


@every_mod
def test_gradients_of_flex_mods_equal_the_reference(kind: str, name: str) -> None:
    mod = build(kind, name)
    tensors = [t.requires_grad_() for t in inputs()]
    direction = torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM, dtype=torch.float64)

    def gradients(backend: str) -> tuple[Tensor, ...]:
        dtype = precision_of(backend)[0]
        output = regard.attention(*(x.to(dtype) for x in tensors), backend=backend, **{kind: mod.function})
        return torch.autograd.grad(output.double(), [*tensors, *mod.learned], direction)

    expected = gradients("reference")
    for backend in (name for name in AVAILABLE_BACKENDS if name != "reference"):
        for grad, expected_grad in zip(gradients(backend), expected, strict=True):
            close = CLOSE if precision_of(backend)[0] == torch.float64 else CLOSE_FLOAT32_GRADIENT
            torch.testing.assert_close(grad, expected_grad, **close)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("score", name) for name in SCORES),
        ("mask", "sliding_window"),
        ("mask", "fully_masked_first_queries"),
    ],
)
def test_gradients_of_the_reference_equal_finite_differences_of_torch(kind: str, name: str) -> None:
    # torch has no backward pass for this on the CPU, so finite differences of its forward pass are used
    mod = build(kind, name)
    tensors = [*inputs(), *mod.learned]
    weight = torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM, dtype=torch.float64)
    steps = [torch.randn(t.shape, dtype=torch.float64) * 1e-6 for t in tensors]

    def loss_after(sign: int) -> float:
        with torch.no_grad():
            for tensor, step in zip(tensors, steps, strict=True):
                tensor.add_(step, alpha=sign)
            output, _ = torch_flex_attention(*tensors[:3], **{kind: mod.function})
            for tensor, step in zip(tensors, steps, strict=True):
                tensor.sub_(step, alpha=sign)
        return float((output * weight).sum())

    slope = loss_after(+1) - loss_after(-1)
    for tensor in tensors[:3]:
        tensor.requires_grad_()
    output = regard.attention(*tensors[:3], backend="reference", **{kind: mod.function})
    gradients = torch.autograd.grad(output, tensors, weight)
    predicted = 2 * sum(float((g * step).sum()) for g, step in zip(gradients, steps, strict=True))
    # the difference of two sums of about 20,000 terms keeps at least 6 of 16 digits
    size = sum(float((g * step).abs().sum()) for g, step in zip(gradients, steps, strict=True))
    assert abs(slope - predicted) < 1e-5 * size


@every_backend
@pytest.mark.parametrize("mask_name", ["causal", "documents_per_sequence", "fully_masked_first_queries"])
@pytest.mark.parametrize("score_name", ["alibi_with_slopes_in_a_table", "softcap", "t5_buckets"])
def test_a_mask_mod_and_a_score_mod_together_equal_torch(mask_name: str, score_name: str, backend: str) -> None:
    mask, score = MASKS[mask_name]().function, SCORES[score_name]().function
    q, k, v = inputs()
    output, lse = torch_flex_attention(q, k, v, mask=mask, score=score)
    result = regard.attention_with_weights(q, k, v, mask=mask, score=score, backend=backend)
    torch.testing.assert_close(result.output.detach(), output, **CLOSE)
    torch.testing.assert_close(result.lse.detach(), lse, **CLOSE)


@every_backend
@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mask", "window_per_head"),
        ("mask", "boolean_matrix_per_head"),
        ("score", "alibi_with_slopes_in_a_table"),
        ("score", "relative_bias_table"),
    ],
)
def test_mods_get_the_query_head_in_grouped_query_attention(
    kind: str, name: str, num_kv_heads: int, backend: str
) -> None:
    mod = build(kind, name)
    q, k, v = inputs(num_kv_heads=num_kv_heads)
    output, lse = torch_flex_attention(q, k, v, **{kind: mod.function})
    result = regard.attention_with_weights(q, k, v, backend=backend, **{kind: mod.function})
    torch.testing.assert_close(result.output.detach(), output, **CLOSE)
    torch.testing.assert_close(result.lse.detach(), lse, **CLOSE)


@every_backend
def test_mods_get_the_query_index_without_the_offset(backend: str) -> None:
    q, k, v = inputs(queries=40)
    output, _ = torch_flex_attention(q, k, v, mask=lambda b, h, i, j: i >= j)
    for query_offset in (None, 0, 17):
        grad = regard.attention(q, k, v, mask=lambda b, h, i, j: i >= j, query_offset=query_offset, backend=backend)
        torch.testing.assert_close(grad, output, **CLOSE)


@every_backend
def test_mods_read_their_closure_in_each_call(backend: str) -> None:
    q, k, v = inputs()
    table = torch.zeros(KEYS, dtype=torch.bool)
    size = 5

    def mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i - j).abs() < size if size < 10 else table[j] | (i == j)

    for size in (5, 9, 10):  # read by the closure
        table[::size] = True
        output, _ = torch_flex_attention(q, k, v, mask=mod)
        torch.testing.assert_close(regard.attention(q, k, v, mask=mod, backend=backend), output, **CLOSE)


def test_there_are_enough_mods() -> None:
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
def test_untraceable_mods_raise_with_the_faulty_line(kind: str, function: Callable[..., Any]) -> None:
    lines, first = inspect.getsourcelines(function)
    faulty_lines = [first + n for n, line in enumerate(lines) if line.rstrip().endswith("# here")]
    accepted = faulty_lines or range(first, first + len(lines))
    q, k, v = inputs(queries=4)
    # a function with random numbers may trace successfully once, so it is traced several times
    for _ in range(12):
        with pytest.raises(TraceError, match=function.__name__) as error:
            regard.attention(q, k, v, **{kind: function})
        reported_lines = [int(line) for line in re.findall(r"flex_mods\.py\D{1,9}(\d+)", str(error.value))]
        assert any(line in accepted for line in reported_lines), str(error.value)


@pytest.mark.parametrize("backend", [None, *regard.available_backends()])
def test_untraceable_mods_raise_on_every_backend_and_in_explain(backend: str | None) -> None:
    q, k, v = inputs(queries=4)
    for call in (regard.attention, regard.attention_with_weights, regard.explain):
        with pytest.raises(TraceError, match=r"if i >= j"):
            call(q, k, v, mask=UNTRACEABLE_MASKS["an_if_on_positions"], backend=backend)
