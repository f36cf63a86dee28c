"""Normalization layers: LayerNorm and RMSNorm."""

from collections.abc import Callable

from torch import Tensor, nn

from regard import checks
from regard.nn.input_checks import check_last_dim


class RMSNorm(nn.RMSNorm):
    """Root mean square normalization of x (..., normalized_shape): x / √(mean x² + eps) · weight.

    The default `eps` is 1e-6, as in Llama; torch's default is the machine epsilon.

    >>> import torch
    >>> RMSNorm(2)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=...)
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-6) -> None:
        checks.parameter_size("weight", checks.size(normalized_shape, "normalized_shape"))
        super().__init__(normalized_shape, eps=checks.finite_number(eps, "eps", at_least=0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(check_last_dim(x, "x", self.normalized_shape[0], self.weight))


NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda dim, eps, bias: nn.LayerNorm(dim, eps=eps, bias=bias),
    "rms": lambda dim, eps, _: RMSNorm(dim, eps=eps),
}


def make_norm(kind: str, dim: int, eps: float, bias: bool = True) -> nn.Module:
    """Return the norm named `kind`. With `bias=False` a LayerNorm has no bias, as in `torch.nn.TransformerEncoder`."""
    return NORMS[checks.choice(kind, "norm", NORMS)](dim, eps, bias)
