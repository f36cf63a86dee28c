"""Normalisers: the definition, the same in a stream of tiles, any weight again, and the gradient of the scores."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard.spec.normaliser import Normaliser, Relu, Sigmoid, Softmax

EVERY = [Softmax(), Sigmoid(), Relu()]
every = pytest.mark.parametrize("normaliser", EVERY, ids=lambda n: n.name)
ROWS, KEYS, WIDTH = 6, 23, 3

# Both sides in float64, sums of 23 weights.
CLOSE = dict(rtol=1e-13, atol=1e-13)


def scores(scale: float = 3.0) -> Tensor:
    """Rows of scores: some entries hidden, one row that sees nothing, one that sees a single key."""
    s = torch.randn(ROWS, KEYS, dtype=torch.float64) * scale
    s[1, ::2] = -torch.inf
    s[2] = -torch.inf
    s[3] = -torch.inf
    s[3, 20] = 0.7
    s[4, :8] = -torch.inf
    return s


def formula(normaliser: Normaliser, s: Tensor) -> Tensor:
    """The weights, written down again."""
    if normaliser.name == "sigmoid":
        return 1 / (1 + torch.exp(-s))
    if normaliser.name == "relu":
        return torch.where(s > 0, s, 0.0)
    shown = torch.exp(s)
    total = shown.sum(-1, keepdim=True)
    return torch.where(total > 0, shown / torch.where(total > 0, total, 1.0), 0.0)


def streamed(normaliser: Normaliser, s: Tensor, v: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor | None]:
    """Output and statistic of rows whose keys arrive in tiles."""
    state = normaliser.begin(s.new_zeros(s.shape[0], 1))
    total = s.new_zeros(s.shape[0], v.shape[1])
    for first, last in pairwise([0, *cuts, s.shape[1]]):
        state, weights, shrink = normaliser.step(state, s[:, first:last].clone())
        if shrink is not None:
            total *= shrink
        total += weights @ v[first:last]
    scale, statistic = normaliser.end(state)
    return total if scale is None else total * scale, None if statistic is None else statistic.squeeze(-1)


@every
def test_dense_is_the_formula(normaliser: Normaliser) -> None:
    s = scores()
    weights, statistic = normaliser.dense(s)
    torch.testing.assert_close(weights, formula(normaliser, s), **CLOSE)
    assert (statistic is None) == (normaliser.statistic is None)
    assert (weights[2] == 0).all()


def test_the_statistic_of_softmax_is_the_logarithm_of_its_sum() -> None:
    s = scores()
    _, lse = Softmax().dense(s)
    torch.testing.assert_close(lse, torch.exp(s).sum(-1).log(), **CLOSE)
    assert lse is not None and lse[2] == -torch.inf


@every
@pytest.mark.parametrize("cuts", [[], [1], [8], [5, 9, 20], list(range(1, KEYS))], ids=str)
def test_a_stream_of_tiles_gives_what_the_whole_row_gives(normaliser: Normaliser, cuts: list[int]) -> None:
    s, v = scores(), torch.randn(KEYS, WIDTH, dtype=torch.float64)
    weights, statistic = normaliser.dense(s)
    output, found = streamed(normaliser, s, v, cuts)
    torch.testing.assert_close(output, weights @ v, **CLOSE)
    if statistic is not None:
        torch.testing.assert_close(found, statistic, **CLOSE)
    assert (output[2] == 0).all()


@every
def test_a_row_without_any_tile_outputs_zero(normaliser: Normaliser) -> None:
    scale, statistic = normaliser.end(normaliser.begin(torch.zeros(4, 1)))
    assert scale is None or (scale == 0).all()
    assert statistic is None or (statistic == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [-1e4, 1e4, 300.0])
def test_softmax_does_not_overflow(dtype: torch.dtype, level: float) -> None:
    s = (torch.randn(ROWS, KEYS, dtype=torch.float64) + level).to(dtype)
    v = torch.eye(KEYS, dtype=dtype)
    expected = torch.softmax(s.double(), -1)
    for cuts in ([], [7, 15]):
        output, lse = streamed(Softmax(), s, v, cuts)
        torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(lse.double(), torch.logsumexp(s.double(), -1), rtol=1e-6, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("extreme", [torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])
def test_softmax_of_the_most_extreme_finite_scores_is_finite(extreme: float) -> None:
    s = torch.full((2, 6), extreme)
    s[1, 3] = -torch.inf
    output, _ = streamed(Softmax(), s, torch.eye(6), [2])
    expected, _ = Softmax().dense(s)
    torch.testing.assert_close(output, expected)
    assert output[0].tolist() == pytest.approx([1 / 6] * 6) and output[1, 3] == 0


@pytest.mark.parametrize("cuts", [[], [1], [4]])
def test_a_nan_that_is_seen_reaches_its_row_and_no_other(cuts: list[int]) -> None:
    s = torch.randn(3, 6)
    s[1, 2] = torch.nan
    for normaliser in EVERY:
        output, _ = streamed(normaliser, s, torch.ones(6, 1), cuts)
        assert output.isnan().flatten().tolist() == [False, True, False], normaliser.name


def test_a_score_of_plus_infinity_propagates_as_in_the_formula() -> None:
    s = torch.tensor([[0.0, torch.inf, 1.0]])
    assert torch.softmax(s, -1).isnan().any()
    output, _ = streamed(Softmax(), s, torch.ones(3, 1), [2])
    assert output.isnan().all()


@every
def test_any_weight_follows_from_its_score_and_the_statistic(normaliser: Normaliser) -> None:
    s = scores()
    weights, statistic = normaliser.dense(s)
    column = None if statistic is None else statistic.unsqueeze(-1)
    torch.testing.assert_close(normaliser.weights(s, column), weights, **CLOSE)
    torch.testing.assert_close(normaliser.weights(s[:, 4:9], column), weights[:, 4:9], **CLOSE)
    measured = s.clone() if column is None else s - normaliser.origin(column)
    torch.testing.assert_close(normaliser.rebuilt(measured), weights, **CLOSE)


@every
def test_showing_weights_leaves_the_scores_alone(normaliser: Normaliser) -> None:
    s = scores()
    kept = s.clone()
    _, statistic = normaliser.dense(s)
    normaliser.weights(s, None if statistic is None else statistic.unsqueeze(-1))
    assert torch.equal(s, kept)


@every
def test_the_gradient_of_the_scores_is_that_of_torch(normaliser: Normaliser) -> None:
    s = scores()
    s[2, 0] = 0.1  # a row that sees nothing has no gradient by formula
    s.requires_grad_()
    weights, statistic = normaliser.dense(s)
    d_weights = torch.randn_like(weights)
    d_statistic = torch.randn(ROWS, dtype=torch.float64)
    total = (weights * d_weights).sum() + (0 if statistic is None else (statistic * d_statistic).sum())
    (expected,) = torch.autograd.grad(total, s)
    level = (weights * d_weights).sum(-1) - (0 if statistic is None else d_statistic)
    with torch.no_grad():
        measured = d_weights.clone() if statistic is None else d_weights - level.unsqueeze(-1)
        found = normaliser.backward(weights.detach(), measured)
    hidden = s == -torch.inf
    torch.testing.assert_close(found[~hidden], expected[~hidden], rtol=1e-12, atol=1e-13)
    assert (found[hidden] == 0).all()


@every
def test_dense_passes_gradcheck(normaliser: Normaliser) -> None:
    s = torch.randn(3, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: normaliser.dense(s)[0], (s,))
    assert torch.autograd.gradgradcheck(lambda s: normaliser.dense(s)[0], (s,))


@every
def test_a_row_that_sees_nothing_has_gradient_zero(normaliser: Normaliser) -> None:
    s = torch.full((2, 4), -torch.inf, dtype=torch.float64, requires_grad=True)
    weights, statistic = normaliser.dense(s)
    weights.sum().backward()
    assert (s.grad == 0).all()
    if statistic is not None:
        found = normaliser.backward(weights.detach(), torch.ones(2, 4, dtype=torch.float64))
        assert (found == 0).all()


def test_normalisers_are_values() -> None:
    assert Softmax() == Softmax() and hash(Softmax()) == hash(Softmax())
    assert len({Softmax(), Softmax(), Sigmoid(), Relu()}) == 3
    assert Softmax() != Sigmoid()
    with pytest.raises(AttributeError):
        Softmax().name = "other"  # type: ignore[misc]


def test_only_softmax_merges_and_has_a_statistic() -> None:
    assert [(n.name, n.statistic, n.merges) for n in EVERY] == [
        ("softmax", "lse", True),
        ("sigmoid", None, False),
        ("relu", None, False),
    ]
