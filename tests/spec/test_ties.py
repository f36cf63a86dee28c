"""Ties under argmax and top: scores tie only where they are exactly equal in the precision they are computed in."""

import pytest
import torch
from torch import Tensor

import regard
from regard import measure, score, weigh

ENGINES = ["native", "tiled", "reference"]
every_engine = pytest.mark.parametrize("engine", ENGINES)


def next_to(x: float, steps: int = 1) -> float:
    """The float32 that lies `steps` above x."""
    number = torch.tensor(x)
    for _ in range(steps):
        number = torch.nextafter(number, torch.tensor(torch.inf))
    return float(number)


def shown(engine: str, scores: list[float], weighing: object) -> regard.Attended:
    """One query of 1 and keys of width 1, so that each score is its key, in every kernel."""
    k = torch.tensor(scores).view(1, 1, -1, 1)
    v = torch.arange(1.0, len(scores) + 1).view(1, 1, -1, 1)
    return regard.attend(torch.ones(1, 1, 1, 1), k, v, score=score.dot(), weigh=weighing, engine=engine)


@every_engine
@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1.0, 50.0, 1e4])
@pytest.mark.parametrize("wins", [0, 1, 40])
def test_argmax_takes_the_larger_of_two_scores_that_are_next_to_each_other(
    engine: str, wins: int, size: float, steps: int
) -> None:
    scores = [size] * 41
    scores[wins] = next_to(size, steps)
    found = shown(engine, scores, weigh.argmax())

    expected = torch.zeros(41)
    expected[wins] = 1.0
    assert torch.equal(found.weights[0, 0, 0], expected)
    assert float(found.output) == wins + 1
    top = found.weights.measure(measure.top(2)).top
    assert top.values.flatten().tolist() == [1.0, 0.0] and int(top.indices.flatten()[0]) == wins


@every_engine
def test_equal_scores_share_the_weight_beside_one_that_is_next_to_them(engine: str) -> None:
    scores = [3.0, next_to(3.0), 1.0, next_to(3.0)]
    found = shown(engine, scores, weigh.argmax())

    assert found.weights[0, 0, 0].tolist() == [0.0, 0.5, 0.0, 0.5]
    assert float(found.output) == 3.0


@every_engine
def test_top_keeps_no_score_below_the_last_one(engine: str) -> None:
    scores = [3.0, next_to(3.0), next_to(3.0, 2), 1.0]
    found = shown(engine, scores, weigh.top(2))

    assert (found.weights[0, 0, 0] > 0).tolist() == [False, True, True, False]


@every_engine
def test_the_gradient_of_values_reaches_the_winner_alone(engine: str) -> None:
    k = torch.tensor([2.0, next_to(2.0), 1.0]).view(1, 1, 3, 1)
    v: Tensor = torch.randn(1, 1, 3, 2, requires_grad=True)

    output = regard.attention(torch.ones(1, 1, 1, 1), k, v, score=score.dot(), weigh=weigh.argmax(), engine=engine)
    (found,) = torch.autograd.grad(output.sum(), v)

    assert found.flatten().tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
