"""Weighings with a level: numbers that can be checked by eye, laws of the level, and what is refused."""

import math
import pickle

import entmax
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, measure, score, weigh
from regard.errors import SpecError
from regard.spec.term import constant
from regard.spec.threshold import Argmax, Entmax, Top

every_engine = pytest.mark.parametrize("engine", ["native", "tiled", "reference"])
WEIGHINGS = {
    "sparsemax": weigh.sparsemax(),
    "entmax": weigh.entmax(1.3),
    "top": weigh.top(3),
    "argmax": weigh.argmax(),
}


def weighed(scores: list[float], weighing: object, engine: str = "tiled") -> list[float]:
    """The weights of one query whose scores are these."""
    keys = torch.tensor(scores).view(-1, 1)
    return (
        regard.attend(torch.ones(1, 1), keys, keys, score=score.dot(), weigh=weighing, engine=engine)
        .weights[0]
        .tolist()
    )


@every_engine
def test_worked_numbers(engine: str) -> None:
    close = dict(abs=6e-5)
    assert weighed([-2.0, 0.0, 0.5], weigh.sparsemax(), engine) == pytest.approx([0.0, 0.25, 0.75], abs=1e-6)
    assert weighed([-2.0, 0.0, 0.5], weigh.entmax(1.5), engine) == pytest.approx([0.0, 0.3260, 0.6740], **close)
    assert weighed([-1.0, 0.0, 0.5], weigh.entmax(1.33), engine) == pytest.approx([0.0460, 0.3276, 0.6264], **close)
    assert weighed([1.0, 3.0, 3.0 + math.log(2), -5.0], weigh.top(2), engine) == pytest.approx([0, 1 / 3, 2 / 3, 0])
    assert weighed([1.0, 3.0, 2.9], weigh.argmax(), engine) == [0.0, 1.0, 0.0]


@every_engine
def test_a_learned_alpha_has_the_gradient_of_the_worked_example(engine: str) -> None:
    alpha = torch.tensor(1.33, requires_grad=True)
    keys = torch.tensor([[-1.0], [0.0], [0.5]])

    weights = regard.attention(
        torch.ones(1, 1), keys, torch.eye(3), score=score.dot(), weigh=weigh.entmax(alpha), engine=engine
    )
    (slope,) = torch.autograd.grad(weights[0, 0], alpha)

    assert float(slope) == pytest.approx(-0.2562, abs=1e-4)


@every_engine
@pytest.mark.parametrize("weighing", WEIGHINGS)
def test_equal_scores_are_weighed_equally_also_over_many_keys(engine: str, weighing: str) -> None:
    v = torch.randn(1, 1, 3000, 4)
    q, k = torch.zeros(1, 1, 2, 4), torch.randn(1, 1, 3000, 4)

    found = regard.attend(q, k, v, weigh=WEIGHINGS[weighing], engine=engine)

    torch.testing.assert_close(found.output, v.mean(2, keepdim=True).expand(1, 1, 2, 4), rtol=1e-5, atol=1e-6)


@every_engine
def test_alpha_goes_from_softmax_to_sparsemax(engine: str) -> None:
    q, k, v = (torch.randn(2, 9, 4) for _ in range(3))
    run = lambda weighing: regard.attention(q, k, v, weigh=weighing, engine=engine)

    assert torch.equal(run(weigh.entmax(1.0)), run(weigh.softmax()))
    assert torch.equal(run(weigh.entmax(2.0)), run(weigh.sparsemax()))
    torch.testing.assert_close(run(weigh.entmax(1.001)), run(weigh.softmax()), rtol=1e-2, atol=2e-3)


@every_engine
@pytest.mark.parametrize("k", [7, 8, 100])
def test_as_many_as_there_are_is_softmax(engine: str, k: int) -> None:
    q, keys, v = (torch.randn(2, 7, 4) for _ in range(3))

    found = regard.attention(q, keys, v, weigh=weigh.top(k), mask=mask.causal(), engine=engine)

    torch.testing.assert_close(found, regard.attention(q, keys, v, mask=mask.causal(), engine=engine))


