"""One recorded attention call: copies of q, k and v, and its options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import attention_with_weights
from regard.errors import ArgumentError
from regard.expr.closed_expr import ClosedExpr
from regard.expr.ir import Expr, apply, constant, lookup, substitute, variable
from regard.expr.score_modifier import modifier_from_expr
from regard.expr.serialize import ConstructorCall, NotSerializable, deserialize_options, serialize
from regard.hooks import disable_hooks
from regard.mask import Mask, as_mask, mask_from_expr
from regard.result import AttentionResult
from regard.score import ScaledDot, Score, scaled_dot
from regard.tensors.convert import as_tensor, flatten_batch_dims
from regard.tensors.nonfinite import isolate_nonfinite

CALL_OPTIONS = ("score", "mask", "normalizer", "value", "query_offset")


@dataclass(frozen=True)
class SerializedOptions:
    """The options of a call as JSON text, with the tensors and integers that the text refers to."""

    text: str
    tensors: tuple[Tensor, ...]
    integers: tuple[int, ...]

    def deserialize(self) -> dict[str, Any]:
        return deserialize_options(self.text, self.tensors, self.integers, CALL_OPTIONS)


@dataclass(eq=False)
class RecordedCall:
    """The inputs and options of one attention call.

    Args:
        q: queries (batch, heads, n_q, head_dim).
        k: keys (batch, kv_heads, n_k, head_dim).
        v: values (batch, kv_heads, n_k, v_dim).
        options: the options of `regard.attention`, one entry for each name in `CALL_OPTIONS`.
        serialized_options: the options as text. None if they cannot be serialized, such as a `score.custom`; the call
            then cannot be saved.
        source: name of the function that was called.
        d_output: gradient of a loss with respect to the output (batch, heads, n_q, v_dim), after `backward()`.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    serialized_options: SerializedOptions | None
    source: str
    d_output: Tensor | None = None

    @property
    def plain_scale(self) -> float | None:
        """The scale s if the scores are s q·k; None for other scores."""
        score = scaled_dot() if self.options["score"] is None else self.options["score"]
        if type(score) is not ScaledDot or score.score_mod is not None or isinstance(score.scale, Tensor):
            return None
        return float(self.q.shape[-1] ** -0.5 if score.scale is None else score.scale)

    @cached_property
    def result(self) -> AttentionResult[Tensor]:
        """The output and the weights, computed again from the inputs."""
        with torch.no_grad(), disable_hooks():
            return attention_with_weights(self.q, self.k, self.v, **self.options)

    def upcast(self) -> "RecordedCall":
        """Return the call in float32 if it is in half precision, which is too coarse for positions above 256."""
        if self.q.dtype not in (torch.bfloat16, torch.float16):
            return self
        return replace(self, q=self.q.float(), k=self.k.float(), v=self.v.float())

    def reindex_options(self, index_maps: dict[str, list[int] | Tensor | int]) -> dict[str, Any]:
        """Return the options for a selection of this call's batch elements, heads, queries or keys.

        `index_maps` maps a variable "b", "h", "i" or "j" to its selected positions: position n of the new call is
        position `index_maps[variable][n]` of this call. An integer selects one position for all n.
        """
        options = dict(self.options)
        if options["mask"] is not None:
            options["mask"] = self._reindex_expr(options["mask"], index_maps)
        score = options["score"]
        if score is not None and score.score_mod is not None:
            score_mod: Any = self._reindex_expr(score.score_mod, index_maps)
            is_plain = type(score) is ScaledDot  # rebuilt by its constructor, it stays serializable
            options["score"] = (
                scaled_dot(score.scale).then(score_mod) if is_plain else replace(score, score_mod=score_mod)
            )
        if "i" in index_maps:
            options["query_offset"] = 0
        return options

    @property
    def query_offset(self) -> int | Tensor:
        """The position of the first query among the keys."""
        query_offset = self.options["query_offset"]
        return self.k.shape[2] - self.q.shape[2] if query_offset is None else query_offset

    def _reindex_expr(self, expr: ClosedExpr, index_maps: dict[str, list[int] | Tensor | int]) -> ClosedExpr:
        lengths = (*self.q.shape[:3], self.k.shape[2])
        tensors = list(expr.resolve_tensors(lengths, self.query_offset, self.q))
        substitutions: dict[Expr, Expr] = {}
        for name, positions in index_maps.items():
            if isinstance(positions, int):
                substitutions[variable(name)] = constant(positions)
            else:
                substitutions[variable(name)] = lookup(len(tensors), (variable(name),), "int")
                tensors.append(torch.as_tensor(positions, device=self.q.device))
        if "i" in index_maps:
            if isinstance(self.query_offset, Tensor):
                raise ArgumentError(
                    "queries can be reordered only if query_offset is one integer; got one for each batch element."
                )
            substitutions[variable("p")] = apply("add", substitutions[variable("i")], constant(self.query_offset))
        from_expr = mask_from_expr if isinstance(expr, Mask) else modifier_from_expr
        index_names = [f"positions{n}" for n in range(len(tensors) - len(expr.tensor_names))]
        return from_expr(substitute(expr.expr, substitutions), tensors, [*expr.tensor_names, *index_names])


