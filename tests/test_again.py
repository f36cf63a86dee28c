"""A question asked again is answered as the first time, and one that only looks the same is not mistaken for it."""

import gc
import threading
import types

import pytest
import torch
from torch import Tensor

import regard
from regard import again, mask, score
from regard.engine.native import builds
from regard.plan.recent import MAX_ENTRIES
from regard.spec import rule

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")


@pytest.fixture(autouse=True)
def nothing_known():
    again._known.clear()
    again._known_by_content.clear()


@pytest.fixture
def answers(monkeypatch):
    """How many answers came without reading the question."""
    count = []
    whole = again.Repeated.__call__

    def counting(self, *args: Tensor) -> Tensor | None:
        found = whole(self, *args)
        if found is not None:
            count.append(1)
        return found

    monkeypatch.setattr(again.Repeated, "__call__", counting)
    return count


def rows(n_q: int = 9, n_k: int = 9, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(2, heads, n, 16, dtype=dtype) for heads, n in ((4, n_q), (2, n_k), (2, n_k))]


def exact(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    return regard.attention(q.double(), k.double(), v.double(), engine="reference", **options)


ASKED = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.causal() & mask.window(3)),
    "softcap": dict(score=score.softcap(2.0), mask=mask.causal()),
    "tokens": dict(mask=mask.tokens([1, 3]) | mask.window(4)),
    "random blocks": dict(mask=mask.random_blocks(4, 2) | mask.window(2)),
    "slopes": dict(score=score.alibi(torch.tensor([0.5, 0.25, 0.1, 0.0]))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lengths", [(9, 9), (1, 300), (70, 80)], ids=str)
@pytest.mark.parametrize("name", ASKED)
def test_the_same_question_of_other_numbers_is_answered_anew(answers, name, lengths, dtype):
    near = dict(rtol=1e-4, atol=1e-5) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-2)
    for _ in range(3):
        q, k, v = rows(*lengths, dtype=dtype)
        found = regard.attention(q, k, v, **ASKED[name])
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact(q, k, v, **ASKED[name]), **near)
    assert len(answers) == 2


def test_the_first_answer_and_the_next_have_the_same_bits(answers):
    q, k, v = rows()
    assert torch.equal(regard.attention(q, k, v, mask=mask.causal()), regard.attention(q, k, v, mask=mask.causal()))
    assert len(answers) == 1


def test_tensors_may_lie_otherwise_than_the_first_time(answers):
    q, k, v = rows()
    expected = regard.attention(q, k, v)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    torch.testing.assert_close(regard.attention(*strided), expected)
    assert len(answers) == 1
    across = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]  # the last dimension is not contiguous
    torch.testing.assert_close(regard.attention(*across), expected)
    assert len(answers) == 1


