"""Ring attention: every rank keeps its queries, and keys and values come by.

At distance t rank r works on the keys of rank r - t, while those of r - t - 1 are on their way. Each part gives
(output, lse), which merge; so only weighings that merge can be answered: softmax, with or without a sink, and those
that treat each pair for itself, which add up.

Keys go straight from who holds them to who needs them, which is as many bytes as handing them from neighbour to
neighbour, and lets a pair of ranks that see nothing of each other exchange nothing. Backward, the same keys come by
again, and the gradients of keys and values go straight back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.distributed.answered import Pair, completed, joined
from regard.distributed.peers import Pending
from regard.distributed.share import HALVES, Share, slices
from regard.engine.gradient import Engine, Saved
from regard.errors import SpecError
from regard.plan.choose import Plan
from regard.spec.place import Places
from regard.spec.precision import without_autocast
from regard.spec.spec import Inputs

Rows = tuple[Places, slice]  # where they stand, and where they lie


def ring(share: Share) -> Tensor:
    """The output of this rank's queries, (batch, heads, n, width)."""
    refuse(share)
    question = share.question
    with without_autocast(question.q.device.type):
        inputs = share.inputs()
        call = _Call(share, inputs.detached())
        function: Any = _Ring
        output: Tensor
        output, statistic = function.apply(call, *inputs.every())
        return completed(question, (output, statistic if question.spec.normaliser.statistic else None))


def refuse(share: Share) -> None:
    """What cannot be put together from parts of the keys."""
    question = share.question
    statistic = question.spec.normaliser.statistic
    if question.weigh.iterations > 1:
        raise SpecError(
            "a ring must merge what parts of the keys give; sinkhorn normalises whole columns as well. "
            'Use method="ulysses", where a rank has all tokens of some heads.'
        )
    if statistic not in (None, "lse"):
        raise SpecError(
            f"a ring must merge what parts of the keys give, as softmax and sinks can; got {question.weigh.formula}, "
            f'whose {statistic} needs the whole row. Use method="ulysses" or method="gather".'
        )
    if question.relative_values is not None:
        raise SpecError(
            "a ring must sum values that travel with their keys; got values that depend on the distance. "
            'Use method="gather".'
        )


