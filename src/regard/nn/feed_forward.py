"""The feed-forward network of a block: an up projection, an activation and a down projection, for each token.

    relu        max(0, x W₁) W₂                    gelu        x·Φ(x) instead of max(0, x)
    swiglu      (silu(x W_gate) ∘ x W_up) W₂       gelu_tanh   the tanh approximation of gelu
    geglu       (gelu(x W_gate) ∘ x W_up) W₂

In gated forms the first matrix holds W_gate and W_up, in this order, and is twice as wide.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from regard import checks
from regard.nn.input_checks import check_last_dim

Activation = Callable[[Tensor], Tensor]


def _glu(activation: Activation, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return activation(gate) * up


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
GATED_ACTIVATIONS: dict[str, Activation] = {
    "reglu": partial(_glu, F.relu),
    "geglu": partial(_glu, F.gelu),
    "geglu_tanh": partial(_glu, ACTIVATIONS["gelu_tanh"]),
    "swiglu": partial(_glu, F.silu),
}


def get_activation(name: str) -> Activation:
    activations = ACTIVATIONS | GATED_ACTIVATIONS
    return activations[checks.choice(name, "activation", activations)]


def default_ffn_dim(embed_dim: int, activation: str) -> int:
    """Return 4 embed_dim; for gated activations, 8/3 embed_dim rounded up to a multiple of 8, which costs the same."""
    return -(-8 * embed_dim // 24) * 8 if activation in GATED_ACTIVATIONS else 4 * embed_dim


def feed_forward(x: Tensor, up: nn.Module, activation: Activation, down: nn.Module, dropout: float) -> Tensor:
    hidden = activation(up(x))
    return down(F.dropout(hidden, dropout) if dropout else hidden)  # type: ignore[no-any-return]  # modules are untyped


def make_linears(embed_dim: int, ffn_dim: int | None, activation: str, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """Return the up and down projections."""
    checks.size(embed_dim, "embed_dim")
    ffn_dim = default_ffn_dim(embed_dim, activation) if ffn_dim is None else checks.size(ffn_dim, "ffn_dim")
    checks.flag(bias, "bias")
    checks.parameter_size("linear1.weight", 2 * ffn_dim if activation in GATED_ACTIVATIONS else ffn_dim, embed_dim)
    return (
        nn.Linear(embed_dim, 2 * ffn_dim if activation in GATED_ACTIVATIONS else ffn_dim, bias=bias),
        nn.Linear(ffn_dim, embed_dim, bias=bias),
    )


class FeedForward(nn.Module):
    """A feed-forward network that maps each vector of x (..., embed_dim) to a vector of the same dimension.

    `ffn_dim` is the hidden dimension (None: 4 `embed_dim`, or 8/3 `embed_dim` for gated activations). `activation` is
    one of those of `BlockConfig` (default "gelu"). `bias` (default True) adds a bias to every linear layer. `dropout`
    (default 0) applies to the hidden units in training.

    >>> import torch
    >>> FeedForward(64, activation="swiglu")(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        ffn_dim: int | None = None,
        *,
        activation: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation)
        self.linear1, self.linear2 = make_linears(embed_dim, ffn_dim, activation, bias)
        self.dropout = checks.probability(dropout, "dropout", below_one=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x (..., embed_dim), of the same shape."""
        check_last_dim(x, "x", self.linear1.in_features, self.linear1.weight)
        return feed_forward(x, self.linear1, self.activation, self.linear2, self.dropout if self.training else 0.0)
