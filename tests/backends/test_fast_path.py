"""The fast path: repeated calls give the bits of the first call, and similar calls are not confused."""

import gc
import threading
import types

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.backends import fast_path
from regard.backends.native.backend import NativeFastCall, builds
from regard.cache import MAX_ENTRIES
from regard.expr import score_modifier

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")


@pytest.fixture(autouse=True)
def clear_fast_path():
    fast_path._cache.clear()


@pytest.fixture
def fast_calls(monkeypatch):
    """A list with one entry for each call that took the fast path."""
    count = []
    original = NativeFastCall.__call__

    def counting(self, *args: Tensor) -> Tensor | None:
        actual = original(self, *args)
        if actual is not None:
            count.append(1)
        return actual

    monkeypatch.setattr(NativeFastCall, "__call__", counting)
    return count


def random_inputs(n_q: int = 9, n_k: int = 9, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, heads, n, 16, dtype=dtype) for heads, n in ((4, n_q), (2, n_k), (2, n_k))]


def reference(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    return regard.attention(q.double(), k.double(), v.double(), backend="reference", **options)


OPTIONS = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.sliding_window(3)),
    "softcap": dict(score=score.softcap(2.0), mask=mask.causal()),
    "global tokens": dict(mask=mask.global_tokens([1, 3]) | mask.sliding_window(4)),
    "random blocks": dict(mask=mask.random_blocks(4, 2) | mask.sliding_window(2)),
    "slopes": dict(score=score.alibi(torch.tensor([0.5, 0.25, 0.1, 0.0]))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lengths", [(9, 9), (1, 300), (70, 80)], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_repeated_call_with_other_values_is_computed_again(fast_calls, name, lengths, dtype):
    tolerance = dict(rtol=1e-4, atol=1e-5) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-2)
    for _ in range(3):
        q, k, v = random_inputs(*lengths, dtype=dtype)
        actual = regard.attention(q, k, v, **OPTIONS[name])
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), reference(q, k, v, **OPTIONS[name]), **tolerance)
    assert len(fast_calls) == 2


def test_first_and_repeated_call_give_the_same_bits(fast_calls):
    q, k, v = random_inputs()
    assert torch.equal(regard.attention(q, k, v, mask=mask.causal()), regard.attention(q, k, v, mask=mask.causal()))
    assert len(fast_calls) == 1


def test_repeated_call_supports_other_memory_layouts(fast_calls):
    q, k, v = random_inputs()
    expected = regard.attention(q, k, v)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    torch.testing.assert_close(regard.attention(*strided), expected)
    assert len(fast_calls) == 1
    across = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]  # the last dimension is not contiguous
    torch.testing.assert_close(regard.attention(*across), expected)
    assert len(fast_calls) == 1


@pytest.mark.parametrize(
    "other",
    [
        dict(mask=mask.sliding_window(2)),
        dict(score=score.softcap(1.0)),
        dict(normalizer=regard.normalizer.sigmoid()),
        dict(query_offset=3),
        dict(dropout=0.5, seed=1),
        dict(backend="tiled"),
        dict(value=torch.tanh),
    ],
    ids=lambda other: next(iter(other)),
)
def test_call_with_other_options_is_not_confused(fast_calls, other):
    q, k, v = random_inputs()
    regard.attention(q, k, v, mask=mask.causal())
    options = dict(mask=mask.causal()) | other
    expected = regard.attention(q, k, v, **(options | dict(backend="tiled")))
    torch.testing.assert_close(regard.attention(q, k, v, **options), expected, rtol=1e-4, atol=1e-5)
    assert not fast_calls


def test_calls_under_autograd_and_transforms_take_the_full_path(fast_calls):
    q, k, v = random_inputs()
    with torch.no_grad():
        regard.attention(q, k, v)
    leaf = q.clone().requires_grad_()
    regard.attention(leaf, k, v).sum().backward()
    assert leaf.grad is not None and leaf.grad.abs().sum() > 0
    assert torch.func.vmap(regard.attention)(q[None], k[None], v[None]).shape == (1, *q.shape)
    assert torch.func.grad(lambda q: regard.attention(q, k, v).sum())(q).shape == q.shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        regard.attention(q, k, v)
    assert not fast_calls
    with torch.no_grad():
        regard.attention(leaf, k, v)
    assert len(fast_calls) == 1


