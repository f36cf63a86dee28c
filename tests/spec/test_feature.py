"""Feature maps that are what they say, and the weighing made of them."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import regard
from regard import feature, mask, score, weigh
from regard.errors import SpecError
from regard.mechanism.linear import linear_attention
from regard.spec.feature import FeatureMap, Given, orthogonal

WIDTH = 6
MAPS = {
    "elu": feature.elu(),
    "relu": feature.relu(),
    "favor": feature.favor(WIDTH, 24),
    "hyperbolic": feature.favor(WIDTH, 24, hyperbolic=True),
    "cosformer": feature.cosformer(300),
    "given": lambda x: x.square() + 0.5,
}
every_map = pytest.mark.parametrize("name", MAPS)
every_engine = pytest.mark.parametrize("engine", regard.engines())
# sums of some dozen terms of size about 1, and float32 on the compiled engines
CLOSE = {torch.float64: dict(rtol=1e-11, atol=1e-11), torch.float32: dict(rtol=2e-5, atol=2e-5)}


def numbers(n_q: int, n_k: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    sizes = ((4, n_q, WIDTH), (2, n_k, WIDTH), (2, n_k, 5))  # four heads of queries share two of keys
    return [torch.randn(2, *size, dtype=torch.float64).to(dtype) for size in sizes]


def shares(q: Tensor, k: Tensor, v: Tensor, name: str, seen: Tensor, start: int) -> Tensor:
    """φ(q)·φ(k) where it is seen, over the row's sum."""
    phi = MAPS[name] if isinstance(MAPS[name], FeatureMap) else Given(MAPS[name])
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    at = torch.arange(500)
    queries = phi.turned(phi.of_queries(q), at[start : start + q.shape[-2]])
    products = torch.where(seen, queries @ phi.turned(phi.of_keys(k), at[: k.shape[-2]]).mT, 0.0)
    total = products.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, products / torch.where(total == 0, 1.0, total)) @ v


@every_map
@every_engine
@pytest.mark.parametrize("shape", ["full", "window", "rows that see nothing"])
def test_a_kernel_weighs_by_products_of_features_under_any_mask(name: str, engine: str, shape: str) -> None:
    dtype = torch.float32 if engine in ("native", "fused") else torch.float64
    q, k, v = numbers(9, 20, dtype)
    i, j = 11 + torch.arange(9)[:, None], torch.arange(20)
    seen = {"full": j >= 0 * i, "window": (i - j).abs() < 5, "rows that see nothing": j < i - 14}[shape]

    found = regard.attention(q, k, v, weigh=weigh.kernel(MAPS[name]), mask=seen, engine=engine)

    torch.testing.assert_close(found, shares(q, k, v, name, seen, 11), **CLOSE[dtype])


@every_map
@pytest.mark.parametrize("causal", [False, True])
def test_a_kernel_is_linear_attention(name: str, causal: bool) -> None:
    q, k, v = numbers(9, 20)

    found = regard.attention(q, k, v, weigh=weigh.kernel(MAPS[name]), mask=mask.causal() if causal else None)

    torch.testing.assert_close(found, linear_attention(q, k, v, features=MAPS[name], causal=causal), **CLOSE[q.dtype])


def test_the_statistic_of_a_kernel_is_the_logarithm_of_the_rows_sum() -> None:
    q, k, v = numbers(9, 20)
    phi = feature.elu()

    found = regard.attend(q, k, v, weigh=weigh.kernel(phi))

    products = phi.of_queries(q) @ phi.of_keys(k).repeat_interleave(2, dim=1).mT
    torch.testing.assert_close(found.lse, products.sum(-1).log(), **CLOSE[q.dtype])
    torch.testing.assert_close(found.weights[1, 3], (products / products.sum(-1, keepdim=True))[1, 3], **CLOSE[q.dtype])


def test_positions_of_features_begin_where_a_call_says() -> None:
    q, k, v = numbers(9, 20)
    chosen = weigh.kernel(feature.cosformer(300))

    moved = regard.attention(q, k, v, weigh=chosen, start=4)

    torch.testing.assert_close(moved, shares(q, k, v, "cosformer", torch.tensor(True), 4), **CLOSE[q.dtype])


