"""The calls that each backend supports."""

import pytest
import torch

import regard
from regard import mask, normalizer, score

from . import cases

OPTIONS = {
    "defaults": {},
    "causal": dict(mask=mask.causal()),
    "function": dict(mask=lambda b, h, i, j: (i + j) % 2 == 0, score=lambda s, b, h, i, j: s - 0.1 * (i - j)),
    "tensor": dict(mask=torch.ones(5, 6, dtype=torch.bool)),
    "additive": dict(score=score.additive(torch.ones(8, 4), torch.ones(8, 4), torch.ones(4))),
    "custom": dict(score=score.custom(lambda q, k: q @ k.mT)),
    "gaussian": dict(score=score.gaussian(2.0)),
    "relative values": dict(score=score.shaw_keys(torch.ones(5, 8)), value=score.shaw_values(torch.ones(5, 8))),
    "value": dict(value=lambda v: v * 2),
    "sink": dict(normalizer=normalizer.sink(0.0)),
    "sigmoid": dict(normalizer=normalizer.sigmoid()),
    "relu": dict(normalizer=normalizer.relu()),
    "sparsemax": dict(normalizer=normalizer.sparsemax()),
    "entmax": dict(normalizer=normalizer.entmax(torch.full((4,), 1.2))),
    "topk": dict(normalizer=normalizer.topk(3)),
    "hardmax": dict(normalizer=normalizer.hardmax()),
    "dropout": dict(dropout=0.1, seed=1),
    "query_offset": dict(mask=mask.causal(), query_offset=[0, 2]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_backends_that_support_every_call_support_each_option(backend, name, dtype):
    if backend not in cases.SUPPORTS_EVERY_CALL:
        pytest.skip(f"{backend} does not support every call")
    q, k, v = (torch.ones(2, 4, n, 8, dtype=dtype) for n in (5, 6, 6))

    plan = regard.explain(q, k, v, backend=backend, **OPTIONS[name])

    assert plan.backend == backend
    assert plan.unsupported_reasons.get(backend, ()) == ()


def test_the_reference_backend_rejects_only_large_calls():
    shape = (1, 1, 100_000, 8)

    plan = regard.explain(shape, shape, shape)

    assert plan.backend != "reference"
    assert any("10,000,000,000" in reason for reason in plan.unsupported_reasons["reference"])  # pairs


def test_the_first_supporting_backend_runs_by_default():
    q = torch.ones(1, 1, 4, 8)

    plan = regard.explain(q, q, q)

    supporting = [name for name in regard.available_backends() if not plan.unsupported_reasons.get(name)]
    assert plan.backend == supporting[0]
