"""What the sequences of a call have in common: their tables of pages as a tree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONG = 512  # tokens: copying fewer costs less than a call of their own


@dataclass(frozen=True, eq=False)
class Held:
    """A sequence as attention sees it: a table of pages, and how many tokens are in them."""

    table: list[int]
    length: int


@dataclass(frozen=True)
class Branch:
    """Pages that some sequences of a call have from page number `first` on."""

    who: tuple[int, ...]
    first: int
    pages: tuple[int, ...]


def branches(held: Sequence[Held], size: int) -> list[Branch]:
    """The tree of what sequences share, from its root on: pages that two or more have in the same places.

    Behind it come long stretches of pages that one has for itself and that lie side by side, so that nothing of them
    needs to be copied. Only full pages are in it: the last ones of two sequences may hold the same page and differ in
    what counts of it.
    """
    full = [h.table[: h.length // size] for h in held]
    found = list(_grown(tuple(range(len(held))), 0, full))
    for number, table in enumerate(full):
        done = max((b.first + len(b.pages) for b in found if number in b.who), default=0)
        while (stretch := _side_by_side(table, done)) * size >= LONG:
            found.append(Branch((number,), done, tuple(table[done : done + stretch])))
            done += stretch
    return found


def _side_by_side(table: list[int], first: int) -> int:
    """How many pages from `first` on lie one behind the other."""
    last = first
    while last < len(table) and table[last] == table[first] + last - first:
        last += 1
    return last - first


def _grown(who: tuple[int, ...], first: int, tables: list[list[int]]) -> Iterator[Branch]:
    kinds: dict[int, list[int]] = {}
    for number in who:
        if len(tables[number]) > first:
            kinds.setdefault(tables[number][first], []).append(number)
    for same in kinds.values():
        if len(same) > 1:
            last = first
            shortest = min(len(tables[n]) for n in same)
            while last < shortest and len({tables[n][last] for n in same}) == 1:
                last += 1
            yield Branch(tuple(same), first, tuple(tables[same[0]][first:last]))
            yield from _grown(tuple(same), last, tables)
