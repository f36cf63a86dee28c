"""Calls that go on where the last one ended, as in generation, as one: all queries over all keys there were.

A cache that keeps the latest keys alone gives each call a later part of them; the others are hidden from its queries.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.inside.chain import Chain
from regard.inside.take import OPTIONS, Take
from regard.spec import mask, score
from regard.spec.mask import Mask
from regard.spec.named import read_back
from regard.spec.term import variable, walk


class Apart(Exception):
    """The calls are not one matrix."""


def joined(chains: Sequence[Chain]) -> Take:
    """All calls as one; `Apart` where they do not go on one from another, or ask something else each time."""
    if len(chains) != 1:
        raise Apart
    takes, offsets, k, v = chains[0].takes, chains[0].offsets, chains[0].k, chains[0].v
    ends = [offset + take.k.shape[2] for offset, take in zip(offsets, takes, strict=True)]
    grown = [end - before for end, before in zip(ends[1:], ends, strict=False)]
    stays = not any(grown)
    follows = grown == [take.q.shape[2] for take in takes[1:]]  # each query brings a key of its own
    if not (stays or follows) or any(take.options[name] is not None for take in takes for name in ("value", "start")):
        raise Apart
    if not _all_equal([_filled(_said(take, "weigh"), take) for take in takes]):
        raise Apart
    options = {
        **takes[0].options,
        "score": _joined_score(takes, offsets, k.shape[2], stays),
        "mask": _joined_mask(takes, offsets, k.shape[2], stays),
    }
    return Take(torch.cat([take.q for take in takes], dim=2), k, v, options, None, takes[-1].source)


def _joined_mask(takes: Sequence[Take], offsets: list[int], n_k: int, stays: bool) -> Mask | None:
    """Whom each query sees. In a text that grows, one query at the end sees everything so far."""
    masks = [take.options["mask"] for take in takes]
    causal = [m is mask.causal() or (m is None and take.q.shape[2] == 1) for m, take in zip(masks, takes, strict=True)]
    if not stays and not any(offsets) and all(causal):
        return mask.causal()
    if stays and all(m is None for m in masks):
        return None
    by_head = any(m is not None and variable("h") in walk(m.term) for m in masks)
    heads = takes[0].q.shape[1] if by_head else 1
    rows = [_placed(_seen(take, heads), offset, n_k) for take, offset in zip(takes, offsets, strict=True)]
    return mask.tensor(torch.cat(rows, dim=2))


def _seen(take: Take, heads: int) -> Tensor:
    """Whom the queries of a call see of its keys: (batch, heads, n_q, n_k)."""
    batch, n_q, n_k = take.q.shape[0], take.q.shape[2], take.k.shape[2]
    chosen = take.options["mask"]
    if chosen is None:
        return torch.ones(batch, heads, n_q, n_k, dtype=torch.bool)
    found: Tensor = chosen.dense(n_q, n_k, batch=batch, heads=heads)
    return found


def _placed(rows: Tensor, offset: int, n_k: int) -> Tensor:
    """Rows over the keys of a call as rows over all keys, with zeros for the others."""
    return torch.nn.functional.pad(rows, (offset, n_k - offset - rows.shape[-1]))


def _joined_score(takes: Sequence[Take], offsets: list[int], n_k: int, stays: bool) -> Any:
    """The score that all calls have, and the biases that each adds to it at last, put together."""
    said, biases = zip(*(_split(take) for take in takes), strict=True)
    if not _all_equal([_filled(each, take) for each, take in zip(said, takes, strict=True)]):
        raise Apart
    spelled = takes[0].spelled
    assert spelled is not None  # or there would be no names
    shared = read_back(json.dumps(said[0]), spelled.tensors, spelled.numbers)
    # queries have other numbers now; so have keys after an offset, and places among keys that stay
    changed = {"i", "n_q", "n_k"} | ({"p"} if stays else set()) | ({"p", "j"} if any(offsets) else set())
    rule = None if shared is None else shared.rule
    if rule is not None and any(variable(name) in walk(rule.term) for name in changed):
        raise Apart
    if all(bias is None for bias in biases):
        return shared
    rows = []
    for take, offset, bias in zip(takes, offsets, biases, strict=True):
        values = torch.zeros(1, 1, 1, 1) if bias is None else bias[(None,) * (4 - bias.dim())]
        rows.append(_placed(values.expand(-1, -1, take.q.shape[2], take.k.shape[2]), offset, n_k))
    leading = torch.broadcast_shapes(*(x.shape[:2] for x in rows))
    whole = torch.cat([x.expand(*leading, -1, -1) for x in rows], dim=2)
    return (score.scaled_dot() if shared is None else shared).then(score.bias(whole))


def _split(take: Take) -> tuple[Any, Tensor | None]:
    """The score of a call as it is said, without a bias that is added at last, and that bias."""
    said = _said(take, "score")
    if said is not None and said[0] == "score.changed" and said[1][1][0] == "rule.bias":
        return said[1][0], _filled(said[1][1][1][0], take)
    return said, None


def _said(take: Take, name: str) -> Any:
    """An option as the names of its makers and what they were given, tensors and whole numbers by their places."""
    if take.spelled is None:
        raise Apart
    return json.loads(take.spelled.text)["list"][OPTIONS.index(name)]


def _filled(said: Any, take: Take) -> Any:
    """The same with the tensors and numbers themselves."""
    assert take.spelled is not None
    if isinstance(said, dict) and set(said) == {"tensor"}:
        return take.spelled.tensors[said["tensor"]]
    if isinstance(said, dict) and set(said) == {"number"}:
        return take.spelled.numbers[said["number"]]
    if isinstance(said, dict):
        return {key: _filled(each, take) for key, each in said.items()}
    return [_filled(each, take) for each in said] if isinstance(said, list) else said


def _all_equal(values: Sequence[Any]) -> bool:
    return all(_equal(value, values[0]) for value in values)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return type(one) is type(other) and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
