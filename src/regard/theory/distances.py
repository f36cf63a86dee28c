"""Layers of attention with random weights, how far tokens are apart, and what a layer can leave of that at most."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.nn import Block, Design, FeedForward, MultiHeadAttention

WIDTH, HEAD_WIDTH = 32, 8


class Skip(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)  # type: ignore[no-any-return]  # modules are untyped


def random_layer(heads: int, gain: float, sharp: float, random: torch.Generator) -> MultiHeadAttention:
    """|W_QK| / 4√d is `sharp` in the head where it is largest; |W_V|, summed over heads, is `gain`."""
    layer = MultiHeadAttention(WIDTH, heads, head_width=HEAD_WIDTH, bias=False).double()
    fill_normal(layer, random)
    assert layer.in_proj_weight is not None
    with torch.no_grad():
        queries = max(sharpness_of(part) for part in matrices_of(layer))
        layer.in_proj_weight[: heads * HEAD_WIDTH] *= sharp / queries
        layer.out_proj.weight *= gain / sum(spectral_norm(value) for _, value in matrices_of(layer))
    return layer


def fill_normal(module: nn.Module, random: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=random) / math.sqrt(parameter.shape[1]))
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()


def random_feed_forward(random: torch.Generator) -> FeedForward:
    part = FeedForward(WIDTH, activation="relu").double()
    fill_normal(part, random)
    return part


def random_block(heads: int, random: torch.Generator) -> nn.Module:
    block = Block(Design(width=WIDTH, heads=heads, head_width=HEAD_WIDTH)).double()
    fill_normal(block, random)
    return block


def matrices_of(layer: MultiHeadAttention) -> list[tuple[Tensor, Tensor]]:
    """For each head, W_QK / √d and W_V with what joins the heads; a token is a row, multiplied from the left."""
    assert layer.in_proj_weight is not None
    q, k, v = (w.unflatten(0, (layer.heads, -1)) for w in layer.in_proj_weight.detach().chunk(3))
    out = layer.out_proj.weight.detach().unflatten(1, (layer.heads, -1))
    return [(q[h].mT @ k[h] / math.sqrt(layer.head_width), v[h].mT @ out[:, h].mT) for h in range(layer.heads)]


def spectral_norm(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix)[0])


def sharpness_of(part: tuple[Tensor, Tensor]) -> float:
    return spectral_norm(part[0]) / 4


def passed_through(x: Tensor, stack: Sequence[nn.Module]) -> list[Tensor]:
    places = [x]
    for layer in stack:
        places.append(layer(places[-1]))
    return places


def looking_at_all_alike(x: Tensor, gain: float, layers: int) -> list[Tensor]:
    """With skips, values g x, and queries of 0."""
    places = [x]
    for _ in range(layers):
        now = places[-1]
        places.append(now + gain * attention(torch.zeros_like(now), now, now))
    return places


def diameter_of(x: Tensor) -> Tensor:
    """The largest distance of two tokens."""
    apart: Tensor = (x.unsqueeze(-2) - x.unsqueeze(-3)).norm(dim=-1).max()
    return apart


def relative_diameter(places: list[Tensor]) -> Tensor:
    """The distance of the farthest two, over the length of the longest."""
    return torch.stack([diameter_of(x) / x.norm(dim=-1).max() for x in places])


def tanh_bound(diameter: float, layer: MultiHeadAttention) -> float:
    """What a layer leaves of a largest distance, at most."""
    heads = matrices_of(layer)
    return diameter * sum(spectral_norm(head[1]) * math.tanh(sharpness_of(head) * diameter**2) for head in heads)


def pair_norm(x: Tensor) -> float:
    """√(|X|₁ |X|_∞) of X less its mean row: the largest column sum and the largest row sum of sizes."""
    sizes = (x - x.mean(-2, keepdim=True)).abs()
    return math.sqrt(float(sizes.sum(-2).max() * sizes.sum(-1).max()))


def cubic_bound(x: Tensor, layer: MultiHeadAttention) -> float:
    """4 |W_QK|₁ |W_V| res³ / √d, summed over heads; infinite where scores differ too much within a row."""
    r, total = (x - x.mean(-2, keepdim=True))[0], 0.0
    for scores, values in matrices_of(layer):
        within = r @ scores @ r.mT
        if float((within.amax(-1) - within.amin(-1)).max()) > 1.25:
            return math.inf
        both = math.sqrt(float(values.abs().sum(0).max() * values.abs().sum(1).max()))
        total += 4 * float(scores.abs().sum(0).max()) * both * pair_norm(x) ** 3
    return total


def nearer(x: Tensor, scale: float) -> Tensor:
    """The tokens with their differences from the mean scaled."""
    mean = x.mean(-2, keepdim=True)
    return mean + scale * (x - mean)
