"""Addresses of tensors for the compiled core: the one place that hands them out."""

import ctypes

from torch import Tensor

from regard.errors import SpecError
from regard.spec.storage import last_byte

# Tensors without elements have no address. The kernels get this one: they never read it, and null means "not wanted".
_EMPTY = ctypes.create_string_buffer(64)
_NOWHERE = ctypes.addressof(_EMPTY)


def address(x: Tensor) -> int:
    """The address of a tensor's first element, once its storage is known to hold the last one.

    The core reads and writes plain memory: a tensor whose storage is missing or too small must never reach it.
    """
    if not x.numel():
        return _NOWHERE
    storage = x.untyped_storage()
    if storage.device.type != "cpu" or x._is_zerotensor():
        raise SpecError(
            f"the native backend needs tensors with data in memory; got a {type(x).__name__} of shape "
            f"{tuple(x.shape)} without data. Pass a real tensor, or shapes alone to regard.explain."
        )
    need = last_byte(x.shape, x.stride(), int(x.storage_offset()), x.element_size())
    if need > storage.nbytes():
        raise SpecError(
            f"the native backend needs storage for every element; got shape {tuple(x.shape)} and strides {x.stride()}, "
            f"which need {need} bytes, and a storage of {storage.nbytes()} bytes."
        )
    return x.data_ptr()
