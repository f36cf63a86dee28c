"""A batch element gets the same bits alone as together with others, forward and backward."""

import itertools

import pytest
import torch

import regard
from regard import mask, score, weigh

from . import cases

# lengths and widths that do and do not fill vectors and cache lines
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
    "window": dict(mask=mask.window(5)),
    "softcap": dict(score=score.softcap(3.0)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "sigmoid": dict(weigh=weigh.sigmoid()),
}


def forward_and_backward(engine, tensors, weights, options):
    q, k, v = cases.leaves(*tensors)
    output = cases.attention(engine, q, k, v, **options)
    return [output, *cases.gradients(output, (q, k, v), weights)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", ["native", "tiled"])
def test_a_batch_element_alone_gives_the_same_bits(backend, name, dtype):
    different = []
    for number, (batch, key_heads, group, n_q, n_k, width) in enumerate(SHAPES[:: 1 if name == "softmax" else 4]):
        problem = cases.Problem(batch, key_heads * group, key_heads, n_q, n_k, width, width, seed=number)
        tensors = problem.tensors(dtype)
        weights = problem.normal(batch, problem.heads, n_q, width).to(dtype)
        together = forward_and_backward(backend, tensors, weights, OPTIONS[name])
        for b in {0, batch - 1}:
            one = slice(b, b + 1)
            alone = forward_and_backward(backend, [x[one] for x in tensors], weights[one], OPTIONS[name])
            for part, got, expected in zip("oqkv", alone, together, strict=True):
                if not torch.equal(got, expected[one]):
                    different.append((part, b, tuple(problem.tensors()[0].shape), n_k))
    assert different == []


def test_a_batch_element_gets_the_same_bits_wherever_it_lies_in_memory():
    """Rows that begin anywhere in a cache line, and rows of heads that lie side by side."""
    numbers = torch.randn(1 + 2 * 3 * 41 * 24)
    q = numbers[1:].view(2, 41, 3, 24).transpose(1, 2)

    together = regard.attention(q, q, q, engine="tiled")
    alone = regard.attention(*[q[1:].clone()] * 3, engine="tiled")

    assert torch.equal(together[1:], alone)
