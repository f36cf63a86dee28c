"""Rules: how a score changes with the positions it stands at. A rule is a formula in s, b, h, i (or p) and j."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import describe, tensor
from regard.errors import SpecError
from regard.spec.array import as_tensor
from regard.spec.finite import shielded
from regard.spec.fit import one_each, one_or_each
from regard.spec.formula import Captured, Formula, FromLengths, FromQueries, check_formula, gather, written
from regard.spec.mask import broadcast_lookup
from regard.spec.named import named, unnamed
from regard.spec.precision import fine, fine_as
from regard.spec.regions import Lengths
from regard.spec.term import Term, apply, substitute, variable
from regard.spec.trace import SCORE_VARIABLES, trace


@dataclass(frozen=True, eq=False)
class Rule(Formula):
    """A change of the score s at a position."""


def as_rule(value: Any) -> Formula:
    """A rule from a rule, a function (s, b, h, i, j) or a tensor to add."""
    value = unnamed(value)
    if isinstance(value, Formula):
        return value
    if isinstance(value, Tensor):
        return bias(value)
    if callable(value):
        return unnamed(rule(value))
    raise SpecError(
        f"a rule must be a function (s, b, h, i, j) or one of regard.score's rules; got {type(value).__name__}."
    )


def composed(first: Formula, second: Formula) -> Rule:
    """The rule that applies one rule after another."""
    (inner, outer), tensors, names, checks = gather([first, second])
    return Rule(substitute(outer, {variable("s"): inner}), tensors, names, checks)


def written_rule(function: Callable[..., Any], *variables: str, **options: Any) -> Rule:
    made = written(function, *variables, **options)
    return Rule(apply("to_float", made.term), made.tensors, made.names, made.checks)


@named
def rule(function: Callable[..., Any]) -> Rule:
    """The rule a function (s, b, h, i, j) describes, as FlexAttention's `score_mod`; read once, for reuse."""
    traced = trace(function, SCORE_VARIABLES)
    return from_term(apply("to_float", traced.term), traced.tensors, traced.names)


@named
def from_term(term: Term, tensors: Sequence[Captured], names: Sequence[str]) -> Rule:
    check_formula(term, tensors, names, "float")
    return Rule(term, tuple(tensors), tuple(names))


@named
def alibi(slopes: Tensor | None = None) -> Rule:
    """s - slopes[h] · |p - j|: nearer is better. `slopes` has one number a head; None takes the standard ones."""
    table = torch.zeros(1) if slopes is None else as_tensor(slopes, "slopes")
    later = (table, FromLengths(_standard_slopes)) if slopes is None else None
    checks = () if slopes is None else (one_each("slopes", table, 0, "heads"),)
    return written_rule(
        lambda s, h, p, j: s - table[h] * abs(p - j),
        *("s", "h", "p", "j"),
        names=("slopes",),
        later=later,
        checks=checks,
    )


@lru_cache(maxsize=64)
def alibi_slopes(heads: int) -> Tensor:
    """The published slopes: 2^(-8h/H) for H a power of two, else those interleaved with every other of the next power.

    >>> alibi_slopes(8)[:3].tolist()
    [0.5, 0.25, 0.125]
    """
    power = 2 ** int(math.log2(max(heads, 1)))
    own = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    extra = [2.0 ** (-8.0 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return torch.tensor((own + extra)[:heads])


def _standard_slopes(lengths: Lengths) -> Tensor:
    return alibi_slopes(lengths[1])


@named
@check_types
def softcap(c: float | Tensor) -> Rule:
    """c · tanh(s / c): no score beyond ±c."""
    one_or_each(c, "c")
    if not isinstance(c, Tensor) and not c > 0:
        raise SpecError(f"softcap must be greater than 0; got {c}.")
    return written_rule(lambda s: c * torch.tanh(s / c), "s", names=("cap",))


@named
def bias(values: Any) -> Rule:
    """s + values[b, h, i, j] for a tensor of any shape that broadcasts to (batch, heads, n_q, n_k). -inf hides."""
    values = as_tensor(values, "bias")
    if not values.is_floating_point():
        raise SpecError(f"a bias tensor must hold floats; got {values.dtype}. For a boolean mask use mask=.")
    term, tensors, names, checks = broadcast_lookup(values, "bias")
    return Rule(apply("add", variable("s"), term), tensors, names, checks)


@named
@check_types
def relative(table: Tensor, *, bidirectional: bool = True, max_distance: int = 128) -> Rule:
    """T5's relative bias: s + table[bucket(j - p), h]; `table` is (buckets, heads).

    Near distances have a bucket each, far ones share logarithmically wider buckets. T5 itself uses score.dot().
    """
    tensor(table, "table", dims=(2,), dtype="floats")
    buckets = len(table) // 2 if bidirectional else len(table)
    if buckets < 2 or max_distance <= buckets // 2:
        least = f"at least {4 if bidirectional else 2} buckets, and max_distance must be above {buckets // 2}"
        raise SpecError(f"table must have {least}; got {len(table)} buckets and max_distance={max_distance}.")
    checks = (one_each("a relative table", table, 1, "heads"),)

    def biased(s: Any, h: Any, p: Any, j: Any) -> Any:
        return s + table[_bucket(j - p, table.shape[0], bidirectional, max_distance), h]

    return written_rule(biased, "s", "h", "p", "j", names=("table",), checks=checks)


def _bucket(distance: Any, buckets: int, bidirectional: bool, max_distance: int) -> Any:
    first = 0
    if bidirectional:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = abs(distance)
    else:
        distance = -torch.clamp(distance, max=0)
    exact = buckets // 2
    ratio = torch.log(torch.clamp(distance, min=1).float() / exact) / math.log(max_distance / exact)
    far = torch.clamp(exact + (ratio * (buckets - exact)).long(), max=buckets - 1)
    return first + torch.where(distance < exact, distance, far)


@named
@check_types
def shaw_keys(table: Tensor, scale: float | None = None) -> Rule:
    """Shaw's relative keys: s + scale · q_i·table[clip(j - p)]; `table` is (2 reach + 1, width), scale None is 1/√d.

    Row 0 is for keys `reach` or more before the query, the last row for those `reach` or more after it.
    """
    reach = reach_of(table)
    along = torch.zeros(1, 1, 1, 1)
    return written_rule(
        lambda s, b, h, i, p, j: s + along[b, h, i, torch.clamp(j - p, -reach, reach) + reach],
        *("s", "b", "h", "i", "p", "j"),
        names=("relative",),
        later=(along, FromQueries(_AlongQueries(table, scale))),
    )


@dataclass(frozen=True, eq=False)
class _AlongQueries:
    """The product of each query with each row of a table: (batch, heads, n_q, rows)."""

    table: Tensor
    scale: float | None

    def __call__(self, q: Tensor) -> Tensor:
        table, width = self.table, q.shape[-1]
        if table.shape[-1] != width:
            raise SpecError(f"shaw_keys needs a table as wide as q; got table={table.shape[-1]}, q={width}.")
        factor = 1.0 / math.sqrt(width) if self.scale is None else self.scale
        (along,) = shielded(lambda x: (fine(x) @ fine_as(table, x).mT * factor,), q)
        return along


def reach_of(table: Tensor) -> int:
    if table.dim() != 2 or table.shape[0] % 2 == 0 or not table.is_floating_point():
        raise SpecError(f"a relative table must be (2 reach + 1, width) in floats; got {describe(table)}.")
    return table.shape[0] // 2
