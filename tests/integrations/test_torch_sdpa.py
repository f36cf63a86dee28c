"""torch's own attention call answered by regard: the same arguments, the same numbers, and really answered by it."""

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
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import regard
from regard.errors import RegardError, SpecError
from regard.integrations import torch_sdpa

ours = regard.scaled_dot_product_attention
EXACT = dict(rtol=1e-11, atol=1e-12)  # both are float64 sums of some ten terms
SINGLE = dict(rtol=1e-5, atol=1e-5)  # both are float32, through a few layers of width 16


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def coins(*shape: int, seed: int = 0) -> Tensor:
    """A boolean mask in which some row sees nothing wherever there are rows."""
    result = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    if len(shape) >= 2 and shape[-2] > 1:
        result[..., 1, :] = False
    return result


def inputs(*lead: int, n_q: int = 5, n_k: int = 7, width: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return normal(*lead, n_q, width, seed=1), normal(*lead, n_k, width, seed=2), normal(*lead, n_k, 3, seed=3)


def agrees(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    """The same output and the same gradients as torch, those of a float mask among them."""
    given = [q, k, v]
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        given.append(options["attn_mask"])
    results = []
    for call in (ours, F.scaled_dot_product_attention):
        leaves = [x.detach().clone().requires_grad_() for x in given]
        if len(leaves) == 4:
            options = options | dict(attn_mask=leaves[3])
        output = call(*leaves[:3], **options)
        pull = normal(*output.shape, seed=8)
        results.append((output, *torch.autograd.grad(output, leaves, pull)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


# The call.


def test_the_signature_is_the_one_that_torch_documents():
    documented = re.match(r"scaled_dot_product_attention\((.*?)\)", F.scaled_dot_product_attention.__doc__, re.DOTALL)
    assert documented is not None
    wanted = [tuple(part.strip() for part in argument.split("=")) for argument in documented[1].split(",")]

    found = [
        (name,) if p.default is inspect.Parameter.empty else (name, repr(p.default))
        for name, p in inspect.signature(ours).parameters.items()
    ]

    assert found == wanted


def test_all_that_torch_takes_by_position_is_taken_by_position():
    q, k, v = inputs(2, 3)
    may = coins(5, 7)

    torch.testing.assert_close(ours(q, k, v, may, 0.0, False), imported_by_name(q, k, v, may, 0.0, False), **EXACT)
    torch.testing.assert_close(ours(q, k, v, None, 0.0, True), imported_by_name(q, k, v, None, 0.0, True), **EXACT)


LEADS = {"2-D": (), "3-D": (3,), "4-D": (2, 3), "5-D": (2, 2, 3)}
every_lead = pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)


@every_lead
@pytest.mark.parametrize("n_q, n_k", [(5, 7), (7, 5), (6, 6), (1, 4), (4, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 2.0])
def test_lengths_causality_and_scale_mean_what_they_mean_in_torch(lead, n_q, n_k, is_causal, scale):
    agrees(*inputs(*lead, n_q=n_q, n_k=n_k), is_causal=is_causal, scale=scale)


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
    "lead, shape",
    [pytest.param(LEADS[d], shape, id=f"{d} {shape}") for d, shapes in MASK_SHAPES.items() for shape in shapes],
)


@masks
def test_a_boolean_mask_of_any_shape_that_broadcasts_agrees_with_torch(lead, shape):
    agrees(*inputs(*lead), attn_mask=coins(*shape, seed=4))


@masks
def test_a_float_mask_of_any_shape_that_broadcasts_agrees_with_torch_and_has_its_gradient(lead, shape):
    agrees(*inputs(*lead), attn_mask=normal(*shape, seed=5), scale=0.4)


@masks
def test_a_float_mask_with_minus_infinity_hides_as_in_torch(lead, shape):
    hides = torch.where(coins(*shape, seed=6), normal(*shape, seed=5), -math.inf)
    q, k, v = inputs(*lead)

    torch.testing.assert_close(ours(q, k, v, hides), imported_by_name(q, k, v, hides), **EXACT)


def test_a_float_mask_that_hides_and_learns_has_the_gradient_of_torch():
    hides = torch.ones(5, 7, dtype=torch.bool).triu(3)
    agrees(*inputs(2, 3), attn_mask=normal(2, 1, 5, 7, seed=5).masked_fill(hides, -math.inf))
    agrees(*inputs(2, 3), attn_mask=normal(5, 7, seed=5).masked_fill(hides, -math.inf), scale=0.4)


@pytest.mark.parametrize("lead, key_heads", [((2, 4), 2), ((2, 6), 3), ((1, 4), 1), ((2, 2, 4), 2), ((4,), 2)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, dict(is_causal=True), dict(attn_mask=coins(5, 7)), dict(attn_mask=normal(5, 7)), dict(scale=0.3)],
    ids=["plain", "causal", "boolean mask", "float mask", "scale"],
)
def test_grouped_heads_agree_with_torch(lead, key_heads, options):
    q, _, _ = inputs(*lead)
    _, k, v = inputs(*lead[:-1], key_heads)

    agrees(q, k, v, enable_gqa=True, **options)


def test_a_mask_of_query_heads_goes_with_grouped_heads():
    q, _, _ = inputs(2, 4)
    _, k, v = inputs(2, 2)

    agrees(q, k, v, enable_gqa=True, attn_mask=coins(2, 4, 5, 7))
    agrees(q, k, v, enable_gqa=True, attn_mask=normal(1, 4, 1, 7))


@pytest.mark.parametrize(
    "of_q, of_k, of_v",
    [((2, 3), (1, 3), (1, 3)), ((1, 3), (2, 3), (2, 3)), ((2, 3), (2, 1), (2, 1)), ((3,), (2, 3), (2, 3))],
    ids=str,
)
def test_leading_dimensions_broadcast_as_in_torch(of_q, of_k, of_v):
    agrees(inputs(*of_q)[0], inputs(*of_k)[1], inputs(*of_v)[2])
    agrees(inputs(*of_q)[0], inputs(*of_k)[1], inputs(*of_v)[2], attn_mask=coins(2, 3, 5, 7))


@pytest.mark.parametrize("n_q, n_k", [(0, 4), (4, 0), (0, 0)])
def test_empty_lengths_agree_with_torch(n_q, n_k):
    q, k, v = inputs(2, 3, n_q=n_q, n_k=n_k)

    found, expected = ours(q, k, v), imported_by_name(q, k, v)

    assert found.shape == expected.shape
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", ["boolean", "float"])
def test_a_row_that_is_masked_altogether_outputs_zero_and_has_zero_gradient(kind):
    q, k, v = (x.requires_grad_() for x in inputs(2, 3))
    may = torch.ones(5, 7, dtype=torch.bool)
    may[2] = False
    given = may if kind == "boolean" else torch.zeros(5, 7).double().masked_fill(~may, -math.inf)

    output = ours(q, k, v, given)
    of_q, of_k, of_v = torch.autograd.grad(output.sum(), (q, k, v))

    assert torch.equal(output[:, :, 2], torch.zeros(2, 3, 3, dtype=torch.float64))
    assert torch.equal(of_q[:, :, 2], torch.zeros(2, 3, 4, dtype=torch.float64))
    assert bool((output[:, :, [0, 1, 3, 4]] != 0).all())
    assert all(bool(torch.isfinite(x).all()) for x in (of_q, of_k, of_v))
    for found, expected in zip(
        (output, of_q, of_k, of_v),
        (theirs := imported_by_name(q, k, v, given), *torch.autograd.grad(theirs.sum(), (q, k, v))),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_lower_precision_is_as_near_to_the_truth_as_torch(dtype, masked):
    q, k, v = (x.to(dtype) for x in inputs(2, 3, n_q=40, n_k=50, width=16))
    extra = normal(40, 50, seed=5).to(dtype) if masked else None
    exact = imported_by_name(q.double(), k.double(), v.double(), None if extra is None else extra.double())

    found = ours(q, k, v, extra)

    assert found.dtype == dtype
    own = (found.double() - exact).abs().max()
    theirs = (imported_by_name(q, k, v, extra).double() - exact).abs().max()
    assert own <= 2 * theirs


def test_a_float32_mask_goes_with_half_precision_as_in_torch():
    q, k, v = (x.bfloat16() for x in inputs(2, 3))
    extra = normal(5, 7, seed=5).float()

    found = ours(q, k, v, extra)

    assert found.dtype == torch.bfloat16
    # a bfloat16 result is rounded to 8 bits, and torch's own is computed in another order
    torch.testing.assert_close(found, imported_by_name(q, k, v, extra), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [None, "boolean", "float"])
def test_autocast_runs_it_in_the_precision_in_which_it_runs_torch(dtype, masked):
    q, k, v = (x.float() for x in inputs(2, 3, n_q=40, n_k=50, width=16))
    extra = {None: None, "boolean": coins(40, 50), "float": normal(40, 50).float()}[masked]

    with torch.autocast("cpu", dtype=dtype):
        found, expected = ours(q, k, v, extra), imported_by_name(q, k, v, extra)

    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(found, ours(q.to(dtype), k.to(dtype), v.to(dtype), extra))


def test_autocast_leaves_float64_alone_as_it_does_for_torch():
    q, k, v = inputs(2, 3)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = ours(q, k, v), imported_by_name(q, k, v)

    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, **EXACT)


def test_gradients_under_autocast_come_back_in_the_precision_of_the_inputs():
    q, k, v = (x.float().requires_grad_() for x in inputs(2, 3))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ours(q, k, v)
    found = torch.autograd.grad(output.float().sum(), (q, k, v))

    assert all(g.dtype == torch.float32 for g in found)


def test_dropout_leaves_out_the_share_that_is_asked_for_and_scales_the_rest():
    n = 400
    x, v = torch.zeros(1, 1, n, 1), torch.eye(n)[None, None]

    weights = ours(x, x, v, dropout_p=0.3)[0, 0] * n

    kept = weights != 0
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / 0.7))
    # 160,000 coins: the share of kept ones strays by 0.001 once, and by 0.006 never
    assert float(kept.double().mean()) == pytest.approx(0.7, abs=0.006)


def test_dropout_is_drawn_anew_for_each_call_and_again_after_the_same_manual_seed():
    q, k, v = inputs(2, 3)

    torch.manual_seed(1)
    first, second = ours(q, k, v, dropout_p=0.5), ours(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)

    assert not torch.equal(first, second)
    assert torch.equal(ours(q, k, v, dropout_p=0.5), first)


def test_dropout_of_everything_is_zero_as_in_torch():
    q, k, v = inputs(2, 3)

    assert torch.equal(imported_by_name(q, k, v, dropout_p=1.0), torch.zeros(2, 3, 5, 3, dtype=torch.float64))
    assert torch.equal(ours(q, k, v, dropout_p=1.0), torch.zeros(2, 3, 5, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(attn_mask=coins(5, 7), is_causal=True), "attn_mask must not be given together with is_causal=True"),
        (dict(attn_mask=coins(5, 6)), r"must broadcast to \(2, 3, 5, 7\); got shape \(5, 6\)"),
        (dict(attn_mask=normal(4, 5, 7)), r"must broadcast to \(2, 3, 5, 7\); got shape \(4, 5, 7\)"),
        (dict(attn_mask=torch.ones(5, 7, dtype=torch.int64)), "must hold floats; got torch.int64"),
        (dict(dropout_p=1.5), "got 1.5"),
        (dict(dropout_p=-0.1), "got -0.1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, said):
    with pytest.raises(SpecError, match=said):
        ours(*inputs(2, 3), **options)


def test_unequal_widths_lengths_and_dtypes_are_refused():
    q, k, v = inputs(2, 3)

    with pytest.raises(SpecError, match="q=4, k=3"):
        ours(q, k[..., :3], v)
    with pytest.raises(SpecError, match="k=7, v=6"):
        ours(q, k, v[:, :, :6])
    with pytest.raises(SpecError, match=r"k=torch\.float32"):
        ours(q, k.float(), v)


def test_unequal_heads_without_enable_gqa_are_refused_in_words():
    q, _, _ = inputs(2, 4)
    _, k, v = inputs(2, 2)

    with pytest.raises(RegardError, match="enable_gqa"):
        ours(q, k, v)


# Put in torch's place.


class Counted:
    """How often regard was asked, with which shapes, and by which thread."""

    def __init__(self, answer: Callable[..., Tensor]) -> None:
        self.answer = answer
        self.shapes: list[tuple[int, ...]] = []
        self.threads: list[int] = []

    def __call__(self, q: Tensor, *args: Any, **options: Any) -> Tensor:
        self.shapes.append(tuple(q.shape))
        self.threads.append(threading.get_ident())
        return self.answer(q, *args, **options)

    def __len__(self) -> int:
        return len(self.shapes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(torch_sdpa.attention)
    monkeypatch.setattr(torch_sdpa, "attention", counted)
    return counted


@contextmanager
def unpatched() -> Iterator[None]:
    """torch's module holds torch's function, before and after."""
    assert F.scaled_dot_product_attention is imported_by_name
    yield
    assert F.scaled_dot_product_attention is imported_by_name
    assert not torch.overrides._get_current_function_mode_stack()


class ByHand(nn.Module):
    """A model whose author imported the function by name."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.back(imported_by_name(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def same(model: Callable[[], Tensor], asked: Counted, calls: int) -> None:
    """The model gives the same numbers with and without, and regard was asked so often."""
    with unpatched():
        expected = model()
        assert len(asked) == 0
        with regard.replacing_sdpa():
            found = model()
        assert len(asked) == calls
        assert torch.equal(model(), expected)
    assert len(asked) == calls
    torch.testing.assert_close(found, expected, **SINGLE)


def tokens(batch: int = 2, length: int = 7, width: int = 16) -> Tensor:
    return normal(batch, length, width, seed=1, dtype=torch.float32)


def test_a_call_through_the_module_and_a_call_by_name_are_both_answered(asked):
    q, k, v = (x.float() for x in inputs(2, 3))

    same(lambda: F.scaled_dot_product_attention(q, k, v), asked, calls=1)
    asked.shapes.clear()
    same(lambda: imported_by_name(q, k, v, is_causal=True), asked, calls=1)
    asked.shapes.clear()
    same(lambda: torch.nn.functional.scaled_dot_product_attention(query=q, key=k, value=v, scale=0.3), asked, calls=1)


def test_a_model_whose_author_imported_the_function_by_name_runs_on_regard(asked):
    model = ByHand()

    same(lambda: model(tokens()), asked, calls=1)
    assert asked.shapes == [(2, 4, 7, 4)]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("graph", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize("masked", [None, "boolean", "float", "padding", "causal"])
def test_multihead_attention_runs_on_regard(asked, training, graph, masked):
    layer = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = tokens()
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    options: dict[str, Any] = {
        None: {},
        "boolean": dict(attn_mask=hidden),
        "float": dict(attn_mask=torch.zeros(7, 7).masked_fill(hidden, -math.inf)),
        "padding": dict(key_padding_mask=torch.arange(7) >= torch.tensor([[7], [4]])),
        "causal": dict(attn_mask=hidden, is_causal=True),
    }[masked]

    with torch.set_grad_enabled(graph):
        same(lambda: layer(x, x, x, need_weights=False, **options)[0], asked, calls=1)
    assert asked.shapes == [(2, 4, 7, 4)]


def test_multihead_attention_without_a_batch_and_across_sequences_runs_on_regard(asked):
    layer = nn.MultiheadAttention(16, 4, kdim=6, vdim=5)
    x, keys, values = tokens()[0], normal(9, 6, dtype=torch.float32), normal(9, 5, dtype=torch.float32)

    same(lambda: layer(x, keys, values, need_weights=False)[0], asked, calls=1)


def test_multihead_attention_that_wants_its_weights_still_gives_them(asked):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = tokens()
    expected = layer(x, x, x)

    with regard.replacing_sdpa():
        found = layer(x, x, x)

    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **SINGLE)


def test_the_function_beneath_multihead_attention_runs_on_regard(asked):
    layer = nn.MultiheadAttention(16, 4)
    x = tokens().transpose(0, 1)

    def call() -> Tensor:
        return F.multi_head_attention_forward(
            *(x, x, x, 16, 4, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0),
            *(layer.out_proj.weight, layer.out_proj.bias),
            need_weights=False,
        )[0]

    same(call, asked, calls=1)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("graph", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_encoder_runs_on_regard_also_where_torch_would_fuse_it(asked, training, graph, norm_first):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train(training)

    with torch.set_grad_enabled(graph):
        same(lambda: encoder(tokens()), asked, calls=3)
    assert asked.shapes == [(2, 4, 7, 4)] * 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_encoder_with_padding_runs_on_regard_where_torch_would_nest_its_tensors(asked):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.arange(7) >= torch.tensor([[7], [4]])

    with torch.no_grad(), regard.replacing_sdpa():
        found = encoder(tokens(), src_key_padding_mask=padding)
    with torch.no_grad():
        expected = encoder(tokens(), src_key_padding_mask=padding)

    assert len(asked) == 2
    torch.testing.assert_close(found[~padding], expected[~padding], **SINGLE)  # torch leaves zeros where padding is


def test_a_whole_transformer_runs_on_regard(asked):
    model = nn.Transformer(16, 4, 1, 2, 32, dropout=0.0, batch_first=True).eval()
    hidden = nn.Transformer.generate_square_subsequent_mask(5)

    with torch.no_grad():
        same(lambda: model(tokens(), tokens(length=5), tgt_mask=hidden, tgt_is_causal=True), asked, calls=1 + 2 * 2)


def test_the_gradients_of_a_model_are_those_of_torch(asked):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), ByHand())

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(model(tokens()).square().sum(), list(model.parameters())))

    expected = gradients()
    with regard.replacing_sdpa():
        found = gradients()

    assert len(asked) == 3
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_backward_pass_after_the_block_is_still_right(asked):
    model = ByHand()
    expected = torch.autograd.grad(model(tokens()).sum(), list(model.parameters()))

    with regard.replacing_sdpa():
        output = model(tokens())
    found = torch.autograd.grad(output.sum(), list(model.parameters()))

    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_dropout_in_training_runs_on_regard_and_follows_the_manual_seed(asked):
    layer = nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    x = tokens()

    def call() -> Tensor:
        torch.manual_seed(3)
        return layer(x, x, x, need_weights=False)[0]

    with regard.replacing_sdpa():
        first, again = call(), call()

    assert len(asked) == 2
    assert torch.equal(first, again)
    assert not torch.allclose(first, layer.eval()(x, x, x, need_weights=False)[0])


def test_blocks_may_be_nested_and_each_call_is_answered_once(asked):
    model, layer = ByHand(), nn.MultiheadAttention(16, 4, batch_first=True)
    x = tokens()
    with unpatched():
        with regard.replacing_sdpa():
            with regard.replacing_sdpa():
                model(x), layer(x, x, x, need_weights=False)
                assert len(asked) == 2
            model(x), layer(x, x, x, need_weights=False)
            assert len(asked) == 4
        model(x), layer(x, x, x, need_weights=False)
    assert len(asked) == 4


def test_an_error_inside_puts_torch_back_in_its_place(asked):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = tokens()

    def fail(*_: Any, **__: Any) -> Tensor:
        raise ZeroDivisionError

    asked.answer = fail
    with unpatched():
        with pytest.raises(ZeroDivisionError), regard.replacing_sdpa():
            layer(x, x, x, need_weights=False)
        with pytest.raises(KeyError), regard.replacing_sdpa():
            raise KeyError
    layer(x, x, x, need_weights=False)
    assert len(asked) == 1


def in_a_thread(work: Callable[[], Any]) -> Any:
    """The result of work in another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(timeout=60)
    assert results, "the other thread failed"
    return results[0]


def test_other_threads_are_left_alone(asked):
    model, layer = ByHand(), nn.MultiheadAttention(16, 4, batch_first=True)
    x = tokens()

    def both() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return model(x), layer(x, x, x, need_weights=False)[0]

    expected = both()
    with regard.replacing_sdpa():
        elsewhere = in_a_thread(both)
        assert len(asked) == 0
        both()
        assert len(asked) == 2

    for a, b in zip(elsewhere, expected, strict=True):
        assert torch.equal(a, b)


def test_other_threads_are_left_alone_also_while_regard_is_answering_a_module_of_torch(asked):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = tokens()
    answer, counts = asked.answer, []

    def meanwhile(*args: Any, **options: Any) -> Tensor:
        asked.answer = answer
        before = len(asked)
        in_a_thread(lambda: F.scaled_dot_product_attention(x, x, x))
        in_a_thread(lambda: layer(x, x, x, need_weights=False))
        counts.append(len(asked) - before)
        return answer(*args, **options)

    asked.answer = meanwhile
    with unpatched(), regard.replacing_sdpa():
        layer(x, x, x, need_weights=False)

    assert counts == [0]
    assert len(asked) == 1


def test_two_threads_may_replace_at_once(asked):
    layer = nn.MultiheadAttention(16, 4, batch_first=True)
    x = tokens()
    expected = layer(x, x, x, need_weights=False)[0]
    together = threading.Barrier(2, timeout=60)
    answer = asked.answer
    found: list[Tensor] = []

    def meet(*args: Any, **options: Any) -> Tensor:
        together.wait()  # both are inside now
        result = answer(*args, **options)
        together.wait()
        return result

    def work() -> None:
        with regard.replacing_sdpa():
            found.append(layer(x, x, x, need_weights=False)[0])

    asked.answer = meet
    with unpatched():
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)

    assert len(set(asked.threads)) == 2
    assert len(found) == 2
    for one in found:
        torch.testing.assert_close(one, expected, **SINGLE)


def test_a_model_under_autocast_and_inference_mode_runs_on_regard(asked):
    model = ByHand()

    def call() -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            return model(tokens()).float()

    expected = call()
    with regard.replacing_sdpa():
        found = call()

    assert len(asked) == 1
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
