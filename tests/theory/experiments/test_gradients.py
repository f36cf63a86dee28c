"""The gradients experiment: the backward pass against finite differences, gradient paths against explicit VJPs."""

import math
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vjp

import regard
from regard import mask
from regard.errors import ArgumentError
from regard.nn import Block, BlockConfig, Decoder, Encoder, MultiHeadAttention
from regard.theory import gradient_path_norms, gradients
from regard.theory.analysis import attention_gradients
from regard.theory.residual_gradients import gradient_paths

N, M, D = 5, 6, 3
EMBED_DIM = 8


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def slope(f: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """Return the gradient of <g, f(x)> by central differences, independent of autograd and of the library."""
    actual, step = torch.zeros_like(x), 1e-6
    for index in range(x.numel()):
        offset = torch.zeros(x.numel(), dtype=x.dtype)
        offset[index] = step
        values = [(f(x + sign * offset.view(x.shape)) * g).sum() for sign in (1, -1)]
        actual.view(-1)[index] = (values[0] - values[1]) / (2 * step)
    return actual


# finite differences of step 1e-6: rounding errors of 1e-12 / 1e-6, truncation errors of (1e-6)²
CLOSE = {"atol": 1e-8, "rtol": 1e-6}


def entmax(s: Tensor, alpha: float) -> Tensor:
    """Compute entmax by bisection of its threshold."""
    low, high = (alpha - 1) * s.amax(-1, keepdim=True) - 1, (alpha - 1) * s.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        is_large_enough = (((alpha - 1) * s - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True) >= 1
        low, high = torch.where(is_large_enough, middle, low), torch.where(is_large_enough, high, middle)
    return ((alpha - 1) * s - low).clamp(min=0) ** (1 / (alpha - 1))


NORMALIZERS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "softmax": (lambda s: s.softmax(-1), attention_gradients.softmax_score_grad),
    "sink": (lambda s: s.exp() / (math.e + s.exp().sum(-1, keepdim=True)), attention_gradients.softmax_score_grad),
    "sparsemax": (lambda s: entmax(s, 2.0), lambda a, e: attention_gradients.entmax_score_grad(a, e, 2.0)),
    "entmax": (lambda s: entmax(s, 1.5), lambda a, e: attention_gradients.entmax_score_grad(a, e, 1.5)),
    "sigmoid": (torch.sigmoid, attention_gradients.sigmoid_score_grad),
    "relu": (lambda s: s.clamp(min=0) / s.shape[-1], attention_gradients.relu_score_grad),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_score_gradients_match_finite_differences(name: str) -> None:
    weights, formula = NORMALIZERS[name]
    s, v, g = randn(N, M), randn(M, D), randn(N, D)
    actual = formula(weights(s), g @ v.mT)
    torch.testing.assert_close(actual, slope(lambda x: weights(x) @ v, s, g), **CLOSE)


W, U, Z = randn(D, 4), randn(4, D).mT, randn(4)
SCORES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[..., tuple[Tensor, Tensor]]]] = {
    "dot": (lambda q, k: q @ k.mT / math.sqrt(D), attention_gradients.dot_qk_grads),
    "softcap": (
        lambda q, k: 0.7 * torch.tanh(q @ k.mT / math.sqrt(D) / 0.7),
        lambda ds, q, k: attention_gradients.softcap_qk_grads(ds, q, k, 0.7),
    ),
    "gaussian": (
        lambda q, k: -torch.cdist(q, k).square() / (2 * 1.3**2),
        lambda ds, q, k: attention_gradients.gaussian_qk_grads(ds, q, k, 1.3),
    ),
    "additive": (
        lambda q, k: torch.tanh((q @ W)[:, None] + (k @ U)[None]) @ Z,
        lambda ds, q, k: attention_gradients.additive_qk_grads(ds, q, k, W, U, Z),
    ),
}


@pytest.mark.parametrize("name", SCORES)
def test_query_and_key_gradients_match_finite_differences(name: str) -> None:
    scores, formula = SCORES[name]
    q, k, ds = randn(N, D), randn(M, D), randn(N, M)
    dq, dk = formula(ds, q, k)
    torch.testing.assert_close(dq, slope(lambda x: scores(x, k), q, ds), **CLOSE)
    torch.testing.assert_close(dk, slope(lambda x: scores(q, x), k, ds), **CLOSE)


