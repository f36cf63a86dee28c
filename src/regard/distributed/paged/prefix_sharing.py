"""Prefix sharing: the page tables of the sequences of a call as a tree of shared segments."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MIN_CONTIGUOUS_TOKENS = 512  # below this, copying the tokens costs less than a separate attention call


@dataclass(frozen=True, eq=False)
class PagedSequence:
    """The page table of a sequence and its number of tokens."""

    page_table: list[int]
    length: int


@dataclass(frozen=True)
class PageSegment:
    """Consecutive pages of some sequences of a call, from index `first_page` of their page tables on."""

    sequence_indices: tuple[int, ...]
    first_page: int
    pages: tuple[int, ...]


def page_segments(sequences: Sequence[PagedSequence], page_size: int) -> list[PageSegment]:
    """Return the segments that can be read without a copy, in the order of the tokens of each sequence.

    Segments shared by two or more sequences come first. Long runs of adjacent pages of a single sequence follow. Only
    full pages are included, since two sequences may use different numbers of tokens of a shared last page.
    """
    full_pages = [sequence.page_table[: sequence.length // page_size] for sequence in sequences]
    segments = list(_shared_segments(tuple(range(len(sequences))), 0, full_pages))
    for index, pages in enumerate(full_pages):
        end = max((s.first_page + len(s.pages) for s in segments if index in s.sequence_indices), default=0)
        while (num_pages := _num_contiguous_pages(pages, end)) * page_size >= MIN_CONTIGUOUS_TOKENS:
            segments.append(PageSegment((index,), end, tuple(pages[end : end + num_pages])))
            end += num_pages
    return segments


def _num_contiguous_pages(page_table: list[int], first_page: int) -> int:
    """Return the number of pages from `first_page` on that are adjacent in memory."""
    end = first_page
    while end < len(page_table) and page_table[end] == page_table[first_page] + end - first_page:
        end += 1
    return end - first_page


def _shared_segments(
    sequence_indices: tuple[int, ...], first_page: int, page_tables: list[list[int]]
) -> Iterator[PageSegment]:
    indices_by_page: dict[int, list[int]] = {}
    for index in sequence_indices:
        if len(page_tables[index]) > first_page:
            indices_by_page.setdefault(page_tables[index][first_page], []).append(index)
    for indices in indices_by_page.values():
        if len(indices) > 1:
            end = first_page
            shortest = min(len(page_tables[index]) for index in indices)
            while end < shortest and len({page_tables[index][end] for index in indices}) == 1:
                end += 1
            yield PageSegment(tuple(indices), first_page, tuple(page_tables[indices[0]][first_page:end]))
            yield from _shared_segments(tuple(indices), end, page_tables)
