"""Feature maps against their formulas, and the kernel normalizer."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import regard
from regard import feature_map, mask, normalizer, score
from regard.errors import ArgumentError
from regard.feature_map import CustomFeatureMap, FeatureMap, orthogonal_directions
from regard.mechanisms.linear import linear_attention

HEAD_DIM = 6
MAPS = {
    "elu": feature_map.elu(),
    "relu": feature_map.relu(),
    "favor": feature_map.favor(HEAD_DIM, 24),
    "hyperbolic": feature_map.favor(HEAD_DIM, 24, hyperbolic=True),
    "cosformer": feature_map.cosformer(300),
    "function": lambda x: x.square() + 0.5,
}
every_map = pytest.mark.parametrize("name", MAPS)
every_backend = pytest.mark.parametrize("backend", regard.available_backends())
# sums of a few dozen terms of size about 1; float32 on the compiled backends
CLOSE = {torch.float64: dict(rtol=1e-11, atol=1e-11), torch.float32: dict(rtol=2e-5, atol=2e-5)}


def random_qkv(n_q: int, n_k: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    sizes = ((4, n_q, HEAD_DIM), (2, n_k, HEAD_DIM), (2, n_k, 5))  # four query heads share two key heads
    return [torch.randn(2, *size, dtype=torch.float64).to(dtype) for size in sizes]


def kernel_attention(q: Tensor, k: Tensor, v: Tensor, name: str, visible: Tensor, query_offset: int) -> Tensor:
    """Compute attention with weights φ(q)·φ(k) of visible pairs, divided by the sum of each row."""
    phi = MAPS[name] if isinstance(MAPS[name], FeatureMap) else CustomFeatureMap(MAPS[name])
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    positions = torch.arange(500)
    queries = phi.encode_positions(phi.map_queries(q), positions[query_offset : query_offset + q.shape[-2]])
    products = torch.where(visible, queries @ phi.encode_positions(phi.map_keys(k), positions[: k.shape[-2]]).mT, 0.0)
    total = products.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, products / torch.where(total == 0, 1.0, total)) @ v


@every_map
@every_backend
@pytest.mark.parametrize("shape", ["full", "window", "fully masked rows"])
def test_kernel_weights_by_products_of_features_under_any_mask(name: str, backend: str, shape: str) -> None:
    dtype = torch.float32 if backend in ("native", "flex") else torch.float64
    q, k, v = random_qkv(9, 20, dtype)
    i, j = 11 + torch.arange(9)[:, None], torch.arange(20)
    visible = {"full": j >= 0 * i, "window": (i - j).abs() < 5, "fully masked rows": j < i - 14}[shape]

    output = regard.attention(q, k, v, normalizer=normalizer.kernel(MAPS[name]), mask=visible, backend=backend)

    torch.testing.assert_close(output, kernel_attention(q, k, v, name, visible, 11), **CLOSE[dtype])


@every_map
@pytest.mark.parametrize("causal", [False, True])
def test_kernel_is_linear_attention(name: str, causal: bool) -> None:
    q, k, v = random_qkv(9, 20)

    output = regard.attention(q, k, v, normalizer=normalizer.kernel(MAPS[name]), mask=mask.causal() if causal else None)

    torch.testing.assert_close(
        output, linear_attention(q, k, v, feature_map=MAPS[name], causal=causal), **CLOSE[q.dtype]
    )


def test_lse_of_a_kernel_is_the_logarithm_of_the_row_sum() -> None:
    q, k, v = random_qkv(9, 20)
    phi = feature_map.elu()

    output = regard.attention_with_weights(q, k, v, normalizer=normalizer.kernel(phi))

    products = phi.map_queries(q) @ phi.map_keys(k).repeat_interleave(2, dim=1).mT
    torch.testing.assert_close(output.lse, products.sum(-1).log(), **CLOSE[q.dtype])
    torch.testing.assert_close(
        output.weights[1, 3], (products / products.sum(-1, keepdim=True))[1, 3], **CLOSE[q.dtype]
    )


def test_cosformer_uses_the_query_offset() -> None:
    q, k, v = random_qkv(9, 20)
    kernel = normalizer.kernel(feature_map.cosformer(300))

    moved = regard.attention(q, k, v, normalizer=kernel, query_offset=4)

    torch.testing.assert_close(moved, kernel_attention(q, k, v, "cosformer", torch.tensor(True), 4), **CLOSE[q.dtype])


@pytest.mark.parametrize("name", ["elu", "favor", "cosformer", "function"])
def test_kernel_gradcheck(name: str) -> None:
    q, k, v = (torch.rand(1, 4, HEAD_DIM, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: regard.attention(q, k, v, normalizer=normalizer.kernel(MAPS[name])), (q, k, v))


def test_zero_products_have_zero_gradient() -> None:
    q = torch.tensor([[1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[-1.0, 2.0], [3.0, -1.0]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([[5.0], [7.0]], dtype=torch.float64, requires_grad=True)

    output = regard.attention(q, k, v, normalizer=normalizer.kernel(feature_map.relu()))

    assert output.item() == 7.0
    d_q, d_k, d_v = torch.autograd.grad(output.sum(), (q, k, v))
    assert (d_q == 0).all() and (d_k == 0).all() and d_v.flatten().tolist() == [0.0, 1.0]


def test_kernel_compiles_without_graph_breaks() -> None:
    q, k, v = random_qkv(9, 20)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q, k, v, normalizer=normalizer.kernel(feature_map.favor(HEAD_DIM, 24)))

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(q, k, v), call(q, k, v))


def test_varlen_sequences_have_their_own_positions() -> None:
    q, k, v = (x.squeeze(0) for x in (torch.rand(1, 2, 12, HEAD_DIM, dtype=torch.float64) for _ in range(3)))
    kernel = normalizer.kernel(feature_map.cosformer(8))

    output = regard.attention_varlen(q, k, v, [7, 5], [4, 8], normalizer=kernel)

    slices = [(slice(0, 7), slice(0, 4)), (slice(7, 12), slice(4, 12))]
    expected = [regard.attention(q[None, :, i], k[None, :, j], v[None, :, j], normalizer=kernel)[0] for i, j in slices]
    torch.testing.assert_close(output, torch.cat(expected, 1), **CLOSE[q.dtype])


@pytest.mark.parametrize("name", ["elu", "relu", "favor", "cosformer"])
def test_kernel_survives_pickle_and_deepcopy(name: str) -> None:
    q, k, v = random_qkv(9, 20)
    kernel = normalizer.kernel(MAPS[name])

    for restored in (pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel)):
        assert torch.equal(regard.attention(q, k, v, normalizer=restored), regard.attention(q, k, v, normalizer=kernel))


def test_cosformer_multiplies_by_the_cosine_of_the_distance() -> None:
    x, y = torch.rand(1, 3, dtype=torch.float64), torch.rand(1, 3, dtype=torch.float64)
    phi = feature_map.cosformer(10)

    query = phi.encode_positions(phi.map_queries(x), torch.tensor([7]))
    key = phi.encode_positions(phi.map_keys(y), torch.tensor([3]))
    product = (query * key).sum()

    assert float(product) == pytest.approx(float((x * y).sum()) * math.cos(math.pi / 2 * 4 / 10))


def kernel_error(features: FeatureMap, q: Tensor, k: Tensor) -> float:
    """Return the mean squared error of φ(q)·φ(k) as an estimate of exp(q·k/√d), with the φ of keys."""
    estimate = (features.map_keys(q) * features.map_keys(k)).sum(-1)
    return float((estimate - torch.exp((q * k).sum(-1) / q.shape[-1] ** 0.5)).square().mean())


def mean_error(num_features: int, input_scale: float) -> float:
    generator = torch.Generator().manual_seed(7)
    q, k = (0.4 * torch.randn(200, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    errors = []
    for seed in range(40):
        phi = feature_map.favor(16, num_features, seed=seed)
        errors.append(kernel_error(CustomFeatureMap(lambda x, phi=phi: phi.map_keys(x * input_scale)), q, k))
    return math.sqrt(sum(errors) / len(errors))


def error_exponent(input_scale: float) -> float:
    """Return the exponent of m in the error, from m = 256 to 4096."""
    return math.log(mean_error(4096, input_scale) / mean_error(256, input_scale)) / math.log(4096 / 256)


def test_favor_error_is_proportional_to_m_to_the_minus_half() -> None:
    assert -0.56 < error_exponent(1.0) < -0.45
    assert error_exponent(1.1) > -0.42  # biased features: more of them do not remove the error


def test_favor_is_unbiased() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(50, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    maps = [feature_map.favor(8, 64, seed=s, hyperbolic=s % 2 == 0).map_keys for s in range(400)]

    mean = torch.stack([(phi(q) * phi(k)).sum(-1) for phi in maps]).mean(0)

    exact = torch.exp((q * k).sum(-1) / 8**0.5)
    assert float(((mean - exact) / exact).abs().median()) < 0.05  # 25,600 features


def test_orthogonal_directions_are_uniform() -> None:
    """The Q of an uncorrected QR decomposition has a first entry of one sign only."""
    first_entries, uncorrected = [], []
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        first_entries.append(float(orthogonal_directions(4, 4, generator)[0, 0]))
        square = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        uncorrected.append(float(torch.linalg.qr(square)[0][0, 0]))

    assert 0.42 < sum(x > 0 for x in first_entries) / 400 < 0.58  # three standard deviations of a fair coin
    assert not 0.42 < sum(x > 0 for x in uncorrected) / 400 < 0.58


def test_directions_are_orthogonal_in_blocks_with_normal_norms() -> None:
    directions = orthogonal_directions(16, 40, torch.Generator().manual_seed(0))
    norms = directions.norm(dim=-1)

    cosines = (directions / norms[:, None]) @ (directions / norms[:, None]).mT
    for first, last in ((0, 16), (16, 32), (32, 40)):
        torch.testing.assert_close(
            cosines[first:last, first:last], torch.eye(last - first, dtype=torch.float64), rtol=0, atol=1e-12
        )
    assert float(norms.square().mean()) == pytest.approx(16, rel=0.2)
    assert float(norms.std()) > 0.3


def test_invalid_feature_maps_raise() -> None:
    q, k, v = random_qkv(5, 4)
    with pytest.raises(ArgumentError, match="max_len must be at least 1; got 0"):
        feature_map.cosformer(0)
    with pytest.raises(ArgumentError, match="must be at least 1; got head_dim=4, num_features=0"):
        feature_map.favor(4, 0)
    with pytest.raises(ArgumentError, match="got head_dim=4 and rows of dimension 6"):
        regard.attention(q, k, v, normalizer=normalizer.kernel(feature_map.favor(4)))
    with pytest.raises(ArgumentError, match="score must be None; got ScaledDot with a score modifier"):
        regard.attention(q, k, v, normalizer=normalizer.kernel(), score=score.softcap(2.0))
    with pytest.raises(ArgumentError, match="score must be None; got Cosine"):
        regard.attention(q, k, v, normalizer=normalizer.kernel(), score=score.cosine(2.0))
    with pytest.raises(ArgumentError, match="function of rows with nonnegative results; got int"):
        normalizer.kernel(3)
