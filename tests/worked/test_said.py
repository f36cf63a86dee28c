"""Masks, scores and weighings from text: what is meant is made, and nothing else is ever run."""

from collections.abc import Callable

import pytest
import torch

import regard
from regard import feature, mask, score, weigh
from regard.worked.said import MASKS, SCORES, WEIGHINGS, said_mask, said_score, said_weigh
from regard.worked.steps import steps


def output(**options: object) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(6, 3, generator=numbers, dtype=torch.float64) for _ in range(3))
    return steps(q, k, v, **options)["output"].values


@pytest.mark.parametrize(
    "text, meant",
    [
        ("causal", mask.causal()),
        ("causal()", mask.causal()),
        ("causal & window(2)", mask.causal() & mask.window(2)),
        (" ~causal | (prefix(1) & window(2, after=3)) ", ~mask.causal() | (mask.prefix(1) & mask.window(2, 3))),
        ("tokens([0, 3])", mask.tokens([0, 3])),
        ("documents([0, 0, 1, 1, 2, 2])", mask.documents([0, 0, 1, 1, 2, 2])),
        ("padding([3], 'left')", mask.padding([3], "left")),
        ("bigbird(1, random=1, seed=3)", mask.bigbird(1, random=1, seed=3)),
        ("tensor([[1], [1], [0], [1], [0], [1]])", mask.tensor(torch.tensor([[1], [1], [0], [1], [0], [1]]) != 0)),
    ],
)
def test_a_mask_is_what_its_text_says(text: str, meant: mask.Mask) -> None:
    assert torch.equal(said_mask(text).dense(6), meant.dense(6))


@pytest.mark.parametrize(
    "text, meant",
    [
        ("dot", score.dot()),
        ("scaled_dot(0.3)", score.scaled_dot(0.3)),
        ("alibi", score.alibi()),
        ("cosine(10).then(alibi).then(softcap(2.0))", score.cosine(10).then(score.alibi()).then(score.softcap(2.0))),
        ("softcap(2).then(alibi)", score.scaled_dot().then(score.softcap(2)).then(score.alibi())),
        ("metric(sigma=0.8)", score.metric(0.8)),
        (
            "multiplicative([[1,0,0],[0,2,0],[0,0,3]])",
            score.multiplicative(torch.diag(torch.tensor([1.0, 2, 3])).double()),
        ),
        ("alibi([0.25])", score.alibi(torch.tensor([0.25]))),
    ],
)
def test_a_score_is_what_its_text_says(text: str, meant: object) -> None:
    torch.testing.assert_close(output(score=said_score(text)), output(score=meant))


@pytest.mark.parametrize(
    "text, meant",
    [
        ("softmax", weigh.softmax()),
        ("sink(0.5)", weigh.sink(0.5)),
        ("entmax(1.5)", weigh.entmax(1.5)),
        ("top(2)", weigh.top(2)),
        ("gumbel(0.5, seed=4, hard=False)", weigh.gumbel(0.5, seed=4, hard=False)),
        ("sinkhorn(3)", weigh.sinkhorn(3)),
        ("kernel", weigh.kernel()),
        ("kernel(relu)", weigh.kernel(feature.relu())),
        ("kernel(favor(3, 8, seed=2))", weigh.kernel(feature.favor(3, 8, seed=2))),
    ],
)
def test_a_weighing_is_what_its_text_says(text: str, meant: object) -> None:
    torch.testing.assert_close(output(weigh=said_weigh(text)), output(weigh=meant))


