"""The part of a block that looks at each token alone: up, through an activation, and down again.

    relu        max(0, x W₁) W₂                    gelu   x·Φ(x) instead of max(0, x)
    swiglu      (silu(x W_gate) ∘ x W_up) W₂       gelu_tanh   its approximation by tanh, another function
    geglu       (gelu(x W_gate) ∘ x W_up) W₂

In gated forms the first matrix holds both, gate before up, and is twice as wide.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from regard import checks
from regard.nn.inputs import any_vectors

Activation = Callable[[Tensor], Tensor]


def _gated(inner: Activation, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return inner(gate) * up


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
GATED: dict[str, Activation] = {
    "reglu": partial(_gated, F.relu),
    "geglu": partial(_gated, F.gelu),
    "geglu_tanh": partial(_gated, ACTIVATIONS["gelu_tanh"]),
    "swiglu": partial(_gated, F.silu),
}


def activation_of(name: str) -> Activation:
    known = ACTIVATIONS | GATED
    return known[checks.choice(name, "activation", known)]


def hidden_width(width: int, activation: str) -> int:
    """How wide the middle is unless told otherwise: four times the width; gated, what costs the same, by eights."""
    return -(-8 * width // 24) * 8 if activation in GATED else 4 * width


def feed(x: Tensor, up: nn.Module, activation: Activation, down: nn.Module, dropout: float) -> Tensor:
    hidden = activation(up(x))
    return down(F.dropout(hidden, dropout) if dropout else hidden)  # type: ignore[no-any-return]  # modules are untyped


def linears(width: int, hidden: int | None, activation: str, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """The matrix up and the matrix down."""
    checks.size(width, "width")
    hidden = hidden_width(width, activation) if hidden is None else checks.size(hidden, "hidden")
    checks.flag(bias, "bias")
    checks.parameter("linear1.weight", 2 * hidden if activation in GATED else hidden, width)
    return (
        nn.Linear(width, 2 * hidden if activation in GATED else hidden, bias=bias),
        nn.Linear(hidden, width, bias=bias),
    )


class FeedForward(nn.Module):
    """x (..., width) in, (..., width) out, each vector alone.

    >>> import torch
    >>> FeedForward(64, activation="swiglu")(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        width: int,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = activation_of(activation)
        self.linear1, self.linear2 = linears(width, hidden, activation, bias)
        self.dropout = checks.probability(dropout, "dropout", below_one=True)

    def forward(self, x: Tensor) -> Tensor:
        any_vectors(x, "x", self.linear1.in_features, self.linear1.weight)
        return feed(x, self.linear1, self.activation, self.linear2, self.dropout if self.training else 0.0)