class _Ring(torch.autograd.Function):
    """(call, q, k, v, captured..., parameters...) -> output and row statistic of this rank's queries."""

    @staticmethod
    def forward(ctx: Any, call: "_Call", *every: Tensor) -> tuple[Tensor, Tensor]:
        output, statistic = call.forward()
        ctx.call = call
        ctx.save_for_backward(output, statistic, *every)
        return output, statistic

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_statistic: Tensor) -> tuple[Any, ...]:
        output, statistic, *every = ctx.saved_tensors
        call: _Call = replace(ctx.call, inputs=ctx.call.inputs.holding(every))
        needs = list(ctx.needs_input_grad[1:])
        return None, *call.backward(Saved(output, statistic, d_output, d_statistic), needs)


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of this rank: its share of the question and its rows, all of them without a graph."""

    share: Share
    inputs: Inputs

    def forward(self) -> tuple[Tensor, Tensor]:
        sums: list[Pair | None] = [None for _ in self.share.own_queries]
        for _, source, rows in self._coming():
            for n, queries, keys in self._pairs(source if rows else None):
                plan, placed, engine = self._asked(queries, keys, rows)
                sums[n] = joined(sums[n], engine.forward(plan.spec, placed, plan.tiles))
        counts = (places.count for places in self.share.own_queries)
        whole = [s or self.share.nothing(self.inputs, n) for s, n in zip(sums, counts, strict=True)]
        output = _together([o for o, _ in whole])
        statistics = [lse for _, lse in whole if lse is not None]
        return output, _together(statistics) if statistics else output.new_empty(0)

    def backward(self, saved: Saved, needs: list[bool]) -> list[Tensor | None]:
        """The gradients of what is needed, of `Inputs.every`."""
        peers = self.share.peers
        total = _Sums(self.inputs.every(), needs)
        homeward: tuple[Pending, list[Tensor]] | None = None
        for distance, source, rows in self._coming():
            gradients = self._of_keys(source, rows, saved, needs, total) if rows else []
            if distance == 0:
                total.add_keys(gradients)
                continue
            total.add_arrived(homeward)
            homeward = None
            target = (peers.rank + distance) % peers.count
            back = total.room_for_keys() if self.share.sees(target, peers.rank) else []
            homeward = peers.start({source: gradients}, {target: back}), back
            del gradients, back  # not held while the next ones are computed but by who sends them
        total.add_arrived(homeward)
        return total.gradients()

    def _coming(self) -> Iterator[tuple[int, int, list[Tensor]]]:
        """(distance, rank, its keys and values), nearest first; the next ones travel meanwhile. Without rows where
        nothing of that rank is seen."""
        share, peers = self.share, self.share.peers
        own = [self.inputs.k.contiguous(), self.inputs.v.contiguous()]
        here = own if share.sees(peers.rank, peers.rank) else []
        for distance in range(peers.count):
            nearer = (peers.rank - distance) % peers.count
            to, source = (peers.rank + distance + 1) % peers.count, (peers.rank - distance - 1) % peers.count
            goes_on = distance + 1 < peers.count
            outgoing = own if goes_on and share.sees(to, peers.rank) else []
            incoming = self._room(source) if goes_on and share.sees(peers.rank, source) else []
            pending = peers.start({to: outgoing}, {source: incoming})
            yield distance, nearer, here
            pending.wait()
            here = incoming

    def _room(self, source: int) -> list[Tensor]:
        n = sum(places.count for places in self.share.keys(source))
        return [x.new_empty((*x.shape[:2], n, x.shape[-1])) for x in (self.inputs.k, self.inputs.v)]

    def _pairs(self, source: int | None) -> Iterator[tuple[int, Rows, Rows]]:
        """Each part of this rank's queries, numbered, with each part of a rank's keys."""
        if source is None:
            return
        for n, queries in enumerate(slices(self.share.own_queries)):
            for keys in slices(self.share.keys(source)):
                if queries[0].count and keys[0].count:
                    yield n, queries, keys

    def _asked(self, queries: Rows, keys: Rows, rows: Sequence[Tensor]) -> tuple[Plan, Inputs, Engine]:
        """How some queries ask some keys. Halves are computed in floats, so that parts are rounded once, at the end."""
        here = self.share.rows_of_queries(self.inputs, queries[1])
        k, v = (x[:, :, keys[1]] for x in rows)
        in_halves = self.share.question.spec.dtype in HALVES
        if in_halves:
            here, k, v = replace(here, q=here.q.float()), k.float(), v.float()
        return self.share.asked(replace(here, k=k, v=v), queries[0], keys[0], torch.float32 if in_halves else None)

    def _of_keys(
        self, source: int, rows: Sequence[Tensor], saved: Saved, needs: list[bool], total: "_Sums"
    ) -> list[Tensor]:
        """The gradients of a rank's keys and values that come from this rank's queries; all others are added up."""
        theirs = _Sums([self.inputs.q, *rows], [False, *needs[1:3]])
        local = self.share.made_from_queries()
        for _, queries, keys in self._pairs(source):
            plan, placed, engine = self._asked(queries, keys, rows)
            answered = saved.output, saved.statistic, saved.d_output, saved.d_statistic
            here = Saved(*(_rows(x, queries[1]) for x in answered))
            gradients = iter(engine.backward(plan.spec, placed, plan.tiles, here, needs))
            for n in (n for n, needed in enumerate(needs) if needed):
                if n in (1, 2):
                    theirs.add(n, next(gradients), keys[1])
                else:
                    total.add(n, next(gradients), queries[1] if n == 0 or n - 3 in local else None)
        return theirs.of_keys()


class _Sums:
    """Gradients of a call's tensors, of which q, k and v are the first; in floats where those are halves."""

    def __init__(self, tensors: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.tensors, self.needs = tensors, needs
        self._found: dict[int, Tensor] = {}

    def add(self, n: int, gradient: Tensor, rows: slice | None = None) -> None:
        """Adds to the gradient of tensor number n, or of some rows of it."""
        if n not in self._found and gradient.shape == self.tensors[n].shape:
            self._found[n] = gradient.to(_exact(gradient))  # the engine's own: no need for zeros to add it to
            return
        total = self._at(n)
        part = total if rows is None else total[:, :, rows]
        part += gradient

    def add_keys(self, gradients: Sequence[Tensor]) -> None:
        for n, gradient in zip(self._keys(), gradients, strict=False):
            self.add(n, gradient)

    def add_arrived(self, homeward: tuple[Pending, list[Tensor]] | None) -> None:
        """Adds what another rank has sent back, when it is here."""
        if homeward is not None:
            homeward[0].wait()
            self.add_keys(homeward[1])

    def of_keys(self) -> list[Tensor]:
        return [self._at(n) for n in self._keys()]

    def room_for_keys(self) -> list[Tensor]:
        every = (self.tensors[n] for n in self._keys())
        return [x.new_empty(x.shape, dtype=_exact(x)) for x in every]

    def gradients(self) -> list[Tensor | None]:
        every = enumerate(zip(self.tensors, self.needs, strict=True))
        return [self._at(n).to(x.dtype) if needed else None for n, (x, needed) in every]

    def _keys(self) -> list[int]:
        return [n for n in (1, 2) if self.needs[n]]

    def _at(self, n: int) -> Tensor:
        if n not in self._found:
            x = self.tensors[n]
            self._found[n] = x.new_zeros(x.shape, dtype=_exact(x))
        return self._found[n]


def _together(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _rows(x: Tensor, rows: slice) -> Tensor:
    return x[:, :, rows] if x.dim() > 1 else x


def _exact(x: Tensor) -> torch.dtype:
    """Sums of halves are kept in floats."""
    return torch.float32 if x.dtype in HALVES else x.dtype
