"""Normalisation of each vector: by mean and spread, or by its size alone."""

from collections.abc import Callable

from torch import Tensor, nn

from regard import checks
from regard.nn.inputs import any_vectors


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · weight. torch's own takes the smallest float for eps unless told otherwise; models do not.

    >>> import torch
    >>> RMSNorm(2)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=...)
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        checks.parameter("weight", checks.size(width, "width"))
        super().__init__(width, eps=checks.finite_number(eps, "eps", at_least=0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(any_vectors(x, "x", self.normalized_shape[0], self.weight))


NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda width, eps, bias: nn.LayerNorm(width, eps=eps, bias=bias),
    "rms": lambda width, eps, _: RMSNorm(width, eps=eps),
}


def norm_of(kind: str, width: int, eps: float, bias: bool = True) -> nn.Module:
    """Without `bias` a layer norm has none either, as in torch's stacks."""
    return NORMS[checks.choice(kind, "norm", NORMS)](width, eps, bias)
