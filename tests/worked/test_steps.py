"""Every stage of a worked call: the last one is attention's answer, for every score, mask and weighing there is."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import feature, mask, score, weigh
from regard.spec.normaliser import State, Streamed
from regard.worked.projection import projected
from regard.worked.steps import Steps, steps

HEADS, LENGTH, WIDTH = 4, 5, 3
TOLERANCE = dict(rtol=1e-12, atol=1e-12)  # float64 on both sides, summed in another order


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(key_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(2, HEADS, LENGTH, WIDTH),
        normal(2, key_heads, LENGTH, WIDTH, seed=1),
        normal(2, key_heads, LENGTH, 2, seed=2),
    )


def squared_sum(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) ** 2


class SquaredRelu(Streamed):
    """A weighing of one's own: what is above zero, squared."""

    name = "squared relu"

    def dense(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.relu(scores) ** 2, None

    def step(self, state: State, scores: Tensor) -> tuple[State, Tensor, Tensor | None]:
        return state, torch.relu(scores) ** 2, None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.relu(scores) ** 2

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return 2.0 * gradient * weights.sqrt()


SCORES: dict[str, Any] = {
    "scaled_dot": score.scaled_dot(),
    "scaled_dot, given": score.scaled_dot(0.7),
    "scaled_dot, a head": score.scaled_dot(normal(HEADS).abs()),
    "dot": score.dot(),
    "multiplicative": score.multiplicative(normal(WIDTH, WIDTH)),
    "multiplicative, a head": score.multiplicative(normal(HEADS, WIDTH, WIDTH)),
    "cosine": score.cosine(),
    "cosine, scaled": score.cosine(10.0),
    "cosine, a head": score.cosine(normal(HEADS).abs()),
    "metric": score.metric(0.8),
    "metric, a head": score.metric(normal(HEADS).abs() + 0.5),
    "mahalanobis": score.mahalanobis(normal(WIDTH, WIDTH)),
    "mahalanobis, a head": score.mahalanobis(normal(HEADS, WIDTH, WIDTH)),
    "additive": score.additive(normal(WIDTH, 6), normal(WIDTH, 6, seed=3), normal(6)),
    "additive, a bias": score.additive(normal(WIDTH, 6), normal(WIDTH, 6, seed=3), normal(6), normal(6, seed=4)),
    "additive, a head": score.additive(normal(HEADS, WIDTH, 6), normal(HEADS, WIDTH, 6, seed=3), normal(HEADS, 6)),
    "additive, a head of keys": score.additive(normal(HEADS, WIDTH, 6), normal(2, WIDTH, 6, seed=3), normal(HEADS, 6)),
    "custom": score.custom(squared_sum),
    "alibi": score.alibi(),
    "alibi, given": score.alibi(normal(HEADS).abs()),
    "softcap": score.softcap(1.5),
    "softcap, a tensor": score.softcap(torch.tensor(1.5, dtype=torch.float64)),
    "bias": score.bias(normal(HEADS, LENGTH, LENGTH)),
    "bias that hides": score.bias(torch.where(normal(LENGTH, LENGTH) > 1, -torch.inf, 0.5)),
    "relative": score.relative(normal(8, HEADS), max_distance=4),
    "relative, one way": score.relative(normal(8, HEADS), bidirectional=False, max_distance=8),
    "shaw_keys": score.shaw_keys(normal(5, WIDTH)),
    "a rule": score.rule(lambda s, b, h, i, j: torch.where(i >= j, s - 0.25 * (i - j) * (h + 1), s + 1)),
    "a function": lambda s, b, h, i, j: s * 2 + torch.minimum(i, j) - torch.sqrt(torch.abs(i - j) + 1.0),
    "a rule that hides by the score": lambda s, b, h, i, j: torch.where(s < 0, -math.inf, s),
    "rules one after another": score.cosine(4.0).then(score.alibi()).then(score.softcap(2.0)),
    "a rule that is not known alone": score.dot().then(lambda s, b, h, i, j: s + j).then(score.softcap(3.0)),
}
MASKS: dict[str, Any] = {
    "none": None,
    "causal": mask.causal(),
    "window": mask.window(2),
    "window, one side": mask.window(3, 1),
    "dilated": mask.dilated(2, 2),
    "blocks": mask.blocks(2, 1),
    "strided": mask.strided(2),
    "fixed": mask.fixed(2),
    "padding": mask.padding([3, 5]),
    "padding, left": mask.padding([3, 5], "left"),
    "documents": mask.documents([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]),
    "prefix": mask.prefix(2),
    "tokens": mask.tokens([0, 3]),
    "random_blocks": mask.random_blocks(2, 1, seed=4),
    "longformer": mask.longformer(2, [1]),
    "bigbird": mask.bigbird(1, random=1),
    "tensor": mask.tensor(normal(2, 1, LENGTH, LENGTH) > 0),
    "where": mask.where(lambda b, h, i, j: (i - j + h) % 3 == b),
    "joined": (mask.causal() & ~mask.window(1)) | mask.prefix(1),
    "nobody sees": mask.prefix(0),
}
WEIGHINGS: dict[str, Any] = {
    "softmax": weigh.softmax(),
    "sink": weigh.sink(),
    "sink, high": weigh.sink(30.0),
    "sink, a head": weigh.sink(normal(HEADS)),
    "sparsemax": weigh.sparsemax(),
    "entmax": weigh.entmax(1.5),
    "entmax, a head": weigh.entmax(1.0 + torch.sigmoid(normal(HEADS))),
    "top": weigh.top(2),
    "argmax": weigh.argmax(),
    "gumbel": weigh.gumbel(0.5, seed=3),
    "gumbel, soft": weigh.gumbel(0.5, seed=3, hard=False),
    "sigmoid": weigh.sigmoid(),
    "sigmoid, biased": weigh.sigmoid(-math.log(LENGTH)),
    "sigmoid, a head": weigh.sigmoid(normal(HEADS)),
    "relu": weigh.relu(),
    "relu, scaled": weigh.relu(0.5),
    "sinkhorn": weigh.sinkhorn(4),
    "sinkhorn, once": weigh.sinkhorn(1),
    "kernel": weigh.kernel(),
    "kernel, relu": weigh.kernel(feature.relu()),
    "kernel, cosformer": weigh.kernel(feature.cosformer(LENGTH)),
    "kernel, favor": weigh.kernel(feature.favor(WIDTH, 8)),
    "kernel, a function": weigh.kernel(lambda x: x.square() + 0.1),
    "one's own": SquaredRelu(),
}


def agree(found: Steps, expected: Tensor) -> None:
    output = found["output"].whole
    torch.testing.assert_close(output.expand(expected.shape), expected, equal_nan=True, **TOLERANCE)


def code_agrees(found: Steps) -> None:
    """What the code computes, of every head, is every stage."""
    for batch, head in ((0, 0), (1, HEADS - 1)):
        shown = found.at(batch, head)
        names: dict[str, Any] = {}
        exec(shown.code(), names)
        for stage in shown:
            made = torch.as_tensor(names[stage.variable])
            torch.testing.assert_close(
                made.double().expand(stage.values.shape),
                stage.values.double(),
                equal_nan=True,
                **TOLERANCE,
                msg=lambda m, s=stage: f"{s.name}: {m}",
            )


@pytest.mark.parametrize("name", SCORES)
def test_every_score_ends_in_the_answer_of_attention(name: str) -> None:
    q, k, v = inputs()
    found = steps(q, k, v, score=SCORES[name])
    agree(found, regard.attention(q, k, v, score=SCORES[name], engine="reference"))
    code_agrees(found)


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_ends_in_the_answer_of_attention(name: str) -> None:
    q, k, v = inputs()
    found = steps(q, k, v, mask=MASKS[name])
    agree(found, regard.attention(q, k, v, mask=MASKS[name], engine="reference"))
    code_agrees(found)


@pytest.mark.parametrize("seen", ["none", "causal", "joined", "nobody sees", "padding"])
@pytest.mark.parametrize("name", WEIGHINGS)
def test_every_weighing_ends_in_the_answer_of_attention(name: str, seen: str) -> None:
    q, k, v = inputs()
    options = dict(mask=MASKS[seen], weigh=WEIGHINGS[name])
    if name == "sinkhorn" and seen == "causal":
        with pytest.raises(regard.errors.SpecError, match="no query attends to later keys"):
            steps(q, k, v, **options)
        return
    found = steps(q, k, v, **options)
    agree(found, regard.attention(q, k, v, **options, engine="reference"))
    code_agrees(found)


@pytest.mark.parametrize("name", WEIGHINGS)
def test_the_stage_called_weights_has_the_weights_of_attend(name: str) -> None:
    q, k, v = inputs()
    found = steps(q, k, v, weigh=WEIGHINGS[name], dropout=0.3, seed=5)
    attended = regard.attend(q, k, v, weigh=WEIGHINGS[name], engine="reference")
    weights = attended.weights.dense().double()
    torch.testing.assert_close(found["weights"].whole, weights, **TOLERANCE)


@pytest.mark.parametrize("name", ["alibi", "rules one after another", "bias that hides", "additive, a head"])
@pytest.mark.parametrize("how", ["entmax", "top", "sink", "sigmoid, biased"])
def test_scores_masks_and_weighings_go_together(name: str, how: str) -> None:
    q, k, v = inputs()
    options: dict[str, Any] = dict(score=SCORES[name], mask=mask.causal(), weigh=WEIGHINGS[how], dropout=0.25, seed=7)
    found = steps(q, k, v, **options)
    agree(found, regard.attention(q, k, v, **options, engine="reference"))
    code_agrees(found)


@pytest.mark.parametrize("value", [lambda v: torch.tanh(v @ normal(2, 4)), score.shaw_values(normal(5, 2))])
def test_values_are_changed_as_the_call_says(value: Callable[[Tensor], Tensor]) -> None:
    q, k, v = inputs()
    options: dict[str, Any] = dict(value=value, dropout=0.25, seed=7, mask=mask.causal())
    found = steps(q, k, v, **options)
    agree(found, regard.attention(q, k, v, **options, engine="reference"))
    code_agrees(found)


@pytest.mark.parametrize("start", [None, 0, [1, 2]])
def test_queries_stand_where_the_call_puts_them(start: Any) -> None:
    q, k, v = normal(2, HEADS, 3, WIDTH), normal(2, HEADS, 6, WIDTH), normal(2, HEADS, 6, 2)
    options: dict[str, Any] = dict(mask=mask.causal(), score=score.alibi(), start=start)
    found = steps(q, k, v, **options)
    agree(found, regard.attention(q, k, v, **options, engine="reference"))
    code_agrees(found)


@pytest.mark.parametrize("shape", [(LENGTH,), (2, LENGTH), (2, 3, LENGTH), (2, 2, 3, LENGTH)])
def test_any_number_of_leading_dimensions_is_flattened_into_batch_and_heads(shape: tuple[int, ...]) -> None:
    q, k, v = (normal(*shape, WIDTH, seed=n) for n in range(3))
    found = steps(q, k, v, mask=mask.causal())
    expected = regard.attention(q, k, v, mask=mask.causal(), engine="reference")
    torch.testing.assert_close(found["output"].whole.reshape(expected.shape), expected, **TOLERANCE)


def test_another_head_is_shown_when_asked_for() -> None:
    q, k, v = inputs()
    found = steps(q, k, v)
    expected = regard.attention(q, k, v)
    torch.testing.assert_close(found.at(1, 3)["output"].values, expected[1, 3], **TOLERANCE)
    torch.testing.assert_close(found.at(1, 3)["K"].values, k[1, 1], **TOLERANCE)  # heads 2 and 3 share keys
    with pytest.raises(regard.errors.SpecError, match=r"head from 0 to 3; got batch=0, head=4"):
        found.at(0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_are_worked_in_float64(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in inputs())
    found = steps(q, k, v)["output"].whole
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.to(dtype), regard.attention(q, k, v, engine="reference"))


def test_arrays_and_lists_of_whole_numbers_do_as_well() -> None:
    lists = [[1, 0], [0, 2]]
    expected = regard.attention(*(torch.tensor(lists, dtype=torch.float64),) * 3)
    for kind in (lists, np.array(lists), torch.tensor(lists)):
        torch.testing.assert_close(steps(kind, kind, kind)["output"].values, expected, **TOLERANCE)


def test_a_typed_number_keeps_all_its_digits() -> None:
    assert steps([[0.1]], [[1.0]], [[1.0]])["Q"].values.item() == 0.1


def test_what_is_hidden_reaches_nothing_even_if_it_is_nan() -> None:
    q, k, v = (normal(3, 2, seed=n) for n in range(3))
    k[2], v[2] = torch.nan, torch.tensor([torch.inf, torch.nan])
    found = steps(q, k, v, mask=mask.prefix(2))
    agree(found, regard.attention(q, k, v, mask=mask.prefix(2), engine="reference")[None, None])
    assert found["output"].values.isfinite().all()
    assert "changed values" not in found.names


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("how", [name for name in WEIGHINGS if "a head" not in name and "sinkhorn" not in name])
def test_what_is_not_finite_goes_where_attention_lets_it_go(how: str, where: int) -> None:
    for value in (math.nan, math.inf):
        for seen in (None, mask.causal()):
            given = [normal(4, 3, seed=1), normal(4, 3, seed=2), normal(4, 2, seed=3)]
            given[where][2, 0] = value
            options = dict(mask=seen, weigh=WEIGHINGS[how], dropout=0.25, seed=3)
            found = steps(*given, **options)
            expected = regard.attention(*given, **options, engine="reference")
            torch.testing.assert_close(found["output"].values, expected, equal_nan=True, **TOLERANCE)
            names: dict[str, Any] = {}
            exec(found.code(), names)
            torch.testing.assert_close(names["output"], expected, equal_nan=True, **TOLERANCE)


def test_a_formula_that_would_fill_pages_is_not_written_out_as_code() -> None:
    found = steps(*inputs(), weigh=weigh.gumbel())
    assert found["noisy"].code == "" and len(found.code()) < 10_000
    assert found["noisy"].formula == "s_ij = (s - log(-log(u_ij))) / temperature, s as before"


def test_tokens_and_matrices_are_stages_too() -> None:
    x, other = [[1.0, 2.0], [0.5, 1.0]], [[3.0, 1.0], [1.0, 1.0], [0.0, 2.0]]
    w_q, w_k = [[0.5, 1.0], [0.25, 0.0]], [[1.0, 0.0], [1.0, 1.0]]
    found = steps(projected(x, w_q), projected(other, w_k), projected(other, w_q))
    assert found.names[:8] == ["X", "W_Q", "X_K", "W_K", "W_V", "Q", "K", "V"]
    expected = regard.attention(*(torch.tensor(a) @ torch.tensor(b) for a, b in ((x, w_q), (other, w_k), (other, w_q))))
    torch.testing.assert_close(found["output"].values.float(), expected)
    names: dict[str, Any] = {}
    exec(found.code(), names)
    torch.testing.assert_close(names["output"], found["output"].values, **TOLERANCE)


def test_a_pair_that_scores_minus_infinity_is_shown_as_hidden() -> None:
    q, k, v = inputs()
    found = steps(q, k, v, score=SCORES["a rule that hides by the score"])
    assert torch.equal(found["seen"].whole, found["scaled"].whole >= 0)
    assert found["seen"].formula == "seen where s_ij > -∞"


def test_rules_are_shown_one_by_one() -> None:
    q, k, v = inputs()
    found = steps(q, k, v, score=SCORES["rules one after another"])
    assert found.names[3:12] == [
        *("length of q", "unit q", "length of k", "unit k", "cosines", "scaled"),
        *("alibi", "softcap", "row maximum"),
    ]


def test_what_is_too_large_to_be_read_is_refused() -> None:
    q = torch.zeros(512, 4)
    with pytest.raises(regard.errors.BudgetError, match=r"at most 4,096; got scores of 512 x 512 = 262,144"):
        steps(q, q, q)
    wide = torch.zeros(10, 500)
    with pytest.raises(regard.errors.BudgetError, match=r"at most 4,096; got q of 10 x 500 = 5,000"):
        steps(wide, wide, wide)
    many = torch.zeros(200, 8, 30, 4)
    with pytest.raises(regard.errors.BudgetError, match=r"1,048,576 in a matrix; got scores of 1600 x 30 x 30"):
        steps(many, many, many)
    deep = score.additive(torch.zeros(4, 64), torch.zeros(4, 64), torch.zeros(64))
    with pytest.raises(regard.errors.BudgetError, match=r"got tanh of 10 x 10 x 64 = 6,400"):
        steps(*[torch.zeros(10, 4)] * 3, score=deep)
    with pytest.raises(regard.errors.BudgetError, match=r"got w of 768 x 64 = 49,152"):
        projected(torch.zeros(4, 768), torch.zeros(768, 64))
    small = torch.eye(4)
    with pytest.raises(regard.errors.BudgetError, match=r"got features of 4 x 2000 = 8,000"):
        steps(small, small, small, weigh=weigh.kernel(feature.favor(4, 2000)))
    with pytest.raises(regard.errors.BudgetError, match=r"every turn of sinkhorn, at most 100; got 10,000"):
        steps(small, small, small, weigh=weigh.sinkhorn(10_000))
    with pytest.raises(regard.errors.SpecError, match="got 2 queries and 0 keys"):
        steps(torch.zeros(2, 4), torch.zeros(0, 4), torch.zeros(0, 4))


def test_a_wrong_projection_is_refused() -> None:
    with pytest.raises(regard.errors.SpecError, match=r"got x=\(2, 2\), w=\(3, 1\)"):
        projected([[1, 2], [3, 4]], [[1], [2], [3]])


def test_machines_read_every_number() -> None:
    found = steps([[1, 0], [0, 2]], [[1, 0], [0, 1]], [[1.0], [0.0]], mask=mask.causal(), tokens=["to", "be"])
    said = json.loads(found.json())
    stages = {stage["name"]: stage for stage in said["stages"]}
    assert said["queries"] == said["keys"] == ["to", "be"]
    assert stages["masked"]["values"][0][1] == "-inf"
    assert stages["seen"]["values"] == [[True, False], [True, True]]
    assert stages["weights"]["values"] == found["weights"].values.tolist()
    assert stages["row sum"]["axes"] == ["query"] and stages["row sum"]["shape"] == [2]


def test_a_stage_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(regard.errors.SpecError, match=r"one of Q, K, V, products, .*output; got 'scores'"):
        steps([[1.0]], [[1.0]], [[1.0]])["scores"]
