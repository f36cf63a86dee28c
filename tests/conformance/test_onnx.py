"""ONNX's own cases for Attention, RotaryEmbedding, Softmax and LogSoftmax, and its evaluator as a witness."""

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
from regard.errors import SpecError
from regard.integrations.onnx import attention, rotary_embedding

every_engine = pytest.mark.parametrize("engine", regard.engines())

# The names are written out so that collecting the tests builds nothing; a test holds them against ONNX's.
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
    """ONNX's cases by name, without the ones that spell an operator out as smaller ones.

    Importing a module builds its cases, each from its own seed; all modules would take four times as long.
    """
    for module in ("attention", "rotaryembedding", "softmax", "logsoftmax"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    built = onnx.backend.test.case.node._NodeTestCases
    wanted = ("Attention", "RotaryEmbedding", "Softmax", "LogSoftmax")
    return {
        case.name.removeprefix("test_"): case
        for case in built
        if "_expanded" not in case.name and case.model.graph.node[0].op_type in wanted
    }


def ask(case: Any, function: Callable[..., Any], **options: Any) -> list[Any]:
    """Those outputs of the function that the case's node asks for."""
    node = case.model.graph.node[0]
    given_inputs = iter(case.data_sets[0][0])
    inputs = [next(given_inputs) if name else None for name in node.input]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    outputs = function(*inputs, **attributes, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output for name, output in zip(node.output, outputs, strict=False) if name]


def assert_as_expected(case: Any, outputs: Sequence[np.ndarray], engine: str = "") -> None:
    """Compares as ONNX's own test runner does: its tolerances, and two last places of bfloat16.

    `fused` gets two last places of float16 as well: FlexAttention rounds weights to the dtype of the values.
    """
    last_places = {"bfloat16": 2**-6} | ({"float16": 2**-9} if engine == "fused" else {})
    expected = case.data_sets[0][1]
    assert len(outputs) == len(expected)
    for output, want in zip(outputs, expected, strict=True):
        assert isinstance(output, np.ndarray)
        assert (output.dtype, output.shape) == (want.dtype, want.shape)
        tolerance = max(case.rtol, last_places.get(want.dtype.name, 0.0))
        np.testing.assert_allclose(output.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=case.atol)


# Attention: ONNX's cases


def test_onnx_has_93_attention_cases_and_each_is_named_here() -> None:
    attention_cases = {n: c for n, c in cases().items() if c.model.graph.node[0].op_type == "Attention"}
    assert len(attention_cases) == len(ATTENTION) == 93
    assert set(attention_cases) == {f"attention_{name}" for name in ATTENTION}
    opsets = Counter(case.model.opset_import[0].version for case in attention_cases.values())
    assert opsets == {23: 69, 24: 13, 25: 11}


@every_engine
@pytest.mark.parametrize("name", ATTENTION)
def test_an_attention_case_gives_what_onnx_expects(name: str, engine: str) -> None:
    case = cases()[f"attention_{name}"]
    assert_as_expected(case, ask(case, attention, engine=engine), engine)


@pytest.mark.parametrize("name", ATTENTION)
def test_an_attention_case_given_as_tensors_comes_back_as_tensors(name: str) -> None:
    case = cases()[f"attention_{name}"]

    def with_tensors(*inputs: np.ndarray | None, **attributes: Any) -> Any:
        return attention(*(None if x is None else to_tensor(x) for x in inputs), **attributes)

    arrays, tensors = ask(case, attention), ask(case, with_tensors)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(tensor, to_tensor(array))


def to_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(array.copy())


@pytest.mark.parametrize(
    ("dropped", "noticed"),
    [
        (("attn_mask",), 48),
        (("is_causal",), 28),
        (("past_key", "past_value"), 21),
        (("softcap",), 11),
        (("left_window_size", "right_window_size"), 9),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_cases_notice_when_an_argument_is_dropped(dropped: tuple[str, ...], noticed: int) -> None:
    inputs = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")

    def forgetful(*tensors: np.ndarray | None, **attributes: Any) -> Any:
        arguments = {**dict(zip(inputs, tensors, strict=False)), **attributes}
        return attention(**{name: value for name, value in arguments.items() if name not in dropped})

    def passes(case: Any) -> bool:
        try:
            assert_as_expected(case, ask(case, forgetful))
        except (AssertionError, SpecError):
            return False
        return True

    assert sum(not passes(cases()[f"attention_{name}"]) for name in ATTENTION) == noticed


# Attention: ONNX's evaluator on combinations its cases do not reach


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
    """The same inputs with one row of the mask for each query: a causal evaluator looks at no others."""
    q, k, v, mask, *cache = inputs
    if mask is not None:
        mask = np.broadcast_to(mask, (*mask.shape[:-2], q.shape[-2], mask.shape[-1])).copy()
    return [q, k, v, mask, *cache]


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """The inputs and attributes of an Attention node of opset 25."""
    size = st.integers(1, 3)
    batch, key_heads, groups, width, value_width = (draw(size) for _ in range(5))
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    past = draw(st.sampled_from([None, None, 1, 4]))
    heads, total = key_heads * groups, keys + (past or 0)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = random.standard_normal((batch, heads, queries, width))
    k = random.standard_normal((batch, key_heads, keys, width))
    v = random.standard_normal((batch, key_heads, keys, value_width))
    attributes: dict[str, Any] = {
        "is_causal": draw(st.integers(0, 1)),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
        "left_window_size": draw(st.integers(-1, 4)),
        "right_window_size": draw(st.integers(-1, 4)),
    }
    if draw(st.booleans()):
        # ONNX's evaluator takes the root of it in float32; of these it is exact.
        attributes["scale"] = draw(st.sampled_from([0.0625, 1.0, 2.25]))
    if attributes["qk_matmul_output_mode"] > 0:
        # In mode 0 ONNX's evaluator shows softcapped scores, against its text and its own expansion.
        attributes["softcap"] = draw(st.sampled_from([0.0, 0.5, 3.0]))
    cache: list[np.ndarray | None] = [None, None, None]
    if past is not None:
        cache[0] = random.standard_normal((batch, key_heads, past, width))
        cache[1] = random.standard_normal((batch, key_heads, past, value_width))
    elif draw(st.booleans()):
        cache[2] = random.integers(0, keys + 1, batch)
    if draw(st.booleans()):
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1) for x in (q, k, v))
        attributes |= {"q_num_heads": heads, "kv_num_heads": key_heads}
    mask = None
    if draw(st.booleans()):
        shape = [batch, heads, queries, total]
        shape = [n if draw(st.booleans()) else 1 for n in shape[:-1]] + shape[-1:]
        shape = shape[draw(st.integers(0, 3)) :]
        if cache[2] is not None:
            shape[-1] = draw(st.integers(max(1, int(cache[2].max())), total))
        mask = random.standard_normal(shape)
        kind = draw(st.sampled_from(["bool", "float", "holes"]))
        if kind == "bool":
            mask = mask > -0.5
        elif kind == "holes":
            mask[random.standard_normal(shape) > 0.5] = -np.inf
    return [q, k, v, mask, *cache], attributes


@every_engine
@given(node=nodes())
def test_any_attention_node_gives_what_onnx_evaluates(
    engine: str, node: tuple[list[np.ndarray | None], dict[str, Any]]
) -> None:
    inputs, attributes = node
    expected = evaluate(25, with_all_rows(inputs), attributes)
    outputs = attention(*inputs, **attributes, engine=engine)
    for output, want in zip(outputs, expected, strict=True):
        # Both in float64, sums of at most a dozen terms.
        np.testing.assert_allclose(output, want, rtol=1e-9, atol=1e-12)


# Attention: what ONNX's text says and neither cases nor evaluator show


def example(seed: int = 0, dtype: type = np.float64) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((2, 3, length, 4)).astype(dtype) for length in (5, 7, 7)]


