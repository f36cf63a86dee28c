"""Parsing a call: shapes, dtypes and offsets. Equal calls have equal specs, and invalid calls raise errors."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import CallSpec
from regard.errors import ArgumentError
from regard.expr.ir import TRUE
from regard.normalizers.streaming import Sigmoid, Softmax


def tensors(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(shape).to(dtype) for _ in range(3))
    return q, k, v


def spec(*args: Any, **options: Any) -> CallSpec:
    return parse_call(AttentionCall(*args, **options)).spec


@pytest.mark.parametrize(
    "q, k, v, expected",
    [
        ((5, 8), (7, 8), (7, 3), (1, 1, 1, 5, 7, 8, 3)),
        ((2, 5, 8), (2, 7, 8), (2, 7, 3), (2, 1, 1, 5, 7, 8, 3)),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), (2, 4, 4, 5, 7, 8, 3)),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3), (2, 4, 2, 5, 7, 8, 3)),
        ((3, 2, 4, 5, 8), (3, 2, 1, 7, 8), (3, 2, 1, 7, 3), (6, 4, 1, 5, 7, 8, 3)),
        ((2, 4, 5, 8), (1, 4, 7, 8), (2, 4, 7, 3), (2, 4, 4, 5, 7, 8, 3)),
        ((1, 4, 5, 8), (6, 4, 7, 8), (1, 4, 7, 3), (6, 4, 4, 5, 7, 8, 3)),
        ((0, 8), (7, 8), (7, 3), (1, 1, 1, 0, 7, 8, 3)),
        ((5, 8), (0, 8), (0, 3), (1, 1, 1, 5, 0, 8, 3)),
        ((0, 2, 5, 8), (0, 2, 5, 8), (0, 2, 5, 8), (0, 2, 2, 5, 5, 8, 8)),
        ((5, 8), (7, 8), (7, 0), (1, 1, 1, 5, 7, 8, 0)),
    ],
)  # fmt: skip
def test_dimensions_are_parsed_from_the_last(q: Any, k: Any, v: Any, expected: tuple[int, ...]) -> None:
    parsed_spec = spec(*(torch.zeros(s) for s in (q, k, v)))
    assert (
        (
            parsed_spec.batch_size,
            parsed_spec.num_heads,
            parsed_spec.num_kv_heads,
            parsed_spec.n_q,
            parsed_spec.n_k,
            parsed_spec.head_dim,
            parsed_spec.value_dim,
        )
        == expected
        == tuple(
            getattr(spec(q, k, v), n)
            for n in ("batch_size", "num_heads", "num_kv_heads", "n_q", "n_k", "head_dim", "value_dim")
        )
    )
    assert parsed_spec.score_shape == (expected[0], expected[1], expected[3], expected[4])
    assert parsed_spec.queries_per_kv_head == expected[1] // expected[2]


def test_results_have_the_dimensions_of_the_caller() -> None:
    for q_shape, leading in (((5, 8), ()), ((2, 5, 8), (2,)), ((2, 4, 5, 8), (2, 4)), ((3, 2, 4, 5, 8), (3, 2, 4))):
        call = parse_call(AttentionCall(*tensors(*q_shape)))
        result = torch.zeros(*call.spec.score_shape[:3], 9)
        assert call.restore_shape(result).shape == (*leading, 5, 9)


def test_numpy_inputs_give_numpy_outputs() -> None:
    q, k, v = (x.numpy() for x in tensors(5, 8))
    call = parse_call(AttentionCall(q, k, v))
    assert call.is_numpy and isinstance(call.restore_shape(torch.zeros(1, 1, 5, 8)), np.ndarray)
    assert not parse_call(AttentionCall(*tensors(5, 8))).is_numpy


def test_shapes_alone_can_be_parsed() -> None:
    parsed_spec = spec((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), mask=mask.causal())
    assert (
        parsed_spec.score_shape == (2, 4, 5, 7) and parsed_spec.device == "cpu" and parsed_spec.dtype == torch.float32
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_scores_are_computed_in_at_least_float32(dtype: torch.dtype) -> None:
    parsed_spec = spec(*tensors(5, 8, dtype=dtype))
    assert parsed_spec.dtype == dtype
    assert parsed_spec.score_dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_default_is_softmax_of_scaled_dot_without_a_mask() -> None:
    parsed_spec = spec(*tensors(5, 16))
    assert (parsed_spec.score_kind, parsed_spec.scale, parsed_spec.score_mod, parsed_spec.mask) == (
        "dot",
        0.25,
        None,
        TRUE,
    )
    assert (
        parsed_spec.normalizer == Softmax()
        and parsed_spec.dropout == 0.0
        and parsed_spec.query_offset == 0
        and parsed_spec.captured_specs == ()
    )


@pytest.mark.parametrize(
    "option, kind, scale, head_dim",
    [
        (score.dot(), "dot", 1.0, 4),
        (score.scaled_dot(0.3), "dot", 0.3, 4),
        (score.scaled_dot(torch.tensor(0.3)), "dot", 1.0, 4),
        (score.cosine(7.0), "dot", 7.0, 4),
        (score.gaussian(2.0), "dot", 1.0, 6),
        (score.mahalanobis(torch.eye(4)), "dot", 1.0, 6),
        (score.additive(torch.ones(4, 9), torch.ones(4, 9), torch.ones(9)), "additive", 1.0, 9),
        (score.custom(lambda q, k: q @ k.mT), "custom", 1.0, 4),
    ],
)
def test_spec_has_the_kind_scale_and_head_dim_of_the_score(option: Any, kind: str, scale: float, head_dim: int) -> None:
    parsed_spec = spec(*tensors(5, 4), score=option)
    assert (parsed_spec.score_kind, parsed_spec.scale, parsed_spec.head_dim) == (kind, scale, head_dim)


class HalvedDot(score.Score):
    """A score class of one's own with a scale, but no field of that name."""

    def product_scale(self, head_dim: int) -> float:
        return 0.5 / head_dim


