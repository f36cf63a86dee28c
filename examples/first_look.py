"""The library at work in a terminal, in a few seconds: `make first-look`.

It plans a call that would be too large to try, draws a mask, and then looks into an attention head over 8192 tokens,
whose weights never exist as a matrix.
"""

import math

import torch
from torch import Tensor

import regard
from regard import mask, measure, score
from regard.result import Attended

LENGTH, PHRASE, WIDTH = 8192, 1024, 64
SHADES = " ·░▒▓█"


def main() -> None:
    show_a_plan()
    show_a_mask()
    attended = regard.attend(*repetition_head(), mask=mask.causal())
    show_some_rows(attended)
    show_measures(attended)


def show_a_plan() -> None:
    heading("A plan, from shapes alone: what would run, why, and what it would cost. Nothing is computed.")
    q, k, v = (1, 32, 65536, 128), (1, 8, 65536, 128), (1, 8, 65536, 128)
    print(regard.explain(q, k, v, score=score.softcap(50.0), mask=mask.causal() & mask.window(4096)))


def show_a_mask() -> None:
    heading("A mask: a formula. It joins with others, prints itself and draws itself.")
    near_or_first = mask.causal() & (mask.window(5) | mask.prefix(2))
    print(near_or_first)
    print()
    print(near_or_first.picture(16))
    print()
    counts = near_or_first.regions(1_000_000, size=1024).counts
    print("For a million tokens, in tiles of 1024 x 1024, read off the formula without visiting them:")
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()))


def repetition_head() -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a head made by hand, one that asks: what followed this token before?

    1024 different tokens are drawn and said eight times. A query holds its own token and a key the token before it,
    so the two match where that token has just been said.
    """
    torch.manual_seed(0)
    tokens = torch.randperm(PHRASE).repeat(LENGTH // PHRASE)
    vectors = torch.nn.functional.normalize(torch.randn(PHRASE, WIDTH), dim=-1)
    own = vectors[tokens]
    before = torch.cat([torch.zeros(1, WIDTH), own[:-1]])
    return 15.0 * math.sqrt(WIDTH) * own, before, own


def show_some_rows(attended: Attended) -> None:
    heading("Weights: any part of the matrix, exact, computed when it is asked for.")
    print(f"{attended.weights}; as a matrix it would take {4 * LENGTH**2:,} bytes")
    print(
        f"a phrase of {PHRASE} tokens, said {LENGTH // PHRASE} times; the head looks for what followed its token before"
    )
    print()
    for query in (1500, 3600, 5700):
        row = attended.weights[query]
        largest = sorted(row.topk(query // PHRASE).indices.tolist())
        found = ", ".join(f"{row[key]:.3f} on key {key}" for key in largest)
        print(f"query {query}: {found}")


def show_measures(attended: Attended) -> None:
    heading("Measures: any number of them, in one pass over tiles.")
    followed_it = mask.where(lambda b, h, i, j: (i - j) % PHRASE == PHRASE - 1)
    found = attended.weights.measure(measure.entropy, measure.mass(followed_it), measure.pool(32, 64))
    print("time the phrase is said    ", "".join(f"{number:8}" for number in range(1, 9)))
    for name, rows in (("entropy (nats)             ", found.entropy), ("mass on what followed      ", found.mass)):
        print(name, "".join(f"{mean:8.3f}" for mean in rows.view(8, -1).mean(1).tolist()))
    print()
    print(f"All {LENGTH} x {LENGTH} weights in 32 x 64 cells, each as dark as its largest weight:")
    print()
    for row in found.pool.max.tolist():
        print("".join(SHADES[math.ceil(5 * math.sqrt(min(weight, 1.0)) - 0.5)] for weight in row).rstrip())


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    main()
