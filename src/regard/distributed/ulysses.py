"""Ulysses: ranks hand over heads for tokens, so that each has all tokens of some heads, and hand the output back.

Whatever one process can compute can be computed so, since a head is whole; there must be enough heads.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.attention import finished
from regard.distributed.answered import completed
from regard.distributed.exchange import exchanged
from regard.distributed.layout import by_rank, in_order
from regard.distributed.peers import Peers
from regard.distributed.share import Share
from regard.engine.balance import balanced
from regard.engine.gradient import run
from regard.errors import SpecError
from regard.spec.place import Places
from regard.spec.precision import without_autocast
from regard.spec.spec import Inputs


def ulysses(share: Share) -> Tensor:
    """The output of this rank's queries, (batch, heads, n, width)."""
    question, peers = share.question, share.peers
    spec = question.spec
    if spec.heads % peers.count:
        raise SpecError(
            f"ulysses gives each rank as many heads, so {peers.count} ranks must divide {spec.heads} heads; they do "
            'not. Use method="ring" or method="gather".'
        )
    heads = spec.heads // peers.count
    with without_autocast(question.q.device.type):
        own = _inputs(share, share.inputs(), heads)
        first = peers.rank * heads
        plan, inputs, engine = share.asked(own, Places(0, spec.n_q), Places(0, spec.n_k), first_head=first)
        if question.weigh.iterations > 1:
            asked, inputs = balanced(engine, plan.spec, inputs, question.weigh.iterations)
            plan = replace(plan, spec=asked)
        output, statistic = run(engine, plan.spec, plan.tiles, inputs)
        local = replace(question, weigh=replace(question.weigh, factor=None))
        output = finished(local, plan, inputs, output, statistic)  # all but the factor, which may have one a head
        output = _to_tokens(output, share)
        if question.weigh.factor is None:
            return output
        rows = None if statistic is None else _to_tokens(statistic.unsqueeze(-1), share).squeeze(-1)
        return completed(question, (output, rows))


def _inputs(share: Share, inputs: Inputs, heads: int) -> Inputs:
    """All tokens of this rank's heads."""
    peers = share.peers
    local = share.made_from_queries()
    q = _to_heads(inputs.q, share, share.queries)
    k, v = (_to_heads(_enough(x, peers), share, share.keys) for x in (inputs.k, inputs.v))
    tensors = (_to_heads(t, share, share.queries) if n in local else t for n, t in enumerate(inputs.tensors))
    mine = slice(peers.rank * heads, (peers.rank + 1) * heads)
    parameters = (p[mine] if share.question.spec.score == "additive" and p.dim() == 2 else p for p in inputs.parameters)
    return replace(inputs, q=q, k=k, v=v, tensors=tuple(tensors), parameters=tuple(parameters))


def _enough(x: Tensor, peers: Peers) -> Tensor:
    """Keys that fewer heads share than there are ranks, once for each rank that has heads of theirs."""
    key_heads = x.shape[1]
    if key_heads % peers.count == 0:
        return x
    if peers.count % key_heads:
        raise SpecError(
            f"ulysses gives each rank whole key heads, so {peers.count} ranks must divide {key_heads} of them or be a "
            'multiple; they are not. Use method="ring" or method="gather".'
        )
    return x.repeat_interleave(peers.count // key_heads, dim=1)


def _to_heads(x: Tensor, share: Share, places: Callable[[int], tuple[Places, ...]]) -> Tensor:
    """(batch, heads, own tokens, width) as (batch, own heads, all tokens, width)."""
    ranks = share.peers.count
    if ranks == 1:
        return x
    lengths = [sum(p.count for p in places(rank)) for rank in range(ranks)]
    batch, heads, _, width = x.shape
    shapes = [(batch, heads // ranks, n, width) for n in lengths]
    found = exchanged(x.chunk(ranks, dim=1), shapes, share.peers)
    return in_order(torch.cat(found, dim=2), share.layout, 2, ranks)


def _to_tokens(x: Tensor, share: Share) -> Tensor:
    """(batch, own heads, all tokens, width) as (batch, heads, own tokens, width)."""
    ranks = share.peers.count
    if ranks == 1:
        return x
    outgoing = by_rank(x, share.layout, 2, ranks)
    shape = tuple(outgoing[share.peers.rank].shape)
    return torch.cat(exchanged(outgoing, [shape] * ranks, share.peers), dim=1)
