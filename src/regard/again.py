"""A question that was asked before, of other numbers: it is neither read nor planned again.

Only what cannot have changed is recognised: plain tensors of the same shapes on the CPU that nobody watches, and a mask
and a rule that capture nothing, or little with the same numbers in it. Everything else goes the whole way.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.engine.gradient import watched
from regard.engine.native import Repeated
from regard.plan.recent import Bounded, Recent
from regard.spec.formula import Formula, FromLengths
from regard.spec.mask import Mask
from regard.spec.read import LIGHT
from regard.spec.rule import Rule
from regard.spec.storage import check_captured

_known: Bounded[Repeated] = Bounded()
_known_by_content: Recent[Repeated] = Recent()


def repeated(q: Any, k: Any, v: Any, score: Any, mask: Any) -> Tensor | None:
    """The answer, if the same was asked before and may be answered in the same way."""
    if not _are_plain(q, k, v):
        return None
    captured = _captured(score, mask)
    if captured is None:
        return None
    check_captured(captured)
    asked = _asked(q, k, v, score, mask)
    known = _known_by_content.find(asked, captured) if captured else _known.get(asked)
    return None if known is None or _is_followed((q, k, v, *captured)) else known(q, k, v)


def remember(q: Any, k: Any, v: Any, score: Any, mask: Any, ready: Callable[[], Repeated | None]) -> None:
    """Keep how a call was answered, if it can be recognised."""
    if not _are_plain(q, k, v):
        return
    if not q.shape[0] == k.shape[0] == v.shape[0]:  # the kernels would go on where a tensor ends
        return
    captured = _captured(score, mask)
    if captured is None or _is_followed((q, k, v, *captured)):
        return
    made = ready()
    if made is None:
        return
    asked = _asked(q, k, v, score, mask)
    if captured:
        _known_by_content.keep(asked, captured, made)
        return
    _known.put(asked, made)


def _are_plain(q: Any, k: Any, v: Any) -> bool:
    return type(q) is type(k) is type(v) is Tensor and q.dim() == k.dim() == v.dim() == 4


def _asked(q: Tensor, k: Tensor, v: Tensor, score: Any, mask: Any) -> Hashable:
    """What a question is recognised by. A tensor as a mask is known by its numbers alone; where nothing asks for
    positions, there may be any number of keys."""
    if score is None and mask is None:
        (k_batch, k_heads, _, k_width), (v_batch, v_heads, _, v_width) = k.shape, v.shape
        return q.shape, k_batch, k_heads, k_width, v_batch, v_heads, v_width, q.dtype
    return q.shape, k.shape, v.shape, q.dtype, _formula(score), Tensor if isinstance(mask, Tensor) else _formula(mask)


def _formula(asked: Formula | None) -> Hashable:
    """What a mask or a rule is recognised by, also one that was made anew: its term, how it makes tensors that wait for
    the lengths, and what checks them. The numbers of the other tensors are compared."""
    if asked is None:
        return None
    made = tuple(t.make if isinstance(t, FromLengths) else None for t in asked.tensors)
    return asked.term, made, tuple(getattr(check, "__code__", check) for check in asked.checks)


def _captured(score: Any, mask: Any) -> Sequence[Tensor] | None:
    """The tensors in which a rule and a mask look things up; None where they might depend on something else."""
    found: list[Any] = []
    if type(mask) is Mask:
        found += mask.tensors
    elif isinstance(mask, Tensor):
        found.append(mask)
    elif mask is not None:
        return None
    if type(score) is Rule:
        found += score.tensors
    elif score is not None:
        return None
    if not found:
        return found
    found = [t for t in found if not isinstance(t, FromLengths)]  # what those make follows from the shapes
    is_plain = all(type(t) in (Tensor, Parameter) for t in found)
    return found if is_plain and sum(t.nbytes for t in found) <= LIGHT else None


def _is_followed(tensors: tuple[Tensor, ...]) -> bool:
    """Whether torch does more with a call than to run it."""
    return (
        watched(tensors)
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
        or any(x.is_neg() for x in tensors)
    )
