"""Random layers of attention, the diameter of a set of tokens, and upper bounds on the diameter after a layer."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.nn import Block, BlockConfig, FeedForward, MultiHeadAttention

EMBED_DIM, HEAD_DIM = 32, 8


class Residual(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.layer(x)
        return output


def random_layer(num_heads: int, value_norm: float, qk_scale: float, generator: torch.Generator) -> MultiHeadAttention:
    """Return a layer whose largest |W_QK| / 4√d is `qk_scale`, and whose |W_V|, summed over heads, is `value_norm`."""
    layer = MultiHeadAttention(EMBED_DIM, num_heads, head_dim=HEAD_DIM, bias=False).double()
    init_normal_(layer, generator)
    assert layer.in_proj_weight is not None
    with torch.no_grad():
        coefficient = max(tanh_coefficient(matrices) for matrices in qk_and_ov_matrices(layer))
        layer.in_proj_weight[: num_heads * HEAD_DIM] *= qk_scale / coefficient
        layer.out_proj.weight *= value_norm / sum(spectral_norm(value) for _, value in qk_and_ov_matrices(layer))
    return layer


def init_normal_(module: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[1]))
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()


def random_feed_forward(generator: torch.Generator) -> FeedForward:
    feed_forward = FeedForward(EMBED_DIM, activation="relu").double()
    init_normal_(feed_forward, generator)
    return feed_forward


def random_block(num_heads: int, generator: torch.Generator) -> nn.Module:
    block = Block(BlockConfig(embed_dim=EMBED_DIM, num_heads=num_heads, head_dim=HEAD_DIM)).double()
    init_normal_(block, generator)
    return block


def qk_and_ov_matrices(layer: MultiHeadAttention) -> list[tuple[Tensor, Tensor]]:
    """Return W_QK / √d and W_V times the output projection, per head; tokens are rows, multiplied from the left."""
    assert layer.in_proj_weight is not None
    q, k, v = (w.unflatten(0, (layer.num_heads, -1)) for w in layer.in_proj_weight.detach().chunk(3))
    out = layer.out_proj.weight.detach().unflatten(1, (layer.num_heads, -1))
    return [(q[h].mT @ k[h] / math.sqrt(layer.head_dim), v[h].mT @ out[:, h].mT) for h in range(layer.num_heads)]


def spectral_norm(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix)[0])


def tanh_coefficient(matrices: tuple[Tensor, Tensor]) -> float:
    return spectral_norm(matrices[0]) / 4


def layer_states(x: Tensor, stack: Sequence[nn.Module]) -> list[Tensor]:
    states = [x]
    for layer in stack:
        states.append(layer(states[-1]))
    return states


def uniform_attention_states(x: Tensor, value_norm: float, num_layers: int) -> list[Tensor]:
    """Return the states of layers x + g attention(0, x, x), in which all weights are equal."""
    states = [x]
    for _ in range(num_layers):
        current = states[-1]
        states.append(current + value_norm * attention(torch.zeros_like(current), current, current))
    return states


def diameter(x: Tensor) -> Tensor:
    """Return the largest distance between two tokens."""
    distance: Tensor = (x.unsqueeze(-2) - x.unsqueeze(-3)).norm(dim=-1).max()
    return distance


def relative_diameter(states: list[Tensor]) -> Tensor:
    """Return the diameter of each state divided by the norm of its longest token."""
    return torch.stack([diameter(x) / x.norm(dim=-1).max() for x in states])


def tanh_bound(diameter: float, layer: MultiHeadAttention) -> float:
    """Return the upper bound on the diameter after a layer."""
    heads = qk_and_ov_matrices(layer)
    return diameter * sum(spectral_norm(head[1]) * math.tanh(tanh_coefficient(head) * diameter**2) for head in heads)


def composite_norm(x: Tensor) -> float:
    """Return √(|X|₁ |X|_∞) of X minus its mean row, from the largest absolute column sum and row sum."""
    magnitudes = (x - x.mean(-2, keepdim=True)).abs()
    return math.sqrt(float(magnitudes.sum(-2).max() * magnitudes.sum(-1).max()))


def cubic_bound(x: Tensor, layer: MultiHeadAttention) -> float:
    """Return 4 |W_QK|₁ |W_V| res³ / √d, summed over heads; infinite if scores within a row differ by more than 1.25."""
    r, total = (x - x.mean(-2, keepdim=True))[0], 0.0
    for w_qk, w_v in qk_and_ov_matrices(layer):
        scores = r @ w_qk @ r.mT
        if float((scores.amax(-1) - scores.amin(-1)).max()) > 1.25:
            return math.inf
        value_norm = math.sqrt(float(w_v.abs().sum(0).max() * w_v.abs().sum(1).max()))
        total += 4 * float(w_qk.abs().sum(0).max()) * value_norm * composite_norm(x) ** 3
    return total


def shrink_differences(x: Tensor, scale: float) -> Tensor:
    """Return the tokens with their differences from the mean multiplied by `scale`."""
    mean = x.mean(-2, keepdim=True)
    return mean + scale * (x - mean)
