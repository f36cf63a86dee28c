"""Valid calls of `regard.integrations`: SDPA's own function is in `core`; here are ONNX's operators."""

from regard.integrations import onnx, onnx_linear
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import ValidCall, given

# ONNX's flags are whole numbers, a window of -1 has no bound, and four dimensions need no number of heads
FLAGS = dict.fromkeys(("is_causal", "interleaved", "left_window_size", "right_window_size", "num_heads"), "-1")

CALLS = [
    ValidCall("regard.integrations.onnx.attention", lambda: onnx.attention, lambda: given(*qkv()), accepts=FLAGS),
    ValidCall(
        "regard.integrations.onnx.rotary_embedding",
        lambda: onnx.rotary_embedding,
        lambda: given(qkv()[0], numbers(1, 6, 4), numbers(1, 6, 4)),
        accepts=FLAGS,
    ),
    ValidCall(
        "regard.integrations.onnx_linear.linear_attention",
        lambda: onnx_linear.linear_attention,
        lambda: given(
            *(numbers(1, 6, 16, seed=n) for n in range(3)), q_num_heads=2, kv_num_heads=2, update_rule="linear"
        ),
    ),
]

LEFT_OUT: dict[str, str] = {
    "regard.integrations.onnx.AttentionOutputs": "a result",
    "regard.integrations.onnx_linear.LinearAttentionOutputs": "a result",
    "regard.integrations.huggingface": "its functions are called by transformers alone; tests/integrations",
}
