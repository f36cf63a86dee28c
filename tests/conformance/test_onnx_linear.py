"""The ONNX test cases of LinearAttention, and the ONNX evaluator for longer sequences."""

import functools
import importlib
from typing import Any

import numpy as np
import onnx.backend.test.case.node
import onnx.helper
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from regard.errors import ArgumentError
from regard.integrations.onnx.linear_attention_operators import UPDATE_RULES, linear_attention

_NAMES = """
    linear_attention_linear linear_attention_gated linear_attention_gated_per_head_decay
    linear_attention_delta linear_attention_gated_delta linear_attention_gated_delta_beta_scalar
    linear_attention_gated_delta_gqa linear_attention_gated_delta_mqa linear_attention_decode_step
    linear_attention_prefill_with_past linear_attention_no_past_explicit_zeros linear_attention_explicit_scale
    linear_attention_fp16 linear_attention_linear_t1_no_past
"""
CASES = _NAMES.split()


@functools.cache
def cases() -> dict[str, Any]:
    importlib.import_module("onnx.backend.test.case.node.linear_attention")
    return {
        case.name.removeprefix("test_"): case
        for case in onnx.backend.test.case.node._NodeTestCases
        if "_expanded" not in case.name and case.model.graph.node[0].op_type == "LinearAttention"
    }


def test_every_case_is_listed() -> None:
    assert set(cases()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_linear_attention_cases(name: str) -> None:
    case = cases()[name]
    node = case.model.graph.node[0]
    arrays = iter(case.data_sets[0][0])
    inputs = [next(arrays) if name else None for name in node.input]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    outputs = linear_attention(*inputs, **attributes)

    for output, expected in zip(outputs, case.data_sets[0][1], strict=True):
        assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
        # float16 has eleven bits
        rtol, atol = (2e-3, 2e-3) if expected.dtype == np.float16 else (max(case.rtol, 1e-5), 1e-5)
        np.testing.assert_allclose(output.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("update_rule", UPDATE_RULES)
@pytest.mark.parametrize("per_channel_decay", [False, True])
@pytest.mark.parametrize("num_heads, num_kv_heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("n", [1, 37])
def test_longer_sequences_equal_the_onnx_evaluator(
    update_rule: str, per_channel_decay: bool, num_heads: int, num_kv_heads: int, n: int
) -> None:
    rng = np.random.default_rng(n)
    q, k, v = (
        rng.normal(size=(2, n, h * d)).astype(np.float32)
        for h, d in ((num_heads, 8), (num_kv_heads, 8), (num_kv_heads, 5))
    )
    keys_by_head = k.reshape(2, n, num_kv_heads, 8)
    k = (keys_by_head / np.linalg.norm(keys_by_head, axis=-1, keepdims=True)).reshape(k.shape)
    past = rng.normal(size=(2, num_kv_heads, 8, 5)).astype(np.float32)
    decay = np.log(rng.uniform(0.3, 1, (2, n, num_kv_heads * (8 if per_channel_decay else 1)))).astype(np.float32)
    beta = rng.uniform(0, 1, (2, n, num_kv_heads)).astype(np.float32)
    inputs = [q, k, v, past, decay if "gated" in update_rule else None, beta if "delta" in update_rule else None]
    attributes = dict(q_num_heads=num_heads, kv_num_heads=num_kv_heads, update_rule=update_rule, chunk_size=8)
    names = ["query", "key", "value", "past_state", "decay", "beta"]
    input_names = [name if x is not None else "" for name, x in zip(names, inputs, strict=True)]
    node = onnx.helper.make_node("LinearAttention", input_names, ["output", "present_state"], **attributes)
    dtype = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(name, dtype, None) for name in input_names if name],
        [onnx.helper.make_tensor_value_info(name, dtype, None) for name in ("output", "present_state")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 27)])
    feeds = {name: x for name, x in zip(input_names, inputs, strict=True) if name}

    outputs = linear_attention(*inputs, **attributes)

    for output, expected in zip(outputs, ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(output, expected, rtol=2e-4, atol=2e-5)  # float32 sums of 37 terms in another order


def test_invalid_nodes_raise() -> None:
    x = torch.ones(1, 3, 4)
    with pytest.raises(ArgumentError, match="one of linear, gated, delta, gated_delta; got 'fast'"):
        linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="fast")
    with pytest.raises(ArgumentError, match="decay must be given for the update rule 'gated'"):
        linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="gated")
    with pytest.raises(ArgumentError, match="beta must be given for the update rule 'delta'"):
        linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="delta")
    with pytest.raises(ArgumentError, match="divide q_num_heads; got 2 and 3"):
        linear_attention(x, x, x, q_num_heads=3, kv_num_heads=2, update_rule="linear")
    with pytest.raises(ArgumentError, match="must divide the last dimension of a 3-D query; got 3 and 4"):
        linear_attention(x, x, x, q_num_heads=3, kv_num_heads=1, update_rule="linear")
