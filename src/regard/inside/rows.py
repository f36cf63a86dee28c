"""Numbers of each query of a layer, in a few passes over tiles and never the matrix.

Most of it is attention asked again with something else in the place of the values. With a_ij the weights, the answer
for values f_j is the mean of f over what a query sees, so

    mass on some keys       f_j = 1 for those                     separators, the first token
    distance                f_j = j, where all keys are behind
    entropy                 H_i = lse_i - s q_i·E[k]              f_j = k_j, for scores s q·k

come out of one call together. Mass under a mask M is exp(lse with M - lse): a call that visits only where M is true. A
mask of equal tokens is true in blocks once queries and keys are sorted by token, and is asked in that order.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard import measure
from regard.attention import attend
from regard.heard import unheard
from regard.inside.take import Take
from regard.result import Attended
from regard.spec import mask, weigh
from regard.spec.mask import Mask
from regard.spec.term import variable, walk

Tokens = Sequence[Sequence[Hashable]]  # for each text of a batch
FIRST, SEPARATORS, PLACE, COLUMNS = 0, 1, 2, 3  # columns in the place of values, and how many there are


class Rows:
    """Numbers of each query of a call, (batch, heads, n_q); what is not asked for is not computed."""

    def __init__(self, take: Take, tokens: Tokens | None, separators: Sequence[Hashable]) -> None:
        self.take, self.tokens = take.widened(), tokens
        self._separators = set(separators)

    @cached_property
    def asked(self) -> Attended:
        """The call with other values: the first key, separators, places, and the keys themselves."""
        batch, heads, n_k, _ = self.take.k.shape
        columns = torch.zeros(batch, heads, n_k, COLUMNS)
        columns[:, :, :1, FIRST] = 1.0
        if self.tokens is not None:
            is_one = torch.tensor([[token in self._separators for token in text] for text in self.tokens])
            columns[..., SEPARATORS] = is_one[:, None]
        columns[..., PLACE] = torch.arange(n_k)
        values = torch.cat((columns.to(self.take.k), self.take.k), dim=-1)
        return _attend(self.take.q, self.take.k, values, {**self.take.options, "value": None})

    @property
    def lse(self) -> Tensor:
        return self.asked.lse  # type: ignore[no-any-return]  # tensors in, tensor out

    def on_keys(self, column: int) -> Tensor:
        """Mass on the first key, or on separators."""
        return self.asked.output[..., column].float()  # type: ignore[no-any-return]  # tensors in, tensor out

    @property
    def places(self) -> Tensor:
        """Where queries stand among the keys, (n_q,)."""
        return torch.arange(self.take.q.shape[2]) + self.take.start

    @property
    def is_softmax(self) -> bool:
        return self.take.options["weigh"] is None

    @property
    def has_plain_scores(self) -> bool:
        return self.is_softmax and self.take.plain_scale is not None

    @cached_property
    def looks_back(self) -> bool:
        """Whether no key is ahead of its query."""
        seen = self.take.options["mask"]
        if seen is None or isinstance(self.take.start, Tensor):
            return False
        batch, heads, n_q, _ = self.take.q.shape
        ahead: Mask = seen & ~mask.causal()
        return ahead.density(n_q, self.take.k.shape[2], batch=batch, heads=heads, start=self.take.start) == 0.0

    @cached_property
    def over_all(self) -> Any:
        """What only a pass over all weights tells: what each key receives, and each query's largest weight."""
        wanted = [measure.received, measure.top(1)]
        if not self.has_plain_scores:
            wanted.append(measure.entropy)
        if not self.looks_back:
            wanted.append(measure.distance)
        return self.asked.weights.measure(*wanted)

    @cached_property
    def entropy(self) -> Tensor:
        """-sum a log a, in nats."""
        if not self.has_plain_scores:
            return self.over_all.entropy  # type: ignore[no-any-return]  # tensors in, tensor out
        assert self.take.plain_scale is not None
        mean_score = (self.take.q.double() * self.asked.output[..., COLUMNS:].double()).sum(-1) * self.take.plain_scale
        sees = self.lse > -torch.inf
        return torch.where(sees, (self.lse.double() - mean_score).clamp(min=0), 0.0).float()

    @cached_property
    def distance(self) -> Tensor:
        """How far a query looks, on the mean."""
        if not self.looks_back:
            return self.over_all.distance  # type: ignore[no-any-return]  # tensors in, tensor out
        far: Tensor = self.places - self.asked.output[..., PLACE] / self._mass.clamp(min=1e-30)
        sees = self.lse > -torch.inf if self.is_softmax else self._mass > 0
        return torch.where(sees, far, 0.0)

    @cached_property
    def _mass(self) -> Tensor:
        """The sum of a query's weights: 1 with softmax, and less with a sink."""
        if self.is_softmax:
            return torch.ones(())
        ones = torch.ones_like(self.take.k[..., :1])
        return _attend(self.take.q, self.take.k, ones, {**self.take.options, "value": None}).output[..., 0]  # type: ignore[no-any-return]  # tensors in, tensor out

    @property
    def received(self) -> Tensor:
        """What each key gets from all queries together: (batch, heads, n_k)."""
        return self.over_all.received  # type: ignore[no-any-return]  # tensors in, tensor out

    @property
    def largest(self) -> tuple[Tensor, Tensor]:
        """The largest weight of each query, and the key that has it."""
        return self.over_all.top.values[..., 0], self.over_all.top.indices[..., 0]

    def under(self, extra: Mask) -> Tensor:
        """Mass under a mask that is true for few pairs."""
        if not self.is_softmax:
            return self.asked.weights.measure(measure.mass(extra)).mass  # type: ignore[no-any-return]  # a tensor
        own = self.take.options["mask"]
        return _share(self.take, extra if own is None else own & extra, self.lse)

    def on_equal(self, of_keys: Callable[[Sequence[Hashable]], Sequence[Hashable]]) -> Tensor:
        """Mass on keys before the query whose word is the query's token; `of_keys` finds their words in a text."""
        assert self.tokens is not None
        take, n = self.take, self.take.q.shape[2]
        found = torch.zeros(take.q.shape[:3])
        for b, text in enumerate(self.tokens):
            asks, words = list(text)[take.k.shape[2] - n :], list(of_keys(text))
            number = {word: place for place, word in enumerate(dict.fromkeys(asks))}
            ids_q = torch.tensor([number[word] for word in asks])
            ids_k = torch.tensor([number.get(word, -1) if word is not None else -1 for word in words])
            if not self.is_softmax:
                equal = mask.where(_equal_before(ids_q, ids_k, take.start))
                found[b] = self.asked.weights.measure(measure.mass(equal)).mass[b]
                continue
            order_q, order_k = ids_q.argsort(stable=True), ids_k.argsort(stable=True)
            order_k = order_k[ids_k[order_k] >= 0]
            if not len(order_k):
                continue
            seen = mask.documents(ids_q[order_q], ids_k[order_k]) & mask.where(_before(order_q + take.start, order_k))
            options = take.rewritten({"b": b, "i": order_q, "j": order_k})
            seen = seen if options["mask"] is None else seen & options["mask"]
            few = Take(take.q[b : b + 1, :, order_q], take.k[b : b + 1, :, order_k], take.v, options, None, "")
            found[b, :, order_q] = _share(few, seen, self.lse[b : b + 1, :, order_q])[0]
        return found