def test_reversed_attention_matches_a_recording() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, 1, mask=mask.causal())
    x, g = torch.randn(1, 6, EMBED_DIM), torch.randn(1, 6, EMBED_DIM)
    with regard.record(layer) as recording:
        output = layer(x)
    (output * g).sum().backward()
    q, k, v = (y.double() for y in (x[0] @ layer.in_proj_weight.detach().T).split(EMBED_DIM, -1))
    a = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights.to_dense()
    head_gradient = (g[0] @ layer.out_proj.weight.detach()).double()
    expected = attention_gradients.reversed_attention(a, head_gradient, v, 1 / math.sqrt(EMBED_DIM))
    torch.testing.assert_close(
        recording.reversed_attention(0)[0, 0].double(), expected, atol=1e-6, rtol=1e-5
    )  # float32 inside


@pytest.mark.parametrize("norm_first", [True, False])
def test_branch_gradients_are_vector_jacobian_products(norm_first: bool) -> None:
    torch.manual_seed(0)
    block = Block(BlockConfig(embed_dim=EMBED_DIM, num_heads=2, norm_first=norm_first)).double()
    x, g = randn(1, 5, EMBED_DIM), randn(1, 5, EMBED_DIM)
    attention, feed_forward = gradient_paths(block, x, loss=lambda y: (y * g).sum())

    def attention_branch(y: Tensor) -> Tensor:
        return block.self_attn(block.norm1(y) if norm_first else y)  # type: ignore[no-any-return]

    def ffn_branch(y: Tensor) -> Tensor:
        return block.linear2(torch.nn.functional.gelu(block.linear1(block.norm2(y) if norm_first else y)))  # type: ignore[no-any-return]

    middle = x + attention_branch(x) if norm_first else block.norm1(x + attention_branch(x))
    skip = g if norm_first else vjp(block.norm2, middle + ffn_branch(middle))[1](g)[0]
    torch.testing.assert_close(feed_forward.skip_gradient, skip)
    torch.testing.assert_close(feed_forward.branch_gradient, vjp(ffn_branch, middle)[1](skip)[0])
    below = feed_forward.skip_gradient + feed_forward.branch_gradient
    skip = below if norm_first else vjp(block.norm1, x + attention_branch(x))[1](below)[0]
    torch.testing.assert_close(attention.skip_gradient, skip)
    torch.testing.assert_close(attention.branch_gradient, vjp(attention_branch, x)[1](skip)[0])
    torch.testing.assert_close(attention.input_gradient, attention.skip_gradient + attention.branch_gradient)


@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_and_regard_blocks_have_the_same_paths(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        EMBED_DIM, 2, 4 * EMBED_DIM, 0.0, "gelu", batch_first=True, norm_first=norm_first
    )
    torch_stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    regard_stack = Encoder(
        BlockConfig(embed_dim=EMBED_DIM, num_heads=2, norm_first=norm_first), 2, final_norm=False
    ).double()
    regard_stack.load_state_dict(torch_stack.state_dict())
    x = randn(2, 5, EMBED_DIM)
    names, other_names = (
        [path.name for path in gradient_path_norms(stack, x)] for stack in (regard_stack, torch_stack)
    )
    assert names == other_names == [f"layers.{n}.{part}" for n in (0, 1) for part in ("attention", "feed_forward")]
    for actual, expected in zip(gradient_path_norms(regard_stack, x), gradient_path_norms(torch_stack, x), strict=True):
        assert actual.skip_norm == pytest.approx(expected.skip_norm) and actual.branch_norm == pytest.approx(
            expected.branch_norm
        )


def test_a_branch_with_zero_weights_has_norm_zero() -> None:
    block = Block(BlockConfig(embed_dim=EMBED_DIM, num_heads=2)).double()
    nn.init.zeros_(block.linear2.weight)
    attention, feed_forward = gradient_path_norms(block, randn(1, 5, EMBED_DIM))
    assert feed_forward.branch_norm == 0 and feed_forward.skip_norm > 0 and attention.branch_norm > 0


