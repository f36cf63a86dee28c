"""The simplest way: every rank gets all keys and values, and answers its own queries. Every weighing of rows works."""

from dataclasses import replace

import torch
from torch import Tensor

from regard.attention import finished
from regard.distributed.exchange import gathered
from regard.distributed.layout import in_order
from regard.distributed.share import HALVES, Share, slices
from regard.engine.gradient import run
from regard.errors import SpecError
from regard.spec.place import Places
from regard.spec.precision import without_autocast


def gather(share: Share) -> Tensor:
    """The output of this rank's queries, (batch, heads, n, width)."""
    question, peers = share.question, share.peers
    if question.weigh.iterations > 1:
        raise SpecError(
            "sinkhorn must normalise whole columns, and a rank that gathers keys has only its own queries. "
            'Use method="ulysses", where a rank has all tokens of some heads.'
        )
    lengths = [sum(places.count for places in share.keys(rank)) for rank in range(peers.count)]
    with without_autocast(question.q.device.type):
        own = share.inputs()
        dtype = torch.float32 if question.spec.dtype in HALVES else None  # gradients are summed over ranks
        own = own if dtype is None else replace(own, q=own.q.to(dtype))
        rows = (gathered(x.movedim(2, 0), peers, lengths, dtype) for x in (own.k, own.v))
        k, v = (in_order(x, share.layout, 0, peers.count).movedim(0, 2) for x in rows)
        every = Places(0, question.spec.n_k)
        outputs = []
        for queries, at in slices(share.own_queries):
            here = replace(share.rows_of_queries(own, at), k=k, v=v)
            plan, inputs, engine = share.asked(here, queries, every, dtype)
            output, statistic = run(engine, plan.spec, plan.tiles, inputs)
            places = _places(share, queries) if question.relative_values is not None else None
            outputs.append(finished(question, plan, inputs, output, statistic, question.spec.n_k, places))
    together = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return together.to(question.spec.dtype)


def _places(share: Share, queries: Places) -> tuple[Tensor, Tensor]:
    """Where the queries and all keys stand."""
    start = share.question.start
    if isinstance(start, Tensor):
        raise SpecError(
            "values that depend on the distance must have one start for all ranks; got one a batch element."
        )
    return torch.tensor(list(queries.positions())) + start, torch.arange(share.question.spec.n_k)
