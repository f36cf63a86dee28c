"""Which queries meet which keys, one after another, so that what is in memory at a time keeps to a budget.

Queries go in blocks. A block meets the keys that the mask leaves it, in one step or several; what is hidden from all of
the block is not among them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from regard.attention import IN_ORDER
from regard.errors import BudgetError, EngineError
from regard.plan.blocks import Tiles, blocks, ranges
from regard.plan.choose import Plan, choose
from regard.plan.report import in_bytes
from regard.spec.formula import FromQueries
from regard.spec.place import Places, part
from regard.spec.spec import Inputs, Question, Spec

MOST = 2**13  # queries or keys of a step; more would save little, and the first step waits for all of its rows
FEWEST = 16
GRAIN = 128  # keys: what a mask leaves is looked for in stretches of so many
COPIES = 3  # of rows while they are prepared


@dataclass(frozen=True)
class Step:
    """Some queries meet some keys. After `is_last` these queries have met all that they see."""

    queries: range
    keys: range
    is_last: bool

    @property
    def pairs(self) -> int:
        return len(self.queries) * max(len(self.keys), 1)


def needs_whole_rows(question: Question) -> bool:
    """Whether a weight depends on all scores of its row in another way than through their lse."""
    return question.spec.normaliser.statistic not in (None, "lse")


def steps(question: Question, engine: str | None, budget: int) -> list[Step]:
    """All that has to be done, in order; refused if not even a few rows fit into the budget."""
    n_q, n_k = question.spec.lengths[2:]
    choose(_spec(question, min(n_q, FEWEST), min(n_k, FEWEST)), IN_ORDER, engine)  # says no here if it never can
    whole_rows = needs_whole_rows(question)
    queries, keys = min(n_q, MOST), min(n_k, MOST)
    while True:
        seen = _seen(question, queries, whole_rows)
        longest = max((len(run) for runs in seen for run in runs), default=0)
        keys = longest if whole_rows else min(keys, longest)
        needed = _needed(question, queries, keys, engine)
        if needed is not None and needed <= budget:
            break
        if queries <= FEWEST and (whole_rows or keys <= FEWEST):
            raise _too_much(question, needed, budget, keys)
        of_query, of_key = _row_bytes(question)
        if whole_rows or (queries * of_query > keys * of_key and queries > FEWEST) or keys <= FEWEST:
            queries = max(FEWEST, queries // 2)
        else:
            keys = max(FEWEST, keys // 2)
    return [s for rows, runs in zip(ranges(n_q, max(queries, 1)), seen, strict=True) for s in _steps(rows, runs, keys)]


def _steps(queries: range, runs: Sequence[range], most: int) -> Iterator[Step]:
    parts = [range(r.start + p.start, r.start + p.stop) for r in runs for p in ranges(len(r), max(most, 1))]
    for number, keys in enumerate(parts or [range(0)]):
        yield Step(queries, keys, number + 1 >= len(parts))


def _seen(question: Question, queries: int, together: bool) -> list[list[range]]:
    """The stretches of keys that each block of queries sees; `together` makes them one, with what lies between."""
    if any(isinstance(t, FromQueries) for t in question.formula.tensors):  # what that hides cannot be known yet
        question = replace(question, spec=replace(question.spec, rule=None))
    spec = question.spec
    size = Tiles(max(queries, 1), GRAIN, 0)
    found = blocks(spec, question.captured(), question.start, size)
    runs: list[list[range]] = [[] for _ in ranges(spec.n_q, max(queries, 1))]
    for row, first, last in sorted(zip(found.row.tolist(), found.first.tolist(), found.last.tolist(), strict=True)):
        here, run = runs[row], range(first * GRAIN, min(last * GRAIN, spec.n_k))
        if here and (together or run.start <= here[-1].stop):
            here[-1] = range(here[-1].start, max(here[-1].stop, run.stop))
        else:
            here.append(run)
    return runs


def _row_bytes(question: Question) -> tuple[int, int]:
    """What a query and a key take while they are worked on, all heads and batch elements together.

    This step's rows and the next one's, prepared copies, and for a query its output so far and that of this step.
    """
    spec, number = question.spec, question.spec.dtype.itemsize
    exact = max(spec.precision.itemsize, 4)
    prepared = 0 if question.score.keeps_rows and number == exact else COPIES * exact * spec.width
    floats = 0 if number == exact else exact * spec.value_width
    widths = question.q.shape[-1], question.k.shape[-1]
    of_query = 2 * number * widths[0] + prepared + 6 * exact * spec.value_width
    of_key = 2 * number * (widths[1] + question.v.shape[-1]) + prepared + floats
    return spec.batch * spec.heads * of_query, spec.batch * spec.key_heads * of_key


def _needed(question: Question, queries: int, keys: int, engine: str | None) -> int | None:
    """Bytes that such a step takes; None where the engine objects to its size."""
    try:
        plan: Plan = choose(_spec(question, queries, keys), IN_ORDER, engine)
    except EngineError:
        return None
    of_query, of_key = _row_bytes(question)
    return queries * of_query + keys * of_key + plan.cost.extra_memory


def _spec(question: Question, queries: int, keys: int) -> Spec:
    """What an engine is asked in a step of this size."""
    spec = question.spec
    rows = torch.empty((spec.batch, spec.heads, 0, 0), device="meta")
    rows_k = torch.empty((spec.batch, spec.key_heads, 0, 0), device="meta")
    stand_in = Inputs(rows, rows_k, rows_k, question.captured(), (), None, question.start, 0)
    asked, _ = part(question, stand_in, Places(0, queries), Places(0, keys))
    return replace(asked, dtype=torch.promote_types(asked.dtype, torch.float32))


def _too_much(question: Question, needed: int | None, budget: int, keys: int) -> BudgetError:
    what = f"{FEWEST} queries with {keys:,} keys each"
    size = "more than the engine takes" if needed is None else f"{in_bytes(needed)} ({needed:,} bytes)"
    if needs_whole_rows(question):
        name = question.weigh.formula
        return BudgetError(
            f"{name} must have all keys of a query in memory at once; for {what} that takes {size}, and the budget is "
            f"{budget:,} bytes. Give a larger budget, a narrower mask, or weigh with softmax, which needs a part at a "
            "time."
        )
    return BudgetError(
        f"the budget must hold at least {what}, which take {size}; got {budget:,} bytes. Give a larger budget."
    )