@pytest.mark.parametrize("name", ["elu", "favor", "cosformer", "given"])
def test_gradients_of_a_kernel(name: str) -> None:
    q, k, v = (torch.rand(1, 4, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: regard.attention(q, k, v, weigh=weigh.kernel(MAPS[name])), (q, k, v))


def test_features_that_meet_nowhere_pass_no_gradient() -> None:
    q = torch.tensor([[1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[-1.0, 2.0], [3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([[5.0], [7.0]], dtype=torch.float64, requires_grad=True)

    found = regard.attention(q, k, v, weigh=weigh.kernel(feature.relu()))

    assert found.item() == 7.0
    d_q, d_k, d_v = torch.autograd.grad(found.sum(), (q, k, v))
    assert (d_q == 0).all() and (d_k == 0).all() and d_v.flatten().tolist() == [0.0, 1.0]


def test_a_kernel_is_a_node_of_a_graph() -> None:
    q, k, v = numbers(9, 20)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q, k, v, weigh=weigh.kernel(feature.favor(WIDTH, 24)))

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(q, k, v), call(q, k, v))


def test_packed_sequences_count_their_own_positions() -> None:
    q, k, v = (x.squeeze(0) for x in (torch.rand(1, 2, 12, WIDTH, dtype=torch.float64) for _ in range(3)))
    chosen = weigh.kernel(feature.cosformer(8))

    found = regard.attention_packed(q, k, v, [7, 5], [4, 8], weigh=chosen)

    apart = [(slice(0, 7), slice(0, 4)), (slice(7, 12), slice(4, 12))]
    expected = [regard.attention(q[None, :, i], k[None, :, j], v[None, :, j], weigh=chosen)[0] for i, j in apart]
    torch.testing.assert_close(found, torch.cat(expected, 1), **CLOSE[q.dtype])


@pytest.mark.parametrize("name", ["elu", "relu", "favor", "cosformer"])
def test_a_kernel_travels_to_another_process(name: str) -> None:
    q, k, v = numbers(9, 20)
    made = weigh.kernel(MAPS[name])

    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert torch.equal(regard.attention(q, k, v, weigh=again), regard.attention(q, k, v, weigh=made))


def test_cosformer_weighs_by_the_cosine_of_the_distance() -> None:
    x, y = torch.rand(1, 3, dtype=torch.float64), torch.rand(1, 3, dtype=torch.float64)
    turned = feature.cosformer(10)

    there = turned.turned(turned.of_queries(x), torch.tensor([7])), turned.turned(turned.of_keys(y), torch.tensor([3]))
    product = (there[0] * there[1]).sum()

    assert float(product) == pytest.approx(float((x * y).sum()) * math.cos(math.pi / 2 * 4 / 10))


def kernel_error(features: FeatureMap, q: Tensor, k: Tensor) -> float:
    """The mean square error of φ(q)·φ(k), φ as it is for keys, for exp(q·k/√d)."""
    estimate = (features.of_keys(q) * features.of_keys(k)).sum(-1)
    return float((estimate - torch.exp((q * k).sum(-1) / q.shape[-1] ** 0.5)).square().mean())


def mean_error(count: int, change: float) -> float:
    numbers = torch.Generator().manual_seed(7)
    q, k = (0.4 * torch.randn(200, 16, generator=numbers, dtype=torch.float64) for _ in range(2))
    found = []
    for seed in range(40):
        made = feature.favor(16, count, seed=seed)
        found.append(kernel_error(Given(lambda x, made=made: made.of_keys(x * change)), q, k))
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
    many = [feature.favor(8, 64, seed=s, hyperbolic=s % 2 == 0).of_keys for s in range(400)]

    mean = torch.stack([(phi(q) * phi(k)).sum(-1) for phi in many]).mean(0)

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
    with pytest.raises(SpecError, match="at least 1; got 0"):
        feature.cosformer(0)
    with pytest.raises(SpecError, match="at least 1; got 4 and 0"):
        feature.favor(4, 0)
    with pytest.raises(SpecError, match="features of width 4 and rows of width 6"):
        regard.attention(q, k, v, weigh=weigh.kernel(feature.favor(4)))
    with pytest.raises(SpecError, match="must be left out; got ScaledDot with a rule"):
        regard.attention(q, k, v, weigh=weigh.kernel(), score=score.softcap(2.0))
    with pytest.raises(SpecError, match="must be left out; got Cosine with no rule"):
        regard.attention(q, k, v, weigh=weigh.kernel(), score=score.cosine(2.0))
    with pytest.raises(SpecError, match="never negative; got int"):
        weigh.kernel(3)
