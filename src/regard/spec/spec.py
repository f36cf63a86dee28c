"""The question, read once: a frozen, hashable spec, and beside it the tensors it is asked about."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.array import as_tensor, over_pairs
from regard.spec.finite import shielded
from regard.spec.formula import Formula, FromQueries, Start, gather
from regard.spec.mask import Mask, as_mask
from regard.spec.normaliser import Normaliser
from regard.spec.regions import Lengths
from regard.spec.rule import composed
from regard.spec.score import RelativeValues, Score, TileFunction, as_score
from regard.spec.term import TRUE, Term, variable
from regard.spec.text import text
from regard.spec.weigh import Weigh, as_weigh

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Spec:
    """What is asked, in numbers and terms: equal specs have equal plans.

    `width` is that of the product the engine computes, after preparation, and `precision` what scores and sums are
    computed in. `start` is None where it differs by batch element. `tensors` has the shape and dtype of each captured
    tensor; the tensors themselves travel beside the spec.
    """

    batch: int
    heads: int
    key_heads: int
    n_q: int
    n_k: int
    width: int
    value_width: int
    dtype: torch.dtype
    device: str
    score: str
    scale: float
    precision: torch.dtype
    rule: Term | None
    mask: Term
    normaliser: Normaliser
    dropout: float
    start: int | None
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    formula: str = field(compare=False, default="")

    @property
    def lengths(self) -> Lengths:
        return self.batch, self.heads, self.n_q, self.n_k

    @property
    def group(self) -> int:
        """How many query heads share a key head."""
        return self.heads // self.key_heads if self.key_heads else 1


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of one call: q (batch, heads, n_q, width), k and v with key heads, and what the terms capture."""

    q: Tensor
    k: Tensor
    v: Tensor
    tensors: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    function: TileFunction | None
    start: Start
    seed: int

    def every(self) -> list[Tensor]:
        """All tensors in one list: q, k, v, what the terms capture, the score's parameters."""
        return [self.q, self.k, self.v, *self.tensors, *self.parameters]

    def holding(self, every: Sequence[Tensor]) -> "Inputs":
        """The same call on other tensors, counted as in `every`."""
        q, k, v, *rest = every
        captured = len(self.tensors)
        tensors, parameters = tuple(rest[:captured]), tuple(rest[captured:])
        return Inputs(q, k, v, tensors, parameters, self.function, self.start, self.seed)

    def detached(self) -> "Inputs":
        return self.holding([x.detach() for x in self.every()])