def test_a_score_class_sets_the_scale_of_its_product() -> None:
    q, k, v = tensors(1, 2, 5, 4)
    assert spec(q, k, v, score=HalvedDot()).scale == 0.125
    for backend in (None, "reference"):
        output = regard.attention(q, k, v, score=HalvedDot(), backend=backend)
        torch.testing.assert_close(output, regard.attention(q, k, v, score=score.scaled_dot(0.125)))


CHOICES: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "causal": lambda: {"mask": mask.causal()},
    "a window": lambda: {"mask": mask.causal() & mask.sliding_window(3)},
    "a wider window": lambda: {"mask": mask.causal() & mask.sliding_window(4)},
    "a function": lambda: {"mask": lambda b, h, i, j: i >= j},
    "another function": lambda: {"mask": lambda b, h, i, j: i > j},
    "padding": lambda: {"mask": mask.padding([3, 5])},
    "a boolean tensor": lambda: {"mask": torch.ones(5, 5, dtype=torch.bool)},
    "alibi": lambda: {"score": score.alibi()},
    "alibi with given slopes": lambda: {"score": score.alibi(torch.ones(4))},
    "softcap": lambda: {"score": score.softcap(20.0)},
    "another softcap": lambda: {"score": score.softcap(30.0)},
    "bias": lambda: {"score": score.bias(torch.zeros(5, 5))},
    "a float64 bias": lambda: {"score": score.bias(torch.zeros(5, 5, dtype=torch.float64))},
    "dot": lambda: {"score": score.dot()},
    "a scale": lambda: {"score": score.scaled_dot(0.1)},
    "gaussian": lambda: {"score": score.gaussian(2.0)},
    "additive": lambda: {"score": score.additive(torch.ones(8, 9), torch.ones(8, 9), torch.ones(9))},
    "sigmoid": lambda: {"normalizer": normalizer.sigmoid()},
    "sigmoid with a bias": lambda: {"normalizer": normalizer.sigmoid(-1.0)},
    "relu": lambda: {"normalizer": normalizer.relu()},
    "dropout": lambda: {"dropout": 0.1, "seed": 1},
    "more dropout": lambda: {"dropout": 0.2, "seed": 1},
    "a query offset": lambda: {"query_offset": 3},
    "a query offset per batch element": lambda: {"query_offset": [0, 3]},
    "random blocks": lambda: {"mask": mask.random_blocks(2, 1)},
}


