"""Linear attention: three ways that agree, features that are what they say, a decoder's steps."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from regard.errors import SpecError
from regard.mechanism import feature
from regard.mechanism.feature import FeatureMap, orthogonal
from regard.mechanism.linear import linear_attention, linear_step

WIDTH = 6
MAPS = {
    "elu": feature.elu(),
    "relu": feature.relu(),
    "favor": feature.favor(WIDTH, 24),
    "hyperbolic": feature.favor(WIDTH, 24, hyperbolic=True),
    "cosformer": feature.cosformer(300),
}
every_map = pytest.mark.parametrize("name", MAPS)


def numbers(n_q: int, n_k: int, heads: int = 2, key_heads: int = 2) -> list[Tensor]:
    sizes = ((heads, n_q, WIDTH), (key_heads, n_k, WIDTH), (key_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def written_out(q: Tensor, k: Tensor, v: Tensor, features: FeatureMap, causal: bool) -> Tensor:
    """A weight for each pair, one pair after another."""
    output = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    start = k.shape[-2] - q.shape[-2]
    for i in range(q.shape[-2]):
        seen = range(start + i + 1) if causal else range(k.shape[-2])
        phi = features.of_queries(q[..., i : i + 1, :], torch.tensor([max(start, 0) + i]))
        weights = [(phi * features.of_keys(k[..., j : j + 1, :], torch.tensor([j]))).sum((-1, -2)) for j in seen]
        total = sum(weights)
        mixed = sum(w.unsqueeze(-1) * v[..., j, :] for w, j in zip(weights, seen, strict=True))
        output[..., i, :] = torch.where(total.unsqueeze(-1) == 0, 0.0, mixed / total.unsqueeze(-1))
    return output


@every_map
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["chunks", "recurrence", "quadratic"])
@pytest.mark.parametrize("n_q, n_k", [(20, 20), (5, 17), (1, 9)])
def test_every_way_gives_what_the_weights_say(name: str, causal: bool, method: str, n_q: int, n_k: int) -> None:
    q, k, v = numbers(n_q, n_k)

    found = linear_attention(q, k, v, features=MAPS[name], causal=causal, method=method, chunk=8)

    torch.testing.assert_close(found, written_out(q, k, v, MAPS[name], causal))


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("chunk", [1, 7, 64, 500])
def test_chunks_of_any_size_agree_with_the_definition(n: int, chunk: int) -> None:
    q, k, v = numbers(n, n)

    found = linear_attention(q, k, v, causal=True, chunk=chunk)

    torch.testing.assert_close(found, linear_attention(q, k, v, causal=True, method="quadratic"))


@every_map
def test_a_state_of_constant_size_continues_where_it_was(name: str) -> None:
    q, k, v = numbers(30, 30)
    state, outputs = None, []
    for i in range(30):
        here = slice(i, i + 1)
        output, state = linear_step(*(x[..., here, :] for x in (q, k, v)), state, features=MAPS[name])
        outputs.append(output)

    assert state is not None and state.length == 30
    assert state.sums.numel() == 2 * 2 * MAPS[name].of_keys(k, torch.arange(30)).shape[-1] * 5
    expected = linear_attention(q, k, v, features=MAPS[name], causal=True)
    torch.testing.assert_close(torch.cat(outputs, -2), expected)


def test_heads_share_keys() -> None:
    q, k, v = numbers(20, 20, heads=4, key_heads=2)

    apart = linear_attention(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), causal=True)

    torch.testing.assert_close(linear_attention(q, k, v, causal=True), apart)


def test_a_query_whose_features_are_all_zero_gets_zero_and_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in numbers(4, 4))
    negative = -q.abs()

    found = linear_attention(negative, k, v, features=feature.relu(), causal=True)

    assert (found == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(found.sum(), (q, k, v)))


@pytest.mark.parametrize("method", ["chunks", "recurrence"])
def test_gradients(method: str) -> None:
    q, k, v = (torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: linear_attention(q, k, v, causal=True, method=method, chunk=2), (q, k, v))


def test_cosformer_weighs_by_the_cosine_of_the_distance() -> None:
    x, y = torch.rand(1, 3, dtype=torch.float64), torch.rand(1, 3, dtype=torch.float64)
    turned = feature.cosformer(10)

    product = (turned.of_queries(x, torch.tensor([7])) * turned.of_keys(y, torch.tensor([3]))).sum()

    assert float(product) == pytest.approx(float((x * y).sum()) * math.cos(math.pi / 2 * 4 / 10))


def kernel_error(features: FeatureMap, q: Tensor, k: Tensor) -> float:
    """The mean square error of φ(q)·φ(k), φ as it is for keys, for exp(q·k/√d)."""
    at = torch.arange(len(q))
    estimate = (features.of_keys(q, at) * features.of_keys(k, at)).sum(-1)
    return float((estimate - torch.exp((q * k).sum(-1) / q.shape[-1] ** 0.5)).square().mean())


def mean_error(count: int, change: float) -> float:
    numbers = torch.Generator().manual_seed(7)
    q, k = (0.4 * torch.randn(200, 16, generator=numbers, dtype=torch.float64) for _ in range(2))
    found = []
    for seed in range(40):
        made = feature.favor(16, count, seed=seed)
        changed = FeatureMap("", "", made.of_queries, lambda x, at, made=made: made.of_keys(x * change, at))
        found.append(kernel_error(changed, q, k))
    return math.sqrt(sum(found) / len(found))


def rate(change: float) -> float:
    """The power of m with which the error falls, from m = 256 to 4096."""
    return math.log(mean_error(4096, change) / mean_error(256, change)) / math.log(4096 / 256)


def test_favors_error_falls_as_the_root_of_the_number_of_features() -> None:
    assert -0.56 < rate(1.0) < -0.45
    assert rate(1.1) > -0.42  # features of something else: their error does not go away


def test_favor_is_right_on_average() -> None:
    numbers = torch.Generator().manual_seed(3)
    q, k = (torch.randn(50, 8, generator=numbers, dtype=torch.float64) for _ in range(2))
    at = torch.arange(50)
    many = [feature.favor(8, 64, seed=s, hyperbolic=s % 2 == 0).of_keys for s in range(400)]

    mean = torch.stack([(phi(q, at) * phi(k, at)).sum(-1) for phi in many]).mean(0)

    exact = torch.exp((q * k).sum(-1) / 8**0.5)
    assert float(((mean - exact) / exact).abs().median()) < 0.05  # 25,600 features


def test_orthogonal_directions_lean_to_no_side() -> None:
    """The Q of a QR decomposition as it comes has a first entry of one sign only."""
    firsts, plain = [], []
    for seed in range(400):
        numbers = torch.Generator().manual_seed(seed)
        firsts.append(float(orthogonal(4, 4, numbers)[0, 0]))
        square = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        plain.append(float(torch.linalg.qr(square)[0][0, 0]))

    assert 0.42 < sum(x > 0 for x in firsts) / 400 < 0.58  # three standard deviations of a coin
    assert not 0.42 < sum(x > 0 for x in plain) / 400 < 0.58


def test_directions_are_orthogonal_within_a_block_and_as_long_as_normal_ones() -> None:
    found = orthogonal(16, 40, torch.Generator().manual_seed(0))
    lengths = found.norm(dim=-1)

    angles = (found / lengths[:, None]) @ (found / lengths[:, None]).mT
    for first, last in ((0, 16), (16, 32), (32, 40)):
        torch.testing.assert_close(
            angles[first:last, first:last], torch.eye(last - first, dtype=torch.float64), rtol=0, atol=1e-12
        )
    assert float(lengths.square().mean()) == pytest.approx(16, rel=0.2)
    assert float(lengths.std()) > 0.3


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(5, 4)
    with pytest.raises(SpecError, match="5 queries and 4 keys"):
        linear_attention(q, k, v, causal=True)
    with pytest.raises(SpecError, match="one of chunks, recurrence, quadratic; got 'fast'"):
        linear_attention(q, k, v, method="fast")
    with pytest.raises(SpecError, match="at least 1 key; got 0"):
        linear_attention(q, k, v, chunk=0)
    with pytest.raises(SpecError, match="divide that of q; got 2 and 3"):
        linear_attention(torch.ones(1, 3, 4, 2), torch.ones(1, 2, 4, 2), torch.ones(1, 2, 4, 2))
    with pytest.raises(SpecError, match="the same length; got q="):
        linear_attention(q, k, v[..., :2, :])
    with pytest.raises(SpecError, match="at least 1; got 0"):
        feature.cosformer(0)
    with pytest.raises(SpecError, match="at least 1; got 4 and 0"):
        feature.favor(4, 0)