@every_engine
@pytest.mark.parametrize("k", [1, 2, 5, 64, 299])
def test_the_largest_are_those_that_sorting_finds(engine: str, k: int) -> None:
    q, keys, v = (torch.randn(2, 3, n, 8) for n in (70, 300, 300))
    scores = q @ keys.mT / 8**0.5
    last = scores.topk(k).values[..., -1:]
    expected = scores.masked_fill(scores < last, -math.inf).softmax(-1)

    found = regard.attend(q, keys, v, weigh=weigh.top(k), engine=engine)

    torch.testing.assert_close(found.weights[...], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.output, expected @ v, rtol=1e-4, atol=1e-5)


@every_engine
@pytest.mark.parametrize("weighing", [weigh.top(2), weigh.argmax()], ids=["top", "argmax"])
def test_what_ties_with_the_last_one_is_kept(engine: str, weighing: object) -> None:
    scores = [5.0, 5.0, 1.0, 5.0, -2.0]

    assert weighed(scores, weighing, engine) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3, 0])


@every_engine
def test_tau_is_where_a_row_sums_to_one(engine: str) -> None:
    q, k, v = (torch.randn(2, 4, n, 8) for n in (60, 90, 90))
    alpha = torch.tensor([1.1, 1.5, 1.7, 2.0])

    tau = regard.attend(q, k, v, weigh=weigh.entmax(alpha), engine=engine).statistic

    factor = alpha.view(4, 1, 1) - 1
    z = factor * (q @ k.mT) / 8**0.5
    sums = (z - tau.unsqueeze(-1)).clamp(min=0).pow(1 / factor).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-4, atol=1e-4)  # a power of 10 of rounded numbers


@every_engine
def test_argmax_takes_the_value_of_the_largest_and_softmaxs_gradient(engine: str) -> None:
    q, k, v = (torch.randn(2, 20, 4, requires_grad=True) for _ in range(3))
    scores = q @ k.mT / 2
    soft = scores.softmax(-1)
    hard = torch.nn.functional.one_hot(scores.argmax(-1), 20).float()
    expected = (hard + soft - soft.detach()) @ v

    found = regard.attention(q, k, v, weigh=weigh.argmax(), engine=engine)

    torch.testing.assert_close(found, v.gather(1, scores.argmax(-1, keepdim=True).expand(-1, -1, 4)))
    for one, other in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@every_engine
