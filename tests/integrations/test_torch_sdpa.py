"""SDPA on regard: the same arguments and results as torch, called directly or through `override_sdpa`."""

import inspect
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa_function

import regard
from regard.errors import ArgumentError, RegardError
from regard.integrations import torch_sdpa
from tests.random_tensors import normal

regard_sdpa = regard.scaled_dot_product_attention
CLOSE_FLOAT64 = dict(rtol=1e-11, atol=1e-12)  # sums of about ten terms
CLOSE_FLOAT32 = dict(rtol=1e-5, atol=1e-5)  # a few layers of dimension 16


def random_mask(*shape: int, seed: int = 0) -> Tensor:
    """Return a random boolean mask; if it has several rows, the second row masks everything."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    if len(shape) >= 2 and shape[-2] > 1:
        mask[..., 1, :] = False
    return mask


def inputs(*leading: int, n_q: int = 5, n_k: int = 7, head_dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    q, k = normal(*leading, n_q, head_dim, seed=1), normal(*leading, n_k, head_dim, seed=2)
    return q, k, normal(*leading, n_k, 3, seed=3)


def check_matches_torch(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    """Compare the output and all gradients, including that of a float mask, with torch."""
    tensors = [q, k, v]
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        tensors.append(options["attn_mask"])
    results = []
    for sdpa in (regard_sdpa, F.scaled_dot_product_attention):
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        if len(leaves) == 4:
            options = options | dict(attn_mask=leaves[3])
        output = sdpa(*leaves[:3], **options)
        d_output = normal(*output.shape, seed=8)
        results.append((output, *torch.autograd.grad(output, leaves, d_output)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, **CLOSE_FLOAT64)


# Direct calls


def test_signature_matches_the_documentation_of_torch():
    documented = re.match(r"scaled_dot_product_attention\((.*?)\)", F.scaled_dot_product_attention.__doc__, re.DOTALL)
    assert documented is not None
    expected = [tuple(part.strip() for part in argument.split("=")) for argument in documented[1].split(",")]

    signature = [
        (name,) if p.default is inspect.Parameter.empty else (name, repr(p.default))
        for name, p in inspect.signature(regard_sdpa).parameters.items()
    ]

    assert signature == expected


def test_positional_arguments_match_torch():
    q, k, v = inputs(2, 3)
    mask = random_mask(5, 7)

    torch.testing.assert_close(
        regard_sdpa(q, k, v, mask, 0.0, False), torch_sdpa_function(q, k, v, mask, 0.0, False), **CLOSE_FLOAT64
    )
    torch.testing.assert_close(
        regard_sdpa(q, k, v, None, 0.0, True), torch_sdpa_function(q, k, v, None, 0.0, True), **CLOSE_FLOAT64
    )


LEADING_SHAPES = {"2-D": (), "3-D": (3,), "4-D": (2, 3), "5-D": (2, 2, 3)}
every_leading_shape = pytest.mark.parametrize("leading", LEADING_SHAPES.values(), ids=LEADING_SHAPES)


@every_leading_shape
@pytest.mark.parametrize("n_q, n_k", [(5, 7), (7, 5), (6, 6), (1, 4), (4, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 2.0])
def test_lengths_is_causal_and_scale_match_torch(leading, n_q, n_k, is_causal, scale):
    check_matches_torch(*inputs(*leading, n_q=n_q, n_k=n_k), is_causal=is_causal, scale=scale)


MASK_SHAPES = {
    "2-D": [(5, 7), (1, 7), (5, 1), (1, 1)],
    "3-D": [(5, 7), (1, 7), (3, 5, 7), (3, 1, 7), (3, 5, 1), (1, 5, 7), (3, 1, 1)],
    "4-D": [
        *[(5, 7), (1, 7), (5, 1), (3, 5, 7), (3, 1, 7), (3, 1, 1), (1, 1, 7)],
        *[(2, 3, 5, 7), (2, 1, 5, 7), (1, 3, 5, 7), (2, 1, 1, 7), (2, 3, 1, 7), (2, 3, 5, 1), (2, 1, 1, 1)],
        *[(1, 1, 5, 7), (1, 1, 1, 7), (1, 1, 1, 1)],
    ],
    "5-D": [
        *[(5, 7), (3, 1, 7), (2, 3, 5, 7), (2, 1, 1, 7), (2, 2, 3, 5, 7), (2, 1, 3, 5, 7), (1, 2, 3, 5, 7)],
        *[(2, 2, 1, 5, 7), (2, 1, 1, 1, 7), (1, 2, 1, 1, 7), (2, 2, 3, 5, 1), (1, 1, 3, 5, 7), (1, 1, 1, 1, 7)],
    ],
}
masks = pytest.mark.parametrize(
    "leading, shape",
    [
        pytest.param(LEADING_SHAPES[d], shape, id=f"{d} {shape}")
        for d, shapes in MASK_SHAPES.items()
        for shape in shapes
    ],
)


@masks
def test_boolean_masks_broadcast_as_in_torch(leading, shape):
    check_matches_torch(*inputs(*leading), attn_mask=random_mask(*shape, seed=4))


@masks
def test_float_masks_and_their_gradients_broadcast_as_in_torch(leading, shape):
    check_matches_torch(*inputs(*leading), attn_mask=normal(*shape, seed=5), scale=0.4)


@masks
def test_minus_infinity_in_a_float_mask_matches_torch(leading, shape):
    mask = torch.where(random_mask(*shape, seed=6), normal(*shape, seed=5), -math.inf)
    q, k, v = inputs(*leading)

    torch.testing.assert_close(regard_sdpa(q, k, v, mask), torch_sdpa_function(q, k, v, mask), **CLOSE_FLOAT64)


def test_gradient_of_a_float_mask_with_minus_infinity_matches_torch():
    hidden = torch.ones(5, 7, dtype=torch.bool).triu(3)
    check_matches_torch(*inputs(2, 3), attn_mask=normal(2, 1, 5, 7, seed=5).masked_fill(hidden, -math.inf))
    check_matches_torch(*inputs(2, 3), attn_mask=normal(5, 7, seed=5).masked_fill(hidden, -math.inf), scale=0.4)


@pytest.mark.parametrize(
    "leading, kv_heads", [((2, 4), 2), ((2, 6), 3), ((1, 4), 1), ((2, 2, 4), 2), ((4,), 2)], ids=str
)
@pytest.mark.parametrize(
    "options",
    [{}, dict(is_causal=True), dict(attn_mask=random_mask(5, 7)), dict(attn_mask=normal(5, 7)), dict(scale=0.3)],
    ids=["plain", "causal", "boolean mask", "float mask", "scale"],
)
def test_grouped_heads_match_torch(leading, kv_heads, options):
    q, _, _ = inputs(*leading)
    _, k, v = inputs(*leading[:-1], kv_heads)

    check_matches_torch(q, k, v, enable_gqa=True, **options)


def test_mask_per_query_head_with_grouped_heads():
    q, _, _ = inputs(2, 4)
    _, k, v = inputs(2, 2)

    check_matches_torch(q, k, v, enable_gqa=True, attn_mask=random_mask(2, 4, 5, 7))
    check_matches_torch(q, k, v, enable_gqa=True, attn_mask=normal(1, 4, 1, 7))


@pytest.mark.parametrize(
    "q_leading, k_leading, v_leading",
    [((2, 3), (1, 3), (1, 3)), ((1, 3), (2, 3), (2, 3)), ((2, 3), (2, 1), (2, 1)), ((3,), (2, 3), (2, 3))],
    ids=str,
)
def test_leading_dimensions_broadcast_as_in_torch(q_leading, k_leading, v_leading):
    q, k, v = inputs(*q_leading)[0], inputs(*k_leading)[1], inputs(*v_leading)[2]
    check_matches_torch(q, k, v)
    check_matches_torch(q, k, v, attn_mask=random_mask(2, 3, 5, 7))


@pytest.mark.parametrize("n_q, n_k", [(0, 4), (4, 0), (0, 0)])
def test_empty_sequences_match_torch(n_q, n_k):
    q, k, v = inputs(2, 3, n_q=n_q, n_k=n_k)

    output, expected = regard_sdpa(q, k, v), torch_sdpa_function(q, k, v)

    assert output.shape == expected.shape
    assert torch.equal(output, expected)


@pytest.mark.parametrize("kind", ["boolean", "float"])
def test_fully_masked_row_has_zero_output_and_zero_gradient(kind):
    q, k, v = (x.requires_grad_() for x in inputs(2, 3))
    visible = torch.ones(5, 7, dtype=torch.bool)
    visible[2] = False
    mask = visible if kind == "boolean" else torch.zeros(5, 7).double().masked_fill(~visible, -math.inf)

    output = regard_sdpa(q, k, v, mask)
    d_q, d_k, d_v = torch.autograd.grad(output.sum(), (q, k, v))

    assert torch.equal(output[:, :, 2], torch.zeros(2, 3, 3, dtype=torch.float64))
    assert torch.equal(d_q[:, :, 2], torch.zeros(2, 3, 4, dtype=torch.float64))
    assert bool((output[:, :, [0, 1, 3, 4]] != 0).all())
    assert all(bool(torch.isfinite(x).all()) for x in (d_q, d_k, d_v))
    expected_output = torch_sdpa_function(q, k, v, mask)
    expected_results = (expected_output, *torch.autograd.grad(expected_output.sum(), (q, k, v)))
    for actual, expected in zip((output, d_q, d_k, d_v), expected_results, strict=True):
        torch.testing.assert_close(actual, expected, **CLOSE_FLOAT64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_mask", [False, True])
def test_lower_precision_is_as_accurate_as_torch(dtype, has_mask):
    q, k, v = (x.to(dtype) for x in inputs(2, 3, n_q=40, n_k=50, head_dim=16))
    mask = normal(40, 50, seed=5).to(dtype) if has_mask else None
    exact = torch_sdpa_function(q.double(), k.double(), v.double(), None if mask is None else mask.double())

    output = regard_sdpa(q, k, v, mask)

    assert output.dtype == dtype
    error = (output.double() - exact).abs().max()
    torch_error = (torch_sdpa_function(q, k, v, mask).double() - exact).abs().max()
    assert error <= 2 * torch_error


def test_float32_mask_with_half_precision_matches_torch():
    q, k, v = (x.bfloat16() for x in inputs(2, 3))
    mask = normal(5, 7, seed=5).float()

    output = regard_sdpa(q, k, v, mask)

    assert output.dtype == torch.bfloat16
    # a bfloat16 result is rounded to 8 bits, and torch computes in another order
    torch.testing.assert_close(output, torch_sdpa_function(q, k, v, mask), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask_kind", [None, "boolean", "float"])
def test_autocast_precision_matches_torch(dtype, mask_kind):
    q, k, v = (x.float() for x in inputs(2, 3, n_q=40, n_k=50, head_dim=16))
    mask = {None: None, "boolean": random_mask(40, 50), "float": normal(40, 50).float()}[mask_kind]

    with torch.autocast("cpu", dtype=dtype):
        output, expected = regard_sdpa(q, k, v, mask), torch_sdpa_function(q, k, v, mask)

    assert output.dtype == expected.dtype == dtype
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(output, regard_sdpa(q.to(dtype), k.to(dtype), v.to(dtype), mask))


def test_autocast_does_not_change_float64():
    q, k, v = inputs(2, 3)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, expected = regard_sdpa(q, k, v), torch_sdpa_function(q, k, v)

    assert output.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(output, expected, **CLOSE_FLOAT64)


def test_gradients_under_autocast_have_the_dtype_of_the_inputs():
    q, k, v = (x.float().requires_grad_() for x in inputs(2, 3))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = regard_sdpa(q, k, v)
    gradients = torch.autograd.grad(output.float().sum(), (q, k, v))

    assert all(gradient.dtype == torch.float32 for gradient in gradients)


def test_dropout_drops_with_the_given_probability_and_scales_the_rest():
    n = 400
    x, v = torch.zeros(1, 1, n, 1), torch.eye(n)[None, None]

    weights = regard_sdpa(x, x, v, dropout_p=0.3)[0, 0] * n

    nonzero = weights != 0
    torch.testing.assert_close(weights[nonzero], torch.full_like(weights[nonzero], 1 / 0.7))
    # the standard deviation over 160,000 weights is 0.001
    assert float(nonzero.double().mean()) == pytest.approx(0.7, abs=0.006)


def test_dropout_follows_the_manual_seed():
    q, k, v = inputs(2, 3)

    torch.manual_seed(1)
    first, second = regard_sdpa(q, k, v, dropout_p=0.5), regard_sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)

    assert not torch.equal(first, second)
    assert torch.equal(regard_sdpa(q, k, v, dropout_p=0.5), first)


def test_dropout_probability_one_returns_zero_as_in_torch():
    q, k, v = inputs(2, 3)

    assert torch.equal(torch_sdpa_function(q, k, v, dropout_p=1.0), torch.zeros(2, 3, 5, 3, dtype=torch.float64))
    assert torch.equal(regard_sdpa(q, k, v, dropout_p=1.0), torch.zeros(2, 3, 5, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(attn_mask=random_mask(5, 7), is_causal=True), "attn_mask must not be given together with is_causal=True"),
        (dict(attn_mask=random_mask(5, 6)), r"must broadcast to \(2, 3, 5, 7\); got shape \(5, 6\)"),
        (dict(attn_mask=normal(4, 5, 7)), r"must broadcast to \(2, 3, 5, 7\); got shape \(4, 5, 7\)"),
        (dict(attn_mask=torch.ones(5, 7, dtype=torch.int64)), "must hold floats; got torch.int64"),
        (dict(dropout_p=1.5), "got 1.5"),
        (dict(dropout_p=-0.1), "got -0.1"),
    ],
)
def test_invalid_arguments_are_rejected(options, message):
    with pytest.raises(ArgumentError, match=message):
        regard_sdpa(*inputs(2, 3), **options)


def test_mismatched_shapes_and_dtypes_are_rejected():
    q, k, v = inputs(2, 3)

    with pytest.raises(ArgumentError, match="q=4, k=3"):
        regard_sdpa(q, k[..., :3], v)
    with pytest.raises(ArgumentError, match="k=7, v=6"):
        regard_sdpa(q, k, v[:, :, :6])
    with pytest.raises(ArgumentError, match=r"k=torch\.float32"):
        regard_sdpa(q, k.float(), v)


def test_error_for_grouped_heads_names_enable_gqa():
    q, _, _ = inputs(2, 4)
    _, k, v = inputs(2, 2)

    with pytest.raises(RegardError, match="enable_gqa"):
        regard_sdpa(q, k, v)


# override_sdpa


class CallLog:
    """Shapes of q and threads of the calls of a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.shapes: list[tuple[int, ...]] = []
        self.threads: list[int] = []

    def __call__(self, q: Tensor, *args: Any, **options: Any) -> Tensor:
        self.shapes.append(tuple(q.shape))
        self.threads.append(threading.get_ident())
        return self.function(q, *args, **options)

    def __len__(self) -> int:
        return len(self.shapes)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CallLog:
    """The calls of `regard.attention` by SDPA."""
    log = CallLog(torch_sdpa.attention)
    monkeypatch.setattr(torch_sdpa, "attention", log)
    return log


