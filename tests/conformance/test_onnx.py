"""The ONNX test cases of Attention, RotaryEmbedding, Softmax and LogSoftmax, and the ONNX evaluator."""

import functools
import importlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node
import onnx.helper
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import regard
from regard import score
from regard.errors import ArgumentError
from regard.integrations.onnx.attention_operators import attention, rotary_embedding

every_backend = pytest.mark.parametrize("backend", regard.available_backends())

# Names are listed so that collection builds no cases; a test compares them with those of ONNX.
_ATTENTION = """
    4d 4d_fp16 4d_gqa 4d_diff_heads_sizes 4d_scaled 4d_gqa_scaled 4d_diff_heads_sizes_scaled 4d_causal
    4d_gqa_causal 4d_diff_heads_sizes_causal 4d_attn_mask 4d_attn_mask_3d 4d_attn_mask_3d_causal
    4d_attn_mask_4d 4d_attn_mask_4d_causal 4d_attn_mask_bool 4d_attn_mask_bool_4d 4d_gqa_attn_mask
    4d_diff_heads_sizes_attn_mask 4d_with_past_and_present 4d_gqa_with_past_and_present
    4d_gqa_with_past_and_present_fp16 4d_diff_heads_with_past_and_present
    4d_diff_heads_with_past_and_present_mask3d 4d_diff_heads_with_past_and_present_mask4d 4d_softcap
    4d_gqa_softcap 4d_diff_heads_sizes_softcap 4d_with_qk_matmul 4d_with_qk_matmul_bias
    4d_with_qk_matmul_softcap 4d_with_qk_matmul_softmax 4d_with_past_and_present_qk_matmul_bias
    4d_with_past_and_present_qk_matmul_bias_3d_mask 4d_with_past_and_present_qk_matmul_bias_4d_mask
    4d_with_past_and_present_qk_matmul_bias_3d_mask_causal
    4d_with_past_and_present_qk_matmul_bias_4d_mask_causal 4d_with_past_and_present_qk_matmul 3d 3d_gqa
    3d_diff_heads_sizes 3d_scaled 3d_gqa_scaled 3d_diff_heads_sizes_scaled 3d_causal 3d_gqa_causal
    3d_diff_heads_sizes_causal 3d_attn_mask 3d_gqa_attn_mask 3d_diff_heads_sizes_attn_mask 3d_softcap
    3d_gqa_softcap 3d_diff_heads_sizes_softcap 3d_with_past_and_present 3d_gqa_with_past_and_present
    3d_diff_heads_with_past_and_present 3d_with_past_and_present_qk_matmul
    3d_with_past_and_present_qk_matmul_bias 3d_with_past_and_present_qk_matmul_softcap
    3d_with_past_and_present_qk_matmul_softmax 3d_transpose_verification 4d_diff_heads_mask4d_padded_kv
    4d_causal_bf16 4d_causal_fp16 4d_padded_kv_bf16 4d_causal_padded_kv_bf16 4d_attn_mask_causal_bf16
    3d_causal_bf16 4d_softcap_neginf_mask 4d_softcap_neginf_mask_poison 4d_gqa_causal_nonpad_decode
    4d_gqa_causal_nonpad_decode_fp16 4d_causal_nonpad_continued_prefill 4d_causal_with_past_and_present
    causal_boolmask_nan_robustness 23_boolmask_fullymasked_row_nan_robustness
    4d_causal_nonpad_negative_offset_structural_empty 23_fullymasked_qk_matmul_output_mode3_zero
    24_fullymasked_qk_matmul_output_mode3_zero 24_qk_matmul_output_mode3_softmax_precision
    4d_causal_nonpad_attn_mask_composition 4d_causal_nonpad_batch_prefill local_window
    bidirectional_window local_window_default local_window_rank1_boolean_mask local_window_with_past
    local_window_ext_cache_rank3_head_mask local_window_ext_cache_rank4_batch_mask
    local_window_ext_cache_rank2_mask local_window_ext_cache_float16_mask 3d_local_window
    local_window_gqa_rank4_mask
"""
_ROTARY = """
    rotary_embedding rotary_embedding_3d_input rotary_embedding_interleaved rotary_embedding_with_rotary_dim
    rotary_embedding_with_interleaved_rotary_dim rotary_embedding_no_position_ids
    rotary_embedding_no_position_ids_interleaved rotary_embedding_no_position_ids_rotary_dim
"""
ATTENTION, ROTARY = _ATTENTION.split(), _ROTARY.split()
SOFTMAX = ["example", "large_number", "axis_0", "axis_1", "axis_2", "negative_axis", "default_axis"]
LOGSOFTMAX = ["example_1", *SOFTMAX[1:]]


