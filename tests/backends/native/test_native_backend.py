"""The native backend: its builds agree, threads change nothing, and unsupported calls raise errors."""

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
from regard import mask, normalizer, score
from regard.backends.native.backend import NativeBackend, builds
from regard.backends.registry import BACKENDS
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.tiled import TiledBackend
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from tests.backends.no_fallback import NoFallback

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")

# Around a panel (48, 24 or 12 queries), a chunk (16 keys) and a tile (192 and 96 keys).
LENGTHS = [0, 1, 7, 23, 24, 25, 47, 49, 95, 97, 191, 193]
HEAD_DIMS = [1, 8, 24, 40, 80, 256, 320]

OPTIONS = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.sliding_window(9)),
    "function": dict(mask=lambda b, h, i, j: (i * 3 + j) % 5 != 0),
    "either": dict(mask=mask.causal() | mask.prefix(5)),
    "strided": dict(mask=mask.strided(5)),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "softcap": dict(score=score.softcap(2.0)),
    "comparison of floats": dict(mask=lambda b, h, i, j: (i / 3 - j / 7).abs() < 11.5),
    "several": dict(score=lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, torch.sigmoid(s), torch.exp(s * 0.1))),
    "dropout": dict(dropout=0.3, seed=5),
}


class Rows:
    """Deterministic q, k, v and output gradient."""

    def __init__(
        self, n_q: int, n_k: int, head_dim: int = 8, heads: int = 2, kv_heads: int = 1, batch: int = 2
    ) -> None:
        numbers = torch.Generator().manual_seed(n_q * 1000 + n_k)
        self.q = torch.randn(batch, heads, n_q, head_dim, generator=numbers).requires_grad_()
        self.k = torch.randn(batch, kv_heads, n_k, head_dim, generator=numbers).requires_grad_()
        self.v = torch.randn(batch, kv_heads, n_k, head_dim + 1, generator=numbers).requires_grad_()
        self.g = torch.randn(batch, heads, n_q, head_dim + 1, generator=numbers)

    def output_and_gradients(self, backend: object, **options: object) -> list[Tensor]:
        """Output, lse and the three gradients."""
        call = parse_call(AttentionCall(self.q, self.k, self.v, **options))
        inputs = call.prepare_inputs()
        output, lse = differentiable_forward(backend, call.spec, backend.tiling(call.spec), inputs)[:2]
        return [output, lse, *torch.autograd.grad(output, (self.q, self.k, self.v), self.g)]


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_build_agrees_with_tiled(build, name):
    rows = Rows(61, 210)

    assert_close(
        rows.output_and_gradients(NativeBackend(TiledBackend(), build), **OPTIONS[name]),
        rows.output_and_gradients(TiledBackend(), **OPTIONS[name]),
    )


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("n_k", LENGTHS)
@pytest.mark.parametrize("n_q", LENGTHS)
def test_every_length_agrees_with_tiled(build, n_q, n_k):
    rows = Rows(n_q, n_k, heads=1)

    assert_close(
        rows.output_and_gradients(NativeBackend(TiledBackend(), build), mask=mask.causal()),
        rows.output_and_gradients(TiledBackend(), mask=mask.causal()),
    )


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim_agrees_with_tiled(build, head_dim):
    rows = Rows(50, 100, head_dim)

    assert_close(
        rows.output_and_gradients(NativeBackend(TiledBackend(), build)), rows.output_and_gradients(TiledBackend())
    )


def _captured(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


ORDER = torch.arange(210).view(-1, 5)[:, [0, 3, 2, 1, 4]].flatten()  # the ends of each group of five keep their places

# for 2 batch elements, 2 heads, 61 queries and 210 keys: the shape of a captured tensor, and the score modifier
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
    "buckets": ((32, 2), lambda t: score.t5_bias(t)),
    "difference": ((271,), lambda t: lambda s, b, h, i, j: s + t[i - j + 210]),
    "captured twice": ((210,), lambda t: lambda s, b, h, i, j: s * t[j] + t[i] * t[(i + j) % 7]),
    "in another order": ((61, 210), lambda t: lambda s, b, h, i, j: s + t[i, ORDER[j]]),
    "transposed": ((210, 61), lambda t: lambda s, b, h, i, j: s + t[j, i]),
    "a choice": ((61,), lambda t: lambda s, b, h, i, j: torch.where(i > j, s + t[i], s * 0.5)),
    "through the score": ((2,), lambda t: lambda s, b, h, i, j: torch.tanh(s * t[h]) * t[b]),
    "infinite where hidden": ((210,), lambda t: lambda s, b, h, i, j: s + t[j] / torch.where(j <= i + 149, 1.0, 0.0)),
}


