"""Shaped attention: layers against whole matrices, formulas against known numbers, and what breaks it."""

import importlib
import math

import pytest
import torch

from regard.theory import shaped

covariance = importlib.import_module("regard.theory.covariance")
module = importlib.import_module("regard.theory.shaped")
SMALL = dict(width=64, samples=4000)
START = torch.tensor(module.START, dtype=torch.float64)


def test_the_drift_has_the_numbers_of_an_independent_simulation():
    known = torch.tensor([[0.0384, 0.0108, 0.0041], [0.0108, 0.0349, 0.0097], [0.0041, 0.0097, 0.0275]])
    found = covariance.drift_of(covariance.Net(256, 0.25, 1.0), START)
    torch.testing.assert_close(found, known.double(), atol=6e-5, rtol=0)  # printed to four digits


def test_the_diffusion_has_the_numbers_of_an_independent_simulation():
    found = covariance.diffusion_of(covariance.Net(256, 0.25, 1.0), START).flatten()
    for known in (0.886, 0.569, 0.140):  # printed to three digits
        assert float((found - known).abs().min()) < 6e-4, known


def test_the_diffusion_is_symmetric_and_never_negative():
    found = covariance.diffusion_of(covariance.Net(256, 0.4, 1.2), START)
    matrix = found.reshape(9, 9)
    torch.testing.assert_close(matrix, matrix.mT, atol=1e-14, rtol=0)
    torch.testing.assert_close(found, found.transpose(0, 1), atol=1e-14, rtol=0)
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-12


def whole_layer(net, v, plain, random):
    """A layer as it is written: tokens of full width, whole matrices, softmax by torch."""
    n, m = net.width, len(v)
    x = torch.zeros(m, n, dtype=torch.float64)
    x[:, :m] = math.sqrt(n) * torch.linalg.cholesky(v)
    q, k = (torch.randn(n, 16, generator=random, dtype=torch.float64) for _ in range(2))
    y = (x @ q / math.sqrt(n)) @ (x @ k / math.sqrt(n)).mT
    if plain:
        a = torch.softmax(y / 4, -1)
    else:
        a = torch.eye(m, dtype=torch.float64) + torch.softmax(y / net.tau, -1) - 1 / m
    w = torch.randn(n, n, generator=random, dtype=torch.float64)
    then = math.sqrt(1 - net.branch) * x + math.sqrt(net.branch) * a @ x @ w / math.sqrt(n)
    return then @ then.mT / n


@pytest.mark.parametrize("plain", [False, True])
def test_a_layer_has_the_law_of_one_with_whole_matrices(plain):
    net, count = covariance.Net(24, 0.4, 1.0), 3000
    random = torch.Generator().manual_seed(1)
    whole = torch.stack([whole_layer(net, START, plain, random) for _ in range(count)])
    found = covariance.drawn_layer(net, START.expand(count, -1, -1), not plain, random)
    for one, two in ((whole, found), (whole.square(), found.square())):
        error = (one.var(0) / count + two.var(0) / count).sqrt()
        assert float(((one.mean(0) - two.mean(0)) / error).abs().max()) < 5  # standard errors


def test_the_noise_of_a_step_of_the_equation_has_the_covariance_of_the_formula():
    net, count = covariance.Net(400, 0.4, 1.0), 20_000
    random = torch.Generator().manual_seed(2)
    step = covariance.paths_of(net, START.expand(count, -1, -1), 1, random, lambda share: None)[1]
    moved = math.sqrt(net.width) * (step - START - covariance.drift_of(net, START) / net.width).flatten(1)
    products = moved.unsqueeze(-1) * moved.unsqueeze(-2)
    error = products.std(0) / math.sqrt(count)
    said = covariance.diffusion_of(net, START).reshape(9, 9)
    assert float(((products.mean(0) - said) / error).abs().max()) < 5  # standard errors


def test_tokens_stay_apart_when_shaped_and_become_one_when_plain():
    found = shaped(**SMALL).data
    assert float(found["correlation"][-1].mean()) < 0.5
    assert float(found["correlation_plain"][-1].mean()) > 0.9999


def test_a_net_stops_where_a_variance_has_grown_large():
    now = torch.stack([START, 5 * START])
    then = covariance.stopped(now, 2 * now)
    torch.testing.assert_close(then, torch.stack([2 * START, 5 * START]))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("centred", lambda v: v),
        ("drift_by", lambda net, v, c, e: net.branch / net.temperature**2 * v * (v * c).mean((-2, -1), keepdim=True)),
        ("diffusion_of", lambda net, v: 2 * net.branch * torch.einsum("ad,bw->abdw", v, v)),
        ("drawn_attention", lambda net, root, shape, random, twice=False: torch.eye(3).double().expand(
            (2 if twice else 1) * len(root), 3, 3)),
    ],
)  # fmt: skip
def test_a_wrong_formula_in_its_place_is_noticed(monkeypatch, name, broken):
    for each in (module, covariance):
        monkeypatch.setattr(each, name, broken, raising=False)
    assert not shaped(width=64, depth=0.1, samples=40_000).agrees
