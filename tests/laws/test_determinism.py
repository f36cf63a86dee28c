"""Same inputs, same bits: run to run, forward and backward, in this process and in another."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, score, weigh
from regard.engine.native import builds

from . import cases


def everything(engine, problem, chosen, captured, **options):
    """Output, lse where there is one, and all gradients of one call from fresh leaves."""
    dtype = cases.dtype_of(engine)
    inputs = cases.leaves(*problem.tensors(dtype), *captured)
    got = cases.attend(engine, *inputs[:3], score=chosen(*inputs[3:]), **options)
    weights = problem.normal(*got.output.shape, dtype=dtype, salt=4)
    return (got.output, *cases.gradients(got.output, inputs, weights))


def same_bits(first, again):
    for one, other in zip(first, again, strict=True):
        cases.equal(one, other)


WEIGHS = {
    "softmax": weigh.softmax(),
    "sink": weigh.sink(0.1),
    "sigmoid": weigh.sigmoid(),
    "relu": weigh.relu(),
    "sparsemax": weigh.sparsemax(),
    "entmax": weigh.entmax(1.3),
    "top": weigh.top(2),
    "argmax": weigh.argmax(),
    "gumbel": weigh.gumbel(seed=2),
    "kernel": weigh.kernel(),
}


@given(problem=cases.problems(), weighing=st.sampled_from(sorted(WEIGHS)), dropout=st.sampled_from([0.0, 0.3]))
@cases.examples(15)
def test_the_same_call_gives_the_same_bits(engine, problem, weighing, dropout):
    options = dict(mask=mask.causal(), weigh=WEIGHS[weighing], dropout=dropout, seed=3)
    run = lambda: everything(engine, problem, lambda: None, (), **options)

    same_bits(run(), run())


SCORES = {
    "scaled dot": (lambda: None, ()),
    "bias": (lambda t: score.bias(t), [(1, 4, 1, 300)]),
    "alibi": (lambda t: score.alibi(t), [(4,)]),
    "table": (lambda t: score.rule(lambda s, b, h, i, j: s + t[h, (i - j) % 7]), [(4, 7)]),
    "relative": (lambda t: score.relative(t), [(32, 4)]),
    "additive": (lambda a, b, u: score.additive(a, b, u), [(8, 4), (8, 4), (4,)]),
    "metric": (lambda t: score.metric(t), [()]),
    "multiplicative": (lambda t: score.multiplicative(t), [(8, 8)]),
}


@pytest.mark.parametrize("name", SCORES)
def test_sums_over_many_tiles_and_threads_come_out_in_one_order(engine, name):
    problem = cases.Problem(batch=2, heads=4, key_heads=2, n_q=300, n_k=300, width=8, width_v=8, seed=1)
    chosen, shapes = SCORES[name]
    captured = [problem.normal(*shape, dtype=cases.dtype_of(engine), salt=7).abs() + 0.5 for shape in shapes]
    run = lambda: everything(engine, problem, chosen, captured, mask=mask.causal())

    first = run()
    for _ in range(3):
        torch.randn(1000, 1000).sum()  # another occupant of the memory in between
        same_bits(first, run())


PROGRAM = """
import hashlib, sys, torch, regard
from regard import mask, score
numbers = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, 4, 200, 16, generator=numbers).requires_grad_() for _ in range(3))
table = torch.randn(4, 9, generator=numbers).requires_grad_()
for engine in sys.argv[1:]:
    out = regard.attention(q, k, v, score=lambda s, b, h, i, j: s + table[h, (i - j) % 9],
                           mask=mask.causal() | mask.tokens([3, 5]), dropout=0.1 * (engine != "fused"), seed=5,
                           engine=engine)  # fused drops nothing
    found = torch.autograd.grad(out.square().sum(), (q, k, v, table))
    digest = hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in (out, *found))).hexdigest()
    print(engine, digest)
"""


def test_another_process_gives_the_same_bits(engine):
    if engine == "native" and not builds():
        pytest.skip("regard was installed without a C++ compiler")

    def run(hash_seed):
        surroundings = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM, engine]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings).stdout

    one = run("1")

    assert engine in one
    assert run("2") == one
