"""A question that was asked before, of other numbers: it is neither read nor planned again.

Only what cannot have changed is recognised: plain tensors of the same shapes on the CPU that nobody watches, and a mask
and a score that capture nothing. Everything else goes the whole way.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from regard.engine.gradient import watched
from regard.engine.native import Repeated
from regard.spec.formula import Formula
from regard.spec.mask import Mask
from regard.spec.rule import Rule

KEPT = 64

_known: OrderedDict[Hashable, Repeated] = OrderedDict()


def repeated(q: Any, k: Any, v: Any, score: Any, mask: Any) -> Tensor | None:
    """The answer, if the same was asked before and may be answered in the same way."""
    if not type(q) is type(k) is type(v) is Tensor:
        return None
    try:
        known = _known.get(_asked(q, k, v, score, mask))
    except TypeError:  # an array as a mask has no hash
        return None
    if known is None or not known.fits(q, k, v) or _is_followed((q, k, v)):
        return None
    return known(q, k, v)


def remember(q: Any, k: Any, v: Any, score: Any, mask: Any, ready: Callable[[], Repeated | None]) -> None:
    """Keep how a call was answered, if it can be recognised."""
    if not type(q) is type(k) is type(v) is Tensor or not q.dim() == k.dim() == v.dim() == 4:
        return
    if not (_captures_nothing(score, Rule) and _captures_nothing(mask, Mask)) or _is_followed((q, k, v)):
        return
    made = ready()
    if made is not None:
        _known[_asked(q, k, v, score, mask)] = made
        while len(_known) > KEPT:
            _known.popitem(last=False)


def _asked(q: Tensor, k: Tensor, v: Tensor, score: Any, mask: Any) -> Hashable:
    """What a question is recognised by."""
    return q.shape, k.shape, v.shape, q.dtype, score, mask


def _captures_nothing(x: Any, kind: type[Formula]) -> bool:
    return x is None or (type(x) is kind and not x.tensors)


def _is_followed(tensors: tuple[Tensor, ...]) -> bool:
    """Whether torch does more with a call than to run it."""
    return (
        watched(tensors)
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
    )
