"""The calls of one module on a tape. Calls that go on where the last one ended, as in generation, are one matrix."""

from functools import cached_property

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.inside.take import Take
from regard.result import Attended
from regard.spec import mask
from regard.spec.mask import Mask


class Layer:
    """A module that attends: its path in the model, its number among such modules, and what it was asked.

    `heads` are the numbers of those that were kept.
    """

    def __init__(self, path: str, number: int, heads: list[int] | None) -> None:
        self.path, self.number = path, number
        self.takes: list[Take] = []
        self._chosen = heads
        self._first = 0  # of the last calls that go on one from another

    @property
    def heads(self) -> list[int]:
        return list(range(self.takes[0].q.shape[1])) if self._chosen is None else self._chosen

    def add(self, take: Take) -> int:
        """Keeps a call. Keys and values that the last one had are kept once: the bytes that were saved."""
        self.__dict__.pop("take", None)
        last = self.takes[-1] if self.takes else None
        self.takes.append(take)
        if last is None or not _begins_with(take, last):
            self._first = len(self.takes) - 1
            return 0
        saved = last.k.nbytes + last.v.nbytes
        for earlier in self.takes[self._first : -1]:
            earlier.over(take.k, take.v)
        return saved

    @property
    def is_one(self) -> bool:
        """Whether the keys of each call begin with those of the call before it."""
        return self._first == 0

    @cached_property
    def take(self) -> Take:
        """All calls as one."""
        return self.takes[0] if len(self.takes) == 1 else _joined(self)

    @property
    def attended(self) -> Attended:
        """All calls as one, kept open."""
        return self.take.attended


def _begins_with(take: Take, last: Take) -> bool:
    n_k = last.k.shape[-2]
    if take.k.shape[:-2] != last.k.shape[:-2] or take.k.shape[-2] < n_k:
        return False
    return torch.equal(take.k[..., :n_k, :], last.k) and torch.equal(take.v[..., :n_k, :], last.v)


def _joined(layer: Layer) -> Take:
    """All queries of a layer over the keys of its last call."""
    first, *others = layer.takes
    last = layer.takes[-1]
    grown = [take.k.shape[-2] - before.k.shape[-2] for take, before in zip(others, layer.takes, strict=False)]
    follows = all(more == take.q.shape[-2] for more, take in zip(grown, others, strict=True))
    stays = all(more == 0 for more in grown)
    others_plain = all(
        take.options[name] is None or name in ("mask", "score") for take in layer.takes for name in take.options
    )
    alike = others_plain and first.plain_scale is not None and len({take.plain_scale for take in layer.takes}) == 1
    if not (layer.is_one and alike and (follows or stays)):
        raise SpecError(
            f"the calls of a layer must go on where the last one ended, as in generation, to be one matrix; "
            f"{layer.path} was called {len(layer.takes)} times with other keys or rules. Take them one by one: "
            f"tape.calls({layer.number})."
        )
    q = torch.cat([take.q for take in layer.takes], dim=2)
    options = {**first.options, "mask": _joined_mask(layer.takes, follows)}
    return Take(q, last.k, last.v, options, None, last.source)


def _joined_mask(takes: list[Take], follows: bool) -> Mask | None:
    """Whom each query sees. In a text that grows, one query at the end sees everything so far."""
    masks = [take.options["mask"] for take in takes]
    causal = [m is mask.causal() or (m is None and take.q.shape[2] == 1) for m, take in zip(masks, takes, strict=True)]
    if follows and all(causal):
        return mask.causal()
    if not follows and all(m is None for m in masks):
        return None
    rows = torch.cat([_seen(take, takes[-1].k.shape[-2]) for take in takes], dim=2)
    return mask.tensor(rows)


def _seen(take: Take, n_k: int) -> Tensor:
    """Whom the queries of a call see, of so many keys: (batch, heads, n_q, n_k)."""
    batch, heads, n_q, here = take.q.shape[0], take.q.shape[1], take.q.shape[2], take.k.shape[-2]
    chosen = take.options["mask"]
    rows = torch.zeros(batch, heads, n_q, n_k, dtype=torch.bool)
    rows[..., :here] = True if chosen is None else chosen.dense(n_q, here, batch=batch, heads=heads)
    return rows
