"""Sequences of different lengths laid end to end: one call, no padding.

Terms make it simple. Every position in the mask and the rules is replaced by the position inside its own sequence,
and pairs of different sequences are hidden; whatever an engine can do, it can do packed.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention import IN_ORDER, answer
from regard.checks import describe
from regard.eager import runs_eagerly
from regard.errors import SpecError
from regard.plan.choose import choose
from regard.spec.array import as_tensor
from regard.spec.formula import Captured, Formula, FromLengths, FromQueries, written
from regard.spec.mask import Mask, as_mask
from regard.spec.read import read
from regard.spec.regions import Lengths
from regard.spec.rule import Rule
from regard.spec.score import as_score
from regard.spec.term import lookup, renumber, slot_of, substitute, variable, walk
from regard.spec.weigh import as_weigh


@runs_eagerly
def attention_packed(
    q: Any,
    k: Any,
    v: Any,
    lengths_q: Any,
    lengths_k: Any = None,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    engine: str | None = None,
) -> Any:
    """`attention` for sequences packed end to end: q is (total, width) or (heads, total, width), k and v likewise.

    Sequence number b has lengths_q[b] queries and lengths_k[b] keys (None: as many). Masks and rules see each sequence
    by itself: b is its number, i and j count from its beginning, `start` is its own. See `attention` for the rest.

    >>> q = torch.randn(5, 8)
    >>> from regard import attention, mask
    >>> together = attention_packed(q, q, q, [2, 3], mask=mask.causal())
    >>> torch.allclose(together[2:], attention(q[2:], q[2:], q[2:], mask=mask.causal()), atol=1e-6)
    True
    """
    lengths_k = lengths_q if lengths_k is None else lengths_k
    counts_q, counts_k = _lengths(lengths_q, "lengths_q"), _lengths(lengths_k, "lengths_k")
    _check_rows(q, counts_q, "q")
    _check_rows(k, counts_k, "k")
    sequences = _Sequences(counts_q, counts_k, start)
    heads = q.shape[0] if q.ndim == 3 else 1
    chosen, weighing = as_score(score), as_weigh(weigh)
    if chosen.rule is not None:
        chosen = replace(chosen, rule=sequences.moved(chosen.rule, heads, Rule))
    if weighing.rule is not None:
        weighing = replace(weighing, rule=sequences.moved(weighing.rule, heads, Rule))
    seen = sequences.same()
    if mask is not None:
        seen = seen & sequences.moved(as_mask(mask), heads, Mask)
    question = read(
        *((x[None] if q.ndim == 3 else x) for x in (q, k, v)),
        score=chosen,
        mask=seen,
        weigh=weighing,
        value=value,
        dropout=dropout,
        seed=seed,
        start=0,
    )
    plan = choose(question.spec, IN_ORDER, engine)
    output, *_ = answer(question, plan, sequences.keys_seen(), (sequences.p, sequences.j))
    shaped = question.shaped(output)
    return shaped[0] if q.ndim == 3 else shaped


class _Sequences:
    """Where each sequence lies, and how formulas are moved into it."""

    def __init__(self, lengths_q: Tensor, lengths_k: Tensor, start: Any) -> None:
        if len(lengths_q) != len(lengths_k):
            raise SpecError(f"lengths_q and lengths_k must be equally many; got {len(lengths_q)} and {len(lengths_k)}.")
        self.lengths_q, self.lengths_k = lengths_q.long(), lengths_k.long()
        begin = self.lengths_k - self.lengths_q if start is None else as_tensor(start, "start")
        is_whole = not (begin.is_floating_point() or begin.is_complex() or begin.dtype == torch.bool)
        if begin.dim() > 1 or begin.numel() not in (1, len(lengths_q)) or not is_whole:
            count, got = len(lengths_q), describe(begin)
            raise SpecError(f"start must be one whole number, or one for each of {count} sequences; got {got}.")
        self.start = begin.expand(len(lengths_q)).long()
        self.of_q, self.i = _numbered(self.lengths_q)
        self.of_k, self.j = _numbered(self.lengths_k)
        self.p = self.i + self.start[self.of_q]
        self._places = {
            name: written(function, *on, names=(called,))
            for name, function, on, called in (
                ("b", lambda i: self.of_q[i], "i", "sequence"),
                ("i", lambda i: self.i[i], "i", "own_i"),
                ("j", lambda j: self.j[j], "j", "own_j"),
                ("p", lambda i: self.p[i], "i", "own_p"),
                ("n_q", lambda i: self.lengths_q[self.of_q][i], "i", "own_n_q"),
                ("n_k", lambda i: self.lengths_k[self.of_q][i], "i", "own_n_k"),
            )
        }

    def keys_seen(self) -> Tensor:
        """The number of keys in each query's sequence, to broadcast over (batch, heads, n_q)."""
        return self.lengths_k[self.of_q]

    def same(self) -> Mask:
        made = written(lambda i, j: self.of_q[i] == self.of_k[j], "i", "j", names=("sequence_q", "sequence_k"))
        return Mask(made.term, made.tensors, made.names)

    def moved(self, formula: Formula, heads: int, kind: type[Any]) -> Any:
        """A formula that speaks of one sequence, as one that speaks of the packed whole."""
        most: Lengths = (len(self.lengths_q), heads, _most(self.lengths_q), _most(self.lengths_k))
        formula.check(most, self.start)
        tensors = [self._moved_tensor(t, most) for t in formula.tensors]
        names = list(formula.names)
        replacements = {}
        for name, place in self._places.items():
            if name in formula.term.depends:
                (table,) = place.tensors
                tensors.append(table)
                names.append(place.names[0])
                replacements[variable(name)] = renumber(place.term, {0: len(tensors) - 1})
        term = substitute(formula.term, replacements)
        made = [n for n, t in enumerate(formula.tensors) if isinstance(t, FromLengths)]
        if made:  # these were made for each sequence by itself
            tensors.append(self.of_q)
            names.append("sequence")
            number = renumber(self._places["b"].term, {0: len(tensors) - 1})
            reads = [node for node in walk(term) if node.op == "lookup" and slot_of(node) in made]
            term = substitute(term, {n: lookup(slot_of(n), (number, *n.args), n.kind) for n in reads})
        return kind(term, tuple(tensors), tuple(names))

    def _moved_tensor(self, captured: Captured, most: Lengths) -> Captured:
        if isinstance(captured, FromLengths):
            each = zip(self.lengths_q.tolist(), self.lengths_k.tolist(), strict=True)
            return _stacked([captured.make((1, most[1], n_q, n_k)) for n_q, n_k in each])
        if isinstance(captured, FromQueries):
            return FromQueries(lambda q: self._by_sequence(captured.make(q), most))
        return captured

    def _by_sequence(self, packed: Tensor, most: Lengths) -> Tensor:
        """(1, heads, total, width) as (sequences, heads, most queries, width), zeros where a sequence is shorter."""
        whole = packed.new_zeros((most[0], packed.shape[1], most[2], packed.shape[-1]))
        return whole.transpose(1, 2).index_put((self.of_q, self.i), packed[0].transpose(0, 1)).transpose(1, 2)


