"""Attention over ranks: the same call, the same question, the same numbers; each rank holds a part of the sequence."""

from typing import Any

import torch

from regard import checks
from regard.distributed.agree import agreed
from regard.distributed.gather import gather
from regard.distributed.layout import LAYOUTS, check, check_parts, row_count
from regard.distributed.metric import centred
from regard.distributed.peers import Peers
from regard.distributed.ring import ring
from regard.distributed.share import Share
from regard.distributed.ulysses import ulysses
from regard.spec.read import read
from regard.spec.spec import Question

METHODS = {"ring": ring, "ulysses": ulysses, "gather": gather}


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    engine: str | None = None,
    group: Any = None,
    method: str = "ring",
    layout: str = "contiguous",
) -> Any:
    """`regard.attention` of a sequence that ranks hold parts of: q, k, v are this rank's rows, and so is the result.

    Masks, rules, `start` and what they look up speak of the whole sequence, so every rank gives the same. Gradients of
    q, k and v are those of the sum of what all ranks make of their results; those of tensors that every rank has
    (slopes, biases, a sink) are this rank's part, to be summed over ranks like the gradients of any parameter.

    group: the ranks, None for all, or a device mesh of one dimension. method: "ring" (keys come by; softmax, sinks,
    sigmoid, relu), "ulysses" (ranks trade tokens for heads; everything, where there are enough heads) or "gather" (all
    keys on every rank; every weighing of rows). layout: who holds what, see `regard.distributed.layout`.
    """
    peers = Peers.of(group)
    checks.choice(method, "method", METHODS)
    checks.choice(layout, "layout", LAYOUTS)
    own = [row_count(q), row_count(k), _drawn(seed, dropout)]
    every = peers.every(own)
    seed = every[0][2] if seed is None else seed  # one pattern for all: that of the first rank
    lengths = [n for n, _, _ in every], [n for _, n, _ in every]
    options = dict(score=score, mask=mask, weigh=weigh, value=value, dropout=dropout, seed=seed, start=start)

    def question() -> Question:  # refuses on all ranks, also where only one was called with wrong arguments
        check_parts(q, k, v, engine)
        for rows, name in zip(lengths, ("q", "k"), strict=True):
            check(rows, layout, name)
        return read(q, k, v, whole=(sum(lengths[0]), sum(lengths[1])), **options)

    more = {"method": method, "layout": layout, "engine": engine, "gradients": _needed(q, k, v)}
    asked = agreed(peers, question, more)
    share = Share(centred(asked, peers), peers, layout, engine)
    return asked.shaped(METHODS[method](share))


def _drawn(seed: object, dropout: object) -> int:
    """The seed, or another one at each call with dropout; wrong values are refused later, by all ranks together."""
    if isinstance(seed, int):
        return seed % 2**63
    return int(torch.randint(2**62, ())) if isinstance(dropout, (int, float)) and dropout else 0


def _needed(*tensors: Any) -> list[bool]:
    return [torch.is_grad_enabled() and bool(getattr(x, "requires_grad", False)) for x in tensors]