# The gradient of a small tensor is summed separately, that of a large one in place. The call fixes the shape of these.
FIXED_SHAPE = {
    "slopes",
    "by query",
    "buckets",
    "one number",
    "cap",
    "dense",
    "dense, one for all heads",
    "dense, one for all",
}
SUMMED = [(name, 0) for name in LEARNED] + [(name, 70_000) for name in LEARNED if name not in FIXED_SHAPE]


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("name, extra_length", SUMMED)
def test_gradients_of_captured_tensors_agree_with_tiled(build, name, extra_length):
    shape, score_mod = LEARNED[name]
    if extra_length:
        shape = (*shape[:-1], shape[-1] + extra_length)
    rows, t = Rows(61, 210), _captured(*shape)
    options = dict(score=score_mod(t), mask=mask.causal())

    def gradients(backend: object) -> list[Tensor]:
        call = parse_call(AttentionCall(rows.q, rows.k, rows.v, **options))
        output, _ = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
        return list(torch.autograd.grad(output, (rows.q, rows.k, rows.v, t), rows.g))

    assert_close(gradients(NativeBackend(NoFallback(), build)), gradients(TiledBackend()))


@pytest.mark.parametrize("shape", [(4, 700, 600), (1, 700, 600), (4, 1, 70_000), (3,)], ids=str)
def test_gradient_of_a_captured_tensor_does_not_depend_on_the_number_of_threads(shape):
    numbers = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 4, n, 16, generator=numbers) for n in (700, 600, 600))
    t = _captured(*shape)
    score_mods = {
        (4, 700, 600): lambda s, b, h, i, j: s + t[h, i, j],
        (1, 700, 600): lambda s, b, h, i, j: s * t[0, i, j],
        (4, 1, 70_000): lambda s, b, h, i, j: s + t[h, 0, (i * 7 + j * 11) % 5000],
        (3,): lambda s, b, h, i, j: s * t[(i + j) % 3],
    }
    before = torch.get_num_threads()
    actual = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        output = regard.attention(q, k, v, score=score_mods[shape], backend="native")
        actual.append(torch.autograd.grad(output.square().sum(), t)[0])
    torch.set_num_threads(before)

    assert torch.equal(actual[0], actual[1]) and torch.equal(actual[0], actual[2])
    assert actual[0].abs().sum() > 0


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("where", ["q", "k", "v", "g"])
@pytest.mark.parametrize("name", ["causal", "window", "function", "alibi", "softcap", "dropout", "plain"])
def test_nonfinite_inputs_reach_the_same_gradients_as_in_tiled(build, name, where):
    rows = Rows(61, 210)
    with torch.no_grad():
        for place, nonfinite in ((3, torch.nan), (40, torch.inf), (55, -torch.inf)):
            getattr(rows, where)[1, :, place, 2] = nonfinite

    actual, expected = (
        rows.output_and_gradients(NativeBackend(NoFallback(), build), **OPTIONS[name]),
        rows.output_and_gradients(TiledBackend(), **OPTIONS[name]),
    )

    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=2e-4, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("nonfinite", [0.0, torch.nan, torch.inf], ids=str)
def test_large_bias_of_minus_infinity_hides_nonfinite_keys(nonfinite):
    numbers = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 300, 8, generator=numbers) for _ in range(3))
    added = torch.randn(2, 300, 300, generator=numbers)
    added[:, :, 5] = -torch.inf
    k[:, :, 5], v[:, :, 5] = nonfinite, nonfinite

    def output_and_gradients(backend: str) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        output = regard.attention(*leaves, score=score.bias(added), backend=backend)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    actual = output_and_gradients("native")

    assert_close(actual, output_and_gradients("reference"))
    assert all(x.isfinite().all() for x in actual)