@contextmanager
def check_restored() -> Iterator[None]:
    """Check that torch's function is in place before and after the context."""
    assert F.scaled_dot_product_attention is torch_sdpa_function
    yield
    assert F.scaled_dot_product_attention is torch_sdpa_function
    assert not torch.overrides._get_current_function_mode_stack()


class SelfAttention(nn.Module):
    """A module that uses SDPA imported by name."""

    def __init__(self, embed_dim: int = 16, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out_proj(torch_sdpa_function(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def check_override(run: Callable[[], Tensor], calls: CallLog, num_calls: int) -> None:
    """Check that `run` returns the same with and without the override, and calls regard `num_calls` times."""
    with check_restored():
        expected = run()
        assert len(calls) == 0
        with regard.override_sdpa():
            output = run()
        assert len(calls) == num_calls
        assert torch.equal(run(), expected)
    assert len(calls) == num_calls
    torch.testing.assert_close(output, expected, **CLOSE_FLOAT32)


def embeddings(length: int = 7) -> Tensor:
    return normal(2, length, 16, seed=1, dtype=torch.float32)


def test_override_of_calls_through_the_module_and_by_name(calls):
    q, k, v = (x.float() for x in inputs(2, 3))

    check_override(lambda: F.scaled_dot_product_attention(q, k, v), calls, num_calls=1)
    calls.shapes.clear()
    check_override(lambda: torch_sdpa_function(q, k, v, is_causal=True), calls, num_calls=1)
    calls.shapes.clear()
    check_override(
        lambda: torch.nn.functional.scaled_dot_product_attention(query=q, key=k, value=v, scale=0.3), calls, num_calls=1
    )


def test_override_of_a_module_that_imported_sdpa_by_name(calls):
    model = SelfAttention()

    check_override(lambda: model(embeddings()), calls, num_calls=1)
    assert calls.shapes == [(2, 4, 7, 4)]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("requires_grad", [True, False], ids=["with gradients", "without gradients"])
@pytest.mark.parametrize("mask_kind", [None, "boolean", "float", "padding", "causal"])
def test_override_of_multihead_attention(calls, training, requires_grad, mask_kind):
    layer = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = embeddings()
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    options: dict[str, Any] = {
        None: {},
        "boolean": dict(attn_mask=hidden),
        "float": dict(attn_mask=torch.zeros(7, 7).masked_fill(hidden, -math.inf)),
        "padding": dict(key_padding_mask=torch.arange(7) >= torch.tensor([[7], [4]])),
        "causal": dict(attn_mask=hidden, is_causal=True),
    }[mask_kind]

    with torch.set_grad_enabled(requires_grad):
        check_override(lambda: layer(x, x, x, need_weights=False, **options)[0], calls, num_calls=1)
    assert calls.shapes == [(2, 4, 7, 4)]


def test_override_of_unbatched_cross_attention(calls):
    layer = nn.MultiheadAttention(16, 4, kdim=6, vdim=5)
    x, keys, values = embeddings()[0], normal(9, 6, dtype=torch.float32), normal(9, 5, dtype=torch.float32)

    check_override(lambda: layer(x, keys, values, need_weights=False)[0], calls, num_calls=1)


def test_multihead_attention_returns_weights_under_the_override(calls):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = embeddings()
    expected_results = layer(x, x, x)

    with regard.override_sdpa():
        results = layer(x, x, x)

    for result, expected in zip(results, expected_results, strict=True):
        torch.testing.assert_close(result, expected, **CLOSE_FLOAT32)


def test_override_of_multi_head_attention_forward(calls):
    layer = nn.MultiheadAttention(16, 4)
    x = embeddings().transpose(0, 1)

    def call() -> Tensor:
        return F.multi_head_attention_forward(
            *(x, x, x, 16, 4, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0),
            *(layer.out_proj.weight, layer.out_proj.bias),
            need_weights=False,
        )[0]

    check_override(call, calls, num_calls=1)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("requires_grad", [True, False], ids=["with gradients", "without gradients"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_override_of_a_transformer_encoder_disables_the_fused_path(calls, training, requires_grad, norm_first):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train(training)

    with torch.set_grad_enabled(requires_grad):
        check_override(lambda: encoder(embeddings()), calls, num_calls=3)
    assert calls.shapes == [(2, 4, 7, 4)] * 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_override_of_a_padded_transformer_encoder_disables_nested_tensors(calls):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.arange(7) >= torch.tensor([[7], [4]])

    with torch.no_grad(), regard.override_sdpa():
        output = encoder(embeddings(), src_key_padding_mask=padding)
    with torch.no_grad():
        expected = encoder(embeddings(), src_key_padding_mask=padding)

    assert len(calls) == 2
    torch.testing.assert_close(output[~padding], expected[~padding], **CLOSE_FLOAT32)  # torch returns zeros for padding


def test_override_of_a_transformer(calls):
    model = nn.Transformer(16, 4, 1, 2, 32, dropout=0.0, batch_first=True).eval()
    hidden = nn.Transformer.generate_square_subsequent_mask(5)

    with torch.no_grad():
        check_override(
            lambda: model(embeddings(), embeddings(length=5), tgt_mask=hidden, tgt_is_causal=True),
            calls,
            num_calls=1 + 2 * 2,
        )


def test_gradients_under_the_override_match_torch(calls):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), SelfAttention())

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(model(embeddings()).square().sum(), list(model.parameters())))

    expected_gradients = gradients()
    with regard.override_sdpa():
        actual_gradients = gradients()

    assert len(calls) == 3
    for gradient, expected in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_backward_after_the_context_matches_torch(calls):
    model = SelfAttention()
    expected_gradients = torch.autograd.grad(model(embeddings()).sum(), list(model.parameters()))

    with regard.override_sdpa():
        output = model(embeddings())
    gradients = torch.autograd.grad(output.sum(), list(model.parameters()))

    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


def test_dropout_under_the_override_follows_the_manual_seed(calls):
    layer = nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    x = embeddings()

    def call() -> Tensor:
        torch.manual_seed(3)
        return layer(x, x, x, need_weights=False)[0]

    with regard.override_sdpa():
        first, second = call(), call()

    assert len(calls) == 2
    assert torch.equal(first, second)
    assert not torch.allclose(first, layer.eval()(x, x, x, need_weights=False)[0])


def test_nested_overrides_call_regard_once(calls):
    model, layer = SelfAttention(), nn.MultiheadAttention(16, 4, batch_first=True)
    x = embeddings()
    with check_restored():
        with regard.override_sdpa():
            with regard.override_sdpa():
                model(x), layer(x, x, x, need_weights=False)
                assert len(calls) == 2
            model(x), layer(x, x, x, need_weights=False)
            assert len(calls) == 4
        model(x), layer(x, x, x, need_weights=False)
    assert len(calls) == 4


def test_errors_restore_the_function_of_torch(calls):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = embeddings()

    def fail(*_: Any, **__: Any) -> Tensor:
        raise ZeroDivisionError

    calls.function = fail
    with check_restored():
        with pytest.raises(ZeroDivisionError), regard.override_sdpa():
            layer(x, x, x, need_weights=False)
        with pytest.raises(KeyError), regard.override_sdpa():
            raise KeyError
    layer(x, x, x, need_weights=False)
    assert len(calls) == 1


def run_in_thread(function: Callable[[], Any]) -> Any:
    """Return the result of a function that runs in another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(timeout=60)
    assert results, "the other thread failed"
    return results[0]


def test_override_does_not_affect_other_threads(calls):
    model, layer = SelfAttention(), nn.MultiheadAttention(16, 4, batch_first=True)
    x = embeddings()

    def run_both() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return model(x), layer(x, x, x, need_weights=False)[0]

    expected_outputs = run_both()
    with regard.override_sdpa():
        outputs = run_in_thread(run_both)
        assert len(calls) == 0
        run_both()
        assert len(calls) == 2

    for output, expected in zip(outputs, expected_outputs, strict=True):
        assert torch.equal(output, expected)


def test_override_during_a_call_does_not_affect_other_threads(calls):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = embeddings()
    attention, counts = calls.function, []

    def attention_with_other_threads(*args: Any, **options: Any) -> Tensor:
        calls.function = attention
        before = len(calls)
        run_in_thread(lambda: F.scaled_dot_product_attention(x, x, x))
        run_in_thread(lambda: layer(x, x, x, need_weights=False))
        counts.append(len(calls) - before)
        return attention(*args, **options)

    calls.function = attention_with_other_threads
    with check_restored(), regard.override_sdpa():
        layer(x, x, x, need_weights=False)

    assert counts == [0]
    assert len(calls) == 1


def test_two_threads_override_at_the_same_time(calls):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = embeddings()
    expected = layer(x, x, x, need_weights=False)[0]
    barrier = threading.Barrier(2, timeout=60)
    attention = calls.function
    outputs: list[Tensor] = []

    def synchronized_attention(*args: Any, **options: Any) -> Tensor:
        barrier.wait()  # both threads are inside the override
        result = attention(*args, **options)
        barrier.wait()
        return result

    def run() -> None:
        with regard.override_sdpa():
            outputs.append(layer(x, x, x, need_weights=False)[0])

    calls.function = synchronized_attention
    with check_restored():
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)

    assert len(set(calls.threads)) == 2
    assert len(outputs) == 2
    for output in outputs:
        torch.testing.assert_close(output, expected, **CLOSE_FLOAT32)


def test_override_under_autocast_and_inference_mode(calls):
    model = SelfAttention()

    def call() -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            return model(embeddings()).float()

    expected = call()
    with regard.override_sdpa():
        output = call()

    assert len(calls) == 1
    torch.testing.assert_close(output, expected, rtol=3e-2, atol=3e-2)