@dataclass(frozen=True, eq=False)
class Question:
    """A call, read and checked: its spec, how to make the engine's inputs, and how to shape the answer."""

    spec: Spec
    q: Tensor
    k: Tensor
    v: Tensor
    score: Score
    weigh: Weigh
    relative_values: RelativeValues | None
    formula: Formula
    start: Start
    seed: int
    leading: tuple[int, ...]
    has_heads: bool
    is_numpy: bool

    def inputs(self, exact: torch.dtype | None = None) -> Inputs:
        """Preparation, in plain differentiable torch: what the engine's product is taken of. `exact` converts first."""
        q, k, v = (x if exact is None else x.to(exact) for x in (self.q, self.k, self.v))
        prepared = self.score.prepared(q, k)
        tensors = self.formula.resolved(self.spec.lengths, self.start, q)
        return Inputs(
            q=prepared.q,
            k=prepared.k,
            v=v,
            tensors=tuple(t.to(self.q.device) for t in tensors),
            parameters=prepared.parameters,
            function=prepared.function,
            start=self.start,
            seed=self.seed,
        )

    def captured(self) -> tuple[Tensor, ...]:
        """What the terms capture, for planning: tensors that are made from the queries stand as zeros."""
        nothing = torch.zeros((*self.spec.lengths[:3], 1))
        known = (nothing if isinstance(t, FromQueries) else t for t in self.formula.tensors)
        return replace(self.formula, tensors=tuple(known)).resolved(self.spec.lengths, self.start)

    def shaped(self, result: Tensor) -> Any:
        """A tensor (batch, heads, ...) in the caller's dimensions and kind of array."""
        result = result.reshape(*self.leading, *result.shape[2:])
        return result.detach().cpu().numpy() if self.is_numpy else result


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
) -> Question:
    """The question a call asks, or an error that says what is wrong with it; nothing is computed."""
    is_numpy = isinstance(q, np.ndarray)
    q, k, v = (_as_tensor(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    q, k, v = _one_dtype(q, k, v)
    q4, k4, v4, leading = _four_dimensional(q, k, v)
    score, weigh = as_score(_aligned(score, q, leading)), as_weigh(weigh)
    mask = None if mask is None else as_mask(_aligned(mask, q, leading))
    lengths = (*q4.shape[:3], k4.shape[2])
    begin = _start(start, lengths, q4.device)
    formula, rule_term, mask_term = _together(_whole_rule(score.rule, weigh.rule), mask)
    score.check(q4.shape[-1], k4.shape[-1])
    score.check_heads(q4.shape[1], k4.shape[1])
    weigh.check(lengths, begin)
    formula.check(lengths, begin)
    v4, relative_values = _valued(value, v, v4, leading)
    if score.splits_keys(q4.shape[1], k4.shape[1]):
        k4, v4 = (x.repeat_interleave(q4.shape[1] // x.shape[1], dim=1) for x in (k4, v4))
    dropout = _dropout(dropout)
    return Question(
        spec=Spec(
            batch=lengths[0],
            heads=lengths[1],
            key_heads=k4.shape[1],
            n_q=lengths[2],
            n_k=lengths[3],
            width=score.prepared_width(q4.shape[-1]),
            value_width=v4.shape[-1],
            dtype=q4.dtype,
            device="cpu" if q4.device.type == "meta" else q4.device.type,  # a shape alone could be anywhere
            score=score.kind,
            scale=_scale(score, q4),
            precision=torch.float64 if torch.float64 in (q4.dtype, score.precision) else torch.float32,
            rule=rule_term,
            mask=mask_term,
            normaliser=weigh.normaliser,
            dropout=dropout,
            start=begin if isinstance(begin, int) else None,
            tensors=tuple((tuple(t.shape), t.dtype) for t in formula.tensors if isinstance(t, Tensor)),
            formula=_formula(score.formula(), rule_term, mask_term, formula.names, weigh.formula),
        ),
        q=q4,
        k=k4,
        v=v4,
        score=score,
        weigh=weigh,
        relative_values=relative_values,
        formula=formula,
        start=begin,
        seed=_seed(seed, dropout),
        leading=leading,
        has_heads=q.dim() >= 4,
        is_numpy=is_numpy,
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
    if torch.is_autocast_enabled(q.device.type):  # autocast mixes precisions on purpose; nothing is rounded further
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
        return int(start)
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
    return seed


def _dropout(dropout: float) -> float:
    if not 0.0 <= float(dropout) < 1.0:
        raise SpecError(f"dropout must be at least 0 and less than 1; got {dropout}.")
    return float(dropout)


def _scale(score: Score, q: Tensor) -> float:
    """The scale of the engine's product; where it follows from the width, preparation of nothing tells it."""
    scale = getattr(score, "scale", 1.0)
    if isinstance(scale, Tensor) or score.kind != "dot":
        return 1.0
    if scale is not None:
        return float(scale)
    nothing = q[:0]
    return score.prepare(nothing, nothing).scale


def _whole_rule(of_score: Formula | None, of_weigh: Formula | None) -> Formula | None:
    if of_score is None or of_weigh is None:
        return of_score or of_weigh
    return composed(of_score, of_weigh)


def _together(rule: Formula | None, mask: Mask | None) -> tuple[Formula, Term | None, Term]:
    """Rule and mask counted in one list of tensors."""
    terms, tensors, names, checks = gather([f for f in (rule, mask) if f is not None])
    rule_term = terms[0] if rule is not None else None
    mask_term = terms[-1] if mask is not None else TRUE
    return Formula(mask_term, tensors, names, checks), rule_term, mask_term


def _valued(value: Any, v: Tensor, v4: Tensor, leading: tuple[int, ...]) -> tuple[Tensor, RelativeValues | None]:
    """The values a call sums, and the relative ones it adds."""
    if isinstance(value, RelativeValues):
        value.check(v4.shape[-1])
        return v4, value
    return (v4 if value is None else _transformed(value, v, v4, leading)), None


def _transformed(value: Callable[[Tensor], Tensor], v: Tensor, v4: Tensor, leading: tuple[int, ...]) -> Tensor:
    if not callable(value):
        raise SpecError(f"value must be a function of the values; got {type(value).__name__}.")
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
