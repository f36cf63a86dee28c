"""Streaming normalizers: agreement of complete rows and tiles, recomputed weights, gradients of the scores."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard.normalizers.streaming import Relu, RowNormalizer, Sigmoid, Softmax

NORMALIZERS = [Softmax(), Sigmoid(), Relu()]
every_normalizer = pytest.mark.parametrize("row_normalizer", NORMALIZERS, ids=lambda n: n.name)
ROWS, KEYS, HEAD_DIM = 6, 23, 3

# float64 sums of 23 weights
CLOSE = dict(rtol=1e-13, atol=1e-13)


def scores(scale: float = 3.0) -> Tensor:
    """Return rows of scores: some scores masked, one row fully masked, one with a single key."""
    s = torch.randn(ROWS, KEYS, dtype=torch.float64) * scale
    s[1, ::2] = -torch.inf
    s[2] = -torch.inf
    s[3] = -torch.inf
    s[3, 20] = 0.7
    s[4, :8] = -torch.inf
    return s


def reference(row_normalizer: RowNormalizer, s: Tensor) -> Tensor:
    """Return the weights by their definition."""
    if row_normalizer.name == "sigmoid":
        return 1 / (1 + torch.exp(-s))
    if row_normalizer.name == "relu":
        return torch.where(s > 0, s, 0.0)
    exponentials = torch.exp(s)
    total = exponentials.sum(-1, keepdim=True)
    return torch.where(total > 0, exponentials / torch.where(total > 0, total, 1.0), 0.0)


def stream(row_normalizer: RowNormalizer, s: Tensor, v: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor | None]:
    """Return the output and statistic of rows that are processed in tiles of keys."""
    state = row_normalizer.init_state(s.new_zeros(s.shape[0], 1))
    total = s.new_zeros(s.shape[0], v.shape[1])
    for start, stop in pairwise([0, *cuts, s.shape[1]]):
        state, weights, rescale = row_normalizer.update(state, s[:, start:stop].clone())
        if rescale is not None:
            total *= rescale
        total += weights @ v[start:stop]
    scale, statistic = row_normalizer.finalize(state)
    return total if scale is None else total * scale, None if statistic is None else statistic.squeeze(-1)


@every_normalizer
def test_normalize_agrees_with_the_definition(row_normalizer: RowNormalizer) -> None:
    s = scores()
    weights, statistic = row_normalizer.normalize(s)
    torch.testing.assert_close(weights, reference(row_normalizer, s), **CLOSE)
    assert (statistic is None) == (row_normalizer.statistic is None)
    assert (weights[2] == 0).all()


def test_statistic_of_softmax_is_the_logsumexp() -> None:
    s = scores()
    _, lse = Softmax().normalize(s)
    torch.testing.assert_close(lse, torch.exp(s).sum(-1).log(), **CLOSE)
    assert lse is not None and lse[2] == -torch.inf


@every_normalizer
@pytest.mark.parametrize("cuts", [[], [1], [8], [5, 9, 20], list(range(1, KEYS))], ids=str)
def test_tiles_agree_with_complete_rows(row_normalizer: RowNormalizer, cuts: list[int]) -> None:
    s, v = scores(), torch.randn(KEYS, HEAD_DIM, dtype=torch.float64)
    weights, statistic = row_normalizer.normalize(s)
    output, actual_statistic = stream(row_normalizer, s, v, cuts)
    torch.testing.assert_close(output, weights @ v, **CLOSE)
    if statistic is not None:
        torch.testing.assert_close(actual_statistic, statistic, **CLOSE)
    assert (output[2] == 0).all()


@every_normalizer
def test_row_without_tiles_outputs_zero(row_normalizer: RowNormalizer) -> None:
    scale, statistic = row_normalizer.finalize(row_normalizer.init_state(torch.zeros(4, 1)))
    assert scale is None or (scale == 0).all()
    assert statistic is None or (statistic == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [-1e4, 1e4, 300.0])
def test_softmax_does_not_overflow(dtype: torch.dtype, offset: float) -> None:
    s = (torch.randn(ROWS, KEYS, dtype=torch.float64) + offset).to(dtype)
    v = torch.eye(KEYS, dtype=dtype)
    expected = torch.softmax(s.double(), -1)
    for cuts in ([], [7, 15]):
        output, lse = stream(Softmax(), s, v, cuts)
        torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(lse.double(), torch.logsumexp(s.double(), -1), rtol=1e-6, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("extreme", [torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])
def test_softmax_of_the_most_extreme_finite_scores_is_finite(extreme: float) -> None:
    s = torch.full((2, 6), extreme)
    s[1, 3] = -torch.inf
    output, _ = stream(Softmax(), s, torch.eye(6), [2])
    expected, _ = Softmax().normalize(s)
    torch.testing.assert_close(output, expected)
    assert output[0].tolist() == pytest.approx([1 / 6] * 6) and output[1, 3] == 0


@pytest.mark.parametrize("cuts", [[], [1], [4]])
def test_visible_nan_reaches_only_its_row(cuts: list[int]) -> None:
    s = torch.randn(3, 6)
    s[1, 2] = torch.nan
    for row_normalizer in NORMALIZERS:
        output, _ = stream(row_normalizer, s, torch.ones(6, 1), cuts)
        assert output.isnan().flatten().tolist() == [False, True, False], row_normalizer.name


def test_score_of_plus_infinity_gives_nan_as_in_torch() -> None:
    s = torch.tensor([[0.0, torch.inf, 1.0]])
    assert torch.softmax(s, -1).isnan().any()
    output, _ = stream(Softmax(), s, torch.ones(3, 1), [2])
    assert output.isnan().all()


@every_normalizer
def test_weights_follow_from_scores_and_statistic(row_normalizer: RowNormalizer) -> None:
    s = scores()
    weights, statistic = row_normalizer.normalize(s)
    column = None if statistic is None else statistic.unsqueeze(-1)
    torch.testing.assert_close(row_normalizer.weights(s, column), weights, **CLOSE)
    torch.testing.assert_close(row_normalizer.weights(s[:, 4:9], column), weights[:, 4:9], **CLOSE)
    shifted = s.clone() if column is None else s - row_normalizer.score_origin(column)
    torch.testing.assert_close(row_normalizer.recompute_weights(shifted), weights, **CLOSE)


@every_normalizer
def test_weights_do_not_modify_the_scores(row_normalizer: RowNormalizer) -> None:
    s = scores()
    original = s.clone()
    _, statistic = row_normalizer.normalize(s)
    row_normalizer.weights(s, None if statistic is None else statistic.unsqueeze(-1))
    assert torch.equal(s, original)


@every_normalizer
def test_backward_agrees_with_autograd(row_normalizer: RowNormalizer) -> None:
    s = scores()
    s[2, 0] = 0.1  # the definition has no gradient for a fully masked row
    s.requires_grad_()
    weights, statistic = row_normalizer.normalize(s)
    d_weights = torch.randn_like(weights)
    d_statistic = torch.randn(ROWS, dtype=torch.float64)
    total = (weights * d_weights).sum() + (0 if statistic is None else (statistic * d_statistic).sum())
    (expected,) = torch.autograd.grad(total, s)
    row_gradient = (weights * d_weights).sum(-1) - (0 if statistic is None else d_statistic)
    with torch.no_grad():
        shifted = d_weights.clone() if statistic is None else d_weights - row_gradient.unsqueeze(-1)
        d_scores = row_normalizer.backward(weights.detach(), shifted)
    hidden = s == -torch.inf
    torch.testing.assert_close(d_scores[~hidden], expected[~hidden], rtol=1e-12, atol=1e-13)
    assert (d_scores[hidden] == 0).all()


@every_normalizer
def test_normalize_passes_gradcheck(row_normalizer: RowNormalizer) -> None:
    s = torch.randn(3, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: row_normalizer.normalize(s)[0], (s,))
    assert torch.autograd.gradgradcheck(lambda s: row_normalizer.normalize(s)[0], (s,))


@every_normalizer
def test_fully_masked_row_has_gradient_zero(row_normalizer: RowNormalizer) -> None:
    s = torch.full((2, 4), -torch.inf, dtype=torch.float64, requires_grad=True)
    weights, statistic = row_normalizer.normalize(s)
    weights.sum().backward()
    assert (s.grad == 0).all()
    if statistic is not None:
        d_scores = row_normalizer.backward(weights.detach(), torch.ones(2, 4, dtype=torch.float64))
        assert (d_scores == 0).all()


def test_normalizers_are_hashable_values() -> None:
    assert Softmax() == Softmax() and hash(Softmax()) == hash(Softmax())
    assert len({Softmax(), Softmax(), Sigmoid(), Relu()}) == 3
    assert Softmax() != Sigmoid()
    with pytest.raises(AttributeError):
        Softmax().name = "other"  # type: ignore[misc]


def test_only_softmax_is_mergeable_and_has_a_statistic() -> None:
    assert [(n.name, n.statistic, n.is_mergeable) for n in NORMALIZERS] == [
        ("softmax", "lse", True),
        ("sigmoid", None, False),
        ("relu", None, False),
    ]
