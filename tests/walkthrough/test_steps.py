"""Every stage of a walkthrough: the last one is attention's output, for every score, mask and normalizer."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import feature_map, mask, normalizer, score
from regard.normalizers.streaming import RowState, StreamingNormalizer
from regard.walkthrough.projection import project
from regard.walkthrough.steps import Steps, steps
from tests.random_tensors import normal

NUM_HEADS, LENGTH, HEAD_DIM = 4, 5, 3
TOLERANCE = dict(rtol=1e-12, atol=1e-12)  # float64 on both sides, summed in another order


def inputs(num_kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(2, NUM_HEADS, LENGTH, HEAD_DIM),
        normal(2, num_kv_heads, LENGTH, HEAD_DIM, seed=1),
        normal(2, num_kv_heads, LENGTH, 2, seed=2),
    )


def squared_dot(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) ** 2


class SquaredRelu(StreamingNormalizer):
    """A custom normalizer: the square of positive scores."""

    name = "squared relu"

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.relu(scores) ** 2, None

    def update(self, state: RowState, scores: Tensor) -> tuple[RowState, Tensor, Tensor | None]:
        return state, torch.relu(scores) ** 2, None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.relu(scores) ** 2

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return 2.0 * gradient * weights.sqrt()


SCORES: dict[str, Any] = {
    "scaled_dot": score.scaled_dot(),
    "scaled_dot, explicit scale": score.scaled_dot(0.7),
    "scaled_dot, per head": score.scaled_dot(normal(NUM_HEADS).abs()),
    "dot": score.dot(),
    "bilinear": score.bilinear(normal(HEAD_DIM, HEAD_DIM)),
    "bilinear, per head": score.bilinear(normal(NUM_HEADS, HEAD_DIM, HEAD_DIM)),
    "cosine": score.cosine(),
    "cosine, scaled": score.cosine(10.0),
    "cosine, per head": score.cosine(normal(NUM_HEADS).abs()),
    "gaussian": score.gaussian(0.8),
    "gaussian, per head": score.gaussian(normal(NUM_HEADS).abs() + 0.5),
    "mahalanobis": score.mahalanobis(normal(HEAD_DIM, HEAD_DIM)),
    "mahalanobis, per head": score.mahalanobis(normal(NUM_HEADS, HEAD_DIM, HEAD_DIM)),
    "additive": score.additive(normal(HEAD_DIM, 6), normal(HEAD_DIM, 6, seed=3), normal(6)),
    "additive, a bias": score.additive(normal(HEAD_DIM, 6), normal(HEAD_DIM, 6, seed=3), normal(6), normal(6, seed=4)),
    "additive, per head": score.additive(
        normal(NUM_HEADS, HEAD_DIM, 6), normal(NUM_HEADS, HEAD_DIM, 6, seed=3), normal(NUM_HEADS, 6)
    ),
    "additive, per key head": score.additive(
        normal(NUM_HEADS, HEAD_DIM, 6), normal(2, HEAD_DIM, 6, seed=3), normal(NUM_HEADS, 6)
    ),
    "custom": score.custom(squared_dot),
    "alibi": score.alibi(),
    "alibi, explicit slopes": score.alibi(normal(NUM_HEADS).abs()),
    "softcap": score.softcap(1.5),
    "softcap, a tensor": score.softcap(torch.tensor(1.5, dtype=torch.float64)),
    "bias": score.bias(normal(NUM_HEADS, LENGTH, LENGTH)),
    "bias that hides": score.bias(torch.where(normal(LENGTH, LENGTH) > 1, -torch.inf, 0.5)),
    "t5_bias": score.t5_bias(normal(8, NUM_HEADS), max_distance=4),
    "t5_bias, unidirectional": score.t5_bias(normal(8, NUM_HEADS), bidirectional=False, max_distance=8),
    "shaw_keys": score.shaw_keys(normal(5, HEAD_DIM)),
    "a modifier": score.modifier(lambda s, b, h, i, j: torch.where(i >= j, s - 0.25 * (i - j) * (h + 1), s + 1)),
    "a function": lambda s, b, h, i, j: s * 2 + torch.minimum(i, j) - torch.sqrt(torch.abs(i - j) + 1.0),
    "a modifier that hides by the score": lambda s, b, h, i, j: torch.where(s < 0, -math.inf, s),
    "modifiers one after another": score.cosine(4.0).then(score.alibi()).then(score.softcap(2.0)),
    "a custom modifier, then another": score.dot().then(lambda s, b, h, i, j: s + j).then(score.softcap(3.0)),
}
MASKS: dict[str, Any] = {
    "none": None,
    "causal": mask.causal(),
    "sliding_window": mask.sliding_window(2),
    "sliding_window, one side": mask.sliding_window(3, 1),
    "dilated": mask.dilated(2, 2),
    "chunked": mask.chunked(2, 1),
    "strided": mask.strided(2),
    "fixed": mask.fixed(2),
    "padding": mask.padding([3, 5]),
    "padding, left": mask.padding([3, 5], "left"),
    "document": mask.document([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]),
    "prefix": mask.prefix(2),
    "global_tokens": mask.global_tokens([0, 3]),
    "random_blocks": mask.random_blocks(2, 1, seed=4),
    "longformer": mask.longformer(2, [1]),
    "bigbird": mask.bigbird(1, num_random_blocks=1),
    "tensor": mask.tensor(normal(2, 1, LENGTH, LENGTH) > 0),
    "from_function": mask.from_function(lambda b, h, i, j: (i - j + h) % 3 == b),
    "combined": (mask.causal() & ~mask.sliding_window(1)) | mask.prefix(1),
    "nothing visible": mask.prefix(0),
}
NORMALIZERS: dict[str, Any] = {
    "softmax": normalizer.softmax(),
    "sink": normalizer.sink(),
    "sink, high": normalizer.sink(30.0),
    "sink, per head": normalizer.sink(normal(NUM_HEADS)),
    "sparsemax": normalizer.sparsemax(),
    "entmax": normalizer.entmax(1.5),
    "entmax, per head": normalizer.entmax(1.0 + torch.sigmoid(normal(NUM_HEADS))),
    "topk": normalizer.topk(2),
    "hardmax": normalizer.hardmax(),
    "gumbel": normalizer.gumbel(0.5, seed=3),
    "gumbel, soft": normalizer.gumbel(0.5, seed=3, hard=False),
    "sigmoid": normalizer.sigmoid(),
    "sigmoid, biased": normalizer.sigmoid(-math.log(LENGTH)),
    "sigmoid, per head": normalizer.sigmoid(normal(NUM_HEADS)),
    "relu": normalizer.relu(),
    "relu, scaled": normalizer.relu(0.5),
    "sinkhorn": normalizer.sinkhorn(4),
    "sinkhorn, once": normalizer.sinkhorn(1),
    "kernel": normalizer.kernel(),
    "kernel, relu": normalizer.kernel(feature_map.relu()),
    "kernel, cosformer": normalizer.kernel(feature_map.cosformer(LENGTH)),
    "kernel, favor": normalizer.kernel(feature_map.favor(HEAD_DIM, 8)),
    "kernel, a function": normalizer.kernel(lambda x: x.square() + 0.1),
    "custom": SquaredRelu(),
}


def assert_output_close(result: Steps, expected: Tensor) -> None:
    output = result["output"].tensor
    torch.testing.assert_close(output.expand(expected.shape), expected, equal_nan=True, **TOLERANCE)


def assert_code_computes_every_stage(result: Steps) -> None:
    for batch, head in ((0, 0), (1, NUM_HEADS - 1)):
        selected = result.at(batch, head)
        variables: dict[str, Any] = {}
        exec(selected.code(), variables)
        for stage in selected:
            values = torch.as_tensor(variables[stage.variable])
            torch.testing.assert_close(
                values.double().expand(stage.values.shape),
                stage.values.double(),
                equal_nan=True,
                **TOLERANCE,
                msg=lambda m, s=stage: f"{s.name}: {m}",
            )


@pytest.mark.parametrize("name", SCORES)
def test_every_score_gives_the_output_of_attention(name: str) -> None:
    q, k, v = inputs()
    result = steps(q, k, v, score=SCORES[name])
    assert_output_close(result, regard.attention(q, k, v, score=SCORES[name], backend="reference"))
    assert_code_computes_every_stage(result)


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_gives_the_output_of_attention(name: str) -> None:
    q, k, v = inputs()
    result = steps(q, k, v, mask=MASKS[name])
    assert_output_close(result, regard.attention(q, k, v, mask=MASKS[name], backend="reference"))
    assert_code_computes_every_stage(result)


@pytest.mark.parametrize("mask_name", ["none", "causal", "combined", "nothing visible", "padding"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_normalizer_gives_the_output_of_attention(name: str, mask_name: str) -> None:
    q, k, v = inputs()
    options = dict(mask=MASKS[mask_name], normalizer=NORMALIZERS[name])
    if name == "sinkhorn" and mask_name == "causal":
        with pytest.raises(regard.errors.ArgumentError, match="no query attends to later keys"):
            steps(q, k, v, **options)
        return
    result = steps(q, k, v, **options)
    assert_output_close(result, regard.attention(q, k, v, **options, backend="reference"))
    assert_code_computes_every_stage(result)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_the_weights_stage_has_the_weights_of_attention(name: str) -> None:
    q, k, v = inputs()
    result = steps(q, k, v, normalizer=NORMALIZERS[name], dropout=0.3, seed=5)
    expected = regard.attention_with_weights(q, k, v, normalizer=NORMALIZERS[name], backend="reference")
    torch.testing.assert_close(result["weights"].tensor, expected.weights.to_dense().double(), **TOLERANCE)


@pytest.mark.parametrize("name", ["alibi", "modifiers one after another", "bias that hides", "additive, per head"])
@pytest.mark.parametrize("normalizer_name", ["entmax", "topk", "sink", "sigmoid, biased"])
def test_scores_masks_normalizers_and_dropout_combine(name: str, normalizer_name: str) -> None:
    q, k, v = inputs()
    options: dict[str, Any] = dict(
        score=SCORES[name], mask=mask.causal(), normalizer=NORMALIZERS[normalizer_name], dropout=0.25, seed=7
    )
    result = steps(q, k, v, **options)
    assert_output_close(result, regard.attention(q, k, v, **options, backend="reference"))
    assert_code_computes_every_stage(result)


@pytest.mark.parametrize("value", [lambda v: torch.tanh(v @ normal(2, 4)), score.shaw_values(normal(5, 2))])
def test_the_value_function_is_applied(value: Callable[[Tensor], Tensor]) -> None:
    q, k, v = inputs()
    options: dict[str, Any] = dict(value=value, dropout=0.25, seed=7, mask=mask.causal())
    result = steps(q, k, v, **options)
    assert_output_close(result, regard.attention(q, k, v, **options, backend="reference"))
    assert_code_computes_every_stage(result)


@pytest.mark.parametrize("query_offset", [None, 0, [1, 2]])
def test_query_offset_shifts_the_queries(query_offset: Any) -> None:
    q, k, v = normal(2, NUM_HEADS, 3, HEAD_DIM), normal(2, NUM_HEADS, 6, HEAD_DIM), normal(2, NUM_HEADS, 6, 2)
    options: dict[str, Any] = dict(mask=mask.causal(), score=score.alibi(), query_offset=query_offset)
    result = steps(q, k, v, **options)
    assert_output_close(result, regard.attention(q, k, v, **options, backend="reference"))
    assert_code_computes_every_stage(result)


@pytest.mark.parametrize("shape", [(LENGTH,), (2, LENGTH), (2, 3, LENGTH), (2, 2, 3, LENGTH)])
def test_any_number_of_leading_dimensions_is_flattened_into_batch_and_heads(shape: tuple[int, ...]) -> None:
    q, k, v = (normal(*shape, HEAD_DIM, seed=n) for n in range(3))
    result = steps(q, k, v, mask=mask.causal())
    expected = regard.attention(q, k, v, mask=mask.causal(), backend="reference")
    torch.testing.assert_close(result["output"].tensor.reshape(expected.shape), expected, **TOLERANCE)


def test_at_selects_another_head() -> None:
    q, k, v = inputs()
    result = steps(q, k, v)
    expected = regard.attention(q, k, v)
    torch.testing.assert_close(result.at(1, 3)["output"].values, expected[1, 3], **TOLERANCE)
    torch.testing.assert_close(result.at(1, 3)["K"].values, k[1, 1], **TOLERANCE)  # heads 2 and 3 share keys
    with pytest.raises(regard.errors.ArgumentError, match=r"head from 0 to 3; got batch=0, head=4"):
        result.at(0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_computed_in_float64(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in inputs())
    output = steps(q, k, v)["output"].tensor
    assert output.dtype == torch.float64
    torch.testing.assert_close(output.to(dtype), regard.attention(q, k, v, backend="reference"))


def test_integer_arrays_and_lists_are_accepted() -> None:
    lists = [[1, 0], [0, 2]]
    expected = regard.attention(*(torch.tensor(lists, dtype=torch.float64),) * 3)
    for x in (lists, np.array(lists), torch.tensor(lists)):
        torch.testing.assert_close(steps(x, x, x)["output"].values, expected, **TOLERANCE)


def test_a_list_of_floats_keeps_float64_precision() -> None:
    assert steps([[0.1]], [[1.0]], [[1.0]])["Q"].values.item() == 0.1


def test_hidden_nonfinite_keys_and_values_do_not_affect_the_output() -> None:
    q, k, v = (normal(3, 2, seed=n) for n in range(3))
    k[2], v[2] = torch.nan, torch.tensor([torch.inf, torch.nan])
    result = steps(q, k, v, mask=mask.prefix(2))
    assert_output_close(result, regard.attention(q, k, v, mask=mask.prefix(2), backend="reference")[None, None])
    assert result["output"].values.isfinite().all()
    assert "transformed values" not in result.names


@pytest.mark.parametrize("input_index", [0, 1, 2])
@pytest.mark.parametrize("name", [name for name in NORMALIZERS if "per head" not in name and "sinkhorn" not in name])
def test_nonfinite_inputs_propagate_as_in_attention(name: str, input_index: int) -> None:
    for value in (math.nan, math.inf):
        for mask_option in (None, mask.causal()):
            qkv = [normal(4, 3, seed=1), normal(4, 3, seed=2), normal(4, 2, seed=3)]
            qkv[input_index][2, 0] = value
            options = dict(mask=mask_option, normalizer=NORMALIZERS[name], dropout=0.25, seed=3)
            result = steps(*qkv, **options)
            expected = regard.attention(*qkv, **options, backend="reference")
            torch.testing.assert_close(result["output"].values, expected, equal_nan=True, **TOLERANCE)
            variables: dict[str, Any] = {}
            exec(result.code(), variables)
            torch.testing.assert_close(variables["output"], expected, equal_nan=True, **TOLERANCE)


def test_a_very_long_formula_is_abbreviated_and_has_no_code() -> None:
    result = steps(*inputs(), normalizer=normalizer.gumbel())
    assert result["with gumbel noise"].code == "" and len(result.code()) < 10_000
    assert (
        result["with gumbel noise"].formula
        == "s_ij = (s - log(-log(u_ij))) / temperature, where s is the previous score"
    )


def test_projections_add_stages_of_tokens_and_matrices() -> None:
    x, other = [[1.0, 2.0], [0.5, 1.0]], [[3.0, 1.0], [1.0, 1.0], [0.0, 2.0]]
    w_q, w_k = [[0.5, 1.0], [0.25, 0.0]], [[1.0, 0.0], [1.0, 1.0]]
    result = steps(project(x, w_q), project(other, w_k), project(other, w_q))
    assert result.names[:8] == ["X", "W_Q", "X_K", "W_K", "W_V", "Q", "K", "V"]
    expected = regard.attention(*(torch.tensor(a) @ torch.tensor(b) for a, b in ((x, w_q), (other, w_k), (other, w_q))))
    torch.testing.assert_close(result["output"].values.float(), expected)
    variables: dict[str, Any] = {}
    exec(result.code(), variables)
    torch.testing.assert_close(variables["output"], result["output"].values, **TOLERANCE)


def test_a_pair_with_score_minus_infinity_is_hidden() -> None:
    q, k, v = inputs()
    result = steps(q, k, v, score=SCORES["a modifier that hides by the score"])
    assert torch.equal(result["visible"].tensor, result["scaled"].tensor >= 0)
    assert result["visible"].formula == "visible where s_ij > -∞"


def test_each_score_modifier_has_its_own_stage() -> None:
    q, k, v = inputs()
    result = steps(q, k, v, score=SCORES["modifiers one after another"])
    assert result.names[3:12] == [
        *("length of q", "unit q", "length of k", "unit k", "cosines", "scaled"),
        *("alibi", "softcap", "row maximum"),
    ]


def test_a_call_with_too_many_numbers_raises() -> None:
    q = torch.zeros(512, 4)
    with pytest.raises(regard.errors.BudgetError, match=r"at most 4,096; got scores of 512 x 512 = 262,144"):
        steps(q, q, q)
    wide = torch.zeros(10, 500)
    with pytest.raises(regard.errors.BudgetError, match=r"at most 4,096; got q of 10 x 500 = 5,000"):
        steps(wide, wide, wide)
    many = torch.zeros(200, 8, 30, 4)
    with pytest.raises(regard.errors.BudgetError, match=r"1,048,576 in all heads; got scores of 1600 x 30 x 30"):
        steps(many, many, many)
    deep = score.additive(torch.zeros(4, 64), torch.zeros(4, 64), torch.zeros(64))
    with pytest.raises(regard.errors.BudgetError, match=r"got tanh of 10 x 10 x 64 = 6,400"):
        steps(*[torch.zeros(10, 4)] * 3, score=deep)
    with pytest.raises(regard.errors.BudgetError, match=r"got w of 768 x 64 = 49,152"):
        project(torch.zeros(4, 768), torch.zeros(768, 64))
    small = torch.eye(4)
    with pytest.raises(regard.errors.BudgetError, match=r"got features of 4 x 2000 = 8,000"):
        steps(small, small, small, normalizer=normalizer.kernel(feature_map.favor(4, 2000)))
    with pytest.raises(regard.errors.BudgetError, match=r"every iteration of sinkhorn, .* at most 100; got 10,000"):
        steps(small, small, small, normalizer=normalizer.sinkhorn(10_000))
    with pytest.raises(regard.errors.ArgumentError, match="got 2 queries and 0 keys"):
        steps(torch.zeros(2, 4), torch.zeros(0, 4), torch.zeros(0, 4))


def test_a_projection_of_mismatched_shapes_raises() -> None:
    with pytest.raises(regard.errors.ArgumentError, match=r"got x=\(2, 2\), w=\(3, 1\)"):
        project([[1, 2], [3, 4]], [[1], [2], [3]])


def test_json_has_every_number() -> None:
    result = steps([[1, 0], [0, 2]], [[1, 0], [0, 1]], [[1.0], [0.0]], mask=mask.causal(), tokens=["to", "be"])
    parsed = json.loads(result.json())
    stages = {stage["name"]: stage for stage in parsed["stages"]}
    assert parsed["query_labels"] == parsed["key_labels"] == ["to", "be"]
    assert stages["masked"]["values"][0][1] == "-inf"
    assert stages["visible"]["values"] == [[True, False], [True, True]]
    assert stages["weights"]["values"] == result["weights"].values.tolist()
    assert stages["row sum"]["axes"] == ["query"] and stages["row sum"]["shape"] == [2]


def test_an_unknown_stage_name_raises() -> None:
    with pytest.raises(regard.errors.ArgumentError, match=r"one of Q, K, V, products, .*output; got 'scores'"):
        steps([[1.0]], [[1.0]], [[1.0]])["scores"]
