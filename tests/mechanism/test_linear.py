"""Linear attention: three ways that agree, features that are what they say, a decoder's steps."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from regard import feature
from regard.errors import SpecError
from regard.mechanism import linear
from regard.mechanism.linear import linear_attention, linear_step
from regard.spec.feature import FeatureMap

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
        phi = features.turned(features.of_queries(q[..., i : i + 1, :]), torch.tensor([max(start, 0) + i]))
        keys = (features.turned(features.of_keys(k[..., j : j + 1, :]), torch.tensor([j])) for j in seen)
        weights = [(phi * key).sum((-1, -2)) for key in keys]
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
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", ["chunks", "recurrence"])
def test_stretches_of_any_size_agree_with_the_definition(
    name: str, causal: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = numbers(33, 50)
    monkeypatch.setattr(linear, "STRETCH", 24 * 8)  # eight rows of six features in four heads at a time

    found = linear_attention(q, k, v, features=MAPS[name], causal=causal, method=method, chunk=4)

    expected = linear_attention(q, k, v, features=MAPS[name], causal=causal, method="quadratic")
    torch.testing.assert_close(found, expected)


@every_map
def test_a_state_of_constant_size_continues_where_it_was(name: str) -> None:
    q, k, v = numbers(30, 30)
    state, outputs = None, []
    for i in range(30):
        here = slice(i, i + 1)
        output, state = linear_step(*(x[..., here, :] for x in (q, k, v)), state, features=MAPS[name])
        outputs.append(output)

    assert state is not None and state.length == 30
    assert state.sums.numel() == 2 * 2 * MAPS[name].turned(MAPS[name].of_keys(k), torch.arange(30)).shape[-1] * (5 + 1)
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