@every_engine
def test_mode_0_shows_the_scores_before_softcap(engine: str) -> None:
    q, k, v = example()
    shown = attention(q, k, v, softcap=0.5, engine=engine).qk_matmul_output
    np.testing.assert_allclose(shown, q @ k.swapaxes(-1, -2) / 2, rtol=1e-12)


def test_without_a_mode_no_scores_are_shown() -> None:
    assert attention(*example(), qk_matmul_output_mode=None).qk_matmul_output is None


@every_engine
def test_mode_2_shows_minus_infinity_exactly_where_a_key_is_hidden(engine: str) -> None:
    q, k, v = example()
    q, k = 100 * q, 100 * k  # most weights underflow to 0, and are still not hidden
    lengths = np.array([7, 3])
    shown = attention(
        q, k, v, None, None, None, lengths, is_causal=1, qk_matmul_output_mode=2, engine=engine
    ).qk_matmul_output
    i, j = np.arange(5)[:, None], np.arange(7)
    for batch, length in enumerate(lengths):
        assert np.array_equal(np.isneginf(shown[batch, 0]), (j > i + length - 5) | (j >= length))


@every_engine
def test_whole_numbers_in_a_mask_are_added(engine: str) -> None:
    q, k, v = example()
    mask = np.random.default_rng(1).integers(-3, 3, (5, 7))
    whole, real = (attention(q, k, v, m, engine=engine).Y for m in (mask, mask.astype(np.float64)))
    assert np.array_equal(whole, real)
    assert not np.allclose(whole, attention(q, k, v, mask != 0, engine=engine).Y)


