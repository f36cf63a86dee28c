"""Measure the errors of `find_heads` on 20 models with planted heads and 20 random models.

    python tools/planted_heads.py

The residual stream of a model has dimensions for the token, the previous token, the position and a constant 1. A random
rotation mixes them, so that no head can be recognized by its coordinates. Planted heads are set by hand:

    previous     attends by position to the previous token and writes it into the previous-token dimensions
    induction    matches its token with the previous token of the keys; it needs a previous head in a lower layer
    separator    matches a direction that all separators share

All other heads have random matrices. A seed determines the number of heads, their layers, the text and the matrices.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard

KINDS = ("previous", "induction", "separator")
SEQ_LEN = 100
TOKEN_DIMS, PREVIOUS_TOKEN_DIMS, POSITION_DIMS, CONSTANT_DIM = (
    slice(0, 48),
    slice(48, 96),
    slice(96, 196),
    slice(196, 197),
)
SEPARATOR_DIM, EMBED_DIM = slice(0, 1), 200
VOCABULARY = (".", ",", ";", *(f"word{n}" for n in range(57)))
NUM_SEPARATORS = 3  # the first tokens of VOCABULARY
SCORE_MARGIN = 40.0  # between the score of the matching key and those of the others


class PlantedLayer(nn.Module):
    """A layer with matrices (heads, embed_dim, embed_dim): scores x w_qk x', output x + sum a x w_ov."""

    def __init__(self, w_qk: Tensor, w_ov: Tensor) -> None:
        super().__init__()
        self.w_qk, self.w_ov = nn.Parameter(w_qk), nn.Parameter(w_ov)

    def forward(self, x: Tensor) -> Tensor:
        q = x.unsqueeze(1) @ self.w_qk
        k = x.unsqueeze(1).expand_as(q)
        mixed = F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=1.0)
        return x + (mixed @ self.w_ov).sum(1)


@dataclass(frozen=True, eq=False)
class PlantedModel:
    """A model, its input, and the (layer, head) of its planted heads by kind."""

    model: nn.Module
    residual_stream: Tensor
    tokens: list[str]
    heads: dict[str, tuple[int, int]]


def build_planted_model(kind: str | None, seed: int) -> PlantedModel:
    """Return a model with a head of a kind and the heads that it needs; random heads only if `kind` is None."""
    generator = torch.Generator().manual_seed(seed)

    def randint(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    num_layers, num_heads = randint(2, 4), randint(3, 8)
    shape = num_layers, num_heads, EMBED_DIM, EMBED_DIM
    w_qk = 0.25 * torch.randn(shape, generator=generator)  # scores with a standard deviation near 1
    w_ov = 0.001 * torch.randn(shape, generator=generator)
    heads: dict[str, tuple[int, int]] = {}
    if kind == "induction":
        layer = randint(0, num_layers - 2)
        heads["previous"] = layer, randint(0, num_heads - 1)
        heads[kind] = randint(layer + 1, num_layers - 1), randint(0, num_heads - 1)
    elif kind is not None:
        heads[kind] = randint(0, num_layers - 1), randint(0, num_heads - 1)
    rotation = torch.linalg.qr(torch.randn(EMBED_DIM, EMBED_DIM, generator=generator))[0]
    for name, index in heads.items():
        w_qk[index], w_ov[index] = (rotation.mT @ matrix @ rotation for matrix in _head_matrices(name))
    embeddings = F.normalize(torch.randn(len(VOCABULARY), TOKEN_DIMS.stop, generator=generator), dim=-1)
    embeddings[:, SEPARATOR_DIM] = 0.0
    embeddings[:NUM_SEPARATORS, SEPARATOR_DIM] = 1.0
    ids = torch.randint(len(VOCABULARY), (SEQ_LEN,), generator=generator)
    ids[randint(0, SEQ_LEN // 2)] = randint(0, NUM_SEPARATORS - 1)  # at least one separator
    stream = torch.zeros(1, SEQ_LEN, EMBED_DIM)
    stream[0, :, TOKEN_DIMS] = embeddings[ids]
    stream[0, :, POSITION_DIMS] = torch.eye(SEQ_LEN)
    stream[0, :, CONSTANT_DIM] = 1.0
    model = nn.Sequential(*(PlantedLayer(w_qk[n], w_ov[n]) for n in range(num_layers)))
    return PlantedModel(model, stream @ rotation, [VOCABULARY[n] for n in ids.tolist()], heads)


def _head_matrices(kind: str) -> tuple[Tensor, Tensor]:
    """Return w_qk and w_ov of a head of a kind, before the rotation."""
    w_qk, w_ov = torch.zeros(2, EMBED_DIM, EMBED_DIM)
    if kind == "previous":
        w_qk[POSITION_DIMS, POSITION_DIMS] = SCORE_MARGIN * torch.eye(SEQ_LEN).roll(-1, 1).tril()
        w_ov[TOKEN_DIMS, PREVIOUS_TOKEN_DIMS] = torch.eye(TOKEN_DIMS.stop)
    elif kind == "induction":
        w_qk[TOKEN_DIMS, PREVIOUS_TOKEN_DIMS] = SCORE_MARGIN * torch.eye(TOKEN_DIMS.stop)
    else:
        w_qk[CONSTANT_DIM, SEPARATOR_DIM] = SCORE_MARGIN
    return w_qk, w_ov


def detection_errors(planted: PlantedModel) -> dict[str, tuple[set[tuple[int, int]], set[tuple[int, int]]]]:
    """Return the false positives and the missed heads of each kind."""
    with torch.no_grad(), regard.record(planted.model) as recording:
        planted.model(planted.residual_stream)
    recording.tokens = planted.tokens
    table = recording.head_table()
    errors = {}
    for kind in KINDS:
        matches = {(head.layer, head.head) for head in recording.find_heads(kind, table=table)}
        expected = {planted.heads[kind]} if kind in planted.heads else set()
        errors[kind] = matches - expected, expected - matches
    return errors


def main() -> int:
    num_false = num_missed = num_planted = num_others = 0
    for seed in range(20):
        for kind in (KINDS[seed % len(KINDS)], None):
            planted = build_planted_model(kind, 1000 * (kind is None) + seed)
            layer = planted.model[0]
            assert isinstance(layer, PlantedLayer)
            errors = detection_errors(planted)
            num_false += sum(len(false_positives) for false_positives, _ in errors.values())
            num_missed += sum(len(missed) for _, missed in errors.values())
            num_planted += len(planted.heads)
            num_others += len(KINDS) * len(planted.model) * len(layer.w_qk) - len(planted.heads)  # type: ignore[arg-type]  # a sequence
    print(f"missed planted heads: {num_missed} of {num_planted} ({num_missed / num_planted:.1%})")
    print(f"false positives: {num_false} of {num_others} ({num_false / num_others:.1%})")
    return int(bool(num_false or num_missed))


if __name__ == "__main__":
    sys.exit(main())