@pytest.mark.parametrize(
    "other",
    [
        dict(mask=mask.window(2)),
        dict(score=score.softcap(1.0)),
        dict(weigh=regard.weigh.sigmoid()),
        dict(start=3),
        dict(dropout=0.5, seed=1),
        dict(engine="tiled"),
        dict(value=torch.tanh),
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_question_is_not_mistaken_for_it(answers, other):
    q, k, v = rows()
    regard.attention(q, k, v, mask=mask.causal())
    options = dict(mask=mask.causal()) | other
    expected = regard.attention(q, k, v, **(options | dict(engine="tiled")))
    torch.testing.assert_close(regard.attention(q, k, v, **options), expected, rtol=1e-4, atol=1e-5)
    assert not answers


def test_what_is_watched_goes_the_whole_way(answers):
    q, k, v = rows()
    with torch.no_grad():
        regard.attention(q, k, v)
    leaf = q.clone().requires_grad_()
    regard.attention(leaf, k, v).sum().backward()
    assert leaf.grad is not None and leaf.grad.abs().sum() > 0
    assert torch.func.vmap(regard.attention)(q[None], k[None], v[None]).shape == (1, *q.shape)
    assert torch.func.grad(lambda q: regard.attention(q, k, v).sum())(q).shape == q.shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        regard.attention(q, k, v)
    assert not answers
    with torch.no_grad():
        regard.attention(leaf, k, v)
    assert len(answers) == 1


def test_a_tensor_that_was_changed_is_read_again(answers):
    q, k, v = rows()
    allowed = torch.ones(9, 9, dtype=torch.bool)
    first = regard.attention(q, k, v, mask=allowed)
    allowed[:, 5:] = False
    found = regard.attention(q, k, v, mask=allowed)
    torch.testing.assert_close(found, regard.attention(q, k, v, mask=allowed.clone(), engine="tiled"))
    assert not torch.equal(found, first)
    assert not answers


def test_a_tensor_may_be_another_one_with_the_same_numbers_and_change_afterwards(answers):
    q, k, v = rows()
    allowed = torch.rand(9, 9) < 0.5
    expected = regard.attention(q, k, v, mask=allowed)
    other = allowed.clone()
    allowed.fill_(False)
    assert torch.equal(regard.attention(q, k, v, mask=other), expected)
    assert len(answers) == 1
    assert not regard.attention(q, k, v, mask=allowed).any()


def test_a_change_that_torch_does_not_see_is_seen(answers):
    q, k, v = rows()
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0])
    rule = score.alibi(slopes)
    first = regard.attention(q, k, v, score=rule)
    slopes.numpy()[:] = 3.0
    found = regard.attention(q, k, v, score=rule)
    torch.testing.assert_close(found, regard.attention(q, k, v, score=rule, engine="tiled"))
    assert not torch.equal(found, first) and not answers


def test_tensors_of_the_same_numbers_in_another_shape_are_told_apart(answers):
    q, k, v = rows()
    by_query = torch.rand(9, 1) < 0.7
    regard.attention(q, k, v, mask=by_query)
    found = regard.attention(q, k, v, mask=by_query.view(1, 9))
    torch.testing.assert_close(found, regard.attention(q, k, v, mask=by_query.view(1, 9), engine="tiled"))
    assert not answers


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
def test_what_is_large_or_depends_on_more_goes_the_whole_way(answers, options):
    q, k, v = rows(1100, 1100)
    for _ in range(2):
        regard.attention(q, k, v, **options)
    assert not answers


def test_a_captured_tensor_that_is_watched_gets_its_gradient(answers):
    q, k, v = rows()
    slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.1, 0.0]))
    rule = score.alibi(slopes)
    with torch.no_grad():
        for _ in range(2):
            regard.attention(q, k, v, score=rule)
    assert len(answers) == 1
    regard.attention(q, k, v, score=rule).sum().backward()
    assert slopes.grad is not None and slopes.grad.abs().sum() > 0
    assert len(answers) == 1


def test_there_may_be_more_keys_each_time(answers):
    q = torch.randn(2, 4, 1, 16)
    k, v = torch.randn(2, 2, 2, 500, 16)
    for n in (1, 2, 31, 40, 333, 500):
        found = regard.attention(q, k[:, :, :n], v[:, :, :n])
        expected = exact(q, k[:, :, :n], v[:, :, :n]).float()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(answers) == 5


def test_no_keys_and_not_as_many_values_go_the_whole_way(answers):
    q, k, v = rows()
    regard.attention(q, k, v)
    assert not regard.attention(q, k[:, :, :0], v[:, :, :0]).any()
    with pytest.raises(regard.errors.SpecError, match="same length"):
        regard.attention(q, k, v[:, :, :5])
    assert not answers


def test_under_a_mask_another_number_of_keys_is_another_question(answers):
    q, k, v = rows()
    for n in (9, 7):
        found = regard.attention(q[:, :, :7], k[:, :, :n], v[:, :, :n], mask=mask.causal())
        expected = exact(q[:, :, :7], k[:, :, :n], v[:, :, :n], mask=mask.causal()).float()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not answers


@pytest.mark.parametrize("shared", ["q", "k", "v", "kv"])
def test_what_a_batch_shares_goes_the_whole_way(answers, shared):
    numbers = dict(zip("qkv", rows(), strict=True))
    for name in shared:
        numbers[name] = numbers[name][:1].clone()
    for _ in range(2):
        found = regard.attention(*numbers.values())
        torch.testing.assert_close(found, exact(*numbers.values()).float(), rtol=1e-4, atol=1e-5)
    assert not answers


