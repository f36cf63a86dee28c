"""Normalisation of each vector: by mean and spread, or by its size alone."""

from collections.abc import Callable

from torch import nn

from regard.errors import SpecError


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · weight. torch's own takes the smallest float for eps unless told otherwise; models do not.

    >>> import torch
    >>> RMSNorm(2)(torch.tensor([3.0, 4.0]))
    tensor([0.8485, 1.1314], grad_fn=...)
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__(width, eps=eps)


NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda width, eps, bias: nn.LayerNorm(width, eps=eps, bias=bias),
    "rms": lambda width, eps, _: RMSNorm(width, eps=eps),
}


def norm_of(kind: str, width: int, eps: float, bias: bool = True) -> nn.Module:
    """Without `bias` a layer norm has none either, as in torch's stacks."""
    if kind not in NORMS:
        raise SpecError(f"norm must be one of {', '.join(NORMS)}; got {kind!r}.")
    return NORMS[kind](width, eps, bias)
