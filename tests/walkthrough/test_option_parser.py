"""Masks, scores and normalizers from text: only listed names are called, and no other code is run."""

from collections.abc import Callable

import pytest
import torch

import regard
from regard import feature_map, mask, normalizer, score
from regard.walkthrough.option_parser import (
    MASK_CONSTRUCTORS,
    NORMALIZER_CONSTRUCTORS,
    SCORE_CONSTRUCTORS,
    parse_mask,
    parse_normalizer,
    parse_score,
)
from regard.walkthrough.steps import steps


def output(**options: object) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(6, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    return steps(q, k, v, **options)["output"].values


@pytest.mark.parametrize(
    "text, expected",
    [
        ("causal", mask.causal()),
        ("causal()", mask.causal()),
        ("causal & sliding_window(2)", mask.causal() & mask.sliding_window(2)),
        (
            " ~causal | (prefix(1) & sliding_window(2, after=3)) ",
            ~mask.causal() | (mask.prefix(1) & mask.sliding_window(2, 3)),
        ),
        ("global_tokens([0, 3])", mask.global_tokens([0, 3])),
        ("document([0, 0, 1, 1, 2, 2])", mask.document([0, 0, 1, 1, 2, 2])),
        ("padding([3], 'left')", mask.padding([3], "left")),
        ("bigbird(1, num_random_blocks=1, seed=3)", mask.bigbird(1, num_random_blocks=1, seed=3)),
        ("tensor([[1], [1], [0], [1], [0], [1]])", mask.tensor(torch.tensor([[1], [1], [0], [1], [0], [1]]) != 0)),
    ],
)
def test_a_mask_is_parsed_from_text(text: str, expected: mask.Mask) -> None:
    assert torch.equal(parse_mask(text).to_dense(6), expected.to_dense(6))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("dot", score.dot()),
        ("scaled_dot(0.3)", score.scaled_dot(0.3)),
        ("alibi", score.alibi()),
        ("cosine(10).then(alibi).then(softcap(2.0))", score.cosine(10).then(score.alibi()).then(score.softcap(2.0))),
        ("softcap(2).then(alibi)", score.scaled_dot().then(score.softcap(2)).then(score.alibi())),
        ("gaussian(sigma=0.8)", score.gaussian(0.8)),
        (
            "bilinear([[1,0,0],[0,2,0],[0,0,3]])",
            score.bilinear(torch.diag(torch.tensor([1.0, 2, 3])).double()),
        ),
        ("alibi([0.25])", score.alibi(torch.tensor([0.25]))),
    ],
)
def test_a_score_is_parsed_from_text(text: str, expected: object) -> None:
    torch.testing.assert_close(output(score=parse_score(text)), output(score=expected))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("softmax", normalizer.softmax()),
        ("sink(0.5)", normalizer.sink(0.5)),
        ("entmax(1.5)", normalizer.entmax(1.5)),
        ("topk(2)", normalizer.topk(2)),
        ("gumbel(0.5, seed=4, hard=False)", normalizer.gumbel(0.5, seed=4, hard=False)),
        ("sinkhorn(3)", normalizer.sinkhorn(3)),
        ("kernel", normalizer.kernel()),
        ("kernel(relu)", normalizer.kernel(feature_map.relu())),
        ("kernel(favor(3, 8, seed=2))", normalizer.kernel(feature_map.favor(3, 8, seed=2))),
    ],
)
def test_a_normalizer_is_parsed_from_text(text: str, expected: object) -> None:
    torch.testing.assert_close(output(normalizer=parse_normalizer(text)), output(normalizer=expected))