@every_engine
def test_a_mask_of_one_column_hides_all_other_keys(engine: str) -> None:
    q, k, v = example()
    y = attention(q, k, v, np.ones((5, 1), dtype=bool), engine=engine).Y
    np.testing.assert_allclose(y, np.broadcast_to(v[:, :, :1], y.shape), rtol=1e-12)


@every_engine
def test_values_of_another_type_give_an_output_of_the_type_of_the_queries(engine: str) -> None:
    q, k, v = example()
    outputs = attention(q.astype(np.float16), k.astype(np.float16), v, engine=engine)
    assert [x.dtype for x in outputs] == [np.float16, np.float16, np.float64, np.float16]
    np.testing.assert_allclose(outputs.Y, attention(q, k, v, engine=engine).Y, rtol=0.02, atol=0.01)


@every_engine
def test_softmax_in_double_precision_is_more_exact(engine: str) -> None:
    q, k, v = example(dtype=np.float32)
    q = q * 40  # scores of some 100, where single precision is known to 1e-5
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)), engine=engine).Y
    double = attention(q, k, v, softmax_precision=11, engine=engine).Y
    assert double.dtype == np.float32
    assert np.array_equal(double, exact.astype(np.float32))


def test_arrays_that_cannot_be_written_to_are_fine() -> None:
    arrays = example()
    expected = attention(*arrays).Y
    for array in arrays:
        array.flags.writeable = False
    assert np.array_equal(attention(*arrays).Y, expected)
    assert np.array_equal(attention(*(x[:, ::-1] for x in arrays)).Y, expected[:, ::-1])