@pytest.mark.parametrize("norm_first", [True, False])
def test_cross_attention_excludes_the_gradient_of_the_memory(norm_first: bool) -> None:
    torch.manual_seed(0)
    decoder = Decoder(
        BlockConfig(embed_dim=EMBED_DIM, num_heads=2, norm_first=norm_first), 1, add_cross_attention=True
    ).double()
    memory = randn(1, 5, EMBED_DIM).requires_grad_()

    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(x, memory)  # type: ignore[no-any-return]

    actual = gradient_paths(Reading(), randn(1, 5, EMBED_DIM))
    assert [path.name.split(".")[-1] for path in actual] == ["attention", "cross_attention", "feed_forward"]
    for path in actual:
        torch.testing.assert_close(path.input_gradient, path.skip_gradient + path.branch_gradient)


def test_a_single_attention_layer_and_custom_branches() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED_DIM, 2).double()
    assert [path.name for path in gradient_path_norms(layer, randn(1, 5, EMBED_DIM))] == ["attention"]
    other_names = nn.Sequential(nn.Linear(EMBED_DIM, EMBED_DIM), nn.Tanh(), nn.Linear(EMBED_DIM, EMBED_DIM)).double()
    (actual,) = gradient_path_norms(
        other_names, randn(1, 5, EMBED_DIM), branches={"middle": (other_names[1], other_names[2])}
    )
    g = torch.randn((1, 5, EMBED_DIM), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert actual.skip_norm == pytest.approx(float(g.norm()))
    inner = vjp(lambda y: other_names[2](torch.tanh(y)), other_names[0](randn(1, 5, EMBED_DIM)))[1](g)[0]
    assert actual.branch_norm == pytest.approx(float(inner.detach().norm()))


def test_unknown_repeated_and_unused_branches_raise() -> None:
    plain = nn.Sequential(nn.Linear(EMBED_DIM, EMBED_DIM))
    with pytest.raises(
        ArgumentError, match=r"blocks or attention layers of regard.nn or torch; got Sequential.*branches="
    ):
        gradient_path_norms(plain, torch.randn(1, 5, EMBED_DIM))
    twice = nn.Sequential(plain[0], plain[0])
    with pytest.raises(ArgumentError, match=r"called once; got a second call of f"):
        gradient_path_norms(twice, torch.randn(1, 5, EMBED_DIM), branches={"f": (plain[0], plain[0])})
    unused = nn.Linear(EMBED_DIM, EMBED_DIM)
    with pytest.raises(ArgumentError, match=r"called once; got no call of f"):
        gradient_path_norms(plain, torch.randn(1, 5, EMBED_DIM), branches={"f": (unused, unused)})
    assert not plain[0]._forward_pre_hooks and not plain[0]._backward_hooks  # all hooks are removed


@pytest.mark.parametrize(
    "num_tokens, embed_dim, query_scale, num_layers", [(4, 64, 4.0, 1), (64, 4, 0.1, 16), (7, 5, 1.0, 2)]
)
def test_the_experiment_is_consistent_at_the_ends_of_its_sliders(
    num_tokens: int, embed_dim: int, query_scale: float, num_layers: int
) -> None:
    result = gradients(
        num_tokens=num_tokens, embed_dim=embed_dim, query_scale=query_scale, num_layers=num_layers, seed=2
    )
    assert result.is_consistent, str(result)


WRONG_FORMULAS: dict[str, Callable[..., object]] = {
    "softmax_score_grad": lambda a, e: a * e,
    "sigmoid_score_grad": lambda a, e: a * e,
    "relu_score_grad": lambda a, e: e / a.shape[-1],
    "gaussian_qk_grads": lambda ds, q, k, sigma: (ds @ k, ds.mT @ q),
    "softcap_qk_grads": lambda ds, q, k, cap: attention_gradients.dot_qk_grads(ds, q, k),
}


@pytest.mark.parametrize("name", WRONG_FORMULAS)
def test_a_wrong_formula_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["regard.theory.analysis.attention_gradients"], name, WRONG_FORMULAS[name])
    assert not gradients(num_tokens=6, embed_dim=4, num_layers=1).is_consistent
