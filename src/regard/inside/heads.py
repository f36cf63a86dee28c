"""What each head of a layer does, as numbers, in a few passes over tiles and never the matrix.

Most of it is attention asked again with something else in the place of the values. With a_ij the weights, the answer
for values f_j is the mean of f over what a query sees, so

    mass on some keys       f_j = 1 for those                     separators, the first token
    distance                f_j = j, where all keys are behind
    entropy                 H_i = lse_i - s q_i·E[k]              f_j = k_j, for scores s q·k

come out of one call together. Mass under a mask M is exp(lse with M - lse): a call that visits only where M is true. A
mask of equal tokens is true in blocks once queries and keys are sorted by token, and is asked in that order.

A head type is such a mass, as a mean over those queries that have such a key. Beside it stands what a head would score
that looks at all it may see alike.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
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
from regard.spec.score import ScaledDot
from regard.spec.term import variable, walk

LAST = 64  # queries by which vertical and slashed patterns are judged
LINES = 16  # columns, or diagonals, that a pattern may have

Tokens = Sequence[Sequence[Hashable]]  # for each text of a batch


@dataclass(frozen=True, eq=False)
class Scores:
    """A number for each text and head, (batch, heads), and the same of a head that looks at all it sees alike."""

    found: Tensor
    uniform: Tensor


class Looked:
    """One layer's heads, looked at. Results are (batch, heads); what is not asked for is not computed."""

    def __init__(
        self, take: Take, tokens: Tokens | None = None, separators: Sequence[Hashable] = (), window: int = 16
    ) -> None:
        self.take, self.tokens, self.near = take, tokens, window
        self._separators = set(separators)

    @cached_property
    def _features(self) -> Tensor:
        """Values (batch, key heads, n_k, columns) in the place of v: the first key, separators, j; and the keys."""
        batch, heads, n_k, _ = self.take.k.shape
        columns = torch.zeros(batch, heads, n_k, 3)
        columns[:, :, :1, 0] = 1.0
        if self.tokens is not None and len(self.tokens[0]) == n_k:
            is_one = torch.tensor([[token in self._separators for token in text] for text in self.tokens])
            columns[..., 1] = is_one[:, None]
        columns[..., 2] = torch.arange(n_k)
        return torch.cat((columns.to(self.take.k), self.take.k), dim=-1)

    @cached_property
    def _asked(self) -> Attended:
        return _attend(self.take.q, self.take.k, self._features, {**self.take.options, "value": None})

    @cached_property
    def _blind(self) -> Take:
        """The same question of a head that looks at all it sees alike; one is enough where heads see the same."""
        (batch, heads, n_q, _), n_k = self.take.q.shape, self.take.k.shape[2]
        seen = self.take.options["mask"]
        many = heads if seen is not None and variable("h") in walk(seen.term) else 1
        options = {**dict.fromkeys(self.take.options), "mask": seen, "start": self.take.options["start"]}
        k, v = torch.zeros(batch, many, n_k, 8), self._features[:, :1, :, :3].float().expand(-1, many, -1, -1)
        return Take(torch.zeros(batch, many, n_q, 8), k, v, options, None, "")

    @cached_property
    def _alike(self) -> Attended:
        return self._blind.attended

    @cached_property
    def _lse(self) -> Tensor:
        return self._asked.lse  # type: ignore[no-any-return]  # tensors in, tensor out

    @cached_property
    def _seen(self) -> Tensor:
        """How many keys each query sees, (batch, heads, n_q)."""
        return self._alike.lse.exp().round()  # type: ignore[no-any-return]  # tensors in, tensor out

    @property
    def _is_softmax(self) -> bool:
        return self.take.options["weigh"] is None

    # -- numbers of rows ------------------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> Any:
        """What only a pass over all weights tells: what each key receives, and each query's largest weight."""
        wanted = [measure.received, measure.top(1)]
        if not self._has_plain_scores:
            wanted.append(measure.entropy)
        if not self._looks_back:
            wanted.append(measure.distance)
        return self._asked.weights.measure(*wanted)

    @property
    def _has_plain_scores(self) -> bool:
        chosen = self.take.options["score"]
        is_dot = type(chosen) is ScaledDot and chosen.rule is None and not isinstance(chosen.scale, Tensor)
        return self._is_softmax and (chosen is None or is_dot)

    @cached_property
    def _looks_back(self) -> bool:
        """Whether no key is ahead of its query."""
        seen = self.take.options["mask"]
        if seen is None or isinstance(self.take.start, Tensor):
            return False
        batch, heads, n_q, _ = self.take.q.shape
        ahead = seen & ~mask.causal()
        return ahead.density(n_q, self.take.k.shape[2], batch=batch, heads=heads, start=self.take.start) == 0.0  # type: ignore[no-any-return]  # a mask

    @cached_property
    def entropies(self) -> Tensor:
        """H_i (batch, heads, n_q) in nats."""
        if not self._has_plain_scores:
            return self._rows.entropy  # type: ignore[no-any-return]  # tensors in, tensor out
        chosen = self.take.options["score"]
        scale = 1 / math.sqrt(self.take.q.shape[-1]) if chosen is None or chosen.scale is None else chosen.scale
        mean_score = (self.take.q.double() * self._asked.output[..., 3:].double()).sum(-1) * scale
        sees = self._seen > 0
        return torch.where(sees, (self._lse.double() - mean_score).clamp(min=0), 0.0).float()

    @cached_property
    def distances(self) -> Tensor:
        """How far each query looks, on the mean: (batch, heads, n_q)."""
        if not self._looks_back:
            return self._rows.distance  # type: ignore[no-any-return]  # tensors in, tensor out
        p = torch.arange(self.take.q.shape[2]) + self.take.start
        total = self._mass_seen
        return torch.where(self._seen > 0, p - self._asked.output[..., 2] / total.clamp(min=1e-30), 0.0)

    @cached_property
    def _mass_seen(self) -> Tensor:
        """The sum of each query's weights: 1, but with a sink."""
        if self._is_softmax:
            return (self._seen > 0).float()
        ones = torch.ones_like(self.take.k[..., :1])
        return _attend(self.take.q, self.take.k, ones, {**self.take.options, "value": None}).output[..., 0]  # type: ignore[no-any-return]  # tensors in, tensor out

    @property
    def received(self) -> Tensor:
        """What each key gets from all queries together: (batch, heads, n_k)."""
        return self._rows.received  # type: ignore[no-any-return]  # tensors in, tensor out

    @property
    def peaks(self) -> tuple[Tensor, Tensor]:
        """The largest weight of each query, and the key that has it: (batch, heads, n_q)."""
        return self._rows.top.values[..., 0], self._rows.top.indices[..., 0]

    # -- numbers of heads -----------------------------------------------------------------------------------------

    def entropy(self) -> Scores:
        return Scores(_mean(self.entropies, self._seen > 0), _mean(self._seen.clamp(min=1).log(), self._seen > 0))

    def entropy_share(self) -> Scores:
        """Of the largest there could be, log of the number of keys seen."""
        several = self._seen > 1
        share = self.entropies / self._seen.clamp(min=2).log()
        return Scores(_mean(share, several), _mean(torch.ones_like(share), several))

    def distance(self) -> Scores:
        alike = self._alike.weights.measure(measure.distance).distance
        return Scores(_mean(self.distances, self._seen > 0), _mean(alike, self._seen > 0))

    def confidence(self) -> Scores:
        """The mean of the largest weights."""
        return Scores(_mean(self.peaks[0], self._seen > 0), _mean(1 / self._seen.clamp(min=1), self._seen > 0))

    def positional(self) -> tuple[Scores, Tensor]:
        """The share of queries whose largest weight is at the commonest distance j - p, and that distance."""
        p = torch.arange(self.take.q.shape[2]) + self.take.start
        offset = self.peaks[1] - p
        sees = (self._seen > 0).expand_as(offset)
        best, share = torch.zeros(offset.shape[:2], dtype=torch.int64), torch.zeros(offset.shape[:2])
        for b in range(offset.shape[0]):
            for h in range(offset.shape[1]):
                values, counts = offset[b, h][sees[b, h]].unique(return_counts=True)
                if len(values):
                    best[b, h] = values[counts.argmax()]
                    share[b, h] = counts.max() / counts.sum()
        return Scores(share, _mean(1 / self._seen.clamp(min=1), sees)), best

    def first(self) -> Scores:
        """Mass on the first key, of all queries but that at its place."""
        later = torch.arange(self.take.q.shape[2]) + self.take.start > 0
        return self._on_keys(0, later)

    def separator(self) -> Scores:
        return self._on_keys(1, torch.tensor(True))

    def _on_keys(self, column: int, rows: Tensor) -> Scores:
        """Mass on the keys of a column of features, of those queries that see one of them."""
        found, alike = self._asked.output[..., column].float(), self._alike.output[..., column]
        return Scores(_mean(found, rows & (alike > 0)), _mean(alike, rows & (alike > 0)))

    def sinks(self) -> tuple[Tensor, Tensor]:
        """The largest share that a key gets of the weight of those who see it, and which key that is."""
        seen_by = self._alike_received
        share = torch.where(seen_by >= min(8, self.take.q.shape[2]), self.received / seen_by.clamp(min=1), 0.0)
        return share.max(-1)

    @cached_property
    def _alike_received(self) -> Tensor:
        """How many queries see each key."""
        start, n_q, n_k = self.take.start, self.take.q.shape[2], self.take.k.shape[2]
        seen = self.take.options["mask"]
        if seen is None:
            return torch.full((n_k,), float(n_q))
        if seen is mask.causal() and isinstance(start, int):
            return (n_q + start - torch.arange(n_k)).clamp(0, n_q).float()
        counting = {**self._blind.options, "weigh": weigh.sigmoid(0.0)}  # a weight of 1/2 for every pair that is seen
        halves = _attend(self._blind.q, self._blind.k, self._blind.v, counting).weights.measure(measure.received)
        return 2 * halves.received  # type: ignore[no-any-return]  # a tensor

    def self_(self) -> Scores:
        return self._under(mask.window(1))

    def previous(self) -> Scores:
        return self._under(mask.window(2, 1) & ~mask.window(1))

    def next(self) -> Scores:
        return self._under(mask.window(1, 2) & ~mask.window(1))

    def window(self) -> Scores:
        return self._under(mask.window(self.near))

    def _under(self, extra: Mask) -> Scores:
        """Mass under a mask that is true for few pairs, of those queries that see one of them."""
        joined = extra if self.take.options["mask"] is None else self.take.options["mask"] & extra
        alike = self._share(self._blind, {"mask": joined}, self._alike.lse)
        if self._is_softmax:
            found = self._share(self.take, {"mask": joined}, self._lse)
        else:
            found = self._asked.weights.measure(measure.mass(extra)).mass
        return Scores(_mean(found, alike > 0), _mean(alike, alike > 0))

    @staticmethod
    def _share(take: Take, changed: dict[str, Any], whole: Tensor) -> Tensor:
        """The share of each query's weight that is left to it by other options."""
        part = _attend(take.q, take.k, take.k[..., :1], {**take.options, "value": None, **changed}).lse
        return torch.where(part == -torch.inf, 0.0, (part - whole).exp())

    def duplicate(self) -> Scores:
        """Mass on earlier occurrences of the query's own token."""
        return self._on_equal(lambda text: text)

    def induction(self) -> Scores:
        """Mass on what followed earlier occurrences of the query's token."""
        return self._on_equal(lambda text: [None, *text[:-1]])

    def _on_equal(self, of_keys: Callable[[Sequence[Hashable]], Sequence[Hashable]]) -> Scores:
        """Mass on keys before the query whose word is the query's token; `of_keys` finds their words in a text."""
        assert self.tokens is not None
        take, n = self.take, self.take.q.shape[2]
        found, alike = torch.zeros(take.q.shape[:3]), torch.zeros(self._blind.q.shape[:3])
        for b, text in enumerate(self.tokens):
            asks, words = list(text)[take.k.shape[2] - n :], list(of_keys(text))
            number = {word: place for place, word in enumerate(dict.fromkeys(asks))}
            ids_q = torch.tensor([number[word] for word in asks])
            ids_k = torch.tensor([number.get(word, -1) if word is not None else -1 for word in words])
            order_q, order_k = ids_q.argsort(stable=True), ids_k.argsort(stable=True)
            order_k = order_k[ids_k[order_k] >= 0]
            if not len(order_k):
                continue
            equal = mask.documents(ids_q[order_q], ids_k[order_k])
            before = _before(order_q, order_k, take.start)
            places: dict[str, Any] = {"b": b, "i": order_q, "j": order_k}
            for out, of, whole in ((found, take, self._asked), (alike, self._blind, self._alike)):
                if of is take and not self._is_softmax:
                    continue
                options = of.rewritten(places)
                seen = equal & before if options["mask"] is None else equal & before & options["mask"]
                q, k = of.q[b : b + 1, :, order_q], of.k[b : b + 1, :, order_k]
                few = Take(q, k, k, options, None, "")
                out[b, :, order_q] = self._share(few, {"mask": seen}, whole.lse[b : b + 1, :, order_q])[0]
        if not self._is_softmax:
            found = self._dense_equal(of_keys)
        return Scores(_mean(found, alike > 0), _mean(alike, alike > 0))

    def _dense_equal(self, of_keys: Callable[[Sequence[Hashable]], Sequence[Hashable]]) -> Tensor:
        """The same over all tiles: for weights that are no softmax."""
        assert self.tokens is not None
        n, n_k = self.take.q.shape[2], self.take.k.shape[2]
        number: dict[Hashable, int] = {}
        ids_q, ids_k = (
            torch.tensor([[number.setdefault(w, len(number)) if w is not None else -1 for w in text] for text in texts])
            for texts in ([list(t)[n_k - n :] for t in self.tokens], [of_keys(t) for t in self.tokens])
        )
        start = self.take.start
        equal = mask.where(lambda b, h, i, j: (ids_q[b, i] == ids_k[b, j]) & (j < i + start))
        return self._asked.weights.measure(measure.mass(equal)).mass  # type: ignore[no-any-return]  # a tensor

    def lines(self) -> tuple[Tensor, Tensor]:
        """Shares of the last queries' weight on their strongest columns, and on their strongest diagonals."""
        rows = self._asked.weights[:, :, -LAST:].double()
        total = rows.sum((-2, -1)).clamp(min=1e-30)
        columns = rows.sum(-2)
        n, n_k = rows.shape[-2:]
        # rows upside down, each a place further right: diagonals become columns
        skewed = torch.nn.functional.pad(rows.flip(-2), (0, n)).flatten(-2)[..., : n * (n_k + n - 1)]
        diagonals = skewed.unflatten(-1, (n, n_k + n - 1)).sum(-2)
        vertical, slash = (x.topk(min(LINES, x.shape[-1])).values.sum(-1) / total for x in (columns, diagonals))
        return vertical.float(), slash.float()


def _attend(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Attended:
    with torch.no_grad(), unheard():
        return attend(q, k, v, **options)


def _mean(rows: Tensor, counted: Tensor) -> Tensor:
    """The mean (batch, heads) over the rows that count; 0 where none does."""
    rows, counted = torch.broadcast_tensors(rows, counted)
    return torch.where(counted, rows, 0.0).sum(-1) / counted.sum(-1).clamp(min=1)


def _before(order_q: Tensor, order_k: Tensor, start: Any) -> Mask:
    p = order_q + start
    return mask.where(lambda b, h, i, j: order_k[j] < p[i])
