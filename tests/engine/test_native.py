"""The compiled engine: its builds agree, threads change nothing, and what it cannot do it says."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.attention import IN_ORDER
from regard.engine.gradient import run
from regard.engine.native import Native, builds
from regard.engine.tiled import Tiled
from regard.spec.read import read

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

# Around a panel (48, 24 or 12 queries), a chunk (16 keys) and a tile (192 and 96 keys).
LENGTHS = [0, 1, 7, 23, 24, 25, 47, 49, 95, 97, 191, 193]
WIDTHS = [1, 8, 24, 40, 80, 256, 320]

RULES = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.window(9)),
    "function": dict(mask=lambda b, h, i, j: (i * 3 + j) % 5 != 0),
    "either": dict(mask=mask.causal() | mask.prefix(5)),
    "strided": dict(mask=mask.strided(5)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "softcap": dict(score=score.softcap(2.0)),
    "floats decide": dict(mask=lambda b, h, i, j: (i / 3 - j / 7).abs() < 11.5),
    "several": dict(score=lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, torch.sigmoid(s), torch.exp(s * 0.1))),
    "dropout": dict(dropout=0.3, seed=5),
}


class Rows:
    """The deterministic q, k, v of a test."""

    def __init__(self, n_q: int, n_k: int, width: int = 8, heads: int = 2, key_heads: int = 1, batch: int = 2) -> None:
        numbers = torch.Generator().manual_seed(n_q * 1000 + n_k)
        self.q = torch.randn(batch, heads, n_q, width, generator=numbers).requires_grad_()
        self.k = torch.randn(batch, key_heads, n_k, width, generator=numbers).requires_grad_()
        self.v = torch.randn(batch, key_heads, n_k, width + 1, generator=numbers).requires_grad_()
        self.g = torch.randn(batch, heads, n_q, width + 1, generator=numbers)

    def answers(self, engine: object, **options: object) -> list[Tensor]:
        """Output, lse and the three gradients."""
        question = read(self.q, self.k, self.v, **options)
        inputs = question.inputs()
        output, lse = run(engine, question.spec, engine.tiles(question.spec), inputs)
        return [output, lse, *torch.autograd.grad(output, (self.q, self.k, self.v), self.g)]


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("name", RULES)
def test_every_build_gives_what_tiled_gives(build, name):
    rows = Rows(61, 210)

    close(rows.answers(Native(Tiled(), build), **RULES[name]), rows.answers(Tiled(), **RULES[name]))


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("n_k", LENGTHS)
@pytest.mark.parametrize("n_q", LENGTHS)
def test_every_length_gives_what_tiled_gives(build, n_q, n_k):
    rows = Rows(n_q, n_k, heads=1)

    close(rows.answers(Native(Tiled(), build), mask=mask.causal()), rows.answers(Tiled(), mask=mask.causal()))


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_gives_what_tiled_gives(build, width):
    rows = Rows(50, 100, width)

    close(rows.answers(Native(Tiled(), build)), rows.answers(Tiled()))


class Nobody(Tiled):
    """Takes nothing over: what the native engine is asked here it must answer itself."""

    def forward(self, *args: object) -> object:
        raise AssertionError("the native engine passed a forward pass on")

    def backward(self, *args: object) -> object:
        raise AssertionError("the native engine passed a backward pass on")


def _captured(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


ORDER = torch.arange(210).view(-1, 5)[:, [0, 3, 2, 1, 4]].flatten()  # the ends of each few stay where they are

# Rules on (2 batch elements, 2 heads, 61 queries, 210 keys) that capture a tensor: what it is, and the rule.
LEARNED = {
    "slopes": ((2,), lambda t: score.alibi(t)),
    "one number": ((), lambda t: lambda s, b, h, i, j: s * t),
    "cap": ((), lambda t: lambda s, b, h, i, j: 2.0 * torch.tanh(s / 2.0) + t * s),
    "dense": ((2, 2, 61, 210), score.bias),
    "dense, one for all heads": ((2, 1, 61, 210), score.bias),
    "dense, one for all": ((61, 210), score.bias),
    "by query": ((61, 1), score.bias),
    "by key": ((210,), lambda t: lambda s, b, h, i, j: s + t[j]),
    "by key and head": ((2, 210), lambda t: lambda s, b, h, i, j: s * t[h, j]),
    "buckets": ((32, 2), lambda t: score.relative(t)),
    "difference": ((271,), lambda t: lambda s, b, h, i, j: s + t[i - j + 210]),
    "used twice": ((210,), lambda t: lambda s, b, h, i, j: s * t[j] + t[i] * t[(i + j) % 7]),
    "in another order": ((61, 210), lambda t: lambda s, b, h, i, j: s + t[i, ORDER[j]]),
    "turned over": ((210, 61), lambda t: lambda s, b, h, i, j: s + t[j, i]),
    "a choice": ((61,), lambda t: lambda s, b, h, i, j: torch.where(i > j, s + t[i], s * 0.5)),
    "through the score": ((2,), lambda t: lambda s, b, h, i, j: torch.tanh(s * t[h]) * t[b]),
    "infinite where hidden": ((210,), lambda t: lambda s, b, h, i, j: s + t[j] / torch.where(j <= i + 149, 1.0, 0.0)),
}


# A small tensor's gradient is summed apart, a large one's in place; those whose size the question gives stay small.
GIVEN_SIZE = {
    "slopes",
    "by query",
    "buckets",
    "one number",
    "cap",
    "dense",
    "dense, one for all heads",
    "dense, one for all",
}
SUMMED = [(name, 0) for name in LEARNED] + [(name, 70_000) for name in LEARNED if name not in GIVEN_SIZE]


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("name, more", SUMMED)
def test_captured_tensors_get_the_gradients_that_tiled_gives(build, name, more):
    shape, rule = LEARNED[name]
    if more:
        shape = (*shape[:-1], shape[-1] + more)
    rows, t = Rows(61, 210), _captured(*shape)
    options = dict(score=rule(t), mask=mask.causal())

    def gradients(engine: object) -> list[Tensor]:
        question = read(rows.q, rows.k, rows.v, **options)
        output, _ = run(engine, question.spec, engine.tiles(question.spec), question.inputs())
        return list(torch.autograd.grad(output, (rows.q, rows.k, rows.v, t), rows.g))

    close(gradients(Native(Nobody(), build)), gradients(Tiled()))


@pytest.mark.parametrize("shape", [(4, 700, 600), (1, 700, 600), (4, 1, 70_000), (3,)], ids=str)
def test_the_gradient_of_a_captured_tensor_has_the_same_bits_for_any_number_of_threads(shape):
    numbers = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 4, n, 16, generator=numbers) for n in (700, 600, 600))
    t = _captured(*shape)
    rules = {
        (4, 700, 600): lambda s, b, h, i, j: s + t[h, i, j],
        (1, 700, 600): lambda s, b, h, i, j: s * t[0, i, j],
        (4, 1, 70_000): lambda s, b, h, i, j: s + t[h, 0, (i * 7 + j * 11) % 5000],
        (3,): lambda s, b, h, i, j: s * t[(i + j) % 3],
    }
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        output = regard.attention(q, k, v, score=rules[shape], engine="native")
        found.append(torch.autograd.grad(output.square().sum(), t)[0])
    torch.set_num_threads(before)

    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert found[0].abs().sum() > 0


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("where", ["q", "k", "v", "g"])
@pytest.mark.parametrize("name", ["causal", "window", "function", "alibi", "softcap", "dropout", "plain"])
def test_what_is_not_finite_reaches_the_gradients_that_it_reaches_in_tiled(build, name, where):
    rows = Rows(61, 210)
    with torch.no_grad():
        for place, wild in ((3, torch.nan), (40, torch.inf), (55, -torch.inf)):
            getattr(rows, where)[1, :, place, 2] = wild

    found, expected = rows.answers(Native(Nobody(), build), **RULES[name]), rows.answers(Tiled(), **RULES[name])

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=2e-4, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("wild", [0.0, torch.nan, torch.inf], ids=str)
def test_a_large_bias_hides_even_where_it_is_not_looked_at_closely(wild):
    numbers = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 300, 8, generator=numbers) for _ in range(3))
    added = torch.randn(2, 300, 300, generator=numbers)
    added[:, :, 5] = -torch.inf
    k[:, :, 5], v[:, :, 5] = wild, wild

    def answers(engine: str) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        output = regard.attention(*leaves, score=score.bias(added), engine=engine)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    found = answers("native")

    close(found, answers("reference"))
    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize("batch, n_q, n_k", [(2, 0, 0), (2, 0, 3), (2, 3, 0), (0, 3, 3), (2, 1, 1)])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_takes_sizes_of_none_and_one(name, batch, n_q, n_k):
    rows = Rows(n_q, n_k, batch=batch)

    close(rows.answers(IN_ORDER[0], **RULES[name]), rows.answers(Tiled(), **RULES[name]))


@pytest.mark.parametrize("name", RULES)
def test_the_number_of_threads_changes_no_bit(name):
    rows = Rows(300, 400, 16, heads=6, key_heads=2)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(rows.answers(IN_ORDER[0], **RULES[name]))
    finally:
        torch.set_num_threads(before)

    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_hundred_runs_give_the_same_bits():
    rows = Rows(130, 300, 16, heads=4, key_heads=2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = rows.answers(IN_ORDER[0], mask=mask.causal())
        for _ in range(100):
            again = rows.answers(IN_ORDER[0], mask=mask.causal())
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(before)


def test_tensors_may_lie_in_memory_in_any_way():
    rows = Rows(40, 70, 16, heads=4, key_heads=2)
    expected = rows.answers(IN_ORDER[0], mask=mask.causal())

    rows.q = rows.q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # (b, n, h, d) in memory
    rows.k = rows.k.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()  # columns, not rows
    rows.v = torch.cat([rows.v.detach(), rows.v.detach()], dim=-1)[..., :17].requires_grad_()  # rows with gaps
    rows.g = rows.g.transpose(1, 2).contiguous().transpose(1, 2)

    found = rows.answers(IN_ORDER[0], mask=mask.causal())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
def test_a_table_may_be_read_in_any_order_of_its_columns(build):
    rows = Rows(30, 64)
    columns = torch.arange(64).view(-1, 4)[:, [0, 2, 1, 3]].flatten()  # as many apart at the ends as if in order
    bias = torch.randn(30, 64)
    options = dict(
        score=lambda s, b, h, i, j: s + bias[i, columns[j]], mask=lambda b, h, i, j: (bias > 0)[i, columns[j]]
    )

    close(rows.answers(Native(Tiled(), build), **options), rows.answers(Tiled(), **options))


OBJECTIONS = {
    "float64": (dict(), torch.float64, "computed in float64, and it knows float32"),
    "sigmoid": (dict(weigh=weigh.sigmoid()), torch.float32, "the weighing is sigmoid, and it knows softmax"),
    "custom": (dict(score=score.custom(lambda q, k: q @ k.mT)), torch.float32, "the score is custom"),
    "decides by tanh": (
        dict(mask=lambda b, h, i, j: torch.tanh(i / 9 + j) < 0.5),
        torch.float32,
        "what decides must be the same number everywhere, and its tanh is its own",
    ),
}


@pytest.mark.parametrize("name", OBJECTIONS)
def test_what_it_cannot_do_it_says(name):
    options, dtype, said = OBJECTIONS[name]
    x = torch.ones(1, 1, 4, 8, dtype=dtype)

    with pytest.raises(regard.errors.EngineError, match=said):
        regard.attention(x, x, x, engine="native", **options)
    assert regard.explain(x, x, x, **options).engine == "tiled"


def test_a_plan_names_the_build():
    x = torch.ones(1, 1, 4, 8)

    assert f"native for {builds()[0].name}, tiles of" in str(regard.explain(x, x, x))


def test_whole_numbers_beyond_32_bits_are_answered_all_the_same():
    ids = torch.arange(50) // 7 * 2**40
    q, k, v = torch.randn(3, 1, 1, 50, 8).unbind()

    far = regard.attention(q, k, v, mask=mask.documents(ids), engine="native")

    torch.testing.assert_close(far, regard.attention(q, k, v, mask=mask.documents(ids // 2**40)))


def test_many_python_threads_may_call_at_once():
    rows = [Rows(100 + n, 200, 16, heads=4, key_heads=2) for n in range(8)]
    expected = [r.answers(IN_ORDER[0], mask=mask.causal()) for r in rows]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(20):
            found = rows[n].answers(IN_ORDER[0], mask=mask.causal())
            if not all(torch.equal(a, b) for a, b in zip(found, expected[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()

    assert wrong == []


class Asks(torch.utils.data.Dataset):
    """Each item is an answer, computed in the worker."""

    def __len__(self):
        return 8

    def __getitem__(self, n):
        q = torch.full((1, 2, 70, 8), 0.1 * n)
        return regard.attention(q, q, q.cumsum(2), mask=mask.causal(), engine="native")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_works_in_the_workers_of_a_data_loader():
    here = Asks()[3]  # the parent's threads are awake when it forks

    loaded = list(torch.utils.data.DataLoader(Asks(), batch_size=None, num_workers=2))

    assert len(loaded) == 8 and torch.equal(loaded[3], here)


def test_it_works_in_a_child_of_a_process_whose_threads_are_awake():
    program = """
import os, torch, regard
torch.set_num_threads(2)
x = torch.randn(2, 8, 300, 64)
here = regard.attention(x, x, x, engine="native")
child = os.fork()
if child == 0:  # torch's own operations may hang here, so the bytes are compared without them
    same = regard.attention(x, x, x, engine="native").numpy().tobytes() == here.numpy().tobytes()
    os._exit(0 if same else 3)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)

    assert done.returncode == 0


def test_ctrl_c_ends_a_long_call():
    program = """
import signal, torch, regard
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have turned it off
x = torch.randn(1, 8, 30000, 64)
print("go", flush=True)
regard.attention(x, x, x)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert child.stdout is not None and child.stdout.readline() == "go\n"
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, errors = child.communicate(timeout=120)

    assert "KeyboardInterrupt" in errors and child.returncode != 0
    assert time.monotonic() - asked < 10  # the whole call would take half a minute
