"""A part of a call is a call that knows where it stands: parts put together are the whole, on every engine."""

from dataclasses import replace

import pytest
import torch

import regard
from regard import mask, score, weigh
from regard.attention import IN_ORDER
from regard.plan.choose import choose
from regard.spec.place import Places, part
from regard.spec.read import read

N = 37
DOCUMENTS = torch.tensor([0] * 10 + [1] * 15 + [2] * 12)
QUESTIONS = {
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.window(5)),
    "documents": dict(mask=mask.documents(DOCUMENTS)),
    "a function of everything": dict(mask=lambda b, h, i, j: (i * 3 + j * 5 + h + b) % 4 < 3),
    "slopes": dict(score=score.alibi()),
    "a rule": dict(score=lambda s, b, h, i, j: s + 0.01 * (i - j) * h),
    "made from queries": dict(score=score.scaled_dot().then(score.shaw_keys(torch.linspace(-1, 1, 56).view(7, 8)))),
    "start by batch element": dict(mask=mask.causal(), start=torch.tensor([2, 5])),
    "dropout": dict(dropout=0.4, seed=3),
    "the number of keys": dict(mask=mask.padding(torch.tensor([N, 20]), side="left")),
}
CUTS = {
    "stretches": [Places(0, 11), Places(11, 26)],
    "stripes": [Places(0, 13, 3), Places(1, 12, 3), Places(2, 12, 3)],
}


def tensors(engine):
    dtype = torch.float32 if engine in ("native", "fused") else torch.float64
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(2, 4, N, 8, generator=draw, dtype=torch.float64).to(dtype) for _ in range(3)]


def answered(question, inputs, queries, keys, engine):
    """Output and lse of some queries over some keys."""
    at, seen = torch.tensor(queries.positions()), torch.tensor(keys.positions())
    made = tuple(t[:, :, at] if t.dim() == 4 else t for t in inputs.tensors)
    here = replace(inputs, q=inputs.q[:, :, at], k=inputs.k[:, :, seen], v=inputs.v[:, :, seen], tensors=made)
    spec, placed = part(question, here, queries, keys)
    plan = choose(spec, IN_ORDER, engine)
    return next(e for e in IN_ORDER if e.name == plan.engine).forward(spec, placed, plan.tiles)


@pytest.mark.parametrize("engine", ["native", "tiled", "reference"])
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_parts_of_queries_and_keys_together_are_the_whole(engine, name, cut):
    q, k, v = tensors(engine)
    question = read(q, k, v, **QUESTIONS[name])
    inputs = question.inputs(torch.float64 if engine == "reference" else None)
    whole = regard.attention(q, k, v, **QUESTIONS[name], engine=engine)
    for queries in CUTS[cut]:
        merged, _ = regard.merge(*(answered(question, inputs, queries, keys, engine) for keys in CUTS[cut]))
        expected = whole[:, :, torch.tensor(queries.positions())]
        # some forty terms in another order: float32 in the kernels, else float64
        torch.testing.assert_close(merged.to(whole.dtype), expected, rtol=0, atol=4e-6 if engine == "native" else 1e-13)


@pytest.mark.parametrize("engine", ["native", "tiled"])
def test_a_part_of_the_heads_knows_which_they_are(engine):
    q, k, v = tensors(engine)
    options = dict(score=score.alibi(), weigh=weigh.entmax(torch.tensor([1.2, 1.4, 1.6, 1.8])), dropout=0.2, seed=1)
    question = read(q, k, v, **options)
    inputs = question.inputs()
    here = replace(inputs, q=inputs.q[:, 2:], k=inputs.k[:, 2:], v=inputs.v[:, 2:])
    spec, placed = part(question, here, Places(0, N), Places(0, N), first_head=2)
    plan = choose(spec, IN_ORDER, engine)
    output, _ = next(e for e in IN_ORDER if e.name == plan.engine).forward(spec, placed, plan.tiles)
    expected = regard.attention(q, k, v, **options, engine=engine)[:, 2:]
    torch.testing.assert_close(output, expected, rtol=0, atol=4e-6 if engine == "native" else 1e-13)
