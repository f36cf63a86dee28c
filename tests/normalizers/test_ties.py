"""Ties under hardmax and topk: scores tie only if they are exactly equal in the computed precision."""

import pytest
import torch
from torch import Tensor

import regard
from regard import measure, normalizer, score

BACKENDS = ["native", "tiled", "reference"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def nextafter(x: float, steps: int = 1) -> float:
    """Return the float32 that is `steps` representable numbers above x."""
    number = torch.tensor(x)
    for _ in range(steps):
        number = torch.nextafter(number, torch.tensor(torch.inf))
    return float(number)


def attention_of_scores(backend: str, scores: list[float], row_normalizer: object) -> regard.AttentionResult:
    """Return attention of one query of 1 and keys of dimension 1, so that the scores are the keys."""
    k = torch.tensor(scores).view(1, 1, -1, 1)
    v = torch.arange(1.0, len(scores) + 1).view(1, 1, -1, 1)
    return regard.attention_with_weights(
        torch.ones(1, 1, 1, 1), k, v, score=score.dot(), normalizer=row_normalizer, backend=backend
    )


@every_backend
@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1.0, 50.0, 1e4])
@pytest.mark.parametrize("winner", [0, 1, 40])
def test_hardmax_distinguishes_adjacent_scores(backend: str, winner: int, size: float, steps: int) -> None:
    scores = [size] * 41
    scores[winner] = nextafter(size, steps)
    result = attention_of_scores(backend, scores, normalizer.hardmax())

    expected = torch.zeros(41)
    expected[winner] = 1.0
    assert torch.equal(result.weights[0, 0, 0], expected)
    assert float(result.output) == winner + 1
    top = result.weights.measure(measure.topk(2)).topk
    assert top.values.flatten().tolist() == [1.0, 0.0] and int(top.indices.flatten()[0]) == winner


@every_backend
def test_hardmax_splits_the_weight_between_equal_scores_only(backend: str) -> None:
    scores = [3.0, nextafter(3.0), 1.0, nextafter(3.0)]
    result = attention_of_scores(backend, scores, normalizer.hardmax())

    assert result.weights[0, 0, 0].tolist() == [0.0, 0.5, 0.0, 0.5]
    assert float(result.output) == 3.0


@every_backend
def test_topk_excludes_scores_just_below_the_kth(backend: str) -> None:
    scores = [3.0, nextafter(3.0), nextafter(3.0, 2), 1.0]
    result = attention_of_scores(backend, scores, normalizer.topk(2))

    assert (result.weights[0, 0, 0] > 0).tolist() == [False, True, True, False]


@every_backend
def test_hardmax_value_gradient_reaches_only_the_winner(backend: str) -> None:
    k = torch.tensor([2.0, nextafter(2.0), 1.0]).view(1, 1, 3, 1)
    v: Tensor = torch.randn(1, 1, 3, 2, requires_grad=True)

    output = regard.attention(
        torch.ones(1, 1, 1, 1), k, v, score=score.dot(), normalizer=normalizer.hardmax(), backend=backend
    )
    (gradient,) = torch.autograd.grad(output.sum(), v)

    assert gradient.flatten().tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
