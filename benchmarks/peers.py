"""Other libraries, one function each: a question in, work that answers it once out, with everything ready made.

A library that cannot answer raises `Cannot`, and says why; it is then left out. Each is imported only where it is
asked, so that a process can hold one of them alone: two pools of threads in one process slow each other.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Cannot(Exception):
    """Why a library does not answer a question."""


class Failed(Exception):
    """A library broke on a question that it was thought to answer."""


@dataclass(frozen=True, eq=False)
class Question:
    """q, k, v are (batch, heads, n, width); `kind` is a name of `questions.OPTIONS`, the rest says the same densely."""

    kind: str
    q: Array
    k: Array
    v: Array
    mask: Array | None = None  # (n, n), True where a query may look
    bias: Array | None = None  # (1, heads, n, n), -inf where it may not
    cap: float | None = None

    @property
    def causal(self) -> bool:
        return self.kind == "causal"

    @property
    def grouped(self) -> bool:
        return self.q.shape[1] != self.k.shape[1]


@dataclass(frozen=True)
class Work:
    """`run` answers once; `read` takes what it gave to (batch, heads, n, width)."""

    run: Callable[[], Any]
    read: Callable[[Any], Array]
    kept: object = None  # memory that the library reads and does not hold


def eager(question: Question, threads: int) -> Work:
    """The formula in torch's operations."""
    import torch

    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(x) for x in (question.q, question.k, question.v))
    n, group, scale, cap = q.shape[-2], q.shape[1] // k.shape[1], q.shape[-1] ** -0.5, question.cap
    mask = None if question.mask is None else torch.from_numpy(question.mask)
    mask = torch.ones(n, n, dtype=torch.bool).tril() if question.causal else mask
    hidden = None if mask is None else ~mask
    bias = None if question.bias is None else torch.from_numpy(question.bias)

    def answer() -> torch.Tensor:
        keys, values = (k, v) if group == 1 else (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ keys.mT * scale
        if cap is not None:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + bias
        if hidden is not None:
            s = s.masked_fill(hidden, -torch.inf)
        return s.softmax(-1) @ values

    return Work(torch.no_grad()(answer), lambda x: x.numpy())


def flex_attention(question: Question, threads: int) -> Work:
    """torch's compiled FlexAttention; its backward pass does not run on the CPU."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise Cannot("it is compiled, and there is no C++ compiler")

    from benchmarks.flex_rules import rules

    torch.set_num_threads(threads)
    torch.compiler.reset()  # beyond eight variants of one function it would stop compiling, and not say so
    q, k, v = (torch.from_numpy(x) for x in (question.q, question.k, question.v))
    n = q.shape[-2]
    score_mod, mask_mod = rules(question.kind, n)
    block_mask = None if mask_mod is None else create_block_mask(mask_mod, None, None, n, n, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def answer() -> Any:
        return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=question.grouped)

    return Work(torch.no_grad()(answer), lambda x: x.numpy())


def onnxruntime(question: Question, threads: int) -> Work:
    """A model of one standard operator, Attention of opset 23."""
    import onnxruntime as ort
    from onnx import TensorProto, helper

    feeds = {"q": question.q, "k": question.k, "v": question.v}
    kinds = dict.fromkeys(feeds, TensorProto.FLOAT)
    if question.mask is not None:
        feeds["mask"], kinds["mask"] = question.mask, TensorProto.BOOL
    if question.bias is not None:
        feeds["mask"], kinds["mask"] = question.bias, TensorProto.FLOAT
    options = {"is_causal": int(question.causal), "softcap": question.cap or 0.0}
    node = helper.make_node("Attention", list(feeds), ["output"], **options)
    inputs = [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in feeds.items()]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, question.q.shape)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # or its threads keep a core after their turn
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return Work(lambda: session.run(None, feeds), lambda outputs: outputs[0])


def openvino(question: Question, threads: int) -> Work:
    """The operator ScaledDotProductAttention."""
    import openvino as ov
    from openvino import opset13

    if question.cap is not None:
        raise Cannot("ScaledDotProductAttention has no softcap")
    if question.grouped:
        raise Cannot("ScaledDotProductAttention has no grouped heads")
    feeds = [question.q, question.k, question.v]
    if question.mask is not None:
        feeds.append(question.mask)
    if question.bias is not None:
        feeds.append(question.bias)
    inputs = [opset13.parameter(list(x.shape), x.dtype) for x in feeds]
    output = opset13.scaled_dot_product_attention(*inputs, causal=question.causal)
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(ov.Model([output], inputs, "attention"), "CPU", settings).create_infer_request()
    for place, x in enumerate(feeds):
        request.set_input_tensor(place, ov.Tensor(x, shared_memory=True))
    return Work(request.infer, lambda _: request.get_output_tensor().data, kept=feeds)


def jax(question: Question, threads: int) -> Work:
    """`jax.nn.dot_product_attention`, jitted. Its threads are as many as the cores it may run on: see helper.py."""
    from jax.nn import dot_product_attention

    return _in_jax(question, dot_product_attention)


def keras(question: Question, threads: int) -> Work:
    """`keras.ops.dot_product_attention` on its jax backend, jitted."""
    from keras.ops import dot_product_attention

    return _in_jax(question, dot_product_attention)


def _in_jax(question: Question, attention: Callable[..., Any]) -> Work:
    """Both take heads after positions, and the same options."""
    import jax.numpy as jnp
    from jax import jit

    if question.cap is not None:
        raise Cannot("dot_product_attention has no softcap")
    options = {
        "mask": None if question.mask is None else jnp.asarray(question.mask)[None, None],
        "bias": None if question.bias is None else jnp.asarray(question.bias),
    }
    inputs = [jnp.asarray(x.transpose(0, 2, 1, 3)) for x in (question.q, question.k, question.v)]
    # masks and biases are arguments: nothing about them can be worked out while compiling
    compiled = jit(lambda q, k, v, options: attention(q, k, v, is_causal=question.causal, **options))
    return Work(
        lambda: compiled(*inputs, options).block_until_ready(),
        lambda x: np.asarray(x).transpose(0, 2, 1, 3),
    )


LIBRARIES: dict[str, Callable[[Question, int], Work]] = {
    "eager": eager,
    "flex_attention": flex_attention,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "jax": jax,
    "keras": keras,
}
