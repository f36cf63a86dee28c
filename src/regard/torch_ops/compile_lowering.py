"""Lowers a call inside a graph of torch.compile or torch.export to one operator, with its options as text.

torch traces this file, so its code is kept simple. `operator.py` defines the operator.
"""

import torch
from torch import Tensor

from regard.call.attention_call import AttentionCall
from regard.errors import ArgumentError
from regard.expr.serialize import ConstructorCall, NotSerializable, serialize
from regard.tensors.nonfinite import isolate_nonfinite

NOT_SERIALIZABLE_MESSAGE = (
    "inside a graph, regard.attention supports tensors and the masks, scores and normalizers of regard; got a function "
    "or an array. Convert a function outside of the graph, with mask.from_function or score.modifier, or make the call "
    "outside."
)


def emit_graph_node(call: AttentionCall) -> Tensor | None:
    """The output as a node of the graph; None if the options cannot be serialized and the graph may break here."""
    q, k, v = call.q, call.k, call.v
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return None
    value = call.value
    function = value if callable(value) and not isinstance(value, ConstructorCall) else None
    relative_values = value if function is None else None
    dropout, seed = call.dropout, call.seed
    tensors: list[Tensor] = []
    numbers: list[int] = []
    try:
        parts = [
            serialize(x, tensors, numbers)
            for x in (call.score, call.mask, call.normalizer, relative_values, call.query_offset, call.backend, dropout)
        ]
    except NotSerializable:
        if torch.compiler.is_exporting():
            raise ArgumentError(NOT_SERIALIZABLE_MESSAGE) from None
        return None
    graph_seed = torch.randint(2**62, ()) if dropout and seed is None else seed
    options = '{"list": [' + ", ".join([*parts, serialize(graph_seed, tensors, numbers)]) + "]}"
    if function is not None:
        v = isolate_nonfinite(lambda x: (function(x),), v)[0].to(v.dtype)
    raw_is_output = call.normalizer is None and relative_values is None
    output: Tensor = torch.ops.regard.attention(q, k, v, tensors, numbers, options, raw_is_output)[0]
    return output
