"""Loading of state dicts: names, shapes and dtypes are checked before any parameter changes."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.argument_types import check_types
from regard.errors import LoadError


@check_types
def load_state_dict(model: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Copy tensors into the model's parameters of the same names, after `check_state_dict`.

    `source` is the path or description that errors name.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> load_state_dict(layer, {"weight": torch.ones(1, 2)}, "example")
    >>> layer(torch.tensor([3.0, 4.0])).item()
    7.0
    """
    check_state_dict(model, tensors, source)
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            parameter.copy_(tensors[name])


def check_state_dict(model: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise `LoadError` unless names, shapes and dtypes match the model, which may be on the meta device."""
    expected = model.state_dict()
    for name, parameter in expected.items():
        if name not in tensors:
            raise LoadError(f"{source} must hold the tensor {name!r} of shape {tuple(parameter.shape)}; it does not.")
        if tensors[name].shape != parameter.shape:
            raise LoadError(
                f"{name!r} must have shape {tuple(parameter.shape)}; got {tuple(tensors[name].shape)} in {source}."
            )
        if not tensors[name].is_floating_point() and parameter.is_floating_point():
            raise LoadError(f"{name!r} must hold floats; got {tensors[name].dtype} in {source}.")
    if unexpected := sorted(set(tensors) - set(expected)):
        raise LoadError(
            f"{source} holds the tensor {unexpected[0]!r}, which this model does not have "
            f"(unexpected tensors: {len(unexpected)})."
        )