def _check_rows(x: Any, lengths: Tensor, name: str) -> None:
    if not isinstance(x, (Tensor, np.ndarray)) or x.ndim not in (2, 3):
        raise SpecError(f"packed {name} must be (total, width) or (heads, total, width); got {describe(x)}.")
    shape, total = tuple(x.shape), sum(lengths.tolist())
    if shape[-2] != total:
        turned = f" If it is (total, heads, width), use {name}.transpose(0, 1)." if total == shape[0] else ""
        raise SpecError(f"the lengths of {name} must add up to its {shape[-2]} rows; got {total}.{turned}")


def _lengths(values: Any, name: str) -> Tensor:
    lengths = as_tensor(values, name)
    lengths = lengths.long() if lengths.numel() == 0 else lengths
    if lengths.dim() != 1 or lengths.is_floating_point() or bool((lengths < 0).any()):
        raise SpecError(f"{name} must be a list of whole numbers, none negative; got {lengths.tolist()}.")
    if lengths.dtype == torch.bool or lengths.is_complex():
        raise SpecError(f"{name} must be a list of whole numbers; got {lengths.dtype}.")
    return lengths


def _numbered(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """For each packed row: the number of its sequence, and its place in it."""
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    begin = torch.cumsum(lengths, 0) - lengths
    return sequence, torch.arange(len(sequence)) - begin[sequence]


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Tensors of one kind and different sizes, one below the other, with zeros around the smaller ones."""
    sizes = [max(n, 1) for n in torch.tensor([list(t.shape) for t in tensors]).amax(0).tolist()]
    whole = tensors[0].new_zeros((len(tensors), *sizes))
    for place, t in zip(whole, tensors, strict=True):
        place[tuple(slice(0, n) for n in t.shape)] = t
    return whole


def _most(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0
