"""A subcall computes some queries, keys or heads of a call. Subcalls merge to the whole call on every backend."""

from dataclasses import replace

import pytest
import torch

import regard
from regard import mask, normalizer, score
from regard.backends.registry import BACKENDS
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.subcall import StridedRange, make_subcall
from regard.plan.choose import choose_backend

N = 37
DOCUMENTS = torch.tensor([0] * 10 + [1] * 15 + [2] * 12)
OPTIONS = {
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.sliding_window(5)),
    "documents": dict(mask=mask.document(DOCUMENTS)),
    "function of all indices": dict(mask=lambda b, h, i, j: (i * 3 + j * 5 + h + b) % 4 < 3),
    "alibi": dict(score=score.alibi()),
    "score modifier": dict(score=lambda s, b, h, i, j: s + 0.01 * (i - j) * h),
    "relative keys": dict(score=score.scaled_dot().then(score.shaw_keys(torch.linspace(-1, 1, 56).view(7, 8)))),
    "query offset per batch element": dict(mask=mask.causal(), query_offset=torch.tensor([2, 5])),
    "dropout": dict(dropout=0.4, seed=3),
    "the number of keys": dict(mask=mask.padding(torch.tensor([N, 20]), side="left")),
}
CUTS = {
    "contiguous": [StridedRange(0, 11), StridedRange(11, 26)],
    "strided": [StridedRange(0, 13, 3), StridedRange(1, 12, 3), StridedRange(2, 12, 3)],
}


def tensors(backend):
    dtype = torch.float32 if backend in ("native", "flex") else torch.float64
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(2, 4, N, 8, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def run_subcall(call, inputs, queries, keys, backend):
    """Output and lse of some queries over some keys."""
    query_indices, key_indices = torch.tensor(queries.to_range()), torch.tensor(keys.to_range())
    captured = tuple(t[:, :, query_indices] if t.dim() == 4 else t for t in inputs.tensors)
    part = replace(
        inputs,
        q=inputs.q[:, :, query_indices],
        k=inputs.k[:, :, key_indices],
        v=inputs.v[:, :, key_indices],
        tensors=captured,
    )
    spec, subcall_inputs = make_subcall(call, part, queries, keys)
    plan = choose_backend(spec, BACKENDS, backend)
    return next(e for e in BACKENDS if e.name == plan.backend).forward(spec, subcall_inputs, plan.tiling)


@pytest.mark.parametrize("backend", ["native", "tiled", "reference"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_subcalls_merge_to_the_whole_call(backend, name, cut):
    q, k, v = tensors(backend)
    call = parse_call(AttentionCall(q, k, v, **OPTIONS[name]))
    inputs = call.prepare_inputs(torch.float64 if backend == "reference" else None)
    whole = regard.attention(q, k, v, **OPTIONS[name], backend=backend)
    for queries in CUTS[cut]:
        merged, _ = regard.merge_states(*(run_subcall(call, inputs, queries, keys, backend) for keys in CUTS[cut]))
        expected = whole[:, :, torch.tensor(queries.to_range())]
        # about forty terms in another order: float32 in the kernels, else float64
        torch.testing.assert_close(
            merged.to(whole.dtype), expected, rtol=0, atol=4e-6 if backend == "native" else 1e-13
        )


@pytest.mark.parametrize("backend", ["native", "tiled"])
def test_subcall_of_some_heads_uses_their_head_indices(backend):
    q, k, v = tensors(backend)
    options = dict(
        score=score.alibi(), normalizer=normalizer.entmax(torch.tensor([1.2, 1.4, 1.6, 1.8])), dropout=0.2, seed=1
    )
    call = parse_call(AttentionCall(q, k, v, **options))
    inputs = call.prepare_inputs()
    part = replace(inputs, q=inputs.q[:, 2:], k=inputs.k[:, 2:], v=inputs.v[:, 2:])
    spec, subcall_inputs = make_subcall(call, part, StridedRange(0, N), StridedRange(0, N), head_offset=2)
    plan = choose_backend(spec, BACKENDS, backend)
    output, _ = next(e for e in BACKENDS if e.name == plan.backend).forward(spec, subcall_inputs, plan.tiling)
    expected = regard.attention(q, k, v, **options, backend=backend)[:, 2:]
    torch.testing.assert_close(output, expected, rtol=0, atol=4e-6 if backend == "native" else 1e-13)