def test_measures_see_the_weights_of_entmax(engine: str) -> None:
    q, k, v = (torch.randn(1, 2, n, 8) for n in (80, 120, 120))
    expected = entmax.entmax15(q @ k.mT / 8**0.5, dim=-1)

    weights = regard.attend(q, k, v, weigh=weigh.entmax(1.5), engine=engine).weights
    entropy, received = weights.measure(measure.entropy, measure.received)

    torch.testing.assert_close(entropy, torch.special.entr(expected).sum(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(received, expected.sum(-2), rtol=1e-4, atol=1e-5)


def test_the_gradient_of_shown_weights_is_that_of_the_formula() -> None:
    q, k = (torch.randn(1, 1, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    expected = entmax.sparsemax(q @ k.mT / 3**0.5, dim=-1)

    shown = regard.attend(q, k, k, weigh=weigh.sparsemax()).weights[...]

    for one, other in zip(*(torch.autograd.grad(x.sin().sum(), (q, k)) for x in (shown, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_relative_values_under_argmax_have_the_gradient_of_softmax() -> None:
    q, k, v = (torch.randn(1, 1, 6, 3, dtype=torch.float64) for _ in range(3))
    q.requires_grad_()
    table = torch.randn(5, 3, dtype=torch.float64)
    near = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2

    found = regard.attention(q, k, v, weigh=weigh.argmax(), value=score.shaw_values(table))
    soft = (q @ k.mT / 3**0.5).softmax(-1)
    expected = soft @ v + (soft.unsqueeze(-1) * table[near]).sum(-2)

    for got, right in zip(*(torch.autograd.grad(x.sum(), q) for x in (found, expected)), strict=True):
        torch.testing.assert_close(got, right)


def test_relative_values_are_weighed_by_entmax_too() -> None:
    q, k, v = (torch.randn(1, 1, 6, 3, dtype=torch.float64) for _ in range(3))
    table = torch.randn(5, 3, dtype=torch.float64)
    weights = entmax.entmax15(q @ k.mT / 3**0.5, dim=-1)
    near = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    expected = weights @ v + (weights.unsqueeze(-1) * table[near]).sum(-2)

    found = regard.attention(q, k, v, weigh=weigh.entmax(1.5), value=score.shaw_values(table))

    torch.testing.assert_close(found, expected)


def test_they_survive_pickling_and_equal_ones_are_equal() -> None:
    for normaliser in (Entmax(constant(2.0)), Top(3), Argmax()):
        assert pickle.loads(pickle.dumps(normaliser)) == normaliser
        assert hash(pickle.loads(pickle.dumps(normaliser))) == hash(normaliser)
    assert Entmax(constant(2.0)) != Entmax(constant(3.0))


@pytest.mark.parametrize("alpha", [0.5, 2.5, -1.0])
def test_alpha_must_lie_between_softmax_and_sparsemax(alpha: float) -> None:
    with pytest.raises(SpecError, match=rf"from 1 \(softmax\) to 2 \(sparsemax\); got {alpha}"):
        weigh.entmax(alpha)


def test_learned_alphas_are_checked() -> None:
    with pytest.raises(SpecError, match=r"above 1 and at most 2; got \[1.5, 1.0\]"):
        weigh.entmax(torch.tensor([1.5, 1.0]))
    with pytest.raises(SpecError, match=r"one number, or one a head, in floats; got torch.float32 of shape \(2, 2\)"):
        weigh.entmax(torch.full((2, 2), 1.5))
    q = torch.randn(1, 3, 4, 2)
    with pytest.raises(SpecError, match="3 heads"):
        regard.attention(q, q, q, weigh=weigh.entmax(torch.tensor([1.5, 1.5])))


@pytest.mark.parametrize("k", [0, -1, 2.0, True])
def test_top_must_keep_something(k: object) -> None:
    with pytest.raises(SpecError, match=f"(at least 1 key|k must be a whole number); got {k}"):
        weigh.top(k)


def test_there_is_no_lse_and_the_error_says_what_there_is() -> None:
    q = torch.randn(3, 2)

    with pytest.raises(SpecError, match="entmax has tau, in `statistic`"):
        _ = regard.attend(q, q, q, weigh=weigh.sparsemax()).lse


def test_a_row_that_sees_nothing_has_a_level_that_nothing_reaches() -> None:
    q = torch.randn(2, 3)

    found = regard.attend(q, q, q, weigh=weigh.sparsemax(), mask=torch.tensor([[True, True], [False, False]]))

    assert found.statistic[1] == math.inf and (found.output[1] == 0).all()
    assert found.weights[1].tolist() == [0.0, 0.0]


def test_the_plan_names_the_weighing() -> None:
    shape = (2, 64, 8)

    assert "entmax of 1.5(" in str(regard.explain(shape, shape, shape, weigh=weigh.entmax(1.5)))
    assert "sparsemax(" in str(regard.explain(shape, shape, shape, weigh=weigh.sparsemax()))


def test_packed_sequences_are_weighed_apart() -> None:
    lengths = [3, 5, 1]
    q, k, v = (torch.randn(2, 9, 4) for _ in range(3))
    alpha = torch.tensor([1.3, 1.8])

    found = regard.attention_packed(q, k, v, lengths, lengths, weigh=weigh.entmax(alpha))

    parts = zip(*(x.split(lengths, dim=1) for x in (q, k, v)), strict=True)
    apart: list[Tensor] = [regard.attention(*(x[None] for x in part), weigh=weigh.entmax(alpha))[0] for part in parts]
    torch.testing.assert_close(found, torch.cat(apart, 1))
