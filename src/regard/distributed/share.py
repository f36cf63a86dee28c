"""One call as several ranks answer it: the question about the whole, and the rows that this rank holds of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.attention import IN_ORDER
from regard.distributed.answered import Pair
from regard.distributed.layout import held
from regard.distributed.peers import Peers
from regard.engine.gradient import Engine
from regard.plan.blocks import Tiles, blocks
from regard.plan.choose import Plan, choose
from regard.spec.formula import FromQueries
from regard.spec.place import Places, part
from regard.spec.spec import Inputs, Question

HALVES = (torch.bfloat16, torch.float16)
REGIONS = 16  # of a rank's queries and of its keys: what a mask hides is looked for in so many times so many


@dataclass(frozen=True, eq=False)
class Share:
    """A question about n_q queries and n_k keys of which this rank holds a part."""

    question: Question
    peers: Peers
    layout: str
    engine: str | None

    def queries(self, rank: int) -> tuple[Places, ...]:
        return held(self.layout, self.question.spec.n_q, self.peers.count, rank)

    def keys(self, rank: int) -> tuple[Places, ...]:
        return held(self.layout, self.question.spec.n_k, self.peers.count, rank)

    @property
    def own_queries(self) -> tuple[Places, ...]:
        return self.queries(self.peers.rank)

    def inputs(self) -> Inputs:
        """This rank's rows, prepared: what is done to keys before they are multiplied is done before they travel."""
        exact = torch.float64 if self.engine == "reference" else None
        return self.question.inputs(exact)

    def made_from_queries(self) -> frozenset[int]:
        """Which of the captured tensors have a row a query."""
        return frozenset(n for n, t in enumerate(self.question.formula.tensors) if isinstance(t, FromQueries))

    def rows_of_queries(self, inputs: Inputs, rows: slice) -> Inputs:
        """The same inputs with some of the queries that this rank holds."""
        local = self.made_from_queries()
        tensors = tuple(t[:, :, rows] if n in local else t for n, t in enumerate(inputs.tensors))
        return replace(inputs, q=inputs.q[:, :, rows], tensors=tensors)

    def asked(
        self, inputs: Inputs, queries: Places, keys: Places, dtype: torch.dtype | None = None, first_head: int = 0
    ) -> tuple[Plan, Inputs, Engine]:
        """How a part of the question is answered, in another dtype than the question's if given."""
        spec, placed = part(self.question, inputs, queries, keys, first_head)
        spec = spec if dtype is None else replace(spec, dtype=dtype)
        plan = choose(spec, IN_ORDER, self.engine)
        return plan, placed, next(e for e in IN_ORDER if e.name == plan.engine)

    def nothing(self, inputs: Inputs, n: int) -> Pair:
        """What n queries give that see no keys."""
        spec = self.question.spec
        rows = spec.batch, spec.heads, n
        precise = torch.promote_types(inputs.v.dtype, torch.float32)
        lse = inputs.q.new_full(rows, -torch.inf, dtype=torch.promote_types(spec.precision, precise))
        return inputs.v.new_zeros((*rows, spec.value_width), dtype=precise), lse if spec.normaliser.statistic else None

    def sees(self, rank: int, other: int) -> bool:
        """Whether some query of a rank may see some key of another: both know without asking."""
        return any(self._meet(q, k) for q in self.queries(rank) for k in self.keys(other))

    def _meet(self, queries: Places, keys: Places) -> bool:
        if not (queries.count and keys.count):
            return False
        question = self.question
        if self.made_from_queries():  # what they hide is known to who holds them alone
            question = replace(question, spec=replace(question.spec, rule=None))
        spec = question.spec
        tensors = question.captured()
        nothing = torch.empty((spec.batch, 1, 0, 0), device="meta")
        stand_in = Inputs(nothing, nothing, nothing, tensors, (), None, question.start, 0)
        asked, placed = part(question, stand_in, queries, keys)
        asked = replace(asked, heads=spec.heads, key_heads=spec.key_heads)
        size = Tiles(-(-queries.count // REGIONS), -(-keys.count // REGIONS), 0)
        found = blocks(asked, placed.tensors, placed.start, size)
        return len(found.row) > 0


def slices(parts: tuple[Places, ...]) -> Iterator[tuple[Places, slice]]:
    """The parts that a rank holds, each with where its rows lie."""
    begin = 0
    for places in parts:
        yield places, slice(begin, begin + places.count)
        begin += places.count