@functools.cache
def cases() -> dict[str, Any]:
    """Return the ONNX cases by name, without those that expand an operator into smaller ones.

    Importing a module builds its cases, so only the needed modules are imported.
    """
    for module in ("attention", "rotaryembedding", "softmax", "logsoftmax"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    all_cases = onnx.backend.test.case.node._NodeTestCases
    op_types = ("Attention", "RotaryEmbedding", "Softmax", "LogSoftmax")
    return {
        case.name.removeprefix("test_"): case
        for case in all_cases
        if "_expanded" not in case.name and case.model.graph.node[0].op_type in op_types
    }


def run_case(case: Any, function: Callable[..., Any], **options: Any) -> list[Any]:
    """Return the outputs of the function that the node of the case lists."""
    node = case.model.graph.node[0]
    arrays = iter(case.data_sets[0][0])
    inputs = [next(arrays) if name else None for name in node.input]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    outputs = function(*inputs, **attributes, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output for name, output in zip(node.output, outputs, strict=False) if name]


def assert_as_expected(case: Any, outputs: Sequence[np.ndarray], backend: str = "") -> None:
    """Compare with the tolerances of the ONNX test runner, and two units in the last place of bfloat16.

    The flex backend gets two units of float16 too, because FlexAttention rounds weights to the dtype of the values.
    """
    last_places = {"bfloat16": 2**-6} | ({"float16": 2**-9} if backend == "flex" else {})
    expected = case.data_sets[0][1]
    assert len(outputs) == len(expected)
    for output, expected_output in zip(outputs, expected, strict=True):
        assert isinstance(output, np.ndarray)
        assert (output.dtype, output.shape) == (expected_output.dtype, expected_output.shape)
        tolerance = max(case.rtol, last_places.get(expected_output.dtype.name, 0.0))
        np.testing.assert_allclose(
            output.astype(np.float64), expected_output.astype(np.float64), rtol=tolerance, atol=case.atol
        )


# Attention: the ONNX cases


def test_all_93_attention_cases_are_listed() -> None:
    attention_cases = {n: c for n, c in cases().items() if c.model.graph.node[0].op_type == "Attention"}
    assert len(attention_cases) == len(ATTENTION) == 93
    assert set(attention_cases) == {f"attention_{name}" for name in ATTENTION}
    opsets = Counter(case.model.opset_import[0].version for case in attention_cases.values())
    assert opsets == {23: 69, 24: 13, 25: 11}


@every_backend
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_cases(name: str, backend: str) -> None:
    case = cases()[f"attention_{name}"]
    assert_as_expected(case, run_case(case, attention, backend=backend), backend)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_cases_with_tensors_return_tensors(name: str) -> None:
    case = cases()[f"attention_{name}"]

    def with_tensors(*inputs: np.ndarray | None, **attributes: Any) -> Any:
        return attention(*(None if x is None else to_tensor(x) for x in inputs), **attributes)

    arrays, tensors = run_case(case, attention), run_case(case, with_tensors)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(tensor, to_tensor(array))


def to_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array.copy())