def test_scale_and_temperature_do_what_they_say() -> None:
    torch.testing.assert_close(output(score=said_score(scale=0.5)), output(score=score.scaled_dot(0.5)))
    torch.testing.assert_close(
        output(score=said_score(scale=0.5, temperature=4.0)), output(score=score.scaled_dot(0.125))
    )
    torch.testing.assert_close(output(score=said_score("cosine(8)", temperature=4.0)), output(score=score.cosine(2.0)))
    with pytest.raises(regard.errors.SpecError, match=r"got 'dot' and scale=2"):
        said_score("dot", scale=2.0)
    with pytest.raises(regard.errors.SpecError, match=r"greater than 0 and finite; got 0"):
        said_score(temperature=0.0)


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "cannot be read"),
        ("causal &", "cannot be read"),
        ("wide(3)", "'wide' is none. Known are causal, window,"),
        ("__import__('os').system('true')", "names none"),
        ("mask.causal()", "names none"),
        ("(lambda: 1)()", "names none"),
        ("causal if 1 else causal", "names none"),
        ("[causal for causal in (1,)]", "names none"),
        ("window(open('x'))", "is no number and no list of numbers"),
        ("window(2 ** 99)", "is no number and no list of numbers"),
        ("window(*[1])", "is no number and no list of numbers"),
        ("window(**{'before': 1})", "names none"),
        ("causal + causal", "names none"),
        ("-causal", "names none"),
        ("causal.then(causal)", "names none"),
        ("where(1)", "'where' is none"),
        ("from_term(1)", "'from_term' is none"),
        ("window(" + "1" * 3000 + ")", "3008 letters, where 2000 are the most"),
        ("(" * 500 + "causal" + ")" * 500, "cannot be read"),
    ],
)
def test_what_is_no_mask_is_refused_and_never_run(text: str, why: str) -> None:
    with pytest.raises(regard.errors.SpecError) as caught:  # noqa: PT011  # the message is compared below
        said_mask(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "text, why",
    [
        ("window()", "window must be given what it takes, window(before, after"),
        ("window(1, 2, 3)", "too many positional arguments"),
        ("window('a')", "before of window must be a whole number; got 'a'"),
        ("window(0)", "before must be a whole number of at least 1; got 0"),
        ("tokens([-1])", "token indices must not be negative; got -1"),
    ],
)
def test_what_a_mask_does_not_take_is_refused(text: str, why: str) -> None:
    with pytest.raises(regard.errors.SpecError) as caught:  # noqa: PT011  # the message is compared below
        said_mask(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "text", ["custom(1)", "rule(1)", "shaw_values([[1.0]])", "dot & dot", "Score()", "additive(1)"]
)
def test_what_is_no_score_is_refused(text: str) -> None:
    with pytest.raises(regard.errors.SpecError, match=r"got '"):
        said_score(text)


@pytest.mark.parametrize(
    "text", ["dot.then()", "dot.then(alibi, alibi)", "dot.then(alibi, rule=alibi)", "dot.then(dot)"]
)
def test_one_rule_follows_another(text: str) -> None:
    with pytest.raises(regard.errors.SpecError, match=r"one rule in its brackets|a rule must be"):
        said_score(text)


def test_numbers_of_each_head_may_be_a_list() -> None:
    q = torch.eye(3).expand(1, 2, 3, 3)
    found = steps(q, q, q, weigh=said_weigh("sink([0.5, 2.0])"), score=said_score("scaled_dot([1.0, 3.0])"))
    logits, scales = torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0])
    expected = regard.attention(q, q, q, weigh=weigh.sink(logits), score=score.scaled_dot(scales))
    torch.testing.assert_close(found["output"].whole.float(), expected)


@pytest.mark.parametrize(
    "said, text, why",
    [
        (said_score, "multiplicative(2)", "w of multiplicative must be a list of numbers; got 2"),
        (
            said_score,
            "cosine('wide')",
            "scale of cosine must be a whole number or a number or a list of numbers; got 'wide'",
        ),
        (said_score, "cosine(None)", "scale of cosine must be"),
        (said_score, "bias(1.5)", "values of bias must be a list of numbers; got 1.5"),
        (said_weigh, "relu(elu)", "scale of relu must be"),
        (said_weigh, "top(2.5)", "k of top must be a whole number; got 2.5"),
        (said_weigh, "gumbel(hard=1)", "hard of gumbel must be True or False; got 1"),
        (said_mask, "window(True)", "before of window must be a whole number; got True"),
        (said_mask, "window(99999999999)", "'99999999999' is no number and no list of numbers"),
        (said_mask, "tokens({1: 2})", "'{1: 2}' is no number and no list of numbers"),
        (said_mask, "window(1j)", "'1j' is no number and no list of numbers"),
    ],
)
def test_values_of_another_kind_are_refused(said: Callable[[str], object], text: str, why: str) -> None:
    with pytest.raises(regard.errors.SpecError) as caught:  # noqa: PT011  # the message is compared below
        said(text)
    assert why in str(caught.value)


def test_every_public_name_can_be_said() -> None:
    assert set(SCORES) == set(score.__all__) - {"custom", "rule", "rotary", "shaw_values"}
    for module, known, besides in ((mask, MASKS, {"where", "from_term", "as_mask"}), (weigh, WEIGHINGS, {"as_weigh"})):
        makers = {
            name
            for name, thing in vars(module).items()
            if callable(thing)
            and not name.startswith("_")
            and not isinstance(thing, type)
            and getattr(thing, "__module__", "") == module.__name__
        }
        assert set(known) == makers - besides - {"broadcast_lookup"}
