"""ONNX's own cases for LinearAttention, and its evaluator as a witness for what they leave out."""

import functools
import importlib
from typing import Any

import numpy as np
import onnx.backend.test.case.node
import onnx.helper
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from regard.errors import SpecError
from regard.integrations.onnx_linear import RULES, linear_attention

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


def test_no_case_is_left_out() -> None:
    assert set(cases()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_cases_of_linear_attention(name: str) -> None:
    case = cases()[name]
    node = case.model.graph.node[0]
    given_inputs = iter(case.data_sets[0][0])
    inputs = [next(given_inputs) if there else None for there in node.input]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    found = linear_attention(*inputs, **attributes)

    for output, want in zip(found, case.data_sets[0][1], strict=True):
        assert (output.dtype, output.shape) == (want.dtype, want.shape)
        # float16 rounds the answer to eleven bits
        rtol, atol = (2e-3, 2e-3) if want.dtype == np.float16 else (max(case.rtol, 1e-5), 1e-5)
        np.testing.assert_allclose(output.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("heads, key_heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("n", [1, 37])
def test_longer_sequences_are_those_of_its_evaluator(
    rule: str, by_channel: bool, heads: int, key_heads: int, n: int
) -> None:
    numbers = np.random.default_rng(n)
    q, k, v = (
        numbers.normal(size=(2, n, h * d)).astype(np.float32) for h, d in ((heads, 8), (key_heads, 8), (key_heads, 5))
    )
    apart = k.reshape(2, n, key_heads, 8)
    k = (apart / np.linalg.norm(apart, axis=-1, keepdims=True)).reshape(k.shape)
    past = numbers.normal(size=(2, key_heads, 8, 5)).astype(np.float32)
    decay = np.log(numbers.uniform(0.3, 1, (2, n, key_heads * (8 if by_channel else 1)))).astype(np.float32)
    beta = numbers.uniform(0, 1, (2, n, key_heads)).astype(np.float32)
    given = [q, k, v, past, decay if "gated" in rule else None, beta if "delta" in rule else None]
    attributes = dict(q_num_heads=heads, kv_num_heads=key_heads, update_rule=rule, chunk_size=8)
    names = ["query", "key", "value", "past_state", "decay", "beta"]
    there = [name if x is not None else "" for name, x in zip(names, given, strict=True)]
    node = onnx.helper.make_node("LinearAttention", there, ["output", "present_state"], **attributes)
    float_ = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(name, float_, None) for name in there if name],
        [onnx.helper.make_tensor_value_info(name, float_, None) for name in ("output", "present_state")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 27)])
    asked = {name: x for name, x in zip(there, given, strict=True) if name}

    found = linear_attention(*given, **attributes)

    for output, want in zip(found, ReferenceEvaluator(model).run(None, asked), strict=True):
        np.testing.assert_allclose(output, want, rtol=2e-4, atol=2e-5)  # sums of 37 float32 in another order


def test_what_is_wrong_is_said() -> None:
    x = torch.ones(1, 3, 4)
    with pytest.raises(SpecError, match="one of linear, gated, delta, gated_delta; got 'fast'"):
        linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="fast")
    with pytest.raises(SpecError, match="decay must be given for the update rule 'gated'"):
        linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="gated")
    with pytest.raises(SpecError, match="beta must be given for the update rule 'delta'"):
        linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="delta")
    with pytest.raises(SpecError, match="divide q_num_heads; got 2 and 3"):
        linear_attention(x, x, x, q_num_heads=3, kv_num_heads=2, update_rule="linear")
    with pytest.raises(SpecError, match="must divide the last dimension of a 3-D query; got 3 and 4"):
        linear_attention(x, x, x, q_num_heads=3, kv_num_heads=1, update_rule="linear")
