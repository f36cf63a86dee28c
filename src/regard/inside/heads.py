"""What each head of a layer does, as numbers.

A head type is a share of weight, as a mean over those queries that have such a key. Beside it stands what a head would
score that looks at all it may see alike.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.inside.rows import FIRST, SEPARATORS, Rows, Tokens, Uniform
from regard.inside.take import Take
from regard.spec import mask
from regard.spec.mask import Mask

LAST = 64  # queries by which vertical and slashed patterns are judged
LINES = 16  # columns, or diagonals, that a pattern may have
SEEN_BY = 8  # queries, at least, that must see a key for it to be called a sink


@dataclass(frozen=True, eq=False)
class Scores:
    """A number for each text and head, (batch, heads), and the same of a head that looks at all it sees alike."""

    found: Tensor
    uniform: Tensor


class Looked:
    """One layer's heads, looked at: numbers (batch, heads), each beside that of a uniform head.

    Layers that hide the same from the same text share what a uniform head does: `like` is one of those.
    """

    def __init__(
        self,
        take: Take,
        tokens: Tokens | None = None,
        separators: Sequence[Hashable] = (),
        window: int = 16,
        like: "Looked | None" = None,
    ) -> None:
        self.own = Rows(take, tokens, separators)
        self.near = window
        self.uniform: Uniform = like.uniform if like is not None else Uniform(take, tokens, separators)

    def entropy(self) -> Scores:
        return _means(self.own.entropy, self.uniform.entropy, self.uniform.seen > 0)

    def entropy_share(self) -> Scores:
        """Of the largest there could be, the logarithm of the number of keys seen."""
        most = self.uniform.seen.clamp(min=2).log()
        return _means(self.own.entropy / most, torch.ones_like(most), self.uniform.seen > 1)

    def distance(self) -> Scores:
        return _means(self.own.distance, self.uniform.distance, self.uniform.seen > 0)

    def confidence(self) -> Scores:
        """The mean of the largest weights."""
        return _means(self.own.largest[0], 1 / self.uniform.seen.clamp(min=1), self.uniform.seen > 0)

    def positional(self) -> tuple[Scores, Tensor]:
        """The share of queries whose largest weight is at the commonest distance j - p, and that distance."""
        offset = self.own.largest[1] - self.own.places
        sees = (self.uniform.seen > 0).expand_as(offset)
        best, share = torch.zeros(offset.shape[:2], dtype=torch.int64), torch.zeros(offset.shape[:2])
        for b in range(offset.shape[0]):
            for h in range(offset.shape[1]):
                values, counts = offset[b, h][sees[b, h]].unique(return_counts=True)
                if len(values):
                    best[b, h] = values[counts.argmax()]
                    share[b, h] = counts.max() / counts.sum()
        return Scores(share, _mean(1 / self.uniform.seen.clamp(min=1), sees)), best

    def first(self) -> Scores:
        """Mass on the first key, of all queries but that at its place."""
        own, uniform = self.own.on_keys(FIRST), self.uniform.on_keys(FIRST)
        return _means(own, uniform, (self.own.places > 0) & (uniform > 0))

    def separator(self) -> Scores:
        own, uniform = self.own.on_keys(SEPARATORS), self.uniform.on_keys(SEPARATORS)
        return _means(own, uniform, uniform > 0)

    def self_(self) -> Scores:
        return self._under("self", mask.window(1))

    def previous(self) -> Scores:
        return self._under("previous", mask.window(2, 1) & ~mask.window(1))

    def next(self) -> Scores:
        return self._under("next", mask.window(1, 2) & ~mask.window(1))

    def window(self) -> Scores:
        return self._under(f"window {self.near}", mask.window(self.near))

    def _under(self, name: str, extra: Mask) -> Scores:
        uniform = self.uniform.kept(name, lambda rows: rows.under(extra))
        return _means(self.own.under(extra), uniform, uniform > 0)

    def duplicate(self) -> Scores:
        """Mass on earlier occurrences of the query's own token."""
        return self._on_equal("duplicate", lambda text: text)

    def induction(self) -> Scores:
        """Mass on what followed earlier occurrences of the query's token."""
        return self._on_equal("induction", lambda text: [None, *text[:-1]])

    def _on_equal(self, name: str, of_keys: Callable[[Sequence[Hashable]], Sequence[Hashable]]) -> Scores:
        uniform = self.uniform.kept(name, lambda rows: rows.on_equal(of_keys))
        return _means(self.own.on_equal(of_keys), uniform, uniform > 0)

    def alignment(self) -> Scores:
        """How much a query tells about the key it looks at: the mutual information of both, where all queries are as
        likely, as a share of the most there could be. 1 if each has a key of its own, 0 if all look alike."""
        take = self.own.take
        most = math.log(max(2, min(take.q.shape[2], take.k.shape[2])))
        found = [self._information(rows) / most for rows in (self.own, self.uniform)]
        return Scores(*found)

    def _information(self, rows: Rows) -> Tensor:
        """H(key) - H(key given query), (batch, heads)."""
        share = rows.received.double() / rows.received.double().sum(-1, keepdim=True).clamp(min=1e-30)
        known = _mean(rows.entropy, self.uniform.seen > 0)
        found: Tensor = torch.special.entr(share).sum(-1) - known
        return found.clamp(min=0).float()

    def sinks(self) -> tuple[Tensor, Tensor]:
        """The largest share that a key gets of the weight of those who see it, and which key that is."""
        by = self.uniform.seen_by
        share = torch.where(by >= min(SEEN_BY, len(self.own.places)), self.own.received / by.clamp(min=1), 0.0)
        return share.max(-1)

    def lines(self) -> tuple[Tensor, Tensor]:
        """Shares of the last queries' weight on their strongest columns, and on their strongest diagonals."""
        rows = self.own.asked.weights[:, :, -LAST:].double()
        total = rows.sum((-2, -1)).clamp(min=1e-30)
        columns = rows.sum(-2)
        n, n_k = rows.shape[-2:]
        # rows upside down, each a place further right: diagonals become columns
        skewed = torch.nn.functional.pad(rows.flip(-2), (0, n)).flatten(-2)[..., : n * (n_k + n - 1)]
        diagonals = skewed.unflatten(-1, (n, n_k + n - 1)).sum(-2)
        vertical, slash = (x.topk(min(LINES, x.shape[-1])).values.sum(-1) / total for x in (columns, diagonals))
        return vertical.float(), slash.float()


def _means(own: Tensor, uniform: Tensor, counted: Tensor) -> Scores:
    return Scores(_mean(own, counted), _mean(uniform, counted))


def _mean(rows: Tensor, counted: Tensor) -> Tensor:
    """The mean (batch, heads) over the rows that count; 0 where none does."""
    rows, counted = torch.broadcast_tensors(rows, counted)
    return torch.where(counted, rows, 0.0).sum(-1) / counted.sum(-1).clamp(min=1)
