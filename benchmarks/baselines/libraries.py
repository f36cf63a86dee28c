"""Other libraries: each function prepares a call and returns a `LibraryRun`.

A library that does not support a call raises `Unsupported` and is skipped. Libraries are imported inside the functions,
so that each process loads one of them: two thread pools in one process slow each other.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Unsupported(Exception):
    """Raised when a library does not support a call."""


class LibraryError(Exception):
    """Raised when a library fails in a call that it should support."""


@dataclass(frozen=True, eq=False)
class DenseCall:
    """A call with dense arrays. `name` is a name of `cases.CALL_OPTIONS`; q, k, v are (batch, heads, n, head_dim)."""

    name: str
    q: Array
    k: Array
    v: Array
    mask: Array | None = None  # (n, n), True where a query may attend
    bias: Array | None = None  # (1, heads, n, n), -inf at masked pairs
    softcap: float | None = None

    @property
    def is_causal(self) -> bool:
        return self.name == "causal"

    @property
    def is_grouped(self) -> bool:
        return self.q.shape[1] != self.k.shape[1]


@dataclass(frozen=True)
class LibraryRun:
    """`run` computes the call; `to_array` converts its result to (batch, heads, n, head_dim)."""

    run: Callable[[], Any]
    to_array: Callable[[Any], Array]
    keep_alive: object = None  # inputs that the library does not own


def eager(call: DenseCall, num_threads: int) -> LibraryRun:
    """Compute the formula in eager torch operations."""
    import torch

    torch.set_num_threads(num_threads)
    q, k, v = (torch.from_numpy(x) for x in (call.q, call.k, call.v))
    n, group, scale, cap = q.shape[-2], q.shape[1] // k.shape[1], q.shape[-1] ** -0.5, call.softcap
    mask = None if call.mask is None else torch.from_numpy(call.mask)
    mask = torch.ones(n, n, dtype=torch.bool).tril() if call.is_causal else mask
    masked = None if mask is None else ~mask
    bias = None if call.bias is None else torch.from_numpy(call.bias)

    def run() -> torch.Tensor:
        keys, values = (k, v) if group == 1 else (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ keys.mT * scale
        if cap is not None:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + bias
        if masked is not None:
            s = s.masked_fill(masked, -torch.inf)
        return s.softmax(-1) @ values

    return LibraryRun(torch.no_grad()(run), lambda x: x.numpy())


def flex_attention(call: DenseCall, num_threads: int) -> LibraryRun:
    """Run FlexAttention of torch, compiled; its backward pass does not run on the CPU."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Unsupported("compilation needs a C++ compiler")

    from benchmarks.baselines.flex_mods import flex_mods

    torch.set_num_threads(num_threads)
    torch.compiler.reset()  # torch silently stops compiling a function after eight variants
    q, k, v = (torch.from_numpy(x) for x in (call.q, call.k, call.v))
    n = q.shape[-2]
    score_mod, mask_mod = flex_mods(call.name, n)
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, n, n, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def run() -> Any:
        return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=call.is_grouped)

    return LibraryRun(torch.no_grad()(run), lambda x: x.numpy())


def onnxruntime(call: DenseCall, num_threads: int) -> LibraryRun:
    """Run a model with one Attention operator of opset 23."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    feeds = {"q": call.q, "k": call.k, "v": call.v}
    kinds = dict.fromkeys(feeds, TensorProto.FLOAT)
    if call.mask is not None:
        feeds["mask"], kinds["mask"] = call.mask, TensorProto.BOOL
    if call.bias is not None:
        feeds["mask"], kinds["mask"] = call.bias, TensorProto.FLOAT
    options = {"is_causal": int(call.is_causal), "softcap": call.softcap or 0.0}
    node = helper.make_node("Attention", list(feeds), ["output"], **options)
    inputs = [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in feeds.items()]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, call.q.shape)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = num_threads
    settings.inter_op_num_threads = 1
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # otherwise its threads spin after a call
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return LibraryRun(lambda: session.run(None, feeds), lambda outputs: outputs[0])


def openvino(call: DenseCall, num_threads: int) -> LibraryRun:
    """Run the operator ScaledDotProductAttention."""
    import openvino as ov
    from openvino import opset13

    if call.softcap is not None:
        raise Unsupported("ScaledDotProductAttention has no softcap")
    if call.is_grouped:
        raise Unsupported("ScaledDotProductAttention has no grouped heads")
    feeds = [call.q, call.k, call.v]
    if call.mask is not None:
        feeds.append(call.mask)
    if call.bias is not None:
        feeds.append(call.bias)
    inputs = [opset13.parameter(list(x.shape), x.dtype) for x in feeds]
    output = opset13.scaled_dot_product_attention(*inputs, causal=call.is_causal)
    settings = {"INFERENCE_NUM_THREADS": num_threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(ov.Model([output], inputs, "attention"), "CPU", settings).create_infer_request()
    for index, x in enumerate(feeds):
        request.set_input_tensor(index, ov.Tensor(x, shared_memory=True))
    return LibraryRun(request.infer, lambda _: request.get_output_tensor().data, keep_alive=feeds)


def jax(call: DenseCall, num_threads: int) -> LibraryRun:
    """Run `jax.nn.dot_product_attention`, jitted; `library_process` limits its threads."""
    from jax.nn import dot_product_attention

    return _jax_run(call, dot_product_attention)


def keras(call: DenseCall, num_threads: int) -> LibraryRun:
    """Run `keras.ops.dot_product_attention` on its JAX backend, jitted."""
    from keras.ops import dot_product_attention

    return _jax_run(call, dot_product_attention)


def _jax_run(call: DenseCall, attention: Callable[..., Any]) -> LibraryRun:
    """Run a function that takes (batch, n, heads, head_dim) and the options of JAX."""
    import jax.numpy as jnp
    from jax import jit

    if call.softcap is not None:
        raise Unsupported("dot_product_attention has no softcap")
    options = {
        "mask": None if call.mask is None else jnp.asarray(call.mask)[None, None],
        "bias": None if call.bias is None else jnp.asarray(call.bias),
    }
    inputs = [jnp.asarray(x.transpose(0, 2, 1, 3)) for x in (call.q, call.k, call.v)]
    # masks and biases are arguments, so that compilation cannot precompute with them
    compiled = jit(lambda q, k, v, options: attention(q, k, v, is_causal=call.is_causal, **options))
    return LibraryRun(
        lambda: compiled(*inputs, options).block_until_ready(),
        lambda x: np.asarray(x).transpose(0, 2, 1, 3),
    )


LIBRARY_BASELINES: dict[str, Callable[[DenseCall, int], LibraryRun]] = {
    "eager": eager,
    "flex_attention": flex_attention,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "jax": jax,
    "keras": keras,
}
