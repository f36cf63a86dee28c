"""Linear attention: three methods against the definition, feature maps, and decoding step by step."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from regard import feature_map
from regard.errors import ArgumentError
from regard.feature_map import FeatureMap
from regard.mechanisms import linear
from regard.mechanisms.linear import linear_attention, linear_attention_step

HEAD_DIM = 6
MAPS = {
    "elu": feature_map.elu(),
    "relu": feature_map.relu(),
    "favor": feature_map.favor(HEAD_DIM, 24),
    "hyperbolic": feature_map.favor(HEAD_DIM, 24, hyperbolic=True),
    "cosformer": feature_map.cosformer(300),
}
every_map = pytest.mark.parametrize("name", MAPS)


def random_inputs(n_q: int, n_k: int, heads: int = 2, num_kv_heads: int = 2) -> list[Tensor]:
    sizes = ((heads, n_q, HEAD_DIM), (num_kv_heads, n_k, HEAD_DIM), (num_kv_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def reference(q: Tensor, k: Tensor, v: Tensor, features: FeatureMap, causal: bool) -> Tensor:
    """Compute the output from one weight per pair."""
    output = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    start = k.shape[-2] - q.shape[-2]
    for i in range(q.shape[-2]):
        visible = range(start + i + 1) if causal else range(k.shape[-2])
        phi = features.encode_positions(features.map_queries(q[..., i : i + 1, :]), torch.tensor([max(start, 0) + i]))
        keys = (features.encode_positions(features.map_keys(k[..., j : j + 1, :]), torch.tensor([j])) for j in visible)
        weights = [(phi * key).sum((-1, -2)) for key in keys]
        total = sum(weights)
        weighted_sum = sum(w.unsqueeze(-1) * v[..., j, :] for w, j in zip(weights, visible, strict=True))
        output[..., i, :] = torch.where(total.unsqueeze(-1) == 0, 0.0, weighted_sum / total.unsqueeze(-1))
    return output


@every_map
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["chunk", "recurrent", "quadratic"])
@pytest.mark.parametrize("n_q, n_k", [(20, 20), (5, 17), (1, 9)])
def test_every_method_matches_the_reference(name: str, causal: bool, method: str, n_q: int, n_k: int) -> None:
    q, k, v = random_inputs(n_q, n_k)

    output = linear_attention(q, k, v, feature_map=MAPS[name], causal=causal, method=method, chunk_size=8)

    torch.testing.assert_close(output, reference(q, k, v, MAPS[name], causal))


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("chunk_size", [1, 7, 64, 500])
def test_chunk_size_does_not_change_the_result(n: int, chunk_size: int) -> None:
    q, k, v = random_inputs(n, n)

    output = linear_attention(q, k, v, causal=True, chunk_size=chunk_size)

    torch.testing.assert_close(output, linear_attention(q, k, v, causal=True, method="quadratic"))


@every_map
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["chunk", "recurrent"])
def test_row_ranges_do_not_change_the_result(
    name: str, causal: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = random_inputs(33, 50)
    monkeypatch.setattr(linear, "MAX_CHUNK_FEATURES", 24 * 8)  # ranges of eight rows, with six features in four heads

    output = linear_attention(q, k, v, feature_map=MAPS[name], causal=causal, method=method, chunk_size=4)

    expected = linear_attention(q, k, v, feature_map=MAPS[name], causal=causal, method="quadratic")
    torch.testing.assert_close(output, expected)


@every_map
def test_steps_with_a_constant_size_state_match_the_full_result(name: str) -> None:
    q, k, v = random_inputs(30, 30)
    state, outputs = None, []
    for i in range(30):
        row = slice(i, i + 1)
        output, state = linear_attention_step(*(x[..., row, :] for x in (q, k, v)), state, feature_map=MAPS[name])
        outputs.append(output)

    assert state is not None and state.length == 30
    assert state.sums.numel() == 2 * 2 * MAPS[name].encode_positions(MAPS[name].map_keys(k), torch.arange(30)).shape[
        -1
    ] * (5 + 1)
    expected = linear_attention(q, k, v, feature_map=MAPS[name], causal=True)
    torch.testing.assert_close(torch.cat(outputs, -2), expected)


def test_grouped_heads_share_keys() -> None:
    q, k, v = random_inputs(20, 20, heads=4, num_kv_heads=2)

    expected = linear_attention(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), causal=True)

    torch.testing.assert_close(linear_attention(q, k, v, causal=True), expected)


def test_zero_features_give_zero_output_and_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(4, 4))
    negative = -q.abs()

    output = linear_attention(negative, k, v, feature_map=feature_map.relu(), causal=True)

    assert (output == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(output.sum(), (q, k, v)))


@pytest.mark.parametrize("method", ["chunk", "recurrent"])
def test_gradients(method: str) -> None:
    q, k, v = (torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: linear_attention(q, k, v, causal=True, method=method, chunk_size=2), (q, k, v))


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs(5, 4)
    with pytest.raises(ArgumentError, match="more queries than keys; got n_q=5 and n_k=4"):
        linear_attention(q, k, v, causal=True)
    with pytest.raises(ArgumentError, match="one of chunk, recurrent, quadratic; got 'fast'"):
        linear_attention(q, k, v, method="fast")
    with pytest.raises(ArgumentError, match="chunk_size must be at least 1; got 0"):
        linear_attention(q, k, v, chunk_size=0)
    with pytest.raises(ArgumentError, match="num_kv_heads must divide num_heads; got num_kv_heads=2 and num_heads=3"):
        linear_attention(torch.ones(1, 3, 4, 2), torch.ones(1, 2, 4, 2), torch.ones(1, 2, 4, 2))
    with pytest.raises(ArgumentError, match="the same length; got q="):
        linear_attention(q, k, v[..., :2, :])
