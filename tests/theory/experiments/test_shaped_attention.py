"""The shaped attention experiment: layers against full matrices, known values, and detection of wrong formulas."""

import importlib
import math

import pytest
import torch

from regard.theory import shaped_attention

covariance = importlib.import_module("regard.theory.analysis.shaped_sde")
module = importlib.import_module("regard.theory.experiments.shaped_attention")
SMALL = dict(embed_dim=64, num_samples=4000)
START = torch.tensor(module.INITIAL_COVARIANCE, dtype=torch.float64)


def test_drift_matches_an_independent_simulation():
    expected = torch.tensor([[0.0384, 0.0108, 0.0041], [0.0108, 0.0349, 0.0097], [0.0041, 0.0097, 0.0275]])
    actual = covariance.drift(covariance.ShapedNet(256, 0.25, 1.0), START)
    torch.testing.assert_close(actual, expected.double(), atol=6e-5, rtol=0)  # printed to four digits


def test_diffusion_matches_an_independent_simulation():
    actual = covariance.diffusion(covariance.ShapedNet(256, 0.25, 1.0), START).flatten()
    for expected in (0.886, 0.569, 0.140):  # printed to three digits
        assert float((actual - expected).abs().min()) < 6e-4, expected


def test_diffusion_is_symmetric_and_positive_semidefinite():
    actual = covariance.diffusion(covariance.ShapedNet(256, 0.4, 1.2), START)
    matrix = actual.reshape(9, 9)
    torch.testing.assert_close(matrix, matrix.mT, atol=1e-14, rtol=0)
    torch.testing.assert_close(actual, actual.transpose(0, 1), atol=1e-14, rtol=0)
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-12


def reference_layer(net, v, plain, random):
    """Compute a layer by its definition, with full weight matrices and torch's softmax."""
    n, m = net.embed_dim, len(v)
    x = torch.zeros(m, n, dtype=torch.float64)
    x[:, :m] = math.sqrt(n) * torch.linalg.cholesky(v)
    q, k = (torch.randn(n, 16, generator=random, dtype=torch.float64) for _ in range(2))
    y = (x @ q / math.sqrt(n)) @ (x @ k / math.sqrt(n)).mT
    if plain:
        a = torch.softmax(y / 4, -1)
    else:
        a = torch.eye(m, dtype=torch.float64) + torch.softmax(y / net.tau, -1) - 1 / m
    w = torch.randn(n, n, generator=random, dtype=torch.float64)
    updated = math.sqrt(1 - net.gamma_sq) * x + math.sqrt(net.gamma_sq) * a @ x @ w / math.sqrt(n)
    return updated @ updated.mT / n


@pytest.mark.parametrize("plain", [False, True])
def test_sampled_layers_match_layers_with_full_matrices(plain):
    net, count = covariance.ShapedNet(24, 0.4, 1.0), 3000
    random = torch.Generator().manual_seed(1)
    reference = torch.stack([reference_layer(net, START, plain, random) for _ in range(count)])
    actual = covariance.sample_layer(net, START.expand(count, -1, -1), not plain, random)
    for first, second in ((reference, actual), (reference.square(), actual.square())):
        error = (first.var(0) / count + second.var(0) / count).sqrt()
        assert float(((first.mean(0) - second.mean(0)) / error).abs().max()) < 5  # standard errors


def test_the_noise_of_an_sde_step_has_the_diffusion_covariance():
    net, count = covariance.ShapedNet(400, 0.4, 1.0), 20_000
    random = torch.Generator().manual_seed(2)
    step = covariance.simulate_sde(net, START.expand(count, -1, -1), 1, random, lambda share: None)[1]
    noise = math.sqrt(net.embed_dim) * (step - START - covariance.drift(net, START) / net.embed_dim).flatten(1)
    products = noise.unsqueeze(-1) * noise.unsqueeze(-2)
    error = products.std(0) / math.sqrt(count)
    expected_covariance = covariance.diffusion(net, START).reshape(9, 9)
    assert float(((products.mean(0) - expected_covariance) / error).abs().max()) < 5  # standard errors


def test_shaped_attention_keeps_tokens_apart_and_plain_attention_collapses():
    actual = shaped_attention(**SMALL).data
    assert float(actual["correlation"][-1].mean()) < 0.5
    assert float(actual["correlation_plain"][-1].mean()) > 0.9999


def test_large_variances_are_frozen():
    current = torch.stack([START, 5 * START])
    updated = covariance.freeze_large_variances(current, 2 * current)
    torch.testing.assert_close(updated, torch.stack([2 * START, 5 * START]))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("center", lambda v: v),
        ("drift_from_terms", lambda net, v, c, e: (
            net.gamma_sq / net.temperature**2 * v * (v * c).mean((-2, -1), keepdim=True))),
        ("diffusion", lambda net, v: 2 * net.gamma_sq * torch.einsum("ad,bw->abdw", v, v)),
        ("sample_attention", lambda net, root, is_shaped, generator, antithetic=False: torch.eye(3).double().expand(
            (2 if antithetic else 1) * len(root), 3, 3)),
    ],
)  # fmt: skip
def test_a_wrong_formula_is_detected(monkeypatch, name, replacement):
    for target in (module, covariance):
        monkeypatch.setattr(target, name, replacement, raising=False)
    assert not shaped_attention(embed_dim=64, depth_to_width=0.1, num_samples=40_000).is_consistent