@pytest.mark.parametrize("batch, n_q, n_k", [(2, 0, 0), (2, 0, 3), (2, 3, 0), (0, 3, 3), (2, 1, 1)])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_supports_lengths_of_zero_and_one(name, batch, n_q, n_k):
    rows = Rows(n_q, n_k, batch=batch)

    assert_close(
        rows.output_and_gradients(BACKENDS[0], **OPTIONS[name]),
        rows.output_and_gradients(TiledBackend(), **OPTIONS[name]),
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_number_of_threads_changes_no_bit(name):
    rows = Rows(300, 400, 16, heads=6, kv_heads=2)
    before = torch.get_num_threads()
    try:
        actual = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            actual.append(rows.output_and_gradients(BACKENDS[0], **OPTIONS[name]))
    finally:
        torch.set_num_threads(before)

    for other in actual[1:]:
        assert all(torch.equal(a, b) for a, b in zip(actual[0], other, strict=True))


def test_a_hundred_runs_give_the_same_bits():
    rows = Rows(130, 300, 16, heads=4, kv_heads=2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = rows.output_and_gradients(BACKENDS[0], mask=mask.causal())
        for _ in range(100):
            again = rows.output_and_gradients(BACKENDS[0], mask=mask.causal())
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(before)


def test_memory_layout_changes_no_bit():
    rows = Rows(40, 70, 16, heads=4, kv_heads=2)
    expected = rows.output_and_gradients(BACKENDS[0], mask=mask.causal())

    rows.q = rows.q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # (b, n, h, d) in memory
    rows.k = rows.k.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()  # columns, not rows
    rows.v = torch.cat([rows.v.detach(), rows.v.detach()], dim=-1)[..., :17].requires_grad_()  # rows with gaps
    rows.g = rows.g.transpose(1, 2).contiguous().transpose(1, 2)

    actual = rows.output_and_gradients(BACKENDS[0], mask=mask.causal())
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
def test_lookup_through_permuted_columns_agrees_with_tiled(build):
    rows = Rows(30, 64)
    columns = (
        torch.arange(64).view(-1, 4)[:, [0, 2, 1, 3]].flatten()
    )  # the ends of each group of four keep their places
    bias = torch.randn(30, 64)
    options = dict(
        score=lambda s, b, h, i, j: s + bias[i, columns[j]], mask=lambda b, h, i, j: (bias > 0)[i, columns[j]]
    )

    assert_close(
        rows.output_and_gradients(NativeBackend(TiledBackend(), build), **options),
        rows.output_and_gradients(TiledBackend(), **options),
    )


UNSUPPORTED = {
    "float64": (dict(), torch.float64, "it computes scores in float32, and this call needs float64"),
    "sigmoid": (dict(normalizer=normalizer.sigmoid()), torch.float32, "it does not support the sigmoid normalizer"),
    "custom": (dict(score=score.custom(lambda q, k: q @ k.mT)), torch.float32, "not custom scores"),
    "comparison of tanh": (
        dict(mask=lambda b, h, i, j: torch.tanh(i / 9 + j) < 0.5),
        torch.float32,
        "its tanh may round differently from torch's",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_it_cannot_do_it_says(name):
    options, dtype, message = UNSUPPORTED[name]
    x = torch.ones(1, 1, 4, 8, dtype=dtype)

    with pytest.raises(regard.errors.BackendError, match=message):
        regard.attention(x, x, x, backend="native", **options)
    assert regard.explain(x, x, x, **options).backend == "tiled"


def test_plan_names_the_build():
    x = torch.ones(1, 1, 4, 8)

    assert f"native ({builds()[0].name}), tiles of" in str(regard.explain(x, x, x))


def test_integers_beyond_32_bits_give_the_same_output():
    ids = torch.arange(50) // 7 * 2**40
    q, k, v = torch.randn(3, 1, 1, 50, 8).unbind()

    far = regard.attention(q, k, v, mask=mask.document(ids), backend="native")

    torch.testing.assert_close(far, regard.attention(q, k, v, mask=mask.document(ids // 2**40)))


def test_python_threads_can_call_concurrently():
    rows = [Rows(100 + n, 200, 16, heads=4, kv_heads=2) for n in range(8)]
    expected = [r.output_and_gradients(BACKENDS[0], mask=mask.causal()) for r in rows]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(20):
            actual = rows[n].output_and_gradients(BACKENDS[0], mask=mask.causal())
            if not all(torch.equal(a, b) for a, b in zip(actual, expected[n], strict=True)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()

    assert wrong == []


class Outputs(torch.utils.data.Dataset):
    """Each item is an output, computed in the worker."""

    def __len__(self):
        return 8

    def __getitem__(self, n):
        q = torch.full((1, 2, 70, 8), 0.1 * n)
        return regard.attention(q, q, q.cumsum(2), mask=mask.causal(), backend="native")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_data_loader_workers_give_the_same_bits():
    here = Outputs()[3]  # the parent's threads are running when it forks

    loaded = list(torch.utils.data.DataLoader(Outputs(), batch_size=None, num_workers=2))

    assert len(loaded) == 8 and torch.equal(loaded[3], here)


def test_forked_child_gives_the_same_bits():
    program = """
import os, torch, regard
torch.set_num_threads(2)
x = torch.randn(2, 8, 300, 64)
here = regard.attention(x, x, x, backend="native")
child = os.fork()
if child == 0:  # torch's own operations may hang here, so the bytes are compared without them
    same = regard.attention(x, x, x, backend="native").numpy().tobytes() == here.numpy().tobytes()
    os._exit(0 if same else 3)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False)

    assert done.returncode == 0


def test_keyboard_interrupt_ends_a_long_call():
    program = """
import signal, torch, regard
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have disabled it
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
    sent_at = time.monotonic()
    _, errors = child.communicate(timeout=120)

    assert "KeyboardInterrupt" in errors and child.returncode != 0
    assert time.monotonic() - sent_at < 10  # the whole call would take half a minute
