"""Decoding over ranks: every rank has the queries, and a part of the keys and values that came before.

Each answers for its keys; (output, lse) of all ranks are merged by two reductions, whose cost grows with the logarithm
of the number of ranks and not with the number of keys.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard import checks
from regard.distributed.agree import agreed
from regard.distributed.answered import Pair, completed, joined
from regard.distributed.layout import LAYOUTS, check, check_parts, row_count
from regard.distributed.metric import centred
from regard.distributed.peers import Peers
from regard.distributed.ring import refuse
from regard.distributed.share import HALVES, Share, slices
from regard.spec.place import Places
from regard.spec.precision import without_autocast
from regard.spec.read import read
from regard.spec.spec import Question


def decode(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    start: Any = None,
    engine: str | None = None,
    group: Any = None,
    layout: str = "contiguous",
) -> Any:
    """Attention of the same queries on every rank over keys and values of which each rank holds a part.

    The result is the same on every rank. `start` is None for queries at the end of all keys; a rank may hold any number
    of keys where the layout is contiguous, as a cache that grows on one rank does. No gradients: this is for writing.
    """
    peers = Peers.of(group)
    checks.choice(layout, "layout", LAYOUTS)
    with torch.no_grad():
        lengths = [n for (n,) in peers.every([row_count(k)])]
        whole = row_count(q), sum(lengths)

        def question() -> Question:
            check_parts(q, k, v, engine)
            if layout != "contiguous":
                check(lengths, layout, "k")
            return read(q, k, v, score=score, mask=mask, weigh=weigh, value=value, start=start, whole=whole)

        asked = agreed(peers, question, {"layout": layout, "engine": engine, "queries": tuple(getattr(q, "shape", ()))})
        share = Share(centred(asked, peers), peers, layout, engine)
        refuse(share)
        return asked.shaped(_together(share, _held(lengths, share)))


def _held(lengths: list[int], share: Share) -> tuple[Places, ...]:
    """Where this rank's keys stand."""
    rank = share.peers.rank
    return (Places(sum(lengths[:rank]), lengths[rank]),) if share.layout == "contiguous" else share.keys(rank)


def _together(share: Share, held: tuple[Places, ...]) -> Tensor:
    with without_autocast(share.question.q.device.type):
        output, statistic = _own(share, held)
        if statistic is None:
            share.peers.summed(output)
        else:
            output, statistic = _merged(share.peers, output, statistic)
        return completed(share.question, (output, statistic))


def _own(share: Share, held: tuple[Places, ...]) -> Pair:
    """What this rank's keys give. Halves are computed in floats, so that ranks are rounded once, together."""
    spec, inputs = share.question.spec, share.inputs()
    in_halves = spec.dtype in HALVES
    if in_halves:
        inputs = replace(inputs, q=inputs.q.float(), k=inputs.k.float(), v=inputs.v.float())
    found: Pair | None = None
    for keys, at in slices(held):
        if keys.count and spec.n_q:
            here = replace(inputs, k=inputs.k[:, :, at], v=inputs.v[:, :, at])
            dtype = torch.float32 if in_halves else None
            plan, placed, engine = share.asked(here, Places(0, spec.n_q), keys, dtype)
            found = joined(found, engine.forward(plan.spec, placed, plan.tiles))
    if found is not None:
        return found
    return share.nothing(inputs, spec.n_q)


def _merged(peers: Peers, output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """(output, lse) over the keys of all ranks."""
    top = peers.summed(lse.clone(), dist.ReduceOp.MAX)
    level = torch.where(top == -torch.inf, 0.0, top)
    weight = torch.exp(lse - level)
    both = torch.cat([output.to(lse.dtype) * weight.unsqueeze(-1), weight.unsqueeze(-1)], dim=-1)
    both = peers.summed(both.contiguous())
    total = both[..., -1]
    nothing = total == 0
    output = both[..., :-1] / torch.where(nothing, 1.0, total).unsqueeze(-1)
    return output, torch.where(nothing, -torch.inf, level + torch.where(nothing, 1.0, total).log())
