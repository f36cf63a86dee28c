"""A tour of the library in a terminal, in a few seconds: `make first-look`.

It plans a call that is too large to try, prints a mask, and inspects an attention head over 8192 tokens without storing
its matrix.
"""

import math

import torch
from torch import Tensor

import regard
from regard import mask, measure, score
from regard.result import AttentionResult

SEQ_LEN, PHRASE_LEN, HEAD_DIM = 8192, 1024, 64
NUM_PHRASES = SEQ_LEN // PHRASE_LEN
SHADES = " ·░▒▓█"


def main() -> None:
    print_plan()
    print_mask()
    result = regard.attention_with_weights(*induction_head(), mask=mask.causal())
    print_rows(result)
    print_measures(result)


def print_plan() -> None:
    print_heading("A plan, from shapes alone: which backend would run, why, and at what cost. Nothing is computed.")
    q, k, v = (1, 32, 65536, 128), (1, 8, 65536, 128), (1, 8, 65536, 128)
    print(regard.explain(q, k, v, score=score.softcap(50.0), mask=mask.causal() & mask.sliding_window(4096)))


def print_mask() -> None:
    print_heading("A mask is a formula: it combines with others and prints as text.")
    window_and_prefix = mask.causal() & (mask.sliding_window(5) | mask.prefix(2))
    print(window_and_prefix)
    print()
    print(window_and_prefix.render_text(16))
    print()
    counts = window_and_prefix.tile_coverage(1_000_000, tile_size=1024).tile_counts
    print("Tiles of 1024 x 1024 for a million tokens, from the formula, without visiting the pairs:")
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()))


def induction_head() -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of a hand-made head that attends to the tokens after earlier occurrences of its token.

    The text is a phrase of 1024 different tokens, repeated eight times. A query is the vector of its token, a key the
    vector of the previous token, so that they match if the key's token follows the query's token.
    """
    torch.manual_seed(0)
    tokens = torch.randperm(PHRASE_LEN).repeat(NUM_PHRASES)
    embeddings = torch.nn.functional.normalize(torch.randn(PHRASE_LEN, HEAD_DIM), dim=-1)
    current = embeddings[tokens]
    previous = torch.cat([torch.zeros(1, HEAD_DIM), current[:-1]])
    return 15.0 * math.sqrt(HEAD_DIM) * current, previous, current


def print_rows(result: AttentionResult[Tensor]) -> None:
    print_heading("Weights: any part of the matrix, exact, computed on request.")
    print(f"{result.weights}; the matrix would take {4 * SEQ_LEN**2:,} bytes")
    print(f"an induction head over a phrase of {PHRASE_LEN} tokens, repeated {NUM_PHRASES} times")
    print()
    for query in (1500, 3600, 5700):
        row = result.weights[query]
        keys = sorted(row.topk(query // PHRASE_LEN).indices.tolist())
        print(f"query {query}: " + ", ".join(f"{row[key]:.3f} on key {key}" for key in keys))


def print_measures(result: AttentionResult[Tensor]) -> None:
    print_heading("Measures: any number of them, in one pass over tiles.")
    follows_occurrence = mask.from_function(lambda b, h, i, j: (i - j) % PHRASE_LEN == PHRASE_LEN - 1)
    measured = result.weights.measure(measure.entropy, measure.mass(follows_occurrence), measure.pooled_map(32, 64))
    print(f"{'repetition of the phrase':27}", "".join(f"{number:8}" for number in range(1, NUM_PHRASES + 1)))
    for name, values in (
        ("entropy (nats)             ", measured.entropy),
        ("induction mass             ", measured.mass),
    ):
        print(name, "".join(f"{mean:8.3f}" for mean in values.view(NUM_PHRASES, -1).mean(1).tolist()))
    print()
    print(f"All {SEQ_LEN} x {SEQ_LEN} weights in 32 x 64 cells, shaded by their largest weight:")
    print()
    for row in measured.pooled_map.max.tolist():
        print("".join(SHADES[math.ceil(5 * math.sqrt(min(weight, 1.0)) - 0.5)] for weight in row).rstrip())


def print_heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    main()
