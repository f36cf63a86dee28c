"""Masks for Hugging Face models: formulas that behave like the tensors of `eager_mask` and `sdpa_mask`.

The layers of many models change their mask before they call the attention function: an indexer masks keys, a compressor
appends keys, a bias is added. So the mask of a layer must behave like the tensor of "eager". It is None only if
`eager_mask` returns None, since layers skip these changes if the mask is None.

Models that support "sdpa" get boolean masks. Other models expect floats to add, as in "eager". Layers can read only the
name of the implementation from the configuration, so in these models the name is an `EagerMaskName`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regard import mask
from regard.cache import memoize
from regard.errors import TraceError
from regard.expr.ir import Expr
from regard.integrations.huggingface.transformers_modules import modules
from regard.mask import Mask


class EagerMaskName(str):
    """The name of the attention implementation in a model that expects the masks of "eager"."""


def needs_eager_mask(config: Any) -> bool:
    return isinstance(getattr(config, "_attn_implementation", None), EagerMaskName)


@dataclass
class MaskSource:
    """The formula of a mask (None masks nothing), and its dense tensor once some operation needs it."""

    formula: Mask | None
    make_dense: Callable[[], Tensor]
    tensor: Tensor | None = None

    def to_dense(self) -> Tensor:
        if self.tensor is None:
            self.tensor = self.make_dense()
        return self.tensor


class FormulaMask(Tensor):
    """A mask (batch, 1, n_q, n_k), boolean or of floats to add, that stores only a formula.

    Torch operations receive the dense tensor. The formula is used until the dense tensor is modified.
    """

    source: MaskSource

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's idiom to disable it

    @staticmethod
    def __new__(
        cls, source: MaskSource, shape: tuple[int, ...], device: Any, dtype: torch.dtype = torch.bool
    ) -> "FormulaMask":
        result: FormulaMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        result.source = source
        return result

    def __init__(self, *_: Any) -> None:
        """Accept the arguments of `__new__`."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no annotations
        return f"FormulaMask({self.formula_or_tensor()}, shape={tuple(self.shape)})"

    def formula_or_tensor(self) -> Mask | Tensor | None:
        """Return the formula (None masks nothing), or the dense tensor if it may have been modified.

        A layer that only reads the values must not change the mask of other layers: gradient checkpointing recomputes
        them and expects the same operations.
        """
        if self.source.tensor is None:
            return self.source.formula
        # the version counts writes, also through views and aliases, but not in inference mode
        is_modified = self.is_inference() or self._version > 0
        return self.source.tensor if is_modified else self.source.formula

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's signature is that of the disabled one
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):  # a full slice is an alias
            return cls(args[0].source, tuple(args[0].shape), args[0].device, args[0].dtype)
        args, kwargs = tree_map_only(
            FormulaMask, lambda formula_mask: formula_mask.source.to_dense(), (args, kwargs or {})
        )
        return function(*args, **kwargs)


def regard_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Return the mask of transformers' `sdpa_mask` or `eager_mask` for these arguments, as a formula of O(n) bytes.

    The mask is None only if `eager_mask` returns None: nothing is masked, and the model allows None. The result is a
    dense tensor if the mask function cannot be traced, if a graph is being compiled, or for a single query that does
    not attend to all keys, whose row is no larger than the padding.
    """
    masking = modules["masking_utils"]
    for_eager = needs_eager_mask(kwargs.get("config"))
    function = masking.causal_mask_function if mask_function is None else mask_function
    sizes = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset)
    make_mask = masking.eager_mask if for_eager else masking.sdpa_mask
    make_dense = partial(make_mask, **sizes, mask_function=function, attention_mask=attention_mask)
    output: Tensor | None
    if torch.compiler.is_compiling():
        output = make_dense(**(kwargs | {"allow_is_causal_skip": False}))
        return output
    is_local = kwargs.get("local_size") is not None and kv_length >= kwargs["local_size"]
    padding = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if kwargs.get("allow_is_bidirectional_skip", False) and not is_local and (padding is None or bool(padding.all())):
        return None
    if padding is not None and bool(padding[:, kv_offset : kv_offset + kv_length].all()):
        padding = None
    make_dense = partial(make_dense, **(kwargs | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))
    # if None may replace the mask, a window or chunk that covers all keys is plain causal
    is_causal = function is masking.causal_mask_function or (not is_local and kwargs.get("allow_is_causal_skip", True))
    formula: Mask | None
    if is_causal and padding is None and q_offset - kv_offset == kv_length - q_length:
        formula = None if q_length == 1 else mask.causal()
    elif q_length == 1:
        row: Tensor = make_dense()
        if not bool((row == 0).all() if for_eager else row.all()):
            return row
        formula = None
    else:
        try:
            formula = _trace_mask_function(function, padding, int(q_offset), kv_offset)
        except TraceError:
            output = make_dense()
            return output
    dtype = kwargs.get("dtype", torch.float32) if for_eager else torch.bool
    shape = (batch_size, 1, q_length, kv_length)
    return FormulaMask(MaskSource(formula, make_dense), shape, kwargs.get("device", "cpu"), dtype)


def _trace_mask_function(
    mask_function: Callable[..., Any], padding: Tensor | None, q_offset: int, kv_offset: int
) -> Mask:
    """Trace a mask function of transformers, which takes positions in the whole text, as a mask of queries and keys."""

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        # transformers calls the function for the first head and uses the result for all heads
        pairs = mask_function(b, h.new_zeros(()), i + q_offset, j + kv_offset)
        return pairs if padding is None else pairs & padding[b, j + kv_offset]

    result = mask.from_function(visible)
    if result.tensors:
        return result
    slot = _canonical_mask_slot(result.expr)
    slot[:] = slot or [result]
    return slot[0]


@memoize(64)
def _canonical_mask_slot(expr: Expr) -> list[Mask]:
    """Return the list that holds the first mask with a formula; the fast path identifies masks by object identity."""
    return []


def mask_for_shape(attention_mask: Tensor | None, shape: tuple[int, ...]) -> Mask | Tensor | None:
    """Return the formula of a mask of this shape, or any other mask as a tensor."""
    if isinstance(attention_mask, FormulaMask):
        has_shape = tuple(attention_mask.shape) == shape
        return attention_mask.formula_or_tensor() if has_shape else attention_mask.source.to_dense()
    return attention_mask