def test_mask_tensor_changed_in_place_is_read_again(fast_calls):
    q, k, v = random_inputs()
    allowed = torch.ones(9, 9, dtype=torch.bool)
    first = regard.attention(q, k, v, mask=allowed)
    allowed[:, 5:] = False
    actual = regard.attention(q, k, v, mask=allowed)
    torch.testing.assert_close(actual, regard.attention(q, k, v, mask=allowed.clone(), backend="tiled"))
    assert not torch.equal(actual, first)
    assert not fast_calls


def test_equal_mask_tensor_takes_the_fast_path(fast_calls):
    q, k, v = random_inputs()
    allowed = torch.rand(9, 9) < 0.5
    expected = regard.attention(q, k, v, mask=allowed)
    other = allowed.clone()
    allowed.fill_(False)
    assert torch.equal(regard.attention(q, k, v, mask=other), expected)
    assert len(fast_calls) == 1
    assert not regard.attention(q, k, v, mask=allowed).any()


def test_change_through_numpy_is_detected(fast_calls):
    q, k, v = random_inputs()
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0])
    score_modifier = score.alibi(slopes)
    first = regard.attention(q, k, v, score=score_modifier)
    slopes.numpy()[:] = 3.0
    actual = regard.attention(q, k, v, score=score_modifier)
    torch.testing.assert_close(actual, regard.attention(q, k, v, score=score_modifier, backend="tiled"))
    assert not torch.equal(actual, first) and not fast_calls


def test_mask_tensors_of_other_shapes_are_distinguished(fast_calls):
    q, k, v = random_inputs()
    by_query = torch.rand(9, 1) < 0.7
    regard.attention(q, k, v, mask=by_query)
    actual = regard.attention(q, k, v, mask=by_query.view(1, 9))
    torch.testing.assert_close(actual, regard.attention(q, k, v, mask=by_query.view(1, 9), backend="tiled"))
    assert not fast_calls


@pytest.mark.parametrize(
    "options",
    [
        dict(mask=torch.ones(1100, 1100, dtype=torch.bool)),
        dict(mask=mask.random_blocks(1, 3)),
        dict(score=score.shaw_keys(torch.randn(5, 16))),
        dict(mask=lambda b, h, i, j: j <= i),
        dict(score=score.dot()),
    ],
    ids=["a large tensor", "many blocks", "from the queries", "a function", "another score"],
)
def test_large_or_dynamic_options_take_the_full_path(fast_calls, options):
    q, k, v = random_inputs(1100, 1100)
    for _ in range(2):
        regard.attention(q, k, v, **options)
    assert not fast_calls


def test_captured_parameter_gets_its_gradient(fast_calls):
    q, k, v = random_inputs()
    slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.1, 0.0]))
    score_modifier = score.alibi(slopes)
    with torch.no_grad():
        for _ in range(2):
            regard.attention(q, k, v, score=score_modifier)
    assert len(fast_calls) == 1
    regard.attention(q, k, v, score=score_modifier).sum().backward()
    assert slopes.grad is not None and slopes.grad.abs().sum() > 0
    assert len(fast_calls) == 1


def test_number_of_keys_may_grow_between_calls(fast_calls):
    q = torch.randn(2, 4, 1, 16)
    k, v = torch.randn(2, 2, 2, 500, 16)
    for n in (1, 2, 31, 40, 333, 500):
        actual = regard.attention(q, k[:, :, :n], v[:, :, :n])
        expected = reference(q, k[:, :, :n], v[:, :, :n]).float()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert len(fast_calls) == 5


def test_no_keys_or_too_few_values_take_the_full_path(fast_calls):
    q, k, v = random_inputs()
    regard.attention(q, k, v)
    assert not regard.attention(q, k[:, :, :0], v[:, :, :0]).any()
    with pytest.raises(regard.errors.ArgumentError, match="same length"):
        regard.attention(q, k, v[:, :, :5])
    assert not fast_calls


def test_under_a_mask_another_number_of_keys_takes_the_full_path(fast_calls):
    q, k, v = random_inputs()
    for n in (9, 7):
        actual = regard.attention(q[:, :, :7], k[:, :, :n], v[:, :, :n], mask=mask.causal())
        expected = reference(q[:, :, :7], k[:, :, :n], v[:, :, :n], mask=mask.causal()).float()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not fast_calls


