"""Valid calls of `regard.integrations`: the ONNX operators; SDPA is in `core`."""

from regard.integrations import onnx
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import ValidCall, args

# flags of ONNX are integers, a window of -1 has no limit, and 4-D inputs do not need the number of heads
FLAGS = dict.fromkeys(("is_causal", "interleaved", "left_window_size", "right_window_size", "num_heads"), "-1")

CALLS = [
    ValidCall(
        "regard.integrations.onnx.attention",
        lambda: onnx.attention,
        lambda: args(*qkv()),
        accepts={**FLAGS, "attn_mask": "-1|-2.5|nan|list of -1|list of nan"},  # added to the scores
    ),
    ValidCall(
        "regard.integrations.onnx.rotary_embedding",
        lambda: onnx.rotary_embedding,
        lambda: args(qkv()[0], numbers(1, 6, 4), numbers(1, 6, 4)),
        accepts=FLAGS,
    ),
    ValidCall(
        "regard.integrations.onnx.linear_attention",
        lambda: onnx.linear_attention,
        lambda: args(
            *(numbers(1, 6, 16, seed=n) for n in range(3)), q_num_heads=2, kv_num_heads=2, update_rule="linear"
        ),
    ),
]

LEFT_OUT: dict[str, str] = {
    "regard.integrations.onnx.AttentionOutputs": "a result",
    "regard.integrations.onnx.LinearAttentionOutputs": "a result",
    "regard.integrations.huggingface.attention_interface": "only transformers calls its functions; tests/integrations",
}
