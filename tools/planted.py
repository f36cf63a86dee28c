"""How often `tape.find` errs: 20 models with planted heads of known kinds, and 20 random ones, printed as rates.

    python tools/planted.py

A model's stream has parts for the token, the token before it, the position, and a 1, turned by a random rotation, so
that no head can be told by its coordinates. Planted heads are written into it by hand:

    previous     looks by position, one back, and writes that token into the second part
    induction    matches its own token with the second part of others: it stands on a head of the first kind below it
    separator    looks for a direction that all separators share

All other heads have random matrices. Where heads are, how many, the text and everything else are drawn by a seed.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard

KINDS = ("previous", "induction", "separator")
LENGTH = 100
TOKEN, BEFORE, PLACE, ONE = slice(0, 48), slice(48, 96), slice(96, 196), slice(196, 197)
FLAG, WIDTH = slice(0, 1), 200
WORDS = (".", ",", ";", *(f"word{n}" for n in range(57)))
SEPARATORS = 3  # of them
SHARP = 40.0  # how far the right key's score is above that of others


class Layer(nn.Module):
    """Heads with matrices of their own, (heads, width, width): scores x match x', and x + the sum of a x out."""

    def __init__(self, match: Tensor, out: Tensor) -> None:
        super().__init__()
        self.match, self.out = nn.Parameter(match), nn.Parameter(out)

    def forward(self, x: Tensor) -> Tensor:
        q = x.unsqueeze(1) @ self.match
        k = x.unsqueeze(1).expand_as(q)
        mixed = F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=1.0)
        return x + (mixed @ self.out).sum(1)


@dataclass(frozen=True, eq=False)
class Planted:
    """A model, what it reads, and where its planted heads are: (layer, head) by kind."""

    model: nn.Module
    stream: Tensor
    tokens: list[str]
    heads: dict[str, tuple[int, int]]


def planted(kind: str | None, seed: int) -> Planted:
    """A model with a head of a kind, and what that needs below it; without a kind, of random heads alone."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    layers, heads = number(2, 4), number(3, 8)
    match = 0.25 * torch.randn(layers, heads, WIDTH, WIDTH, generator=draw)  # scores with a spread near 1
    out = 0.001 * torch.randn(layers, heads, WIDTH, WIDTH, generator=draw)
    where: dict[str, tuple[int, int]] = {}
    if kind == "induction":
        below = number(0, layers - 2)
        where = {"previous": (below, number(0, heads - 1)), kind: (number(below + 1, layers - 1), number(0, heads - 1))}
    elif kind is not None:
        where = {kind: (number(0, layers - 1), number(0, heads - 1))}
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draw))[0]
    for name, place in where.items():
        match[place], out[place] = (turn.mT @ each @ turn for each in _by_hand(name))
    table = F.normalize(torch.randn(len(WORDS), TOKEN.stop, generator=draw), dim=-1)
    table[:, FLAG] = 0.0
    table[:SEPARATORS, FLAG] = 1.0
    text = torch.randint(len(WORDS), (LENGTH,), generator=draw)
    text[number(0, LENGTH // 2)] = number(0, SEPARATORS - 1)  # there is one at least
    stream = torch.zeros(1, LENGTH, WIDTH)
    stream[0, :, TOKEN], stream[0, :, PLACE], stream[0, :, ONE] = table[text], torch.eye(LENGTH), 1.0
    model = nn.Sequential(*(Layer(match[n], out[n]) for n in range(layers)))
    return Planted(model, stream @ turn, [WORDS[n] for n in text.tolist()], where)


def _by_hand(kind: str) -> tuple[Tensor, Tensor]:
    """The matrices of a head of a kind, before they are turned."""
    match, out = torch.zeros(2, WIDTH, WIDTH)
    if kind == "previous":
        match[PLACE, PLACE] = SHARP * torch.eye(LENGTH).roll(-1, 1).tril()
        out[TOKEN, BEFORE] = torch.eye(TOKEN.stop)
    elif kind == "induction":
        match[TOKEN, BEFORE] = SHARP * torch.eye(TOKEN.stop)
    else:
        match[ONE, FLAG] = SHARP
    return match, out


def judged(one: Planted) -> dict[str, tuple[set[tuple[int, int]], set[tuple[int, int]]]]:
    """For each kind, the heads that were found and should not be, and those that should be and were not."""
    with torch.no_grad(), regard.record(one.model) as tape:
        one.model(one.stream)
    tape.tokens = one.tokens
    heads = tape.heads()
    result = {}
    for kind in KINDS:
        found = {(head.layer, head.head) for head in tape.find(kind, heads=heads)}
        right = {one.heads[kind]} if kind in one.heads else set()
        result[kind] = found - right, right - found
    return result


def main() -> int:
    wrong = missed = expected = others = 0
    for seed in range(20):
        for kind in (KINDS[seed % len(KINDS)], None):
            one = planted(kind, 1000 * (kind is None) + seed)
            layer = one.model[0]
            assert isinstance(layer, Layer)
            judgement = judged(one)
            wrong += sum(len(extra) for extra, _ in judgement.values())
            missed += sum(len(gone) for _, gone in judgement.values())
            expected += len(one.heads)
            others += len(KINDS) * len(one.model) * len(layer.match) - len(one.heads)  # type: ignore[arg-type]  # a sequence
    print(f"planted heads that were missed: {missed} of {expected} ({missed / expected:.1%})")
    print(f"heads taken for what they are not: {wrong} of {others} ({wrong / others:.1%})")
    return int(bool(wrong or missed))


if __name__ == "__main__":
    sys.exit(main())
