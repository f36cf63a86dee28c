"""Attention over pages: each sequence as if it were alone, and what several begin with only once.

The tables of the sequences of a call make a tree: pages that several have in common, then what each has for itself. Of
every branch (output, lse) is computed for the queries of all who hold it, and merged along each sequence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.attention import IN_ORDER, answer
from regard.distributed.answered import Pair, answered, completed, joined
from regard.distributed.branches import Branch, Held, branches
from regard.distributed.pool import Pool
from regard.errors import SpecError
from regard.plan.choose import choose
from regard.spec.bounds import Bounds, Regions
from regard.spec.formula import FromQueries
from regard.spec.hiding import visible
from regard.spec.mask import as_mask, padding
from regard.spec.place import Places
from regard.spec.precision import without_autocast
from regard.spec.read import read
from regard.spec.spec import Question
from regard.spec.term import TRUE


def attention_over_pages(
    pool: Pool, layer: int, held: Sequence[Held], q: Tensor, options: dict[str, Any], engine: str | None
) -> Tensor:
    """See `PagedCache.attention`."""
    _check(pool, layer, held, q)
    with torch.no_grad(), without_autocast(q.device.type):
        call = _Call(pool, layer, held, q, options, engine)
        return call.shared() if call.may_share() else call.together()


class _Call:
    """The queries of some sequences, and what a layer has kept of them."""

    def __init__(
        self, pool: Pool, layer: int, held: Sequence[Held], q: Tensor, options: dict[str, Any], engine: str | None
    ) -> None:
        self.pool, self.layer, self.held, self.q, self.engine = pool, layer, held, q, engine
        self.lengths = torch.tensor([h.length for h in held])
        self.longest = int(self.lengths.max())
        self.is_even = bool((self.lengths == self.longest).all())
        start = self.longest - q.shape[2] if self.is_even else self.lengths - q.shape[2]
        self.options = {**options, "start": start}
        self.branches = branches(held, pool.size)
        self.question = self._read(range(len(held)), *self._rows([held[0].table[0]]))
        _check_positions(self.question, self.is_even)

    def may_share(self) -> bool:
        """Whether parts can be put together, and nothing depends on which sequence it is."""
        spec = self.question.spec
        by_sequence = "b" in spec.mask.depends or (spec.rule is not None and "b" in spec.rule.depends)
        of_queries = any(isinstance(t, FromQueries) for t in self.question.formula.tensors)
        merges = spec.normaliser.statistic == "lse" and self.question.weigh.iterations == 1
        plain = not (by_sequence or of_queries or spec.dropout) and self.question.relative_values is None
        return bool(self.branches) and merges and plain and self.q.shape[2] > 0

    def together(self) -> Tensor:
        """All keys of every sequence in one call; the shorter ones are followed by some that they do not see."""
        k, v = self._side_by_side(range(len(self.held)), 0)
        options = dict(self.options)
        if not self.is_even:
            seen = padding(self.lengths)
            options["mask"] = seen if options["mask"] is None else as_mask(options["mask"]) & seen
        question = read(self.q, k, v, **options)
        found, *_ = answer(question, choose(question.spec, IN_ORDER, self.engine), self._counted())
        return found

    def shared(self) -> Tensor:
        """What several have in common once, and merged with what each has for itself."""
        so_far: list[Pair | None] = [None] * len(self.held)
        own = [0] * len(self.held)  # pages of each that are done
        for branch in self.branches:
            self._add(so_far, branch.who, self._branch(branch))
            for number in branch.who:
                own[number] = branch.first + len(branch.pages)
        for first in sorted(set(own)):
            who = [n for n, begin in enumerate(own) if begin == first and self.held[n].length > first * self.pool.size]
            if who:
                self._add(so_far, who, self._rest(who, first))
        pairs = [pair for pair in so_far if pair is not None]
        output, lse = (torch.cat(x) for x in zip(*pairs, strict=True))
        return completed(self.question, (output, lse), self._counted())

    def _branch(self, branch: Branch) -> Pair:
        """All queries of those who hold it over the pages of a branch."""
        size = self.pool.size
        keys = Places(branch.first * size, len(branch.pages) * size)
        k, v = self._rows(list(branch.pages))
        question = self._read(branch.who, k, v)
        if not self._sees_all(question, keys):
            return answered(question, Places(0, self.q.shape[2]), keys, self.engine)
        # nothing depends on positions, so all queries are those of one sequence: a product in place of many
        stacked = self.q[list(branch.who)].transpose(0, 1).flatten(1, 2)[None]
        as_one = read(stacked, k, v, **{**self.options, "mask": None, "start": None})
        output, lse = answered(as_one, Places(0, stacked.shape[2]), Places(0, keys.count), self.engine)
        assert lse is not None
        apart = [x[0].unflatten(1, (len(branch.who), -1)).transpose(0, 1) for x in (output, lse)]
        return apart[0], apart[1]

    def _rest(self, who: Sequence[int], first: int) -> Pair:
        """What these sequences have for themselves, from page number `first` on."""
        begin = first * self.pool.size
        k, v = self._side_by_side(who, first)
        counts = self.lengths[list(who)] - begin
        question = self._read(who, k, v)
        hidden = None if bool((counts == k.shape[2]).all()) else counts
        return answered(question, Places(0, self.q.shape[2]), Places(begin, k.shape[2]), self.engine, hidden)

    def _sees_all(self, question: Question, keys: Places) -> bool:
        """Whether every query sees every one of these keys, and scores do not depend on where they stand."""
        spec = question.spec
        if spec.rule is not None and not spec.rule.depends <= {"s", "h"}:
            return False
        tensors = question.captured()
        seen = visible(spec.mask, spec.rule, tensors)
        if seen is TRUE:
            return True
        b, h = (x.ravel() for x in np.meshgrid(np.arange(spec.batch), np.arange(spec.heads), indexing="ij"))
        zero = np.zeros_like(b)
        everywhere = Regions(b, h, zero, zero + spec.n_q - 1, zero + keys.first, zero + keys.first + keys.count - 1)
        surely, _ = Bounds(tensors, spec.lengths, question.start).of(seen, everywhere)
        return bool((surely == 1).all())

    def _add(self, so_far: list[Pair | None], who: Sequence[int], found: Pair) -> None:
        output, lse = found
        assert lse is not None  # only softmax and sinks come here
        for place, number in enumerate(who):
            so_far[number] = joined(so_far[number], (output[place : place + 1], lse[place : place + 1]))

    def _read(self, who: Sequence[int], k: Tensor, v: Tensor) -> Question:
        """The question as these sequences ask it, with some rows of keys."""
        start = self.options["start"]
        start = start[list(who)] if isinstance(start, Tensor) else start
        whole = self.q.shape[2], self.longest
        return read(self.q[list(who)], k, v, **{**self.options, "start": start}, whole=whole)

    def _rows(self, pages: list[int]) -> tuple[Tensor, Tensor]:
        """Keys and values of some pages, (1, heads, tokens, width)."""
        k, v = self.pool.read(self.layer, pages)
        return k[None], v[None]

    def _side_by_side(self, who: Sequence[int], first: int) -> tuple[Tensor, Tensor]:
        """Keys and values from page number `first` on, (sequences, heads, longest, width)."""
        size = self.pool.size
        longest = max(self.held[n].length for n in who) - first * size
        count = -(-longest // size)
        tables = [self.held[n].table[first : first + count] for n in who]
        filled = [
            t + t[:1] * (count - len(t)) if t else [0] * count for t in tables
        ]  # what is not seen may be anything
        rows = self.pool.read(self.layer, [page for table in filled for page in table])
        k, v = (x.unflatten(1, (len(who), count * size)).transpose(0, 1)[:, :, :longest] for x in rows)
        return k, v

    def _counted(self) -> int | Tensor:
        """The number of keys that a weighing counts, to broadcast over (batch, heads, n_q)."""
        return self.longest if self.is_even else self.lengths.view(-1, 1, 1)


def _check(pool: Pool, layer: int, held: Sequence[Held], q: Tensor) -> None:
    checks.tensor(q, "q", dtype="floats")
    if q.dim() != 4 or q.shape[0] != len(held):
        raise SpecError(f"q must be ({len(held)} sequences, heads, n, width); got shape {tuple(q.shape)}.")
    if min(h.length for h in held) < 1:
        got = [h.length for h in held]
        raise SpecError(f"every sequence of a call must have tokens in layer {layer}; got lengths {got}.")
    kinds = pool.kinds(layer) or ()
    if len(kinds) != 2:
        raise SpecError(f"attention needs keys and values; layer {layer} keeps {len(kinds)} kinds of rows.")
    if torch.is_grad_enabled() and q.requires_grad:
        raise SpecError(
            "attention over pages has no gradients; got q that requires them. Call it under torch.no_grad(), or give "
            "q.detach()."
        )


def _check_positions(question: Question, is_even: bool) -> None:
    if question.weigh.iterations > 1:
        raise SpecError(
            f"attention over pages must be able to go row by row; got {question.weigh.formula}, which normalises whole "
            "columns as well. Use weigh.softmax()."
        )
    spec = question.spec
    if not is_even and any("n_k" in t.depends for t in (spec.mask, spec.rule) if t is not None):
        raise SpecError(
            "sequences of several lengths have no common end; got a mask or rule that counts from the end of the keys. "
            "Call it with one sequence at a time."
        )
