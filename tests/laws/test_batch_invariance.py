"""Batch invariance: an element has the same bits alone as in a batch, forward and backward."""

import itertools

import pytest
import torch

import regard
from regard import mask, normalizer, score

from . import cases

# lengths and dimensions that do and do not fill vectors and cache lines
SHAPES = [
    shape
    for n, shape in enumerate(
        itertools.product((2, 3, 5), (1, 2), (1, 2), (1, 7, 64, 130), (5, 32, 70, 300), (3, 8, 16, 64))
    )
    if n % 5 == 0
]

OPTIONS = {
    "softmax": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.sliding_window(5)),
    "softcap": dict(score=score.softcap(3.0)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "sigmoid": dict(normalizer=normalizer.sigmoid()),
}


def forward_and_backward(backend, tensors, weights, options):
    q, k, v = cases.leaves(*tensors)
    output = cases.attention(backend, q, k, v, **options)
    return [output, *cases.gradients(output, (q, k, v), weights)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", ["native", "tiled"])
def test_a_batch_element_alone_has_the_same_bits(backend, name, dtype):
    different = []
    for seed, (batch, num_kv_heads, group, n_q, n_k, head_dim) in enumerate(SHAPES[:: 1 if name == "softmax" else 4]):
        problem = cases.Problem(batch, num_kv_heads * group, num_kv_heads, n_q, n_k, head_dim, head_dim, seed=seed)
        tensors = problem.tensors(dtype)
        weights = problem.normal(batch, problem.num_heads, n_q, head_dim).to(dtype)
        together = forward_and_backward(backend, tensors, weights, OPTIONS[name])
        for b in {0, batch - 1}:
            element = slice(b, b + 1)
            alone = forward_and_backward(backend, [x[element] for x in tensors], weights[element], OPTIONS[name])
            for part, actual, expected in zip("oqkv", alone, together, strict=True):
                if not torch.equal(actual, expected[element]):
                    different.append((part, b, tuple(problem.tensors()[0].shape), n_k))
    assert different == []


def test_a_batch_element_has_the_same_bits_at_any_address():
    """Rows that begin anywhere in a cache line, with interleaved heads."""
    generator = torch.randn(1 + 2 * 3 * 41 * 24)
    q = generator[1:].view(2, 41, 3, 24).transpose(1, 2)

    together = regard.attention(q, q, q, backend="tiled")
    alone = regard.attention(*[q[1:].clone()] * 3, backend="tiled")

    assert torch.equal(together[1:], alone)
