"""Gradients: the written-out backward pass against differences, paths against products by hand, and the experiment."""

import math
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vjp

import regard
from regard import mask
from regard.errors import SpecError
from regard.nn import Block, Decoder, Design, Encoder, MultiHeadAttention
from regard.theory import backward, gradient_path_norms, gradients
from regard.theory.paths import gradient_paths

N, M, D = 5, 6, 3
WIDTH = 8


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def slope(f: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """The gradient of <g, f(x)> by central differences: not autograd, and not the library."""
    found, step = torch.zeros_like(x), 1e-6
    for place in range(x.numel()):
        moved = torch.zeros(x.numel(), dtype=x.dtype)
        moved[place] = step
        both = [(f(x + sign * moved.view(x.shape)) * g).sum() for sign in (1, -1)]
        found.view(-1)[place] = (both[0] - both[1]) / (2 * step)
    return found


# differences of step 1e-6 are off by about 1e-12 / 1e-6 in rounding and (1e-6)² in curvature
CLOSE = {"atol": 1e-8, "rtol": 1e-6}


def entmax(s: Tensor, alpha: float) -> Tensor:
    """By bisection of the threshold."""
    low, high = (alpha - 1) * s.amax(-1, keepdim=True) - 1, (alpha - 1) * s.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        enough = (((alpha - 1) * s - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return ((alpha - 1) * s - low).clamp(min=0) ** (1 / (alpha - 1))


WEIGHINGS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "softmax": (lambda s: s.softmax(-1), backward.softmax_scores),
    "sink": (lambda s: s.exp() / (math.e + s.exp().sum(-1, keepdim=True)), backward.softmax_scores),
    "sparsemax": (lambda s: entmax(s, 2.0), lambda a, e: backward.entmax_scores(a, e, 2.0)),
    "entmax": (lambda s: entmax(s, 1.5), lambda a, e: backward.entmax_scores(a, e, 1.5)),
    "sigmoid": (torch.sigmoid, backward.sigmoid_scores),
    "relu": (lambda s: s.clamp(min=0) / s.shape[-1], backward.relu_scores),
}


@pytest.mark.parametrize("name", WEIGHINGS)
def test_the_gradient_in_the_scores_is_what_differences_give(name: str) -> None:
    weights, formula = WEIGHINGS[name]
    s, v, g = drawn(N, M), drawn(M, D), drawn(N, D)
    found = formula(weights(s), g @ v.mT)
    torch.testing.assert_close(found, slope(lambda x: weights(x) @ v, s, g), **CLOSE)


W, U, Z = drawn(D, 4), drawn(4, D).mT, drawn(4)
SCORES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., tuple[Tensor, Tensor]]]] = {
    "dot": (lambda q, k: q @ k.mT / math.sqrt(D), backward.dot),
    "softcap": (
        lambda q, k: 0.7 * torch.tanh(q @ k.mT / math.sqrt(D) / 0.7),
        lambda ds, q, k: backward.softcapped(ds, q, k, 0.7),
    ),
    "gaussian": (
        lambda q, k: -torch.cdist(q, k).square() / (2 * 1.3**2),
        lambda ds, q, k: backward.gaussian(ds, q, k, 1.3),
    ),
    "additive": (
        lambda q, k: torch.tanh((q @ W)[:, None] + (k @ U)[None]) @ Z,
        lambda ds, q, k: backward.additive(ds, q, k, W, U, Z),
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_the_gradient_in_queries_and_keys_is_what_differences_give(name: str) -> None:
    scores, formula = SCORES[name]
    q, k, ds = drawn(N, D), drawn(M, D), drawn(N, M)
    dq, dk = formula(ds, q, k)
    torch.testing.assert_close(dq, slope(lambda x: scores(x, k), q, ds), **CLOSE)
    torch.testing.assert_close(dk, slope(lambda x: scores(q, x), k, ds), **CLOSE)


def test_reversed_attention_is_that_of_a_recording() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(WIDTH, 1, mask=mask.causal())
    x, g = torch.randn(1, 6, WIDTH), torch.randn(1, 6, WIDTH)
    with regard.record(layer) as tape:
        output = layer(x)
    (output * g).sum().backward()
    q, k, v = (y.double() for y in (x[0] @ layer.in_proj_weight.detach().T).split(WIDTH, -1))
    a = regard.attend(q, k, v, mask=mask.causal()).weights.dense()
    of_head = (g[0] @ layer.out_proj.weight.detach()).double()
    expected = backward.reversed_attention(a, of_head, v, 1 / math.sqrt(WIDTH))
    torch.testing.assert_close(tape.reversed(0)[0, 0].double(), expected, atol=1e-6, rtol=1e-5)  # float32 inside


@pytest.mark.parametrize("norm_first", [True, False])
def test_what_comes_through_a_part_is_the_product_of_its_jacobian(norm_first: bool) -> None:
    torch.manual_seed(0)
    block = Block(Design(width=WIDTH, heads=2, norm_first=norm_first)).double()
    x, g = drawn(1, 5, WIDTH), drawn(1, 5, WIDTH)
    attention, feed = gradient_paths(block, x, loss=lambda y: (y * g).sum())

    def look(y: Tensor) -> Tensor:
        return block.self_attn(block.norm1(y) if norm_first else y)  # type: ignore[no-any-return]

    def think(y: Tensor) -> Tensor:
        return block.linear2(torch.nn.functional.gelu(block.linear1(block.norm2(y) if norm_first else y)))  # type: ignore[no-any-return]

    middle = x + look(x) if norm_first else block.norm1(x + look(x))
    at_sum = g if norm_first else vjp(block.norm2, middle + think(middle))[1](g)[0]
    torch.testing.assert_close(feed.skip, at_sum)
    torch.testing.assert_close(feed.through, vjp(think, middle)[1](at_sum)[0])
    below = feed.skip + feed.through
    at_sum = below if norm_first else vjp(block.norm1, x + look(x))[1](below)[0]
    torch.testing.assert_close(attention.skip, at_sum)
    torch.testing.assert_close(attention.through, vjp(look, x)[1](at_sum)[0])
    torch.testing.assert_close(attention.total, attention.skip + attention.through)


@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_blocks_have_the_paths_of_regards(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=norm_first)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    ours = Encoder(Design(width=WIDTH, heads=2, norm_first=norm_first), 2, norm=False).double()
    ours.load_state_dict(theirs.state_dict())
    x = drawn(2, 5, WIDTH)
    names, other = ([path.name for path in gradient_path_norms(each, x)] for each in (ours, theirs))
    assert names == other == [f"layers.{n}.{part}" for n in (0, 1) for part in ("attention", "feed_forward")]
    for one, two in zip(gradient_path_norms(ours, x), gradient_path_norms(theirs, x), strict=True):
        assert one.skip == pytest.approx(two.skip) and one.through == pytest.approx(two.through)


def test_a_part_that_hands_nothing_back_has_the_norm_zero() -> None:
    block = Block(Design(width=WIDTH, heads=2)).double()
    nn.init.zeros_(block.linear2.weight)
    attention, feed = gradient_path_norms(block, drawn(1, 5, WIDTH))
    assert feed.through == 0 and feed.skip > 0 and attention.through > 0


@pytest.mark.parametrize("norm_first", [True, False])
def test_cross_attention_hands_back_to_the_text_and_not_to_the_memory(norm_first: bool) -> None:
    torch.manual_seed(0)
    decoder = Decoder(Design(width=WIDTH, heads=2, norm_first=norm_first), 1, cross=True).double()
    memory = drawn(1, 5, WIDTH).requires_grad_()

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(x, memory)  # type: ignore[no-any-return]

    found = gradient_paths(Reading(), drawn(1, 5, WIDTH))
    assert [each.name.split(".")[-1] for each in found] == ["attention", "cross_attention", "feed_forward"]
    for each in found:
        torch.testing.assert_close(each.total, each.skip + each.through)


def test_an_attention_layer_alone_and_parts_that_are_said_are_followed() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(WIDTH, 2).double()
    assert [path.name for path in gradient_path_norms(layer, drawn(1, 5, WIDTH))] == ["attention"]
    other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double()
    (found,) = gradient_path_norms(other, drawn(1, 5, WIDTH), parts={"middle": (other[1], other[2])})
    g = torch.randn((1, 5, WIDTH), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert found.skip == pytest.approx(float(g.norm()))
    inner = vjp(lambda y: other[2](torch.tanh(y)), other[0](drawn(1, 5, WIDTH)))[1](g)[0]
    assert found.through == pytest.approx(float(inner.detach().norm()))


def test_what_has_no_known_parts_or_calls_them_twice_or_never_is_refused() -> None:
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    with pytest.raises(SpecError, match=r"blocks or attention layers that are known; got Sequential.*parts="):
        gradient_path_norms(plain, torch.randn(1, 5, WIDTH))
    twice = nn.Sequential(plain[0], plain[0])
    with pytest.raises(SpecError, match=r"called once; got a second call of f"):
        gradient_path_norms(twice, torch.randn(1, 5, WIDTH), parts={"f": (plain[0], plain[0])})
    unused = nn.Linear(WIDTH, WIDTH)
    with pytest.raises(SpecError, match=r"called once; got no call of f"):
        gradient_path_norms(plain, torch.randn(1, 5, WIDTH), parts={"f": (unused, unused)})
    assert not plain[0]._forward_pre_hooks and not plain[0]._backward_hooks  # nothing is left behind


@pytest.mark.parametrize("tokens, width, sharpness, layers", [(4, 64, 4.0, 1), (64, 4, 0.1, 16), (7, 5, 1.0, 2)])
def test_it_agrees_where_its_sliders_end(tokens: int, width: int, sharpness: float, layers: int) -> None:
    outcome = gradients(tokens=tokens, width=width, sharpness=sharpness, layers=layers, seed=2)
    assert outcome.agrees, str(outcome)


BREAKS: dict[str, Callable[..., object]] = {
    "softmax_scores": lambda a, e: a * e,
    "sigmoid_scores": lambda a, e: a * e,
    "relu_scores": lambda a, e: e / a.shape[-1],
    "gaussian": lambda ds, q, k, sigma: (ds @ k, ds.mT @ q),
    "softcapped": lambda ds, q, k, cap: backward.dot(ds, q, k),
}


@pytest.mark.parametrize("name", BREAKS)
def test_it_does_not_agree_with_a_formula_that_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["regard.theory.backward"], name, BREAKS[name])
    assert not gradients(tokens=6, width=4, layers=1).agrees