def test_scale_multiplies_and_temperature_divides_the_scores() -> None:
    torch.testing.assert_close(output(score=parse_score(scale=0.5)), output(score=score.scaled_dot(0.5)))
    torch.testing.assert_close(
        output(score=parse_score(scale=0.5, temperature=4.0)), output(score=score.scaled_dot(0.125))
    )
    torch.testing.assert_close(output(score=parse_score("cosine(8)", temperature=4.0)), output(score=score.cosine(2.0)))
    with pytest.raises(regard.errors.ArgumentError, match=r"got 'dot' and scale=2"):
        parse_score("dot", scale=2.0)
    with pytest.raises(regard.errors.ArgumentError, match=r"greater than 0 and finite; got 0"):
        parse_score(temperature=0.0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "cannot be parsed"),
        ("causal &", "cannot be parsed"),
        ("wide(3)", "'wide' is not a mask. Use causal, sliding_window,"),
        ("__import__('os').system('true')", "is not a mask"),
        ("mask.causal()", "is not a mask"),
        ("(lambda: 1)()", "is not a mask"),
        ("causal if 1 else causal", "is not a mask"),
        ("[causal for causal in (1,)]", "is not a mask"),
        ("sliding_window(open('x'))", "is neither a number nor a list of numbers"),
        ("sliding_window(2 ** 99)", "is neither a number nor a list of numbers"),
        ("sliding_window(*[1])", "is neither a number nor a list of numbers"),
        ("sliding_window(**{'before': 1})", "is not a mask"),
        ("causal + causal", "is not a mask"),
        ("-causal", "is not a mask"),
        ("causal.then(causal)", "is not a mask"),
        ("from_function(1)", "'from_function' is not a mask"),
        ("mask_from_expr(1)", "'mask_from_expr' is not a mask"),
        ("sliding_window(" + "1" * 3000 + ")", "it has 3016 characters, more than 2000"),
        ("(" * 500 + "causal" + ")" * 500, "cannot be parsed"),
    ],
)
def test_text_that_is_not_a_mask_raises_and_is_not_run(text: str, message: str) -> None:
    with pytest.raises(regard.errors.ArgumentError) as caught:  # noqa: PT011  # the message is compared below
        parse_mask(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("sliding_window()", "sliding_window has the arguments sliding_window(before, after"),
        ("sliding_window(1, 2, 3)", "too many positional arguments"),
        ("sliding_window('a')", "before of sliding_window must be an integer; got 'a'"),
        ("sliding_window(0)", "before must be an integer of at least 1; got 0"),
        ("global_tokens([-1])", "token indices must not be negative; got -1"),
    ],
)
def test_invalid_arguments_of_a_mask_raise(text: str, message: str) -> None:
    with pytest.raises(regard.errors.ArgumentError) as caught:  # noqa: PT011  # the message is compared below
        parse_mask(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text", ["custom(1)", "modifier(1)", "shaw_values([[1.0]])", "dot & dot", "Score()", "additive(1)"]
)
def test_text_that_is_not_a_score_raises(text: str) -> None:
    with pytest.raises(regard.errors.ArgumentError, match=r"got '"):
        parse_score(text)


@pytest.mark.parametrize(
    "text", ["dot.then()", "dot.then(alibi, alibi)", "dot.then(alibi, modifier=alibi)", "dot.then(dot)"]
)
def test_then_takes_exactly_one_score_modifier(text: str) -> None:
    with pytest.raises(
        regard.errors.ArgumentError, match=r"one score modifier in its parentheses|a (rule|score modifier) must be"
    ):
        parse_score(text)


def test_a_list_gives_one_number_per_head() -> None:
    q = torch.eye(3).expand(1, 2, 3, 3)
    result = steps(
        q, q, q, normalizer=parse_normalizer("sink([0.5, 2.0])"), score=parse_score("scaled_dot([1.0, 3.0])")
    )
    logits, scales = torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0])
    expected = regard.attention(q, q, q, normalizer=normalizer.sink(logits), score=score.scaled_dot(scales))
    torch.testing.assert_close(result["output"].tensor.float(), expected)


@pytest.mark.parametrize(
    "parse, text, message",
    [
        (parse_score, "bilinear(2)", "w of bilinear must be a list of numbers; got 2"),
        (
            parse_score,
            "cosine('wide')",
            "scale of cosine must be an integer or a number or a list of numbers; got 'wide'",
        ),
        (parse_score, "cosine(None)", "scale of cosine must be"),
        (parse_score, "bias(1.5)", "values of bias must be a list of numbers; got 1.5"),
        (parse_normalizer, "relu(elu)", "scale of relu must be"),
        (parse_normalizer, "topk(2.5)", "k of topk must be an integer; got 2.5"),
        (parse_normalizer, "gumbel(hard=1)", "hard of gumbel must be True or False; got 1"),
        (parse_mask, "sliding_window(True)", "before of sliding_window must be an integer; got True"),
        (parse_mask, "sliding_window(99999999999)", "'99999999999' is neither a number nor a list of numbers"),
        (parse_mask, "global_tokens({1: 2})", "'{1: 2}' is neither a number nor a list of numbers"),
        (parse_mask, "sliding_window(1j)", "'1j' is neither a number nor a list of numbers"),
    ],
)
def test_arguments_of_the_wrong_type_raise(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(regard.errors.ArgumentError) as caught:  # noqa: PT011  # the message is compared below
        parse(text)
    assert message in str(caught.value)


def test_every_public_factory_can_be_parsed() -> None:
    functions = {name for name in score.__all__ if name.islower()}  # the other names are types
    assert set(SCORE_CONSTRUCTORS) == functions - {"custom", "modifier", "rotary", "shaw_values"}
    for module, factories, excluded in (
        (mask, MASK_CONSTRUCTORS, {"from_function", "mask_from_expr", "as_mask", "trace_builtin_mask"}),
        (normalizer, NORMALIZER_CONSTRUCTORS, {"as_normalizer"}),
    ):
        functions = {
            name
            for name, member in vars(module).items()
            if callable(member)
            and not name.startswith("_")
            and not isinstance(member, type)
            and getattr(member, "__module__", "") == module.__name__
        }
        assert set(factories) == functions - excluded
