"""Whether a tensor's memory holds all of its elements.

Exceptions are fake tensors, parameters whose storage is resized to 0 while they are sharded, zero tensors of
forward-mode differentiation, and storages that were shrunk. Reading one through its address can end the process.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.errors import SpecError


def last_byte(shape: Sequence[int], strides: Sequence[int], offset: int, itemsize: int) -> int:
    """How many bytes a storage must have for these elements: 0 if there are none."""
    if 0 in shape:
        return 0
    return (offset + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))) * itemsize


def check_storage(x: Tensor, name: str) -> Tensor:
    """Return x with memory behind every element, or raise an error if there is none.

    A zero tensor is written out. Tensors of other devices, layouts and classes are returned as they are.
    """
    if type(x) not in (Tensor, Parameter) or not x.is_cpu or x.layout != torch.strided:
        return x
    if torch._C._functorch.is_functorch_wrapped_tensor(
        x
    ):  # a stand-in; the tensor below it is checked where it is read
        return x
    if x._is_zerotensor():
        return x.clone()
    need, size = last_byte(x.shape, x.stride(), int(x.storage_offset()), x.element_size()), x.untyped_storage().nbytes()
    if need <= size:
        return x
    raise SpecError(
        f"{name} must have storage for all of its elements; got shape {tuple(x.shape)} and strides {x.stride()}, which "
        f"need {need} bytes, and a storage of {size} bytes. Its storage was resized: a sharded parameter must be "
        "gathered before the call."
    )


def check_captured(tensors: Iterable[object]) -> None:
    """`check_storage` for the tensors that a mask, a score or a normalizer captures."""
    for x in tensors:
        if isinstance(x, Tensor):
            check_storage(x, "a captured tensor")
