"""Counter-based noise: uniform, reproducible, and Gumbel sampling with the probabilities of softmax."""

import pytest
import torch

import regard
from regard import normalizer
from regard.backends.shared.dropout import dropout_mask
from regard.errors import ArgumentError
from regard.expr.counter_rng import position_uniform

INDICES = {
    "b": torch.arange(2).view(-1, 1, 1, 1),
    "h": torch.arange(3).view(-1, 1, 1),
    "i": torch.arange(40).view(-1, 1),
    "j": torch.arange(50),
}


def test_noise_is_uniform_between_zero_and_one() -> None:
    noise = position_uniform(5, **INDICES).flatten()

    assert noise.min() > 0 and noise.max() < 1
    # three standard deviations of the mean, the variance and the ten counts of 12,000 numbers
    assert abs(float(noise.mean()) - 1 / 2) < 3 * (1 / 12 / len(noise)) ** 0.5
    assert abs(float(noise.var()) - 1 / 12) < 3 * (1 / 180 / len(noise)) ** 0.5
    shares = torch.histc(noise, 10, 0, 1) / len(noise)
    assert ((shares - 0.1).abs() < 3 * (0.09 / len(noise)) ** 0.5).all()


def test_noise_is_the_dropout_hash_of_the_inverted_seed() -> None:
    """Comparing the noise with p drops the same pairs as dropout with the inverted seed."""
    seed = (123 << 32) + 456
    inverted_seed = ~seed & (2**64 - 1)

    dropped = position_uniform(seed, **INDICES) < 0.25

    assert torch.equal(dropped, dropout_mask(inverted_seed, 0.25, INDICES))
    assert not torch.equal(dropped, dropout_mask(seed, 0.25, INDICES))


@pytest.mark.parametrize("backend", ["tiled", "reference"])
def test_gumbel_samples_keys_with_the_probabilities_of_softmax(backend: str) -> None:
    """Sample one of six keys for each of 4000 equal queries."""
    q = torch.ones(4000, 1, dtype=torch.float64)
    k = torch.tensor([[0.0], [1.0], [-1.0], [0.5], [2.0], [-3.0]], dtype=torch.float64)

    output = regard.attention(
        q, k, torch.eye(6, dtype=torch.float64), normalizer=normalizer.gumbel(seed=7), backend=backend
    )

    expected = k.flatten().softmax(0)
    assert ((output == 0) | (output == 1)).all() and (output.sum(-1) == 1).all()
    assert ((output.mean(0) - expected).abs() < 3.5 * (expected * (1 - expected) / 4000).sqrt()).all()


def test_gumbel_sample_depends_only_on_the_seed() -> None:
    q, k, v = torch.randn(3, 2, 3, 30, 4, dtype=torch.float64)

    output, other_output, repeated_output = (
        regard.attention(q, k, v, normalizer=normalizer.gumbel(seed=s)) for s in (1, 2, 1)
    )

    assert torch.equal(output, repeated_output) and not torch.equal(output, other_output)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_gumbel_has_the_straight_through_gradient(temperature: float) -> None:
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    indices = {name: INDICES[name][..., :7] if name == "j" else INDICES[name] for name in INDICES}
    indices["i"] = indices["i"][:7]
    noisy = (q @ k.mT / 2.0 - position_uniform(4, **indices).double().log().neg().log()) / temperature
    soft = noisy.softmax(-1)
    hard = torch.nn.functional.one_hot(noisy.argmax(-1), 7).double()
    expected = (hard + soft - soft.detach()) @ v

    output = regard.attention(q, k, v, normalizer=normalizer.gumbel(temperature, seed=4))
    relaxed = regard.attention(q, k, v, normalizer=normalizer.gumbel(temperature, seed=4, hard=False))

    # the noise is float32
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(relaxed, soft @ v, rtol=1e-6, atol=1e-6)
    for gradient, reference in zip(
        *(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (output, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-6)


def test_gumbel_temperature_of_zero_raises_error() -> None:
    with pytest.raises(ArgumentError, match="greater than 0; got 0"):
        normalizer.gumbel(0.0)