@pytest.mark.parametrize("name", CHOICES)
def test_equal_calls_have_equal_specs(name: str) -> None:
    one, other = (spec(*tensors(2, 4, 5, 8), **CHOICES[name]()) for _ in range(2))
    assert one == other and hash(one) == hash(other)


def test_different_calls_have_different_specs() -> None:
    parsed_spec = {name: spec(*tensors(2, 4, 5, 8), **make()) for name, make in CHOICES.items()}
    for one, a in parsed_spec.items():
        for other, b in parsed_spec.items():
            assert (one == other) == (a == b), (one, other)


def test_other_shapes_and_dtypes_have_other_specs() -> None:
    specs = [
        spec(*tensors(2, 4, 5, 8)),
        spec(*tensors(2, 4, 5, 8, dtype=torch.bfloat16)),
        spec(*tensors(1, 4, 5, 8)),
        spec(*tensors(2, 2, 5, 8)),
        spec(*tensors(2, 4, 6, 8)),
        spec(*tensors(2, 4, 5, 9)),
    ]
    assert len(set(specs)) == len(specs)
    assert spec((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)) == spec(
        *tensors(2, 4, 5, 8)
    )  # shapes mean float32 on the CPU


def test_values_of_captured_tensors_are_not_part_of_the_spec() -> None:
    """A plan is reused although the padding differs from call to call."""
    one, other = (spec(*tensors(2, 4, 5, 8), mask=mask.padding(n)) for n in ([1, 2], [4, 5]))
    assert one == other


def test_spec_holds_no_tensors() -> None:
    parsed_spec = spec(*tensors(2, 4, 5, 8), mask=mask.padding([1, 2]), score=score.bias(torch.zeros(5, 5)))
    assert not any(isinstance(x, Tensor) for x in vars(parsed_spec).values())
    assert parsed_spec.captured_specs == (((5, 5), torch.float32), ((2,), torch.int64))
    with pytest.raises(AttributeError):
        parsed_spec.num_heads = 3  # type: ignore[misc]


@pytest.mark.parametrize("query_offset, expected", [(None, 2), (0, 0), (7, 7), (-3, -3), (np.int64(4), 4)])
def test_query_offset_defaults_to_the_end_of_the_keys(query_offset: Any, expected: int) -> None:
    call = parse_call(AttentionCall(torch.zeros(5, 8), torch.zeros(7, 8), torch.zeros(7, 8), query_offset=query_offset))
    assert call.query_offset == call.spec.query_offset == expected


@pytest.mark.parametrize(
    "query_offset", [[1, 2, 3], torch.tensor([1, 2, 3]), np.array([1, 2, 3])], ids=["list", "tensor", "array"]
)
def test_query_offset_may_differ_by_batch_element(query_offset: Any) -> None:
    call = parse_call(AttentionCall(*tensors(3, 5, 8), query_offset=query_offset))
    assert call.spec.query_offset is None and torch.as_tensor(call.query_offset).tolist() == [1, 2, 3]


def test_single_query_offset_in_a_tensor_is_expanded() -> None:
    call = parse_call(AttentionCall(*tensors(3, 5, 8), query_offset=torch.tensor([4])))
    assert torch.as_tensor(call.query_offset).tolist() == [4, 4, 4]
    assert torch.as_tensor(
        parse_call(AttentionCall(*tensors(3, 5, 8), query_offset=torch.tensor(4))).query_offset
    ).tolist() == [
        4,
        4,
        4,
    ]


def test_score_modifier_and_mask_share_one_list_of_tensors() -> None:
    shared = torch.rand(5)
    call = parse_call(
        AttentionCall(
            *tensors(5, 8),
            score=score.modifier(lambda s, b, h, i, j: s + shared[j]),
            mask=lambda b, h, i, j: (shared[i] > 0.1) | (j <= i),
        )
    )
    assert len(call.prepare_inputs().tensors) == 1 and call.prepare_inputs().tensors[0] is shared


def test_score_modifier_of_the_normalizer_is_applied_last() -> None:
    parsed_spec = parse_call(
        AttentionCall(*tensors(1, 1, 5, 4), score=score.softcap(2.0), normalizer=normalizer.sigmoid(-1.0))
    ).spec
    assert parsed_spec.formula == "o = sigmoid(2.0 * tanh(s / 2.0) - 1.0 with s = q·k / √d) v"
    assert parsed_spec.normalizer == Sigmoid()