@pytest.mark.parametrize(
    ("dropped", "num_failures"),
    [
        (("attn_mask",), 48),
        (("is_causal",), 28),
        (("past_key", "past_value"), 21),
        (("softcap",), 11),
        (("left_window_size", "right_window_size"), 9),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_cases_fail_without_an_argument(dropped: tuple[str, ...], num_failures: int) -> None:
    inputs = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")

    def without_arguments(*tensors: np.ndarray | None, **attributes: Any) -> Any:
        arguments = {**dict(zip(inputs, tensors, strict=False)), **attributes}
        return attention(**{name: value for name, value in arguments.items() if name not in dropped})

    def passes(case: Any) -> bool:
        try:
            assert_as_expected(case, run_case(case, without_arguments))
        except (AssertionError, ArgumentError):
            return False
        return True

    assert sum(not passes(cases()[f"attention_{name}"]) for name in ATTENTION) == num_failures


# Attention: the ONNX evaluator on combinations that the cases do not cover


def evaluate(opset: int, inputs: Sequence[np.ndarray | None], attributes: dict[str, Any]) -> list[np.ndarray]:
    names = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    present = [name if value is not None else "" for name, value in zip(names, inputs, strict=False)]
    outputs = ["Y", "present_key", "present_value", "qk_matmul_output"]
    node = onnx.helper.make_node("Attention", present, outputs, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in zip(names, inputs, strict=False)
            if value is not None
        ],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    feeds = {name: value for name, value in zip(names, inputs, strict=False) if value is not None}
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, feeds))