def test_numbers_that_torch_has_yet_to_negate_are_negated(answers):
    q, k, v = rows()
    for _ in range(2):
        found = regard.attention(torch._neg_view(q), k, v)
        torch.testing.assert_close(found, exact(-q, k, v).float(), rtol=1e-4, atol=1e-5)
    assert not answers


def test_mixed_precision_is_still_refused(answers):
    q, k, v = rows()
    regard.attention(q, k, v)
    with pytest.raises(regard.errors.SpecError, match="one dtype"):
        regard.attention(q, k.double(), v)


def test_no_tensor_is_kept_alive():
    tensors = rows()
    regard.attention(*tensors, mask=mask.causal())
    places = {x.data_ptr() for x in tensors}
    del tensors
    gc.collect()
    reached, waiting = {}, list(again._known._entries.values())
    while waiting:  # what is kept, and all that it holds
        here = waiting.pop()
        if id(here) not in reached and not isinstance(here, (type, types.ModuleType, types.FunctionType)):
            reached[id(here)] = here
            waiting.extend(gc.get_referents(here))
    alive = [x for x in reached.values() if isinstance(x, Tensor) and x.data_ptr() in places]
    assert again._known._entries and not alive


def test_only_so_many_questions_are_kept():
    for n in range(1, MAX_ENTRIES + 20):
        regard.attention(*rows(n, n))
    assert len(again._known._entries) == MAX_ENTRIES


def test_many_threads_may_ask_at_once(answers):
    problems = [rows(n, n) for n in range(1, 9)]
    expected = [regard.attention(*x) for x in problems]
    wrong = []

    def ask(n: int) -> None:
        for _ in range(50):
            if not torch.equal(regard.attention(*problems[n]), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def slopes(*numbers: float) -> dict[str, object]:
    return dict(score=score.alibi(torch.tensor(numbers)), mask=mask.causal() & mask.window(5))


def test_a_rule_and_a_mask_that_were_made_anew_are_recognised(answers):
    q, k, v = rows()
    first = regard.attention(q, k, v, **slopes(0.5, 0.25, 0.1, 0.0))
    assert torch.equal(regard.attention(q, k, v, **slopes(0.5, 0.25, 0.1, 0.0)), first)
    assert len(answers) == 1


def test_a_rule_with_other_numbers_is_not_mistaken_for_one_that_was_made_before(answers):
    q, k, v = rows()
    regard.attention(q, k, v, **slopes(0.5, 0.25, 0.1, 0.0))
    other = slopes(0.5, 0.25, 0.1, 0.3)
    found = regard.attention(q, k, v, **other)
    torch.testing.assert_close(found.double(), exact(q, k, v, **other), rtol=1e-4, atol=1e-5)
    assert not answers


def test_what_one_rule_would_refuse_is_not_answered_as_another_that_looks_the_same(answers):
    q, k, v = rows()
    many = torch.linspace(0.0, 1.0, 6)  # there are 4 heads
    checked = score.alibi(many)
    unchecked = rule.from_term(checked.term, checked.tensors, checked.names)
    regard.attention(q, k, v, score=unchecked)
    with pytest.raises(regard.errors.SpecError, match="slopes"):
        regard.attention(q, k, v, score=score.alibi(many))
    assert not answers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": None}, r"dropout must be a number at least 0 and less than 1; got None"),
        ({"dropout": []}, r"dropout must be a number at least 0 and less than 1; got list of 0"),
        ({"seed": "x"}, r"seed must be a whole number from .*; got 'x'"),
        ({"engine": []}, r"engine must be one of native, .*; got list of 0"),
    ],
)
def test_wrong_options_are_refused_also_the_second_time(options: dict[str, object], message: str) -> None:
    x = torch.randn(1, 2, 6, 8)
    regard.attention(x, x, x)
    regard.attention(x, x, x)
    with pytest.raises(regard.errors.RegardError, match=message):
        regard.attention(x, x, x, **options)