def copy_call(
    arguments: dict[str, Any], heads: Sequence[int] | None, copy_tensor: Callable[[Tensor], Tensor], source: str
) -> RecordedCall:
    """Return a copy of a call.

    Args:
        arguments: the arguments of `regard.attention_with_weights`.
        heads: indices of the heads to copy; None copies all heads.
        copy_tensor: copies a tensor of the options.
        source: name of the function that was called.
    """
    q, k, v, options = canonicalize_call(arguments)
    if heads is not None:
        q, k, v, options = _select_heads(q, k, v, options, list(heads))
    tensors: list[Tensor] = []
    integers: list[int] = []
    serialized = None
    try:
        text = '{"list": [' + ", ".join(serialize(options[name], tensors, integers) for name in CALL_OPTIONS) + "]}"
    except NotSerializable:
        pass
    else:
        serialized = SerializedOptions(text, tuple(copy_tensor(tensor) for tensor in tensors), tuple(integers))
        options = serialized.deserialize()
    q, k, v = (x.detach().clone(memory_format=torch.contiguous_format) for x in (q, k, v))
    return RecordedCall(q, k, v, options, serialized, source)


def canonicalize_call(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Return q, k and v with 4 dimensions, and options whose masks and scores are `Mask` and `Score` objects."""
    q, k, v = (as_tensor(arguments[name], name) for name in "qkv")
    options = {name: arguments.get(name) for name in CALL_OPTIONS}
    value = options["value"]
    if callable(value) and not isinstance(value, ConstructorCall):
        v, options["value"] = isolate_nonfinite(lambda x: (value(x),), v)[0].to(v.dtype), None
    leading_shape = tuple(q.shape[:-2])
    for name, convert in (("mask", as_mask), ("score", _as_score)):
        option = options[name]
        if isinstance(option, (Tensor, np.ndarray)) and option.ndim == q.dim():
            option = flatten_batch_dims(as_tensor(option, name), leading_shape)
        options[name] = None if option is None else convert(option)
    if q.dim() == 2:
        q, k, v = (x[None, None] for x in (q, k, v))
    elif q.dim() == 3:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    elif q.dim() > 4:
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
    return q, k, v, options


def _as_score(score: Any) -> Any:
    """Return a serializable score from a score or a score modifier."""
    return score if isinstance(score, Score) else scaled_dot().then(score)


def _select_heads(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], heads: list[int]
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Return the inputs and options of some heads."""
    num_heads = q.shape[1]
    if any(not 0 <= head < num_heads for head in heads):
        raise ArgumentError(f"heads must be from 0 to {num_heads - 1}; got {heads}.")
    score = options["score"]
    has_scaled_dot = score is None or (type(score) is ScaledDot and not isinstance(score.scale, Tensor))
    if options["normalizer"] is not None or options["value"] is not None or not has_scaled_dot:
        raise ArgumentError(
            "heads can be selected for softmax over scaled_dot scores, with any mask and score modifier; this call has "
            "another score, normalizer or value, which may have parameters for each head. Leave out heads=."
        )
    kv_heads = [head // (num_heads // k.shape[1]) for head in heads]
    selected_options = RecordedCall(q, k, v, options, None, "").reindex_options({"h": heads})
    return q[:, heads], k[:, kv_heads], v[:, kv_heads], selected_options