def with_all_rows(inputs: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Return the inputs with one row of the mask per query, as the causal evaluator requires."""
    q, k, v, mask, *cache = inputs
    if mask is not None:
        mask = np.broadcast_to(mask, (*mask.shape[:-2], q.shape[-2], mask.shape[-1])).copy()
    return [q, k, v, mask, *cache]


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """Generate the inputs and attributes of an Attention node of opset 25."""
    size = st.integers(1, 3)
    batch, num_kv_heads, groups, head_dim, value_dim = (draw(size) for _ in range(5))
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    past = draw(st.sampled_from([None, None, 1, 4]))
    heads, total = num_kv_heads * groups, keys + (past or 0)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = rng.standard_normal((batch, heads, queries, head_dim))
    k = rng.standard_normal((batch, num_kv_heads, keys, head_dim))
    v = rng.standard_normal((batch, num_kv_heads, keys, value_dim))
    attributes: dict[str, Any] = {
        "is_causal": draw(st.integers(0, 1)),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
        "left_window_size": draw(st.integers(-1, 4)),
        "right_window_size": draw(st.integers(-1, 4)),
    }
    if draw(st.booleans()):
        # the evaluator takes its square root in float32, which is exact for these values
        attributes["scale"] = draw(st.sampled_from([0.0625, 1.0, 2.25]))
    if attributes["qk_matmul_output_mode"] > 0:
        # in mode 0 the evaluator returns softcapped scores, in contradiction to the specification
        attributes["softcap"] = draw(st.sampled_from([0.0, 0.5, 3.0]))
    cache: list[np.ndarray | None] = [None, None, None]
    if past is not None:
        cache[0] = rng.standard_normal((batch, num_kv_heads, past, head_dim))
        cache[1] = rng.standard_normal((batch, num_kv_heads, past, value_dim))
    elif draw(st.booleans()):
        cache[2] = rng.integers(0, keys + 1, batch)
    if draw(st.booleans()):
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1) for x in (q, k, v))
        attributes |= {"q_num_heads": heads, "kv_num_heads": num_kv_heads}
    mask = None
    if draw(st.booleans()):
        shape = [batch, heads, queries, total]
        shape = [n if draw(st.booleans()) else 1 for n in shape[:-1]] + shape[-1:]
        shape = shape[draw(st.integers(0, 3)) :]
        if cache[2] is not None:
            shape[-1] = draw(st.integers(max(1, int(cache[2].max())), total))
        mask = rng.standard_normal(shape)
        kind = draw(st.sampled_from(["bool", "float", "holes"]))
        if kind == "bool":
            mask = mask > -0.5
        elif kind == "holes":
            mask[rng.standard_normal(shape) > 0.5] = -np.inf
    return [q, k, v, mask, *cache], attributes


@every_backend
@given(node=nodes())
def test_attention_nodes_equal_the_onnx_evaluator(
    backend: str, node: tuple[list[np.ndarray | None], dict[str, Any]]
) -> None:
    inputs, attributes = node
    expected = evaluate(25, with_all_rows(inputs), attributes)
    outputs = attention(*inputs, **attributes, backend=backend)
    for output, expected_output in zip(outputs, expected, strict=True):
        # both sides are float64 sums of at most a dozen terms
        np.testing.assert_allclose(output, expected_output, rtol=1e-9, atol=1e-12)


# Attention: parts of the specification that neither the cases nor the evaluator cover


def example(seed: int = 0, dtype: type = np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, 3, length, 4)).astype(dtype) for length in (5, 7, 7)]


@every_backend
def test_mode_0_returns_the_scores_before_softcap(backend: str) -> None:
    q, k, v = example()
    scores = attention(q, k, v, softcap=0.5, backend=backend).qk_matmul_output
    np.testing.assert_allclose(scores, q @ k.swapaxes(-1, -2) / 2, rtol=1e-12)


def test_no_scores_are_returned_without_a_mode() -> None:
    assert attention(*example(), qk_matmul_output_mode=None).qk_matmul_output is None


@every_backend
def test_mode_2_returns_minus_infinity_for_hidden_keys_only(backend: str) -> None:
    q, k, v = example()
    q, k = 100 * q, 100 * k  # most weights underflow to 0 without being hidden
    lengths = np.array([7, 3])
    scores = attention(
        q, k, v, None, None, None, lengths, is_causal=1, qk_matmul_output_mode=2, backend=backend
    ).qk_matmul_output
    i, j = np.arange(5)[:, None], np.arange(7)
    for batch, length in enumerate(lengths):
        assert np.array_equal(np.isneginf(scores[batch, 0]), (j > i + length - 5) | (j >= length))


@every_backend
def test_integers_in_a_mask_are_added(backend: str) -> None:
    q, k, v = example()
    mask = np.random.default_rng(1).integers(-3, 3, (5, 7))
    with_integers, with_floats = (attention(q, k, v, m, backend=backend).Y for m in (mask, mask.astype(np.float64)))
    assert np.array_equal(with_integers, with_floats)
    assert not np.allclose(with_integers, attention(q, k, v, mask != 0, backend=backend).Y)


@every_backend
def test_a_mask_of_one_column_hides_all_other_keys(backend: str) -> None:
    q, k, v = example()
    y = attention(q, k, v, np.ones((5, 1), dtype=bool), backend=backend).Y
    np.testing.assert_allclose(y, np.broadcast_to(v[:, :, :1], y.shape), rtol=1e-12)


@every_backend
def test_output_has_the_dtype_of_the_queries(backend: str) -> None:
    q, k, v = example()
    outputs = attention(q.astype(np.float16), k.astype(np.float16), v, backend=backend)
    assert [x.dtype for x in outputs] == [np.float16, np.float16, np.float64, np.float16]
    np.testing.assert_allclose(outputs.Y, attention(q, k, v, backend=backend).Y, rtol=0.02, atol=0.01)


@every_backend
def test_softmax_precision_double_is_exact(backend: str) -> None:
    q, k, v = example(dtype=np.float32)
    q = q * 40  # scores of about 100, which float32 rounds to 1e-5
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)), backend=backend).Y
    double = attention(q, k, v, softmax_precision=11, backend=backend).Y
    assert double.dtype == np.float32
    assert np.array_equal(double, exact.astype(np.float32))


def test_read_only_arrays() -> None:
    arrays = example()
    expected = attention(*arrays).Y
    for array in arrays:
        array.flags.writeable = False
    assert np.array_equal(attention(*arrays).Y, expected)
    assert np.array_equal(attention(*(x[:, ::-1] for x in arrays)).Y, expected[:, ::-1])


@every_backend
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_gradients_reach_every_input(mode: int, backend: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [(1, 4, 3, 2), (1, 2, 4, 2), (1, 2, 4, 3), (3, 6), (1, 2, 2, 2), (1, 2, 2, 3)]
    inputs = [torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes]

    def outputs_of(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = attention(*tensors, softcap=2.0, qk_matmul_output_mode=mode, backend=backend)
        return outputs.Y, outputs.qk_matmul_output

    assert torch.autograd.gradcheck(outputs_of, inputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Q": np.zeros((5, 4))}, r"all have 3 dimensions, or all 4; got 2, 4 and 4"),
        ({"qk_matmul_output_mode": 4}, r"qk_matmul_output_mode must be 0, 1, 2, 3 or None; got 4"),
        ({"softmax_precision": 7}, r"softmax_precision must be 1, 10, 11 or 16; got 7"),
        ({"softcap": -1.5}, r"softcap must be 0 or more; got -1.5"),
        ({"left_window_size": -2}, r"left_window_size must be -1 or more; got -2"),
        ({"right_window_size": -3}, r"right_window_size must be -1 or more; got -3"),
        ({"q_num_heads": 4}, r"q_num_heads must match .* got 4 and 3"),
        ({"kv_num_heads": 2}, r"kv_num_heads must match .* got 2 and 3"),
        ({"past_key": np.zeros((2, 3, 1, 4))}, r"got only past_key. Pass past_value too"),
        ({"past_value": np.zeros((2, 3, 1, 4))}, r"got only past_value. Pass past_key too"),
        (
            {
                "past_key": np.zeros((2, 3, 1, 4)),
                "past_value": np.zeros((2, 3, 1, 4)),
                "nonpad_kv_seqlen": np.array([1, 2]),
            },
            r"nonpad_kv_seqlen and past_key must not be passed together",
        ),
        ({"nonpad_kv_seqlen": np.array([1, -2])}, r"nonpad_kv_seqlen must not be negative; got \[1, -2\]"),
        (
            {"past_key": np.zeros((2, 3, 1, 5)), "past_value": np.zeros((2, 3, 1, 4))},
            r"past_key must have shape \(2, 3, past, 4\).* got \(2, 3, 1, 5\)",
        ),
        (
            {"past_key": np.zeros((2, 3, 1, 4)), "past_value": np.zeros((2, 3, 4))},
            r"past_value must have shape \(2, 3, past, 4\).* got \(2, 3, 4\)",
        ),
        ({"attn_mask": np.zeros((5, 8))}, r"at most one column per key.* got 8 columns and 7 keys"),
        ({"attn_mask": np.zeros((1, 1, 1, 5, 7))}, r"attn_mask must have 1 to 4 dimensions; got 5"),
    ],
)
def test_invalid_nodes_raise(changes: dict[str, Any], message: str) -> None:
    arguments = dict(zip("QKV", example(), strict=True)) | changes
    with pytest.raises(ArgumentError, match=message):
        attention(**arguments)


def test_num_heads_must_divide_the_last_dimension_of_3d_inputs() -> None:
    q, k, v = (np.zeros((2, 5, 12)) for _ in range(3))
    with pytest.raises(ArgumentError, match=r"q_num_heads must divide the last dimension of a 3-D Q; got None and 12"):
        attention(q, k, v)
    with pytest.raises(ArgumentError, match=r"kv_num_heads must divide the last dimension of a 3-D K; got 5 and 12"):
        attention(q, k, v, q_num_heads=3, kv_num_heads=5)


# RotaryEmbedding


def test_all_8_rotary_cases_are_listed() -> None:
    assert len(ROTARY) == 8
    assert set(ROTARY) == {n for n, c in cases().items() if c.model.graph.node[0].op_type == "RotaryEmbedding"}


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_cases(name: str) -> None:
    case = cases()[name]
    assert_as_expected(case, run_case(case, rotary_embedding))


@pytest.mark.parametrize(("layout", "interleaved"), [("half", 0), ("interleaved", 1)])
def test_score_rotary_equals_onnx_with_the_usual_angles(layout: str, interleaved: int) -> None:
    q, k, _ = (torch.from_numpy(x) for x in example())
    k = k[:, :, : q.shape[2]]
    positions = torch.tensor([0, 3, 4, 100, 7])
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, 4, 2, dtype=torch.float64) / 4)
    angles = angles.expand(2, -1, -1)
    rotated = score.rotary(q, k, positions, layout=layout)
    for output, x in zip(rotated, (q, k), strict=True):
        expected_output = rotary_embedding(x, angles.cos(), angles.sin(), interleaved=interleaved)
        torch.testing.assert_close(output, expected_output, rtol=1e-9, atol=1e-12)


def test_invalid_rotary_caches_raise() -> None:
    x, cache = np.zeros((1, 2, 3, 8)), np.zeros((1, 3, 3))
    with pytest.raises(ArgumentError, match=r"each pair of the 8 rotated coordinates; got 3 and 3"):
        rotary_embedding(x, cache, cache)
    with pytest.raises(ArgumentError, match=r"num_heads must divide the last dimension of a 3-D X; got None and 8"):
        rotary_embedding(x[0], cache, cache)
    with pytest.raises(ArgumentError, match=r"X must have 3 or 4 dimensions; got 2"):
        rotary_embedding(x[0, 0], cache, cache)


# Softmax and LogSoftmax: attention with x as bias and unit vectors as values


def softmax_attention(x: np.ndarray, axis: int, backend: str) -> tuple[Any, Callable[[torch.Tensor], np.ndarray]]:
    """Return attention with x as scores along an axis, and a function that restores the shape of x."""
    rows = np.moveaxis(x, axis, -1)
    keys = rows.shape[-1]
    scores = torch.from_numpy(np.ascontiguousarray(rows)).reshape(1, 1, -1, keys)
    q, k = torch.zeros(1, 1, scores.shape[2], 1), torch.zeros(1, 1, keys, 1)
    v = torch.eye(keys).reshape(1, 1, keys, keys)

    def restore_shape(rows_tensor: torch.Tensor) -> np.ndarray:
        return np.moveaxis(rows_tensor.reshape(rows.shape).numpy(), -1, axis)

    return regard.attention_with_weights(q, k, v, score=score.bias(scores), backend=backend), restore_shape


@every_backend
@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax_cases(name: str, backend: str) -> None:
    case = cases()[f"softmax_{name}"]

    def by_output(x: np.ndarray, axis: int = -1) -> np.ndarray:
        result, restore_shape = softmax_attention(x, axis, backend)
        return restore_shape(result.output)

    def by_weights(x: np.ndarray, axis: int = -1) -> np.ndarray:
        result, restore_shape = softmax_attention(x, axis, backend)
        return restore_shape(result.weights.to_dense())

    assert_as_expected(case, run_case(case, by_output))
    assert_as_expected(case, run_case(case, by_weights))


@every_backend
@pytest.mark.parametrize("name", LOGSOFTMAX)
def test_logsoftmax_cases(name: str, backend: str) -> None:
    case = cases()[f"logsoftmax_{name}"]

    def by_row_statistic(x: np.ndarray, axis: int = -1) -> np.ndarray:
        result, restore_shape = softmax_attention(x, axis, backend)
        return x - restore_shape(result.lse.unsqueeze(-1).expand_as(result.output))

    assert_as_expected(case, run_case(case, by_row_statistic))


def test_all_softmax_and_logsoftmax_cases_are_listed() -> None:
    listed = {f"softmax_{n}" for n in SOFTMAX} | {f"logsoftmax_{n}" for n in LOGSOFTMAX}
    assert listed == {n for n, c in cases().items() if c.model.graph.node[0].op_type in ("Softmax", "LogSoftmax")}