def test_formula_describes_the_call_in_one_line() -> None:
    q, k, v = tensors(2, 4, 5, 8)
    assert spec(q, k, v).formula == "o = softmax(q·k / √d) v"
    parsed_spec = spec(q, k, v, score=score.alibi(), mask=mask.causal())
    assert parsed_spec.formula == "o = softmax(s - slopes[h] * |p - j| with s = q·k / √d, masked by j <= p) v"


def test_formula_names_entmax_without_its_factor_of_the_scores() -> None:
    q, k, v = tensors(1, 2, 5, 4)
    options = {"score": score.alibi(), "mask": mask.causal()}
    for alpha, name in ((1.3, "1.3-entmax"), (torch.tensor([1.2, 1.7]), "entmax")):
        assert spec(q, k, v, normalizer=normalizer.entmax(alpha)).formula == f"o = {name}(q·k / √d) v"
        parsed_spec = spec(q, k, v, normalizer=normalizer.entmax(alpha), **options)
        assert parsed_spec.formula == f"o = {name}(s - slopes[h] * |p - j| with s = q·k / √d, masked by j <= p) v"


def test_all_tensors_of_a_call_can_be_replaced() -> None:
    inputs = parse_call(
        AttentionCall(
            *tensors(1, 1, 5, 4),
            score=score.additive(torch.ones(4, 6), torch.ones(4, 6), torch.ones(6)).then(score.bias(torch.zeros(5, 5))),
            mask=torch.ones(5, 5, dtype=torch.bool),
        )
    ).prepare_inputs()
    specs = inputs.all_tensors()
    assert len(specs) == 3 + 2 + 1
    moved = inputs.with_tensors([x.clone() for x in specs])
    assert all(torch.equal(a, b) and a is not b for a, b in zip(specs, moved.all_tensors(), strict=True))
    assert len(moved.tensors) == 2 and len(moved.parameters) == 1


def test_inputs_detached_require_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(5, 4))
    assert not any(
        x.requires_grad for x in parse_call(AttentionCall(q, k, v)).prepare_inputs().detached().all_tensors()
    )
    assert all(x.requires_grad for x in parse_call(AttentionCall(q, k, v)).prepare_inputs().all_tensors())


def test_captured_tensors_are_known_for_shapes_alone() -> None:
    call = parse_call(
        AttentionCall((4, 6), (4, 6), (4, 6), score=score.shaw_keys(torch.zeros(3, 6)), mask=mask.random_blocks(2, 1))
    )
    captured = call.captured_tensors()
    assert len(captured) == 2 and captured[1].shape == (2, 2)


def test_value_function_may_change_the_value_dim() -> None:
    q, k, v = tensors(2, 4, 5, 8)
    call = parse_call(AttentionCall(q, k, v, value=lambda x: x[..., :3] * 2))
    assert call.spec.value_dim == 3 and torch.equal(call.v, v[..., :3] * 2)
    assert (
        parse_call(AttentionCall((4, 6), (4, 6), (4, 6), value=lambda x: x[..., :3])).spec.value_dim == 6
    )  # not called for shapes


