"""A small language model in float64 and the task it learns, for ranks and for one process."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.models.language import LanguageModel
from regard.models.train import Outcome, Recipe, Spread, answers
from regard.nn import ALiBi, Decoder, Design, Encoder, LatentAttention, Learned, Position, Rotary

VOCABULARY = 17
POSITIONS: dict[str, Callable[[], Position | None]] = {
    "rotary": lambda: Rotary(8),
    "alibi": lambda: ALiBi(4),
    "learned": lambda: Learned(64, 32),
    "none": lambda: None,
}


def model(kind: str = "rotary", seed: int = 3) -> LanguageModel:
    """Two layers of width 32: one with a window and grouped heads, one that sees everything."""
    torch.manual_seed(seed)
    designs = [Design(width=32, heads=4, key_heads=2, window=5), Design(width=32, heads=4)]
    return LanguageModel(VOCABULARY, layers=2, design=designs, position=POSITIONS[kind]()).double()


def stack(kind: str) -> nn.Module:
    """Two layers that every token of a text (batch, n, 32) sees all of."""
    torch.manual_seed(5)
    if kind == "encoder":
        return Encoder(Design(width=32, heads=4), layers=2, position=ALiBi(4)).double()
    latent = Design(width=32, heads=4, attention=lambda d: LatentAttention(d.width, d.heads, latent=12, turning=4))
    return Decoder(latent, layers=2, position=Rotary(4)).double()


class Tiny:
    """Each token tells the next one, 3t + 1; the first ones are not asked for."""

    name = "tiny"
    divides = True
    recipe = Recipe(steps=50, rate=1e-2, warmup=10)

    def model(self) -> nn.Module:
        return model()

    def words(self) -> dict[str, object]:
        return {}

    def outcome(self, running: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        rows = [torch.randint(VOCABULARY, (3,), generator=draw)]
        for _ in range(25):
            rows.append((3 * rows[-1] + 1) % VOCABULARY)
        tokens = torch.stack(rows, dim=1)
        targets = tokens[:, 1:].clone()
        targets[:, :6] = -100
        asked = running.own(targets) if isinstance(running, Spread) else targets
        return answers(running(tokens[:, :-1]), asked, recipe.smoothing)

    def test(self, running: nn.Module) -> dict[str, float]:
        return {}


def prompt(n: int = 11) -> Tensor:
    return torch.randint(VOCABULARY, (2, n), generator=torch.Generator().manual_seed(n))
