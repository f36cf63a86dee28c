"""Determinism: the same inputs give the same bits, forward and backward, in any process."""

import os
import subprocess
import sys
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import mask, normalizer, score
from regard.backends.native.backend import builds

from . import cases


def output_and_gradients(backend, problem, make_score, captured, **options):
    """Return the output and all gradients of one call from new leaves."""
    dtype = cases.dtype_of(backend)
    inputs = cases.leaves(*problem.tensors(dtype), *captured)
    result = cases.attention_with_weights(backend, *inputs[:3], score=make_score(*inputs[3:]), **options)
    weights = problem.normal(*result.output.shape, dtype=dtype, salt=4)
    return (result.output, *cases.gradients(result.output, inputs, weights))


def assert_same_bits(first, second):
    for a, b in zip(first, second, strict=True):
        cases.equal(a, b)


NORMALIZERS = {
    "softmax": normalizer.softmax(),
    "sink": normalizer.sink(0.1),
    "sigmoid": normalizer.sigmoid(),
    "relu": normalizer.relu(),
    "sparsemax": normalizer.sparsemax(),
    "entmax": normalizer.entmax(1.3),
    "topk": normalizer.topk(2),
    "hardmax": normalizer.hardmax(),
    "gumbel": normalizer.gumbel(seed=2),
    "kernel": normalizer.kernel(),
}


@given(
    problem=cases.problems(), normalizer_name=st.sampled_from(sorted(NORMALIZERS)), dropout=st.sampled_from([0.0, 0.3])
)
@cases.examples(15)
def test_repeating_a_call_gives_the_same_bits(backend, problem, normalizer_name, dropout):
    options = dict(mask=mask.causal(), normalizer=NORMALIZERS[normalizer_name], dropout=dropout, seed=3)
    run = lambda: output_and_gradients(backend, problem, lambda: None, (), **options)

    assert_same_bits(run(), run())


SCORES = {
    "scaled dot": (lambda: None, ()),
    "bias": (lambda t: score.bias(t), [(1, 4, 1, 300)]),
    "alibi": (lambda t: score.alibi(t), [(4,)]),
    "table": (lambda t: score.modifier(lambda s, b, h, i, j: s + t[h, (i - j) % 7]), [(4, 7)]),
    "t5_bias": (lambda t: score.t5_bias(t), [(32, 4)]),
    "additive": (lambda a, b, u: score.additive(a, b, u), [(8, 4), (8, 4), (4,)]),
    "gaussian": (lambda t: score.gaussian(t), [()]),
    "bilinear": (lambda t: score.bilinear(t), [(8, 8)]),
}


@pytest.mark.parametrize("name", SCORES)
def test_sums_over_many_tiles_and_threads_have_a_fixed_order(backend, name):
    problem = cases.Problem(
        batch_size=2, num_heads=4, num_kv_heads=2, n_q=300, n_k=300, head_dim=8, value_dim=8, seed=1
    )
    make_score, shapes = SCORES[name]
    captured = [problem.normal(*shape, dtype=cases.dtype_of(backend), salt=7).abs() + 0.5 for shape in shapes]
    run = lambda: output_and_gradients(backend, problem, make_score, captured, mask=mask.causal())

    first = run()
    for _ in range(3):
        torch.randn(1000, 1000).sum()  # reuses the freed memory
        assert_same_bits(first, run())


PROGRAM = """
import hashlib, sys, torch, regard
from regard import mask, score
numbers = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, 4, 200, 16, generator=numbers).requires_grad_() for _ in range(3))
table = torch.randn(4, 9, generator=numbers).requires_grad_()
for backend in sys.argv[1:]:
    out = regard.attention(q, k, v, score=lambda s, b, h, i, j: s + table[h, (i - j) % 9],
                           mask=mask.causal() | mask.global_tokens([3, 5]), dropout=0.1 * (backend != "flex"), seed=5,
                           backend=backend)  # flex does not support dropout
    grads = torch.autograd.grad(out.square().sum(), (q, k, v, table))
    digest = hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in (out, *grads))).hexdigest()
    print(backend, digest)
"""


@cache
def digests(hash_seed):
    """Return the digest of each backend, computed in a new process."""
    backends = [name for name in regard.available_backends() if name != "native" or builds()]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, *backends]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return dict(line.split() for line in output.splitlines())


@pytest.mark.long
def test_another_process_gives_the_same_bits(backend):
    if backend == "native" and not builds():
        pytest.skip("regard was installed without a C++ compiler")

    assert digests("1")[backend] == digests("2")[backend]