def test_mixed_dtypes_are_promoted_under_autocast() -> None:
    q, k, v = tensors(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert spec(q.bfloat16(), k, v).dtype == torch.float32


def test_seed_is_drawn_from_torch_only_with_dropout() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    q, k, v = (torch.zeros(5, 8) for _ in range(3))
    assert parse_call(AttentionCall(q, k, v)).seed == 0 and torch.equal(torch.get_rng_state(), before)
    first, second = (
        parse_call(AttentionCall(q, k, v, dropout=0.1)).seed,
        parse_call(AttentionCall(q, k, v, dropout=0.1)).seed,
    )
    assert first != second
    torch.manual_seed(0)
    assert parse_call(AttentionCall(q, k, v, dropout=0.1)).seed == first
    assert parse_call(AttentionCall(q, k, v, dropout=0.1, seed=17)).seed == 17


def zeros(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(s, dtype=dtype) for s in shapes]


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "integers": (
        lambda: parse_call(AttentionCall(torch.ones(5, 8, dtype=torch.int64), *zeros((5, 8), (5, 8)))),
        (
            r"q must have dtype float64, float32, bfloat16 or float16; got torch\.int64\. Convert it first, for "
            r"example with q\.float\(\)\."
        ),
    ),
    "complex numbers": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8)), torch.ones(5, 8, dtype=torch.complex64))),
        r"v must have dtype float64, .*; got torch\.complex64",
    ),
    "one dimension": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (8,), (5, 8)))),
        (
            r"k must have at least 2 dimensions, \(length, head_dim\); got shape \(8,\)\. "
            r"Use k\[None\] for a single vector\."
        ),
    ),
    "dtypes": (
        lambda: parse_call(AttentionCall(torch.zeros(5, 8), torch.zeros(5, 8).double(), torch.zeros(5, 8).half())),
        r"q, k and v must have the same dtype; got q=torch\.float32, k=torch\.float64, v=torch\.float16\.",
    ),
    "devices": (
        lambda: parse_call(AttentionCall(torch.zeros(5, 8), torch.zeros(5, 8), torch.empty(5, 8, device="meta"))),
        r"q, k and v must be on the same device; got q on cpu, k on cpu, v on meta\. Move them with \.to\(device\)\.",
    ),
    "numbers of dimensions": (
        lambda: parse_call(AttentionCall(*zeros((2, 5, 8), (5, 8), (5, 8)))),
        r"q, k and v must have the same number of dimensions; got q=\(2, 5, 8\), k=\(5, 8\), v=\(5, 8\)\.",
    ),
    "lengths": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (6, 8), (7, 8)))),
        r"k and v must have the same length; got k=6, v=7 \(q=\(5, 8\), k=\(6, 8\), v=\(7, 8\)\)\.",
    ),
    "no head dimension": (
        lambda: parse_call(AttentionCall(*zeros((5, 0), (6, 0), (6, 8)))),
        r"q and k must have a head dimension of at least 1; got q=\(5, 0\), k=\(6, 0\), v=\(6, 8\)\.",
    ),
    "head dimensions": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (6, 7), (6, 8)))),
        r"q and k must have the same head dimension; got q=8, k=7\.",
    ),
    "heads of keys and values": (
        lambda: parse_call(AttentionCall(*zeros((1, 4, 5, 8), (1, 2, 5, 8), (1, 4, 5, 8)))),
        r"which must divide that of q; got q=4, k=2, v=4 heads \(q=\(1, 4, 5, 8\)",
    ),
    "heads that do not divide": (
        lambda: parse_call(AttentionCall(*zeros((1, 4, 5, 8), (1, 3, 5, 8), (1, 3, 5, 8)))),
        r"which must divide that of q; got q=4, k=3, v=3 heads",
    ),
    "fewer heads of queries": (
        lambda: parse_call(AttentionCall(*zeros((1, 2, 5, 8), (1, 4, 5, 8), (1, 4, 5, 8)))),
        r"which must divide that of q; got q=2, k=4, v=4 heads",
    ),
    "no heads of keys": (
        lambda: parse_call(AttentionCall(*zeros((1, 2, 5, 8), (1, 0, 5, 8), (1, 0, 5, 8)))),
        r"which must divide that of q; got q=2, k=0, v=0 heads",
    ),
    "batches": (
        lambda: parse_call(AttentionCall(*zeros((2, 5, 8), (3, 5, 8), (3, 5, 8)))),
        r"the batch dimensions of q, k and v must be equal or 1; got q=\(2, 5, 8\), k=\(3, 5, 8\), v=\(3, 5, 8\)\.",
    ),
    "fractional query offset": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), query_offset=1.5)),
        r"query_offset must be an integer, or one for each of 1 batch elements; got torch\.float32 of shape \(\)\.",
    ),
    "boolean query offset": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), query_offset=[True])),
        r"query_offset must be an integer, or one for each of 1 batch elements; got torch\.bool of shape \(1,\)\.",
    ),
    "query offsets for another batch size": (
        lambda: parse_call(AttentionCall(*zeros((2, 5, 8), (2, 5, 8), (2, 5, 8)), query_offset=[1, 2, 3])),
        r"query_offset must be .* for each of 2 batch elements; got torch\.int64 of shape \(3,\)\.",
    ),
    "query offsets of two dimensions": (
        lambda: parse_call(AttentionCall(*zeros((2, 5, 8), (2, 5, 8), (2, 5, 8)), query_offset=[[1], [2]])),
        r"for each of 2 batch elements; got torch\.int64 of shape \(2, 1\)\.",
    ),
    "dropout of one": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), dropout=1.0)),
        r"dropout must be a number at least 0 and less than 1; got 1\.0\.",
    ),
    "negative dropout": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), dropout=-0.1)),
        r"dropout must be a number at least 0 and less than 1; got -0\.1\.",
    ),
    "dropout of NaN": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), dropout=float("nan"))),
        r"dropout must be a number at least 0 and less than 1; got nan\.",
    ),
    "a value that is not a function": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), value=3)),
        r"value must be a function \(v\); got 3\.",
    ),
    "a value that loses a dimension": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), value=lambda v: v.sum(0))),
        r"value must keep all dimensions of v but the last, \(5,\); got \(8,\)\.",
    ),
    "a value that returns no tensor": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), value=lambda v: None)),
        r"value must keep all dimensions of v but the last, \(5,\); got NoneType\.",
    ),
    "a mask for other lengths": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (6, 8), (6, 8)), mask=torch.ones(5, 7, dtype=torch.bool))),
        r"a mask tensor must broadcast to \(batch, heads, n_q, n_k\) = \(1, 1, 5, 6\); got shape \(5, 7\)",
    ),
    "a mask that is a string": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), mask="causal")),
        r"mask must be a mask, a boolean tensor or a function \(b, h, i, j\); got str\.",
    ),
    "a bias for other lengths": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (6, 8), (6, 8)), score=torch.ones(6, 5))),
        r"a bias tensor must broadcast to .* = \(1, 1, 5, 6\); got shape \(6, 5\)",
    ),
    "a sink for other heads": (
        lambda: parse_call(AttentionCall(*zeros(*[(1, 3, 5, 8)] * 3), normalizer=normalizer.sink(torch.zeros(2)))),
        r"sink logits must have one entry for each of 3 heads; got 2 \(shape \(2,\)\)\.",
    ),
    "relative values of another head dimension": (
        lambda: parse_call(AttentionCall(*zeros((5, 8), (5, 8), (5, 8)), value=score.shaw_values(torch.zeros(3, 7)))),
        r"the table of shaw_values must have the head dimension of v; got table=7, v=8\.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_call_raises_error_with_its_values(name: str) -> None:
    make, message = ERRORS[name]
    with pytest.raises(ArgumentError, match=message):
        make()


def test_function_is_traced_in_each_call() -> None:
    q = torch.zeros(1, 1, 4, 2)
    reach = [2]
    is_near = lambda b, h, i, j: i - j < reach[0]

    before = parse_call(AttentionCall(q, q, q, mask=is_near)).spec.mask
    reach[0] = 3

    assert parse_call(AttentionCall(q, q, q, mask=is_near)).spec.mask is not before


def test_parsed_options_are_cached_by_shape_and_options() -> None:
    option = mask.causal() & mask.sliding_window(3)
    q, longer = torch.zeros(1, 2, 4, 2), torch.zeros(1, 2, 5, 2)

    assert (
        parse_call(AttentionCall(q, q, q, mask=option)).spec is parse_call(AttentionCall(q + 1, q, q, mask=option)).spec
    )
    assert parse_call(AttentionCall(longer, longer, longer, mask=option)).spec.n_q == 5
    assert parse_call(AttentionCall(q, longer, longer, mask=option)).query_offset == 1
    assert parse_call(AttentionCall(q.double(), q.double(), q.double(), mask=option)).spec.dtype == torch.float64
    assert parse_call(AttentionCall(q, q, q, mask=option, dropout=0.5)).spec.dropout == 0.5
    assert parse_call(AttentionCall(q, q, q, mask=option, query_offset=1)).query_offset == 1
    assert parse_call(AttentionCall(q, q, q, mask=option, score=score.softcap(2.0))).spec.score_mod is not None


def test_large_captured_tensor_is_not_kept_alive() -> None:
    q = torch.zeros(1, 1, 1100, 2)
    visible = torch.ones(1100, 1100, dtype=torch.bool)
    gone = weakref.ref(visible)
    option = mask.tensor(visible)
    parse_call(AttentionCall(q, q, q, mask=option))

    del visible, option

    assert gone() is None
