"""Merge consecutive decoding steps into one call with the queries of all steps over all keys.

If a cache evicts keys, a step has only the latest keys. The merged mask hides the evicted keys from its queries.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard import mask, score
from regard.expr.ir import variable, walk
from regard.expr.serialize import deserialize
from regard.mask import Mask
from regard.recording.decode_sequence import DecodeSequence
from regard.recording.recorded_call import CALL_OPTIONS, RecordedCall


class NotMergeable(Exception):
    """The calls cannot be expressed as one call."""


def merge_steps(sequences: Sequence[DecodeSequence]) -> RecordedCall:
    """Return all calls as one. Raises `NotMergeable` if they have unrelated keys or different options."""
    if len(sequences) != 1:
        raise NotMergeable
    calls, offsets, k, v = sequences[0].calls, sequences[0].key_offsets, sequences[0].k, sequences[0].v
    ends = [offset + call.k.shape[2] for offset, call in zip(offsets, calls, strict=True)]
    num_new_keys = [end - last_end for end, last_end in zip(ends[1:], ends, strict=False)]
    same_keys = not any(num_new_keys)
    one_key_per_query = num_new_keys == [call.q.shape[2] for call in calls[1:]]
    if not (same_keys or one_key_per_query) or any(
        call.options[name] is not None for call in calls for name in ("value", "query_offset")
    ):
        raise NotMergeable
    if not _all_equal([_resolve_references(_serialized_option(call, "normalizer"), call) for call in calls]):
        raise NotMergeable
    options = {
        **calls[0].options,
        "score": _merge_scores(calls, offsets, k.shape[2], same_keys),
        "mask": _merge_masks(calls, offsets, k.shape[2], same_keys),
    }
    return RecordedCall(torch.cat([call.q for call in calls], dim=2), k, v, options, None, calls[-1].source)


def _merge_masks(calls: Sequence[RecordedCall], key_offsets: list[int], n_k: int, same_keys: bool) -> Mask | None:
    """Return the mask of all steps. A step of one query without a mask attends to all keys so far, so it is causal."""
    masks = [call.options["mask"] for call in calls]
    is_causal = [
        call_mask is mask.causal() or (call_mask is None and call.q.shape[2] == 1)
        for call_mask, call in zip(masks, calls, strict=True)
    ]
    if not same_keys and not any(key_offsets) and all(is_causal):
        return mask.causal()
    if same_keys and all(call_mask is None for call_mask in masks):
        return None
    depends_on_head = any(call_mask is not None and variable("h") in walk(call_mask.expr) for call_mask in masks)
    num_heads = calls[0].q.shape[1] if depends_on_head else 1
    rows = [
        _pad_to_all_keys(_dense_mask(call, num_heads), offset, n_k)
        for call, offset in zip(calls, key_offsets, strict=True)
    ]
    return mask.tensor(torch.cat(rows, dim=2))


def _dense_mask(call: RecordedCall, num_heads: int) -> Tensor:
    """Return which keys each query of a call may attend to: (batch, heads, n_q, n_k)."""
    batch_size, n_q, n_k = call.q.shape[0], call.q.shape[2], call.k.shape[2]
    call_mask = call.options["mask"]
    if call_mask is None:
        return torch.ones(batch_size, num_heads, n_q, n_k, dtype=torch.bool)
    visible: Tensor = call_mask.to_dense(n_q, n_k, batch_size=batch_size, num_heads=num_heads)
    return visible


def _pad_to_all_keys(rows: Tensor, offset: int, n_k: int) -> Tensor:
    """Pad rows over the keys of a call with zeros to rows over all keys."""
    return torch.nn.functional.pad(rows, (offset, n_k - offset - rows.shape[-1]))


def _merge_scores(calls: Sequence[RecordedCall], key_offsets: list[int], n_k: int, same_keys: bool) -> Any:
    """Return the score that all calls share, plus the concatenated biases that they add last."""
    serialized_scores, biases = zip(*(_split_bias(call) for call in calls), strict=True)
    resolved = [_resolve_references(text, call) for text, call in zip(serialized_scores, calls, strict=True)]
    if not _all_equal(resolved):
        raise NotMergeable
    serialized = calls[0].serialized_options
    assert serialized is not None  # _split_bias raises NotMergeable otherwise
    shared = deserialize(json.dumps(serialized_scores[0]), serialized.tensors, serialized.integers)
    # merging renumbers queries; an offset also renumbers keys, and constant keys change the positions of queries
    renumbered = {"i", "n_q", "n_k"} | ({"p"} if same_keys else set()) | ({"p", "j"} if any(key_offsets) else set())
    score_mod = None if shared is None else shared.score_mod
    if score_mod is not None and any(variable(name) in walk(score_mod.expr) for name in renumbered):
        raise NotMergeable
    if all(bias is None for bias in biases):
        return shared
    rows = []
    for call, offset, bias in zip(calls, key_offsets, biases, strict=True):
        values = torch.zeros(1, 1, 1, 1) if bias is None else bias[(None,) * (4 - bias.dim())]
        rows.append(_pad_to_all_keys(values.expand(-1, -1, call.q.shape[2], call.k.shape[2]), offset, n_k))
    leading_shape = torch.broadcast_shapes(*(x.shape[:2] for x in rows))
    merged_bias = torch.cat([x.expand(*leading_shape, -1, -1) for x in rows], dim=2)
    return (score.scaled_dot() if shared is None else shared).then(score.bias(merged_bias))


def _split_bias(call: RecordedCall) -> tuple[Any, Tensor | None]:
    """Return the serialized score of a call without a bias that is added last, and that bias."""
    serialized = _serialized_option(call, "score")
    if serialized is not None and serialized[0] == "score.modified" and serialized[1][1][0] == "score.bias":
        return serialized[1][0], _resolve_references(serialized[1][1][1][0], call)
    return serialized, None


def _serialized_option(call: RecordedCall, name: str) -> Any:
    """Return an option as parsed JSON: constructor names and arguments, with references to tensors and integers."""
    if call.serialized_options is None:
        raise NotMergeable
    return json.loads(call.serialized_options.text)["list"][CALL_OPTIONS.index(name)]


def _resolve_references(serialized: Any, call: RecordedCall) -> Any:
    """Replace references with the tensors and integers that they refer to."""
    assert call.serialized_options is not None
    if isinstance(serialized, dict) and set(serialized) == {"tensor"}:
        return call.serialized_options.tensors[serialized["tensor"]]
    if isinstance(serialized, dict) and set(serialized) == {"int"}:
        return call.serialized_options.integers[serialized["int"]]
    if isinstance(serialized, dict):
        return {key: _resolve_references(value, call) for key, value in serialized.items()}
    return [_resolve_references(item, call) for item in serialized] if isinstance(serialized, list) else serialized


def _all_equal(values: Sequence[Any]) -> bool:
    return all(_equal(value, values[0]) for value in values)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return type(a) is type(b) and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