def _share(take: Take, seen: Mask, whole: Tensor) -> Tensor:
    """The share of each query's weight that another mask leaves to it."""
    part = _attend(take.q, take.k, take.k[..., :1], {**take.options, "value": None, "mask": seen}).lse
    return torch.where(part == -torch.inf, 0.0, (part - whole).exp())


def _attend(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Attended:
    with torch.no_grad(), unheard():
        return attend(q, k, v, **options)


def _before(p: Tensor, order_k: Tensor) -> Callable[..., Any]:
    return lambda b, h, i, j: order_k[j] < p[i]


def _equal_before(ids_q: Tensor, ids_k: Tensor, start: Any) -> Callable[..., Any]:
    return lambda b, h, i, j: (ids_q[i] == ids_k[j]) & (j < i + start)


class Uniform(Rows):
    """A head that looks at all that a call lets it see alike, and how much that is."""

    def __init__(self, take: Take, tokens: Tokens | None, separators: Sequence[Hashable]) -> None:
        super().__init__(_alike(take), tokens, separators)
        self._kept: dict[str, Tensor] = {}

    def kept(self, name: str, find: Callable[[Rows], Tensor]) -> Tensor:
        """A number of each query, found once."""
        if name not in self._kept:
            self._kept[name] = find(self)
        return self._kept[name]

    @cached_property
    def seen(self) -> Tensor:
        """How many keys each query sees, (batch, heads, n_q)."""
        return self.lse.exp().round()

    @cached_property
    def seen_by(self) -> Tensor:
        """How many queries see each key, (..., n_k)."""
        start, n_q, n_k = self.take.start, self.take.q.shape[2], self.take.k.shape[2]
        seen = self.take.options["mask"]
        if seen is None:
            return torch.full((n_k,), float(n_q))
        if seen is mask.causal() and isinstance(start, int):
            return (n_q + start - torch.arange(n_k)).clamp(0, n_q).float()
        counting = {**self.take.options, "weigh": weigh.sigmoid(0.0)}  # a weight of 1/2 for every pair that is seen
        halves = _attend(self.take.q, self.take.k, self.take.v, counting).weights.measure(measure.received)
        return 2 * halves.received  # type: ignore[no-any-return]  # a tensor


def _alike(take: Take) -> Take:
    """The same question of a head that looks at all it sees alike; one is enough where heads see the same."""
    (batch, heads, n_q, _), n_k = take.q.shape, take.k.shape[2]
    seen = take.options["mask"]
    many = heads if seen is not None and variable("h") in walk(seen.term) else 1
    options = {**dict.fromkeys(take.options), "mask": seen, "start": take.options["start"]}
    k = torch.zeros(batch, many, n_k, 8)
    return Take(torch.zeros(batch, many, n_q, 8), k, k, options, None, "")
