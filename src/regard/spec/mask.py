"""Masks: who may look at whom. True means: query i may attend to key j.

Query i stands at position p = start + i among the keys. Every mask here speaks of p; a function of your own gets i.

>>> m = causal() & window(3)
>>> print(m)
j <= p and p - 3 < j and j < p + 3
>>> print(m.picture(6, 6))
█·····
██····
███···
·███··
··███·
···███
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.argument_types import MAX_SIZE, check_types
from regard.checks import choice, describe, whole_number
from regard.checks import tensor as checked_tensor
from regard.errors import BudgetError, SpecError, TraceError
from regard.spec.array import as_tensor
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.fit import Broadcasts, StandsInside, one_each
from regard.spec.formula import Captured, Check, Formula, FromLengths, Start, check_formula, gather, written
from regard.spec.named import named, unnamed
from regard.spec.regions import Cover, Lengths, cover, density
from regard.spec.term import Term, apply, constant, lookup, variable
from regard.spec.text import latex, text
from regard.spec.trace import MASK_VARIABLES, trace

MaskLike = "Mask | Tensor | NDArray[np.bool_] | Callable[..., Any]"
Numbers = Sequence[int] | Tensor
MAX_KEPT_TABLE = 2**24  # entries of a drawn table that is kept: at 262,144 positions blocks of 64 have as many
MAX_TABLE = 2**27  # entries of a table of tokens or blocks, a byte each
MAX_LENGTH = 2**28  # positions of which tiles are counted
MAX_DENSE = 2**32  # entries of a mask that is written out


@dataclass(frozen=True, eq=False)
class Mask(Formula):
    """A condition on (b, h, i, j). Join masks with `&`, `|` and `~`; functions and boolean tensors join too."""

    def __and__(self, other: Any) -> "Mask":
        return _both(self, other)

    def __or__(self, other: Any) -> "Mask":
        return _either(self, other)

    def __rand__(self, other: Any) -> "Mask":
        return _both(other, self)

    def __ror__(self, other: Any) -> "Mask":
        return _either(other, self)

    def __invert__(self) -> "Mask":
        return _negated(self)

    def __bool__(self) -> bool:
        raise SpecError("a mask has no truth value of its own; join masks with & | ~, not with `and`, `or`, `not`.")

    def __str__(self) -> str:
        return text(self.term, self.names)

    def latex(self) -> str:
        """The condition in LaTeX."""
        return latex(self.term, self.names)

    @check_types
    def density(
        self, n_q: int, n_k: int | None = None, *, batch: int = 1, heads: int = 1, start: Start | None = None
    ) -> float:
        """The share of pairs that is seen, exactly, without visiting those that the bounds decide.

        >>> causal().density(100)
        0.505
        """
        lengths, start = _lengths(n_q, n_k, batch, heads, start)
        return density(self.term, self.resolved(lengths, start), lengths, start)

    @check_types
    def regions(
        self,
        n_q: int,
        n_k: int | None = None,
        *,
        size: int = 128,
        batch: int = 1,
        heads: int = 1,
        start: Start | None = None,
    ) -> Cover:
        """Which tiles of size x size positions are empty, partial and full.

        >>> causal().regions(1024).counts
        {'empty': 28, 'partial': 8, 'full': 28}
        """
        lengths, start = _lengths(n_q, n_k, batch, heads, start)
        _at_least(1, size=size)
        return cover(self.term, self.resolved(lengths, start), lengths, start, (size, size))

    @check_types
    def dense(
        self, n_q: int, n_k: int | None = None, *, batch: int = 1, heads: int = 1, start: Start | None = None
    ) -> Tensor:
        """All of it as a boolean tensor (batch, heads, n_q, n_k): for looking at small ones."""
        lengths, start = _lengths(n_q, n_k, batch, heads, start)
        if math.prod(lengths) > MAX_DENSE:
            raise BudgetError(
                f"a mask as a tensor must have at most {MAX_DENSE:,} entries; got {lengths}. Use density or regions."
            )
        positions = Positions(
            *(range(n) for n in lengths),
            start=start,
            n_q=lengths[2],
            n_k=lengths[3],
            device=torch.device("cpu"),
        )
        seen = Evaluation(self.resolved(lengths, start), positions).condition(self.term)
        return seen.expand(positions.shape).contiguous()

    @check_types
    def picture(self, n_q: int, n_k: int | None = None, *, start: Start | None = None, most: int = 64) -> str:
        """A drawing in text: █ seen, · hidden; beyond `most` positions a character is a tile, ▒ a mixed one."""
        n_k = n_q if n_k is None else n_k
        _at_least(0, n_q=n_q, n_k=n_k)
        _at_least(1, most=most)
        if max(n_q, n_k) <= most:
            rows = self.dense(n_q, n_k, start=start)[0, 0].tolist()
            return "\n".join("".join("█" if seen else "·" for seen in row) for row in rows)
        found = self.regions(n_q, n_k, size=-(-max(n_q, n_k) // most), start=start)
        grid = [["·"] * found.grid[1] for _ in range(found.grid[0])]
        for row, first, last, full in zip(found.row, found.first, found.last, found.full, strict=True):
            grid[row][first:last] = ("█" if full else "▒") * (last - first)
        return "\n".join("".join(row) for row in grid)


def as_mask(value: Any) -> Mask:
    """A mask from a mask, a boolean tensor or array, or a function (b, h, i, j)."""
    value = unnamed(value)
    if isinstance(value, Mask):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return tensor(value)
    if callable(value):
        return unnamed(where(value))
    raise SpecError(
        f"mask must be a mask, a boolean tensor or a function (b, h, i, j); got {type(value).__name__}. "
        "See regard.mask for the built-in ones."
    )


@named
def _both(left: Any, right: Any) -> Mask:
    return _joined("and", left, right)


@named
def _either(left: Any, right: Any) -> Mask:
    return _joined("or", left, right)


@named
def _negated(mask: Any) -> Mask:
    mask = as_mask(mask)
    return Mask(apply("not", mask.term), mask.tensors, mask.names, mask.checks)


def _joined(op: str, *masks: Any) -> Mask:
    terms, tensors, names, checks = gather([as_mask(m) for m in masks])
    return Mask(apply(op, *terms), tensors, names, checks)


def _lengths(n_q: int, n_k: int | None, batch: int, heads: int, start: Start | None) -> tuple[Lengths, Start]:
    n_k = n_q if n_k is None else n_k
    for name, length in (("n_q", n_q), ("n_k", n_k)):
        whole_number(length, name, at_least=0, at_most=MAX_LENGTH)
    for name, count in (("batch", batch), ("heads", heads)):
        whole_number(count, name, at_least=0, at_most=MAX_LENGTH)
    if isinstance(start, Tensor):
        start = checked_tensor(start, "start", dims=(0, 1), dtype="integers").reshape(-1)
        if len(start) not in (1, batch):
            each = f"one for each of {batch} batch elements"
            raise SpecError(f"start must be one whole number, or {each}; got {len(start)}.")
    return (batch, heads, n_q, n_k), n_k - n_q if start is None else start


def _mask(function: Callable[..., Any], *variables: str, **options: Any) -> Mask:
    made = written(function, *variables, **options)
    return Mask(made.term, made.tensors, made.names, made.checks)


@named
def where(function: Callable[..., Any]) -> Mask:
    """The mask a function (b, h, i, j) describes, as FlexAttention's `mask_mod`; read once, for reuse.

    >>> print(where(lambda b, h, i, j: (i - j) % 3 == 0))
    (i - j) % 3 == 0
    """
    traced = trace(function, MASK_VARIABLES)
    if traced.term.kind != "bool":
        got = f"{traced.term.kind} {text(traced.term, traced.names)}"
        raise TraceError(
            f"a mask function must say True or False; got the {got}. Compare it with something, as in `!= 0`; "
            "to change scores use score=."
        )
    return from_term(traced.term, traced.tensors, traced.names)


@named
def from_term(term: Term, tensors: Sequence[Captured], names: Sequence[str]) -> Mask:
    check_formula(term, tensors, names, "bool")
    return Mask(term, tuple(tensors), tuple(names))


@named
def tensor(values: Any) -> Mask:
    """A boolean tensor of any shape that broadcasts to (batch, heads, n_q, n_k)."""
    values = as_tensor(values, "mask")
    if values.dtype != torch.bool:
        raise SpecError(
            f"a mask tensor must be boolean, True meaning may attend; got {values.dtype}. "
            "For numbers that are added to the scores use score.bias(tensor)."
        )
    return Mask(*broadcast_lookup(values, "mask"))


def broadcast_lookup(values: Tensor, name: str) -> tuple[Term, tuple[Tensor, ...], tuple[str, ...], tuple[Check, ...]]:
    """The look-up of a tensor that broadcasts over (b, h, i, j), and the check that it does."""
    if values.dim() > 4:
        raise SpecError(f"a {name} tensor must have at most 4 dimensions; got shape {tuple(values.shape)}.")
    kind = "bool" if values.dtype == torch.bool else "float"
    along = "bhij"[4 - values.dim() :]
    indices = tuple(variable(a) if size != 1 else constant(0) for a, size in zip(along, values.shape, strict=True))
    fits = Broadcasts(name, tuple(values.shape))
    return lookup(0, indices, kind), (values,), (name,), (fits,)  # type: ignore[arg-type]  # one of the kinds


_CAUSAL = _mask(lambda p, j: j <= p, "p", "j")


def causal() -> Mask:
    """No looking ahead: j <= p."""
    return _CAUSAL


named(causal)()  # this one mask learns its name once


@named
@check_types
def window(before: int, after: int | None = None) -> Mask:
    """Near neighbours: p - before < j < p + after; `after=None` means the same as before.

    `window(1)` is the diagonal, and `causal() & window(256)` sees 256 keys.
    """
    _at_least(1, before=before)
    after = before if after is None else after
    _at_least(1, after=after)
    return _mask(lambda p, j: (p - before < j) & (j < p + after), "p", "j")


@named
@check_types
def dilated(width: int, step: int) -> Mask:
    """A window with gaps: every `step`-th key, fewer than `width` steps away. `dilated(w, 1)` is `window(w)`."""
    _at_least(1, width=width, step=step)
    return _mask(lambda p, j: ((p - j) % step == 0) & (abs(p - j) < width * step), "p", "j")


@named
@check_types
def blocks(size: int, look_back: int = 0) -> Mask:
    """Chunked local attention: the query's own block of keys and `look_back` blocks before it."""
    _at_least(1, size=size)
    _at_least(0, look_back=look_back)
    if look_back == 0:
        return _mask(lambda p, j: p // size == j // size, "p", "j")
    return _mask(lambda p, j: (j // size <= p // size) & (p // size - j // size <= look_back), "p", "j")


@named
@check_types
def strided(stride: int) -> Mask:
    """Sparse Transformer, strided: the last `stride` keys and the query, and every `stride`-th key before."""
    _at_least(1, stride=stride)
    return _mask(lambda p, j: (j <= p) & ((p - j <= stride) | ((p - j) % stride == 0)), "p", "j")


@named
@check_types
def fixed(stride: int, summary: int = 1) -> Mask:
    """Sparse Transformer, fixed: the query's own block so far, and the last `summary` keys of every block before."""
    _at_least(1, stride=stride, summary=summary)
    first = stride - summary
    return _mask(lambda p, j: (j <= p) & ((j // stride == p // stride) | (j % stride >= first)), "p", "j")


@named
def padding(lengths: Numbers, side: str = "right") -> Mask:
    """Real keys only: the first `lengths[b]` of each sequence, or the last ones if the padding is on the left."""
    choice(side, "padding side", ("left", "right"))
    lengths = _whole(lengths, "padding lengths")
    checks = (one_each("padding lengths", lengths, 0, "batch"),)
    options = {"names": ("lengths",), "checks": checks}
    if side == "right":
        return _mask(lambda b, j: j < lengths[b], "b", "j", **options)
    return _mask(lambda b, j, n_k: j >= n_k - lengths[b], "b", "j", "n_k", **options)


@named
def documents(ids: Numbers, ids_k: Numbers | None = None) -> Mask:
    """Only within the same document. `ids` is (n_k,) or (batch, n_k): one number a key, and so for the queries there.

    For queries that are not among the keys give both: `documents(ids_of_queries, ids_of_keys)`.
    """
    ids = _whole(ids, "document ids")
    if ids_k is None:
        checks = (one_each("document ids", ids, -1, "n_k"), *_batch_check(ids), StandsInside())
        same = (lambda b, p, j: ids[b, p] == ids[b, j]) if ids.dim() == 2 else (lambda b, p, j: ids[p] == ids[j])
        return _mask(same, "b", "p", "j", names=("documents",), checks=checks)
    keys = _whole(ids_k, "document ids of the keys")
    checks = (
        *(one_each("document ids of the queries", ids, -1, "n_q"), *_batch_check(ids)),
        *(one_each("document ids of the keys", keys, -1, "n_k"), *_batch_check(keys)),
    )
    options = {"names": ("documents_q", "documents_k"), "checks": checks}
    if ids.dim() == 2:
        return _mask(
            lambda b, i, j: ids[b, i] == (keys[b, j] if keys.dim() == 2 else keys[j]),
            "b",
            "i",
            "j",
            **options,
        )
    return _mask(lambda b, i, j: ids[i] == (keys[b, j] if keys.dim() == 2 else keys[j]), "b", "i", "j", **options)


@named
def prefix(n: int | Numbers) -> Mask:
    """The first n keys, for everyone; `causal() | prefix(n)` is a prefix language model. n may be a list by batch."""
    if isinstance(n, int):
        _at_least(0, n=n)
        return _mask(lambda j: j < n, "j")
    lengths = _whole(n, "prefix lengths")
    checks = (one_each("prefix lengths", lengths, 0, "batch"),)
    return _mask(lambda b, j: j < lengths[b], "b", "j", names=("prefix",), checks=checks)


@named
def tokens(indices: Numbers) -> Mask:
    """Global tokens: every query sees these keys, and the queries at these positions see every key."""
    chosen = _whole(indices, "token indices").flatten().tolist()
    if any(c < 0 for c in chosen):
        raise SpecError(f"token indices must not be negative; got {min(chosen)}.")
    beyond = max(chosen, default=-1) + 1
    if beyond > MAX_TABLE:
        raise SpecError(f"token indices must be less than {MAX_TABLE}; got {beyond - 1}.")
    is_global = torch.zeros(beyond + 1, dtype=torch.bool)  # the last entry stands for all positions beyond
    is_global[chosen] = True

    def either(p: Any, j: Any) -> Any:
        place = torch.where(p < 0, beyond, torch.clamp(p, max=beyond))
        return is_global[torch.clamp(j, max=beyond)] | is_global[place]

    return _mask(either, "p", "j", names=("is_global",))


@named
@check_types
def random_blocks(size: int, count: int, seed: int = 0) -> Mask:
    """Each block of `size` queries sees `count` blocks of keys, drawn without replacement from `seed`."""
    _at_least(1, size=size)
    _at_least(0, count=count, seed=seed)
    drawn = torch.zeros(1, 1, dtype=torch.bool)
    later = (drawn, FromLengths(_Draw(size, count, seed)))
    return _mask(lambda i, j: drawn[i // size, j // size], "i", "j", names=("drawn",), later=later)


@dataclass(frozen=True)
class _Draw:
    """Which blocks of keys each block of queries sees."""

    size: int
    count: int
    seed: int

    def __call__(self, lengths: Lengths) -> Tensor:
        rows, columns = -(-lengths[2] // self.size), -(-lengths[3] // self.size)
        if rows * columns > MAX_TABLE:
            raise SpecError(
                f"random_blocks must have at most {MAX_TABLE} pairs of blocks; got {rows} x {columns} blocks of "
                f"{self.size}. Use larger blocks."
            )
        draw = _drawn if rows * columns <= MAX_KEPT_TABLE else _drawn.__wrapped__
        return torch.from_numpy(draw(rows, columns, min(self.count, columns), self.seed))


@lru_cache(maxsize=2)  # the layers of a model share it
def _drawn(rows: int, columns: int, count: int, seed: int) -> NDArray[np.bool_]:
    """Floyd's way, all rows at once: a column that a row has drawn before stands for the last one of its range."""
    source, row = np.random.default_rng(seed), np.arange(rows)
    chosen = np.zeros((rows, columns), dtype=np.bool_)
    for last in range(columns - count, columns):
        drawn = source.integers(last, endpoint=True, size=rows)
        chosen[row, np.where(chosen[row, drawn], last, drawn)] = True
    return chosen


@named
@check_types
def longformer(width: int, global_tokens: Numbers = ()) -> Mask:
    """Longformer: keys at most width // 2 away, and global tokens that see and are seen by all."""
    _at_least(0, width=width)
    near = window(width // 2 + 1)
    chosen = _whole(global_tokens, "global tokens")
    return near | tokens(chosen) if chosen.numel() else near


@named
@check_types
def bigbird(size: int = 64, *, near: int = 3, ends: int = 1, random: int = 3, seed: int = 0) -> Mask:
    """BigBird: `near` blocks around the query's, the first and last `ends` blocks for all, `random` drawn blocks."""
    _at_least(1, size=size, near=near)
    _at_least(0, ends=ends, random=random, seed=seed)

    def local(p: Any, j: Any) -> Any:
        return abs(p // size - j // size) <= near // 2

    def at_ends(p: Any, j: Any, n_k: Any) -> Any:
        last = (n_k - 1) // size - ends
        return (p // size < ends) | (j // size < ends) | (p // size > last) | (j // size > last)

    result = _mask(local, "p", "j")
    if ends:
        result = result | _mask(at_ends, "p", "j", "n_k")
    return result | random_blocks(size, random, seed) if random else result


def _at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or not least <= number < MAX_SIZE:
            raise SpecError(f"{name} must be a whole number of at least {least}; got {describe(number)}.")


def _whole(values: Numbers, what: str) -> Tensor:
    result = as_tensor(values, what)
    if result.numel() and (result.is_floating_point() or result.is_complex() or result.dtype == torch.bool):
        raise SpecError(f"{what} must be whole numbers; got {result.dtype}.")
    return result.long()


def _batch_check(ids: Tensor) -> tuple[Check, ...]:
    return (one_each("document ids", ids, 0, "batch"),) if ids.dim() == 2 else ()
