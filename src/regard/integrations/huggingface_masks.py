"""Masks for Hugging Face's models: formulas that stand in for the tensors of `eager_mask` and `sdpa_mask`.

The layers of many models change their mask before they hand it to the backend: an indexer hides keys, a compressor
appends some, a bias is added. So the mask that a layer receives must behave as the tensor that "eager" gets. It is None
only where `eager_mask` returns None, since a layer skips these changes when its mask is None.

Models that run on "sdpa" get booleans. The others expect floats to add, as "eager" gets them. The backend's name in the
configuration of such a model, all that its layers can read, is "regard" as a `MadeForEager`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regard.errors import TraceError
from regard.integrations.transformers_modules import modules
from regard.spec import mask
from regard.spec.mask import Mask
from regard.spec.term import Term


class MadeForEager(str):
    """The backend's name, for a model that expects masks as "eager" gets them."""


def is_made_for_eager(config: Any) -> bool:
    return isinstance(getattr(config, "_attn_implementation", None), MadeForEager)


@dataclass
class MaskSource:
    """The formula of a mask (None hides nothing), and its tensor once an operation needed it."""

    formula: Mask | None
    make: Callable[[], Tensor]
    tensor: Tensor | None = None

    def dense(self) -> Tensor:
        if self.tensor is None:
            self.tensor = self.make()
        return self.tensor


class FormulaMask(Tensor):
    """A mask (batch, 1, n_q, n_k), boolean or of floats to add, that stores only a formula.

    A torch operation that needs its values gets the tensor that it stands for. The formula holds until something is
    written into that tensor.
    """

    source: MaskSource

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's way to say none

    @staticmethod
    def __new__(
        cls, source: MaskSource, shape: tuple[int, ...], device: Any, dtype: torch.dtype = torch.bool
    ) -> "FormulaMask":
        result: FormulaMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        result.source = source
        return result

    def __init__(self, *_: Any) -> None:
        """Tensors are made by `__new__` alone."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no annotations
        return f"FormulaMask({self.current()}, shape={tuple(self.shape)})"

    def current(self) -> Mask | Tensor | None:
        """The formula (None hides nothing), or the tensor if somebody may have written into it.

        A layer that only reads the values must not change the mask of other layers: gradient checkpointing computes
        them again, and expects the same operations.
        """
        if self.source.tensor is None:
            return self.source.formula
        # torch counts writes, also those into views and aliases, but not in inference mode
        is_written = self.is_inference() or self._version > 0
        return self.source.tensor if is_written else self.source.formula

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch annotates the one that is turned off
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):  # a slice of all is an alias
            return cls(args[0].source, tuple(args[0].shape), args[0].device, args[0].dtype)
        args, kwargs = tree_map_only(FormulaMask, lambda each: each.source.dense(), (args, kwargs or {}))
        return function(*args, **kwargs)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """The mask that transformers' `sdpa_mask` or `eager_mask` makes of these arguments, as a formula of O(n) bytes.

    The mask is None only where `eager_mask` returns None: nothing is hidden and the model allows it to say so. A
    function that cannot be traced gives the tensor itself, and so do a single query that does not see all keys, whose
    row is no larger than the padding, and a graph that is being compiled.
    """
    masking = modules["masking_utils"]
    for_eager = is_made_for_eager(others.get("config"))
    function = masking.causal_mask_function if mask_function is None else mask_function
    sizes = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset)
    write = masking.eager_mask if for_eager else masking.sdpa_mask
    written = partial(write, **sizes, mask_function=function, attention_mask=attention_mask)
    if torch.compiler.is_compiling():
        return written(**(others | {"allow_is_causal_skip": False}))  # type: ignore[no-any-return]  # mypy does not read transformers
    is_local = others.get("local_size") is not None and kv_length >= others["local_size"]
    padding = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if others.get("allow_is_bidirectional_skip", False) and not is_local and (padding is None or bool(padding.all())):
        return None
    if padding is not None and bool(padding[:, kv_offset : kv_offset + kv_length].all()):
        padding = None
    dense = partial(written, **(others | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))
    # where None may stand for the mask, a window or a chunk that is longer than the keys is plain causal
    is_causal = function is masking.causal_mask_function or (not is_local and others.get("allow_is_causal_skip", True))
    formula: Mask | None
    if is_causal and padding is None and q_offset - kv_offset == kv_length - q_length:
        formula = None if q_length == 1 else mask.causal()
    elif q_length == 1:
        row: Tensor = dense()
        if not bool((row == 0).all() if for_eager else row.all()):
            return row
        formula = None
    else:
        try:
            formula = _traced(function, padding, int(q_offset), kv_offset)
        except TraceError:
            return dense()  # type: ignore[no-any-return]  # mypy does not read transformers
    dtype = others.get("dtype", torch.float32) if for_eager else torch.bool
    shape = (batch_size, 1, q_length, kv_length)
    return FormulaMask(MaskSource(formula, dense), shape, others.get("device", "cpu"), dtype)


def _traced(function: Callable[..., Any], padding: Tensor | None, q_offset: int, kv_offset: int) -> Mask:
    """A mask function of transformers, of positions in the whole text, as a mask of queries and keys."""

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        # transformers calls the function for the first head alone and takes the result for all
        pairs = function(b, h.new_zeros(()), i + q_offset, j + kv_offset)
        return pairs if padding is None else pairs & padding[b, j + kv_offset]

    result = mask.where(visible)
    if result.tensors:
        return result
    first = _first_mask(result.term)
    first[:] = first or [result]
    return first[0]


@lru_cache(maxsize=64)
def _first_mask(term: Term) -> list[Mask]:
    """The first mask of a formula. The fast path of a repeated call recognizes it by its identity."""
    return []


def fitting(given: Tensor | None, shape: tuple[int, ...]) -> Mask | Tensor | None:
    """The formula of a mask that has the shape of this call; any other mask as the tensor that it is."""
    if isinstance(given, FormulaMask):
        return given.current() if tuple(given.shape) == shape else given.source.dense()
    return given
