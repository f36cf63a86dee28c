"""The objections of each engine, pinned: what an engine may refuse is a list, and this is it."""

import pytest
import torch

import regard
from regard import mask, score, weigh

from . import cases

EVERY_CHOICE = {
    "nothing": {},
    "causal": dict(mask=mask.causal()),
    "function": dict(mask=lambda b, h, i, j: (i + j) % 2 == 0, score=lambda s, b, h, i, j: s - 0.1 * (i - j)),
    "tensor": dict(mask=torch.ones(5, 6, dtype=torch.bool)),
    "additive": dict(score=score.additive(torch.ones(8, 4), torch.ones(8, 4), torch.ones(4))),
    "custom": dict(score=score.custom(lambda q, k: q @ k.mT)),
    "metric": dict(score=score.metric(2.0)),
    "relative values": dict(score=score.shaw_keys(torch.ones(5, 8)), value=score.shaw_values(torch.ones(5, 8))),
    "value": dict(value=lambda v: v * 2),
    "sink": dict(weigh=weigh.sink(0.0)),
    "sigmoid": dict(weigh=weigh.sigmoid()),
    "relu": dict(weigh=weigh.relu()),
    "sparsemax": dict(weigh=weigh.sparsemax()),
    "entmax": dict(weigh=weigh.entmax(torch.full((4,), 1.2))),
    "top": dict(weigh=weigh.top(3)),
    "argmax": dict(weigh=weigh.argmax()),
    "dropout": dict(dropout=0.1, seed=1),
    "start": dict(mask=mask.causal(), start=[0, 2]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", EVERY_CHOICE)
def test_an_engine_that_never_declines_has_no_objection_to_a_problem_of_ordinary_size(engine, name, dtype):
    if engine not in cases.NEVER_DECLINE:
        pytest.skip(f"{engine} may object")
    q, k, v = (torch.ones(2, 4, n, 8, dtype=dtype) for n in (5, 6, 6))

    plan = regard.explain(q, k, v, engine=engine, **EVERY_CHOICE[name])

    assert plan.engine == engine
    assert plan.objections.get(engine, ()) == ()


def test_the_reference_objects_to_size_and_to_nothing_else():
    shape = (1, 1, 100_000, 8)

    plan = regard.explain(shape, shape, shape)

    assert plan.engine != "reference"
    assert any("10,000,000,000" in why for why in plan.objections["reference"])  # pairs


def test_without_a_name_the_first_engine_without_an_objection_runs():
    q = torch.ones(1, 1, 4, 8)

    plan = regard.explain(q, q, q)

    willing = [name for name in regard.engines() if not plan.objections.get(name)]
    assert plan.engine == willing[0]