@every_engine
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_gradients_flow_to_everything_that_went_in(mode: int, engine: str) -> None:
    random = np.random.default_rng(0)
    shapes = [(1, 4, 3, 2), (1, 2, 4, 2), (1, 2, 4, 3), (3, 6), (1, 2, 2, 2), (1, 2, 2, 3)]
    inputs = [torch.from_numpy(random.standard_normal(shape)).requires_grad_() for shape in shapes]

    def both(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = attention(*tensors, softcap=2.0, qk_matmul_output_mode=mode, engine=engine)
        return outputs.Y, outputs.qk_matmul_output

    assert torch.autograd.gradcheck(both, inputs)


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
        ({"past_key": np.zeros((2, 3, 1, 4))}, r"got past_key alone. Give past_value too"),
        ({"past_value": np.zeros((2, 3, 1, 4))}, r"got past_value alone. Give past_key too"),
        (
            {
                "past_key": np.zeros((2, 3, 1, 4)),
                "past_value": np.zeros((2, 3, 1, 4)),
                "nonpad_kv_seqlen": np.array([1, 2]),
            },
            r"nonpad_kv_seqlen and past_key must not come together",
        ),
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
def test_a_node_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments = dict(zip("QKV", example(), strict=True)) | changes
    with pytest.raises(SpecError, match=message):
        attention(**arguments)


def test_three_dimensions_need_a_number_of_heads_that_divides() -> None:
    q, k, v = (np.zeros((2, 5, 12)) for _ in range(3))
    with pytest.raises(SpecError, match=r"q_num_heads must divide the last dimension of a 3-D Q; got None and 12"):
        attention(q, k, v)
    with pytest.raises(SpecError, match=r"kv_num_heads must divide the last dimension of a 3-D K; got 5 and 12"):
        attention(q, k, v, q_num_heads=3, kv_num_heads=5)


# RotaryEmbedding


def test_onnx_has_8_rotary_cases_and_each_is_named_here() -> None:
    assert len(ROTARY) == 8
    assert set(ROTARY) == {n for n, c in cases().items() if c.model.graph.node[0].op_type == "RotaryEmbedding"}


@pytest.mark.parametrize("name", ROTARY)
def test_a_rotary_case_gives_what_onnx_expects(name: str) -> None:
    case = cases()[name]
    assert_as_expected(case, ask(case, rotary_embedding))


@pytest.mark.parametrize(("layout", "interleaved"), [("half", 0), ("interleaved", 1)])
def test_score_rotary_turns_as_onnx_does_with_the_usual_angles(layout: str, interleaved: int) -> None:
    q, k, _ = (torch.from_numpy(x) for x in example())
    k = k[:, :, : q.shape[2]]
    positions = torch.tensor([0, 3, 4, 100, 7])
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, 4, 2, dtype=torch.float64) / 4)
    angles = angles.expand(2, -1, -1)
    turned = score.rotary(q, k, positions, layout=layout)
    for got, x in zip(turned, (q, k), strict=True):
        want = rotary_embedding(x, angles.cos(), angles.sin(), interleaved=interleaved)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_rotary_caches_that_do_not_fit_are_refused() -> None:
    x, cache = np.zeros((1, 2, 3, 8)), np.zeros((1, 3, 3))
    with pytest.raises(SpecError, match=r"each pair of the 8 turning coordinates; got 3 and 3"):
        rotary_embedding(x, cache, cache)
    with pytest.raises(SpecError, match=r"num_heads must divide the last dimension of a 3-D X; got None and 8"):
        rotary_embedding(x[0], cache, cache)
    with pytest.raises(SpecError, match=r"X must have 3 or 4 dimensions; got 2"):
        rotary_embedding(x[0, 0], cache, cache)


# Softmax and LogSoftmax: attention whose scores are a bias and whose values are the unit vectors


def attend_to(x: np.ndarray, axis: int, engine: str) -> tuple[Any, Callable[[torch.Tensor], np.ndarray]]:
    """Attention with x as its scores along an axis, and the way from rows back to the shape of x."""
    rows = np.moveaxis(x, axis, -1)
    keys = rows.shape[-1]
    scores = torch.from_numpy(np.ascontiguousarray(rows)).reshape(1, 1, -1, keys)
    q, k = torch.zeros(1, 1, scores.shape[2], 1), torch.zeros(1, 1, keys, 1)
    v = torch.eye(keys).reshape(1, 1, keys, keys)

    def back(answer: torch.Tensor) -> np.ndarray:
        return np.moveaxis(answer.reshape(rows.shape).numpy(), -1, axis)

    return regard.attend(q, k, v, score=score.bias(scores), engine=engine), back


@every_engine
@pytest.mark.parametrize("name", SOFTMAX)
def test_a_softmax_case_gives_what_onnx_expects(name: str, engine: str) -> None:
    case = cases()[f"softmax_{name}"]

    def by_output(x: np.ndarray, axis: int = -1) -> np.ndarray:
        attended, back = attend_to(x, axis, engine)
        return back(attended.output)

    def by_weights(x: np.ndarray, axis: int = -1) -> np.ndarray:
        attended, back = attend_to(x, axis, engine)
        return back(attended.weights.dense())

    assert_as_expected(case, ask(case, by_output))
    assert_as_expected(case, ask(case, by_weights))


@every_engine
@pytest.mark.parametrize("name", LOGSOFTMAX)
def test_a_logsoftmax_case_gives_what_onnx_expects(name: str, engine: str) -> None:
    case = cases()[f"logsoftmax_{name}"]

    def by_row_statistic(x: np.ndarray, axis: int = -1) -> np.ndarray:
        attended, back = attend_to(x, axis, engine)
        return x - back(attended.lse.unsqueeze(-1).expand_as(attended.output))

    assert_as_expected(case, ask(case, by_row_statistic))


def test_every_softmax_and_logsoftmax_case_is_named_here() -> None:
    named = {f"softmax_{n}" for n in SOFTMAX} | {f"logsoftmax_{n}" for n in LOGSOFTMAX}
    assert named == {n for n, c in cases().items() if c.model.graph.node[0].op_type in ("Softmax", "LogSoftmax")}