@pytest.mark.parametrize("shared", ["q", "k", "v", "kv"])
def test_broadcast_batch_takes_the_full_path(fast_calls, shared):
    numbers = dict(zip("qkv", random_inputs(), strict=True))
    for name in shared:
        numbers[name] = numbers[name][:1].clone()
    for _ in range(2):
        actual = regard.attention(*numbers.values())
        torch.testing.assert_close(actual, reference(*numbers.values()).float(), rtol=1e-4, atol=1e-5)
    assert not fast_calls


def test_lazily_negated_tensor_is_negated(fast_calls):
    q, k, v = random_inputs()
    for _ in range(2):
        actual = regard.attention(torch._neg_view(q), k, v)
        torch.testing.assert_close(actual, reference(-q, k, v).float(), rtol=1e-4, atol=1e-5)
    assert not fast_calls


def test_mixed_dtypes_still_raise_error(fast_calls):
    q, k, v = random_inputs()
    regard.attention(q, k, v)
    with pytest.raises(regard.errors.ArgumentError, match="same dtype"):
        regard.attention(q, k.double(), v)


def test_cache_keeps_no_input_tensor_alive():
    tensors = random_inputs()
    regard.attention(*tensors, mask=mask.causal())
    addresses = {x.data_ptr() for x in tensors}
    del tensors
    gc.collect()
    visited, stack = {}, list(fast_path._cache._entries.values())
    while stack:  # the entries and all objects they refer to
        item = stack.pop()
        if id(item) not in visited and not isinstance(item, (type, types.ModuleType, types.FunctionType)):
            visited[id(item)] = item
            stack.extend(gc.get_referents(item))
    alive = [x for x in visited.values() if isinstance(x, Tensor) and x.data_ptr() in addresses]
    assert fast_path._cache._entries and not alive


def test_number_of_cached_calls_is_bounded():
    for n in range(1, MAX_ENTRIES + 20):
        regard.attention(*random_inputs(n, n))
    assert len(fast_path._cache._entries) == MAX_ENTRIES


def test_threads_can_use_the_fast_path_concurrently(fast_calls):
    problems = [random_inputs(n, n) for n in range(1, 9)]
    expected = [regard.attention(*x) for x in problems]
    wrong = []

    def run(n: int) -> None:
        for _ in range(50):
            if not torch.equal(regard.attention(*problems[n]), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def slopes(*numbers: float) -> dict[str, object]:
    return dict(score=score.alibi(torch.tensor(numbers)), mask=mask.causal() & mask.sliding_window(5))


def test_equal_new_score_and_mask_take_the_fast_path(fast_calls):
    q, k, v = random_inputs()
    first = regard.attention(q, k, v, **slopes(0.5, 0.25, 0.1, 0.0))
    assert torch.equal(regard.attention(q, k, v, **slopes(0.5, 0.25, 0.1, 0.0)), first)
    assert len(fast_calls) == 1


def test_score_with_other_values_takes_the_full_path(fast_calls):
    q, k, v = random_inputs()
    regard.attention(q, k, v, **slopes(0.5, 0.25, 0.1, 0.0))
    other = slopes(0.5, 0.25, 0.1, 0.3)
    actual = regard.attention(q, k, v, **other)
    torch.testing.assert_close(actual.double(), reference(q, k, v, **other), rtol=1e-4, atol=1e-5)
    assert not fast_calls


def test_shape_checks_are_part_of_the_cache_key(fast_calls):
    q, k, v = random_inputs()
    many = torch.linspace(0.0, 1.0, 6)  # the call has 4 heads
    checked = score.alibi(many)
    unchecked = score_modifier.modifier_from_expr(checked.expr, checked.tensors, checked.tensor_names)
    regard.attention(q, k, v, score=unchecked)
    with pytest.raises(regard.errors.ArgumentError, match="slopes"):
        regard.attention(q, k, v, score=score.alibi(many))
    assert not fast_calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": None}, r"dropout must be a number at least 0 and less than 1; got None"),
        ({"dropout": []}, r"dropout must be a number at least 0 and less than 1; got list of 0"),
        ({"seed": "x"}, r"seed must be an integer from .*; got 'x'"),
        ({"backend": []}, r"backend must be one of native, .*; got list of 0"),
    ],
)
def test_invalid_options_raise_error_also_on_the_fast_path(options: dict[str, object], message: str) -> None:
    x = torch.randn(1, 2, 6, 8)
    regard.attention(x, x, x)
    regard.attention(x, x, x)
    with pytest.raises(regard.errors.RegardError, match=message):
        regard.attention(x, x, x, **options)
