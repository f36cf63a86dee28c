"""Noise as a formula: even, the same everywhere, and one key drawn for each query with softmax's probabilities."""

import pytest
import torch

import regard
from regard import weigh
from regard.engine.dropout import dropped
from regard.errors import SpecError
from regard.spec.noise import uniform

EVERYWHERE = {
    "b": torch.arange(2).view(-1, 1, 1, 1),
    "h": torch.arange(3).view(-1, 1, 1),
    "i": torch.arange(40).view(-1, 1),
    "j": torch.arange(50),
}


def test_noise_is_spread_evenly_between_zero_and_one() -> None:
    found = uniform(5, **EVERYWHERE).flatten()

    assert found.min() > 0 and found.max() < 1
    # 12,000 numbers: three standard deviations of the mean, the variance and of each tenth's count
    assert abs(float(found.mean()) - 1 / 2) < 3 * (1 / 12 / len(found)) ** 0.5
    assert abs(float(found.var()) - 1 / 12) < 3 * (1 / 180 / len(found)) ** 0.5
    tenths = torch.histc(found, 10, 0, 1) / len(found)
    assert ((tenths - 0.1).abs() < 3 * (0.09 / len(found)) ** 0.5).all()


def test_noise_is_the_hash_of_dropout_for_the_seed_turned_over() -> None:
    """`noise < p` decides as dropout does; 2^-23 is the step between its numbers."""
    seed = (123 << 32) + 456
    turned = ~seed & (2**64 - 1)

    drawn = uniform(seed, **EVERYWHERE) < 0.25

    assert torch.equal(drawn, dropped(turned, 0.25, EVERYWHERE))
    assert not torch.equal(drawn, dropped(seed, 0.25, EVERYWHERE))


@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_a_key_is_drawn_with_the_probability_of_its_weight(engine: str) -> None:
    """4000 queries that are all alike draw from six keys."""
    q = torch.ones(4000, 1, dtype=torch.float64)
    k = torch.tensor([[0.0], [1.0], [-1.0], [0.5], [2.0], [-3.0]], dtype=torch.float64)

    found = regard.attention(q, k, torch.eye(6, dtype=torch.float64), weigh=weigh.gumbel(seed=7), engine=engine)

    expected = k.flatten().softmax(0)
    assert ((found == 0) | (found == 1)).all() and (found.sum(-1) == 1).all()
    assert ((found.mean(0) - expected).abs() < 3.5 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_another_seed_draws_other_keys_and_the_same_seed_the_same() -> None:
    q, k, v = torch.randn(3, 2, 3, 30, 4, dtype=torch.float64)

    one, other, again = (regard.attention(q, k, v, weigh=weigh.gumbel(seed=s)) for s in (1, 2, 1))

    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_gradients_pass_straight_through_a_drawn_key(temperature: float) -> None:
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    places = {name: EVERYWHERE[name][..., :7] if name == "j" else EVERYWHERE[name] for name in EVERYWHERE}
    places["i"] = places["i"][:7]
    noisy = (q @ k.mT / 2.0 - uniform(4, **places).double().log().neg().log()) / temperature
    soft = noisy.softmax(-1)
    hard = torch.nn.functional.one_hot(noisy.argmax(-1), 7).double()
    expected = (hard + soft - soft.detach()) @ v

    found = regard.attention(q, k, v, weigh=weigh.gumbel(temperature, seed=4))
    relaxed = regard.attention(q, k, v, weigh=weigh.gumbel(temperature, seed=4, hard=False))

    # the noise is float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(relaxed, soft @ v, rtol=1e-6, atol=1e-6)
    for one, two in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(SpecError, match="greater than 0; got 0"):
        weigh.gumbel(0.0)
