"""Reading a call: checked once, and turned into a question. Nothing is computed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.argument_types import check_signature
from regard.checks import probability, whole_number
from regard.errors import SpecError
from regard.spec.array import as_tensor, over_pairs
from regard.spec.feature import Kernel
from regard.spec.finite import shielded
from regard.spec.formula import Formula, Start, gather
from regard.spec.mask import Mask, as_mask
from regard.spec.named import unnamed
from regard.spec.regions import Lengths
from regard.spec.rule import Rule, composed
from regard.spec.score import RelativeValues, ScaledDot, Score, as_score
from regard.spec.spec import Question, Spec
from regard.spec.storage import check_captured
from regard.spec.term import TRUE, Term, variable
from regard.spec.text import text
from regard.spec.weigh import Weigh, as_weigh

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MAX_POSITION = 2**53  # positions are exact in float64 up to here
LIGHT = 2**20  # bytes of captured tensors that may be kept alive for a call like the last one


def read(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    whole: tuple[int, int] | None = None,
) -> Question:
    """The question a call asks, or an error that says what is wrong with it; nothing is computed.

    `whole` is the number of queries and keys of which q, k and v hold a part: that is what the question is about then.
    """
    is_numpy = isinstance(q, np.ndarray)
    q, k, v = (_as_tensor(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    q, k, v = _one_dtype(q, k, v)
    q4, k4, v4, leading = _four_dimensional(q, k, v)
    score, mask = _aligned(score, q, leading), _aligned(mask, q, leading)
    dropout = probability(dropout, "dropout", below_one=True)
    ask = _asked_again if _is_light(score, mask, weigh, start) else _asked
    n_q, n_k = (q4.shape[2], k4.shape[2]) if whole is None else whole
    lengths, widths = (*q4.shape[:2], n_q, n_k), (q4.shape[-1], k4.shape[-1], v4.shape[-1])
    asked = ask(lengths, k4.shape[1], widths, q4.dtype, q4.device, score, mask, weigh, dropout, start)
    check_captured(asked.formula.tensors)
    v4, relative_values = _valued(value, v, v4, leading)
    spec = asked.spec if v4.shape[-1] == widths[2] else replace(asked.spec, value_width=v4.shape[-1])
    if spec.key_heads != k4.shape[1]:
        k4, v4 = (x.repeat_interleave(q4.shape[1] // x.shape[1], dim=1) for x in (k4, v4))
    return Question(
        spec=spec,
        q=q4,
        k=k4,
        v=v4,
        score=asked.score,
        weigh=asked.weigh,
        relative_values=relative_values,
        formula=asked.formula,
        start=asked.start,
        seed=_seed(seed, spec.dropout),
        leading=leading,
        has_heads=q.dim() >= 4,
        is_numpy=is_numpy,
    )


@dataclass(frozen=True, eq=False)
class _Asked:
    """What a call asks, whatever q, k and v hold."""

    spec: Spec
    score: Score
    weigh: Weigh
    formula: Formula
    start: Start


def _asked(
    lengths: Lengths,
    key_heads: int,
    widths: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
    score: Any,
    mask: Any,
    weigh: Any,
    dropout: float,
    start: Any,
) -> _Asked:
    weigh, mask = as_weigh(weigh), None if mask is None else as_mask(mask)
    score = _scored(score, weigh)
    begin = _start(start, lengths, device)
    formula, rule_term, mask_term, parameter = _together(_whole_rule(score.rule, weigh.rule), mask, weigh.parameter)
    score.check(*widths[:2])
    score.check_heads(lengths[1], key_heads)
    weigh.check(lengths, begin)
    formula.check(lengths, begin)
    spec = Spec(
        batch=lengths[0],
        heads=lengths[1],
        key_heads=lengths[1] if score.splits_keys(lengths[1], key_heads) else key_heads,
        n_q=lengths[2],
        n_k=lengths[3],
        width=score.prepared_width(widths[0]),
        value_width=widths[2],
        dtype=dtype,
        device="cpu" if device.type == "meta" else device.type,  # a shape alone could be anywhere
        score=score.kind,
        scale=_scale(score, widths[0]),
        precision=torch.float64 if torch.float64 in (dtype, score.precision) else torch.float32,
        rule=rule_term,
        mask=mask_term,
        normaliser=weigh.normaliser if parameter is None else weigh.normaliser.given(parameter),
        dropout=dropout,
        start=begin if isinstance(begin, int) else None,
        tensors=tuple((tuple(t.shape), t.dtype) for t in formula.tensors if isinstance(t, Tensor)),
        formula=_formula(score.formula(), rule_term, mask_term, formula.names, weigh.formula),
    )
    return _Asked(spec, score, weigh, formula, begin)


def _scored(score: Any, weigh: Weigh) -> Score:
    found = as_score(score)
    if weigh.features is None:
        return found
    if type(found) is not ScaledDot or found.rule is not None or found.scale is not None:
        raise SpecError(
            f"weigh.kernel makes its own scores, φ(q)·φ(k), so score must be left out; got {type(found).__name__} with "
            f"{'a rule' if found.rule is not None else 'no rule'}. A mask may be given."
        )
    return Kernel(features=weigh.features)


_asked_again = lru_cache(maxsize=64)(_asked)


def _is_light(score: Any, mask: Any, weigh: Any, start: Any) -> bool:
    """Whether the same question may be recognised by the objects that ask it: they never change, and hold little.

    A function is read again each time, since what it refers to may have changed.
    """
    rule = score.rule if type(score) is ScaledDot and not isinstance(score.scale, Tensor) else score
    captured = [t for f in (rule, mask) if isinstance(f, Formula) for t in f.tensors]
    return (
        (rule is None or type(rule) is Rule)
        and (mask is None or type(mask) is Mask)
        and weigh is None
        and (start is None or isinstance(start, int))
        and sum(t.nbytes for t in captured if isinstance(t, Tensor)) <= LIGHT
    )


def _as_tensor(x: Any, name: str) -> Tensor:
    if isinstance(x, (tuple, torch.Size)) and all(isinstance(n, int) for n in x):
        x = torch.empty(x, device="meta")  # a shape alone: enough to plan with
    tensor = as_tensor(x, name)
    if tensor.dtype not in FLOATS:
        raise SpecError(
            f"{name} must hold float64, float32, bfloat16 or float16; got {tensor.dtype}. "
            f"Convert it first, as in {name}.float()."
        )
    if tensor.dim() < 2:
        raise SpecError(
            f"{name} must have at least 2 dimensions, (length, width); got shape {tuple(tensor.shape)}. "
            f"Use {name}[None] for a single vector."
        )
    return tensor


def _one_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not q.device == k.device == v.device:
        raise SpecError(
            f"q, k and v must be on one device; got q on {q.device}, k on {k.device}, v on {v.device}. "
            "Move them with .to(device)."
        )
    if q.dtype == k.dtype == v.dtype:
        return q, k, v
    # autocast mixes precisions on purpose; nothing is rounded further
    if q.device.type != "meta" and torch.is_autocast_enabled(q.device.type):
        widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        return q.to(widest), k.to(widest), v.to(widest)
    raise SpecError(
        f"q, k and v must have one dtype; got q={q.dtype}, k={k.dtype}, v={v.dtype}. Convert them with .to(dtype)."
    )


def _four_dimensional(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """q, k, v as (batch, heads, length, width), and the caller's dimensions before the length."""
    if not q.dim() == k.dim() == v.dim():
        raise SpecError(f"q, k and v must have the same number of dimensions; got {_shapes(q, k, v)}.")
    if k.shape[-2] != v.shape[-2]:
        raise SpecError(
            f"k and v must have the same length; got k={k.shape[-2]}, v={v.shape[-2]} ({_shapes(q, k, v)})."
        )
    if 0 in (q.shape[-1], k.shape[-1]):
        raise SpecError(f"q and k must be at least 1 wide; got {_shapes(q, k, v)}.")
    has_heads = q.dim() >= 4
    q_heads, k_heads, v_heads = (x.shape[-3] if has_heads else 1 for x in (q, k, v))
    if k_heads != v_heads or (q_heads != k_heads and (k_heads == 0 or q_heads % k_heads)):
        raise SpecError(
            f"k and v must have the same number of heads, and it must divide that of q; got q={q_heads}, k={k_heads}, "
            f"v={v_heads} heads ({_shapes(q, k, v)})."
        )
    batch = _batch(q, k, v, -3 if has_heads else -2)
    flat = [x if x.dim() == 4 and x.shape[0] == batch[0] else _flat(x, batch) for x in (q, k, v)]
    return flat[0], flat[1], flat[2], (*batch, q_heads) if has_heads else batch


