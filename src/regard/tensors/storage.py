"""Checks that the storage of a tensor holds all of its elements.

The storage is too small for fake tensors, sharded parameters whose storage is resized to 0, zero tensors of
forward-mode differentiation, and shrunk storages. Reading such a tensor through its address can crash the process.
"""

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.errors import ArgumentError


def required_bytes(shape: Sequence[int], strides: Sequence[int], offset: int, itemsize: int) -> int:
    """Return the number of bytes that a storage must have for these elements; 0 if there are none."""
    if 0 in shape:
        return 0
    return (offset + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))) * itemsize


def required_storage_bytes(x: Tensor) -> int:
    """Return the number of bytes that the storage of a tensor must have."""
    if x.is_contiguous():  # faster, and a small call spends much of its time here
        numel = x.numel()
        return (int(x.storage_offset()) + numel) * x.element_size() if numel else 0
    return required_bytes(x.shape, x.stride(), int(x.storage_offset()), x.element_size())


def check_storage(x: Tensor, name: str) -> Tensor:
    """Return x, or raise an error if its storage is too small for its elements.

    A zero tensor is materialized. Tensors of other devices, layouts and classes are returned unchanged.
    """
    if type(x) not in (Tensor, Parameter) or not x.is_cpu or x.layout != torch.strided:
        return x
    if torch._C._functorch.is_functorch_wrapped_tensor(x):  # the wrapped tensor is checked when it is read
        return x
    if x._is_zerotensor():
        return x.clone()
    required = required_storage_bytes(x)
    size = x.untyped_storage().nbytes()
    if required <= size:
        return x
    raise ArgumentError(
        f"{name} must have storage for all of its elements; got shape {tuple(x.shape)} and strides {x.stride()}, which "
        f"need {required} bytes, and a storage of {size} bytes. Its storage was resized: a sharded parameter must be "
        "gathered before the call."
    )


def check_captured_storage(tensors: Iterable[object]) -> None:
    """Check the storage of the tensors that a mask, score or normalizer captures."""
    for x in tensors:
        if isinstance(x, Tensor):
            check_storage(x, "a captured tensor")


# The address of tensors without elements. The kernels do not read it; a null pointer would mean "not requested".
_EMPTY_BUFFER = ctypes.create_string_buffer(64)
_EMPTY_ADDRESS = ctypes.addressof(_EMPTY_BUFFER)


def address(x: Tensor) -> int:
    """Return the address of the first element of a tensor whose storage holds all of its elements.

    The native kernels read and write memory unchecked, so a tensor with missing or too small storage raises an error.
    """
    if not x.numel():
        return _EMPTY_ADDRESS
    storage = x.untyped_storage()
    if storage.device.type != "cpu" or x._is_zerotensor():
        raise ArgumentError(
            f"the native backend needs tensors with data in memory; got a {type(x).__name__} of shape "
            f"{tuple(x.shape)} without data. Pass a real tensor, or shapes alone to regard.explain."
        )
    required = required_storage_bytes(x)
    if required > storage.nbytes():
        raise ArgumentError(
            f"the native backend needs storage for every element; got shape {tuple(x.shape)} and strides {x.stride()}, "
            f"which need {required} bytes, and a storage of {storage.nbytes()} bytes."
        )
    return x.data_ptr()