def _batch(q: Tensor, k: Tensor, v: Tensor, outer: int) -> tuple[int, ...]:
    """The batch dimensions, which all three have or broadcast to."""
    if q.shape[:outer] == k.shape[:outer] == v.shape[:outer]:
        return tuple(q.shape[:outer])
    try:
        return tuple(torch.broadcast_shapes(q.shape[:outer], k.shape[:outer], v.shape[:outer]))
    except RuntimeError:
        raise SpecError(f"the batch dimensions of q, k and v must be equal or 1; got {_shapes(q, k, v)}.") from None


def _flat(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """All batch dimensions as one, and one head where there is no dimension of heads."""
    inner = x.shape[-3:] if x.dim() >= 4 else (1, *x.shape[-2:])
    if x.dim() < 4:
        x = x.unsqueeze(-3)
    return x.expand(*batch, *inner).reshape(math.prod(batch), *inner)


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"


def _aligned(values: Any, q: Tensor, leading: tuple[int, ...]) -> Any:
    """A mask or bias given as an array with the dimensions of q, as (batch, heads, n_q, n_k)."""
    if not isinstance(values, (Tensor, np.ndarray)) or values.ndim != q.dim():
        return values
    whole = as_tensor(values, "mask")
    try:
        return over_pairs(whole, leading)
    except RuntimeError:
        raise SpecError(
            f"a mask of {q.dim()} dimensions must broadcast over {leading}; got {tuple(whole.shape)}."
        ) from None


def _start(start: Any, lengths: Lengths, device: torch.device) -> Start:
    batch, _, n_q, n_k = lengths
    if start is None:
        return n_k - n_q
    if isinstance(start, (int, np.integer)):
        return whole_number(start, "start", at_least=-MAX_POSITION, at_most=MAX_POSITION)
    each = as_tensor(start, "start")
    if each.is_floating_point() or each.dim() > 1 or each.numel() not in (1, batch):
        raise SpecError(
            f"start must be a whole number, or one for each of {batch} batch elements; got {each.dtype} of shape "
            f"{tuple(each.shape)}."
        )
    return each.long().reshape(-1).expand(batch).to(device)


def _seed(seed: int | None, dropout: float) -> int:
    if seed is None:
        return int(torch.randint(2**62, ())) if dropout else 0
    return whole_number(seed, "seed", at_least=-(2**63), at_most=2**63 - 1)


def _scale(score: Score, width: int) -> float:
    """The scale of the engine's product; where it follows from the width, preparation of nothing tells it."""
    scale = getattr(score, "scale", 1.0)
    if isinstance(scale, Tensor) or score.kind != "dot":
        return 1.0
    if scale is not None:
        return float(scale)
    nothing = torch.empty((1, 1, 0, width))
    return score.prepare(nothing, nothing).scale


def _whole_rule(of_score: Formula | None, of_weigh: Formula | None) -> Formula | None:
    if of_score is None or of_weigh is None:
        return of_score or of_weigh
    return composed(of_score, of_weigh)


def _together(
    rule: Formula | None, mask: Mask | None, parameter: Formula | None
) -> tuple[Formula, Term | None, Term, Term | None]:
    """Rule, mask and a weighing's parameter counted in one list of tensors."""
    parts = (rule, mask, parameter)
    terms, tensors, names, checks = gather([f for f in parts if f is not None])
    rest = iter(terms)
    rule_term, mask_term, parameter_term = (None if f is None else next(rest) for f in parts)
    mask_term = TRUE if mask_term is None else mask_term
    return Formula(mask_term, tensors, names, checks), rule_term, mask_term, parameter_term


def _valued(value: Any, v: Tensor, v4: Tensor, leading: tuple[int, ...]) -> tuple[Tensor, RelativeValues | None]:
    """The values a call sums, and the relative ones it adds."""
    value = unnamed(value)
    if isinstance(value, RelativeValues):
        value.check(v4.shape[-1])
        return v4, value
    return (v4 if value is None else _transformed(value, v, v4, leading)), None


def _transformed(value: Callable[[Tensor], Tensor], v: Tensor, v4: Tensor, leading: tuple[int, ...]) -> Tensor:
    check_signature(value, "value", "v")
    if v.device.type == "meta":
        return v4  # planning from shapes: the function is not called
    (moved,) = shielded(lambda x: (value(x),), v)
    if not isinstance(moved, Tensor) or moved.shape[:-1] != v.shape[:-1]:
        got = tuple(moved.shape) if isinstance(moved, Tensor) else type(moved).__name__
        raise SpecError(f"value must keep all dimensions of v but the last, {tuple(v.shape[:-1])}; got {got}.")
    if moved.dtype != v.dtype:
        moved = moved.to(v.dtype)
    outer = leading[:-1] if v.dim() >= 4 else leading
    spread = moved.expand(*outer, *moved.shape[-3 if v.dim() >= 4 else -2 :])
    return spread.reshape(*v4.shape[:3], moved.shape[-1])


@lru_cache(maxsize=256)
def _formula(product: str, rule: Term | None, mask: Term, names: tuple[str, ...], weighing: str) -> str:
    """The whole question in a line of text."""
    inside = product
    if rule is not None:
        changed = text(rule, names)
        inside = f"{changed} with s = {inside}" if rule is not variable("s") else inside
    seen = "" if mask is TRUE else f", seen where {text(mask, names)}"
    return f"o = {weighing}({inside}{seen}) v"
