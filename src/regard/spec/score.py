"""Scores: how well a query and a key match, and rules that change a score by position.

Every score but two is "prepare q and k, then multiply", so they all run on the same product. A rule is a function
(s, b, h, i, j) read as a formula; `.then(rule)` applies it. A rule given alone means scaled dot, then the rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from regard.errors import SpecError
from regard.spec.formula import Formula, FromLengths, FromQueries, gather, written
from regard.spec.mask import broadcast_lookup
from regard.spec.regions import Lengths
from regard.spec.term import apply, substitute, variable
from regard.spec.trace import SCORE_VARIABLES

Number = float | Tensor
TileFunction = Callable[[Tensor, Tensor], Tensor]


class Prepared(NamedTuple):
    """Queries and keys ready for the engine's product, the scale of it, and parameters of its own."""

    q: Tensor
    k: Tensor
    scale: float = 1.0
    parameters: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Score:
    """A score and the rule applied to it. `kind` names the product an engine computes: dot, additive or custom."""

    rule: Formula | None = None
    kind: ClassVar[str] = "dot"

    def then(self, rule: Any) -> "Score":
        """This score, changed by a rule: a `Rule`, a function (s, b, h, i, j), or a tensor to add."""
        rule = as_rule(rule)
        return replace(self, rule=rule if self.rule is None else composed(self.rule, rule))

    def check(self, q_width: int, k_width: int) -> None:
        if q_width != k_width:
            raise SpecError(
                f"q and k must have the same width; got q={q_width}, k={k_width}. For unequal widths use score.multiplicative."
            )

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        return Prepared(q, k)

    def prepared_width(self, width: int) -> int:
        """How wide the product is that the engine computes."""
        return width

    def formula(self) -> str:
        return "q·k"


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    scale: Number | None = None

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        if isinstance(self.scale, Tensor):
            return Prepared(_fine(q) * _per_head(self.scale), _fine(k))
        return Prepared(q, k, 1.0 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale)

    def formula(self) -> str:
        return "q·k / √d" if self.scale is None else "q·k · scale" if isinstance(self.scale, Tensor) else f"q·k · {self.scale:g}"


@dataclass(frozen=True, eq=False)
class Multiplicative(Score):
    w: Tensor = None  # type: ignore[assignment]  # always given

    def check(self, q_width: int, k_width: int) -> None:
        if tuple(self.w.shape[-2:]) != (q_width, k_width):
            raise SpecError(
                f"w must end in (width of q, width of k) = ({q_width}, {k_width}); got shape {tuple(self.w.shape)}."
            )

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        heads = self.w.shape[0] if self.w.dim() == 3 else 1
        if heads not in (1, k.shape[1]):  # one matrix a query head: let it act on the queries
            return Prepared(_fine(q) @ _as(self.w, q), _fine(k))
        return Prepared(_fine(q), _fine(k) @ _as(self.w, k).mT)

    def formula(self) -> str:
        return "q·W·k"


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    scale: Number = 1.0

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        q, k = (torch.nn.functional.normalize(_fine(x), dim=-1) for x in (q, k))
        return Prepared(q * _per_head(self.scale), k) if isinstance(self.scale, Tensor) else Prepared(q, k, self.scale)

    def formula(self) -> str:
        return "cos(q, k) · " + ("scale" if isinstance(self.scale, Tensor) else f"{self.scale:g}")


@dataclass(frozen=True, eq=False)
class Metric(Score):
    """-(q - k)' M (q - k) / 2 with M = 1/sigma^2 or a matrix: a product with two more columns."""

    sigma: Number = 1.0
    m: Tensor | None = None

    def check(self, q_width: int, k_width: int) -> None:
        if q_width != k_width or (self.m is not None and tuple(self.m.shape[-2:]) != (q_width, q_width)):
            matrix = "" if self.m is None else f", m={tuple(self.m.shape)}"
            raise SpecError(f"a distance must compare vectors of one width; got q={q_width}, k={k_width}{matrix}.")

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        q, k = _fine(q), _fine(k)
        # distances do not change when both move; near the keys the squares are small and float32 does not cancel
        centre = _centre(k)
        k = k - centre
        q = q - _repeat_heads(centre, q.shape[1])
        if self.m is None:
            sigma = self.sigma if isinstance(self.sigma, Tensor) else torch.tensor(self.sigma)
            inverse = 1.0 / _per_head(sigma.to(q)) ** 2
            q_moved, k_moved, q_scale = q, k, inverse
        else:
            m = _as((self.m + self.m.mT) / 2, q)
            q_moved, k_moved, q_scale = q @ m, k @ m, torch.ones((), dtype=q.dtype, device=q.device)
        ones = torch.ones_like(k[..., :1])
        q_half, k_half = -(q_moved * q).sum(-1, keepdim=True) / 2, -(k_moved * k).sum(-1, keepdim=True) / 2
        q_row = torch.cat([q_moved, torch.ones_like(q[..., :1]), q_half], dim=-1) * q_scale
        return Prepared(q_row, torch.cat([k, k_half, ones], dim=-1))

    def prepared_width(self, width: int) -> int:
        return width + 2

    def formula(self) -> str:
        return "-|q - k|² / 2σ²" if self.m is None else "-(q - k)'M(q - k) / 2"


@dataclass(frozen=True, eq=False)
class Additive(Score):
    w_q: Tensor = None  # type: ignore[assignment]  # always given
    w_k: Tensor = None  # type: ignore[assignment]  # always given
    u: Tensor = None  # type: ignore[assignment]  # always given
    bias: Tensor | None = None
    kind: ClassVar[str] = "additive"

    def check(self, q_width: int, k_width: int) -> None:
        hidden = self.u.shape[-1]
        if tuple(self.w_q.shape[-2:]) != (q_width, hidden) or tuple(self.w_k.shape[-2:]) != (k_width, hidden):
            raise SpecError(
                f"w_q must be (width of q, hidden) = ({q_width}, {hidden}) and w_k (width of k, hidden) = ({k_width}, {hidden}), "
                f"with u of length hidden; got w_q={tuple(self.w_q.shape)}, w_k={tuple(self.w_k.shape)}, u={tuple(self.u.shape)}."
            )

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        q = _fine(q) @ _as(self.w_q, q)
        q = q if self.bias is None else q + _as(self.bias, q)
        return Prepared(q, _fine(k) @ _as(self.w_k, k), 1.0, (_as(self.u, q),))

    def prepared_width(self, width: int) -> int:
        return int(self.u.shape[-1])

    def formula(self) -> str:
        return "u·tanh(W_q q + W_k k" + (")" if self.bias is None else " + bias)")


@dataclass(frozen=True, eq=False)
class Custom(Score):
    function: TileFunction = None  # type: ignore[assignment]  # always given
    kind: ClassVar[str] = "custom"

    def check(self, q_width: int, k_width: int) -> None:
        """Any widths: the function decides."""

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """The tensors the function uses are found by trying it on a corner, so that gradients can reach them."""
        with _Watching() as seen:
            corner = self.function(_fine(q[..., :2, :].detach()), _fine(_repeat_heads(k[..., :3, :].detach(), q.shape[1])))
        wanted = (*q.shape[:-2], min(2, q.shape[-2]), min(3, k.shape[-2]))
        if tuple(corner.shape) != wanted:
            raise SpecError(
                f"a custom score must turn queries (..., m, d) and keys (..., n, d) into (..., m, n); for {wanted} it gave "
                f"{tuple(corner.shape)}."
            )
        return Prepared(q, k, 1.0, tuple(seen.sources))

    def formula(self) -> str:
        return f"{getattr(self.function, '__name__', type(self.function).__name__)}(q, k)"


class _Watching(TorchFunctionMode):
    """Notices the tensors with gradients that come into a computation from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Tensor] = []
        self._made: list[Tensor] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, Tensor) and x.requires_grad and not any(x is known for known in (*self._made, *self.sources)):
                self.sources.append(x)
        self._made.extend(x for x in tree_leaves(result) if isinstance(x, Tensor))
        return result


def dot() -> Score:
    """q·k."""
    return Score()


def scaled_dot(scale: Number | None = None) -> Score:
    """q·k times `scale`; None means 1/√d. A tensor scale may be learned: one number, or one a head."""
    return ScaledDot(scale=scale)


def multiplicative(w: Tensor) -> Score:
    """q·W·k, Luong's general form; `w` is (width of q, width of k), or one such matrix a head."""
    return Multiplicative(w=w)


def cosine(scale: Number = 1.0) -> Score:
    """The cosine of the angle between q and k, times `scale`. A zero vector has cosine 0 with everything."""
    return Cosine(scale=scale)


def metric(sigma: Number = 1.0) -> Score:
    """-|q - k|² / 2σ²: nearness. A tensor sigma may be learned: one number, or one a head."""
    if not isinstance(sigma, Tensor) and not sigma > 0:
        raise SpecError(f"sigma must be greater than 0; got {sigma}.")
    return Metric(sigma=sigma)


def mahalanobis(m: Tensor) -> Score:
    """-(q - k)' M (q - k) / 2 with a symmetric matrix `m`, or one a head; only the symmetric part of m counts."""
    return Metric(m=m)


def additive(w_q: Tensor, w_k: Tensor, u: Tensor, bias: Tensor | None = None) -> Score:
    """u·tanh(W_q q + W_k k + bias), Bahdanau's form; w_q is (width of q, hidden), w_k (width of k, hidden), u (hidden,)."""
    return Additive(w_q=w_q, w_k=w_k, u=u, bias=bias)


def custom(function: TileFunction) -> Score:
    """Any function of whole tiles: (queries (..., m, d), keys (..., n, d)) -> scores (..., m, n).

    It must treat every query and key alike wherever they stand, since it is called tile by tile. Gradients reach q, k
    and every tensor the function uses.
    """
    return Custom(function=function)


@dataclass(frozen=True, eq=False)
class Rule(Formula):
    """A change of the score s at a position."""


def as_rule(value: Any) -> Formula:
    """A rule from a rule, a function (s, b, h, i, j) or a tensor to add."""
    if isinstance(value, Formula):
        return value
    if isinstance(value, Tensor):
        return bias(value)
    if callable(value):
        return rule(value)
    raise SpecError(f"a rule must be a function (s, b, h, i, j) or one of regard.score's rules; got {type(value).__name__}.")


def as_score(value: Any) -> Score:
    """A score from a score, or scaled dot followed by a rule."""
    return value if isinstance(value, Score) else scaled_dot() if value is None else scaled_dot().then(value)


def composed(first: Formula, second: Formula) -> Rule:
    """The rule that applies one rule after another."""
    (inner, outer), tensors, names, checks = gather([first, second])
    return Rule(substitute(outer, {variable("s"): inner}), tensors, names, checks)


def written_rule(function: Callable[..., Any], *variables: str, **options: Any) -> Rule:
    made = written(function, *variables, **options)
    return Rule(apply("to_float", made.term), made.tensors, made.names, made.checks)


def rule(function: Callable[..., Any]) -> Rule:
    """The rule a function (s, b, h, i, j) describes, as FlexAttention's `score_mod`; read once, for reuse."""
    return written_rule(function, *SCORE_VARIABLES)


def alibi(slopes: Tensor | None = None) -> Rule:
    """s - slopes[h] · |p - j|: nearer is better. `slopes` has one number a head; None takes the standard ones."""
    table = torch.zeros(1) if slopes is None else torch.as_tensor(slopes)
    later = (table, FromLengths(lambda lengths: alibi_slopes(lengths[1]))) if slopes is None else None
    checks = () if slopes is None else (_one_a_head(table, "slopes", 0),)
    return written_rule(
        lambda s, h, p, j: s - table[h] * abs(p - j), *("s", "h", "p", "j"), names=("slopes",), later=later, checks=checks
    )


@cache
def alibi_slopes(heads: int) -> Tensor:
    """The published slopes: 2^(-8h/H) for H a power of two, else those interleaved with every other of the next power.

    >>> alibi_slopes(8)[:3].tolist()
    [0.5, 0.25, 0.125]
    """
    power = 2 ** int(math.log2(max(heads, 1)))
    own = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    extra = [2.0 ** (-8.0 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return torch.tensor((own + extra)[:heads])


def softcap(c: Number) -> Rule:
    """c · tanh(s / c): no score beyond ±c."""
    if not isinstance(c, Tensor) and not c > 0:
        raise SpecError(f"softcap must be greater than 0; got {c}.")
    return written_rule(lambda s: c * torch.tanh(s / c), "s", names=("cap",))


def bias(values: Any) -> Rule:
    """s + values[b, h, i, j] for a tensor of any shape that broadcasts to (batch, heads, n_q, n_k). -inf hides."""
    values = torch.as_tensor(values)
    if not values.is_floating_point():
        raise SpecError(f"a bias tensor must hold floats; got {values.dtype}. For a boolean mask use mask=.")
    term, tensors, names, checks = broadcast_lookup(values, "bias")
    return Rule(apply("add", variable("s"), term), tensors, names, checks)


def relative(table: Tensor, *, bidirectional: bool = True, max_distance: int = 128) -> Rule:
    """T5's relative bias: s + table[bucket(j - p), h]; `table` is (buckets, heads).

    Near distances have a bucket each, far ones share logarithmically wider buckets. T5 itself uses score.dot().
    """
    checks = (_one_a_head(table, "relative table", 1),)

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


def shaw_keys(table: Tensor, scale: float | None = None) -> Rule:
    """Shaw's relative keys: s + scale · q_i·table[clip(j - p)]; `table` is (2 reach + 1, width), scale None is 1/√d.

    Row 0 is for keys `reach` or more before the query, the last row for those `reach` or more after it.
    """
    reach = _reach(table)

    def along_queries(q: Tensor) -> Tensor:
        if table.shape[-1] != q.shape[-1]:
            raise SpecError(f"shaw_keys needs a table as wide as q; got table={table.shape[-1]}, q={q.shape[-1]}.")
        factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
        return _fine(q) @ _as(table, q).mT * factor

    along = torch.zeros(1, 1, 1, 1)
    return written_rule(
        lambda s, b, h, i, p, j: s + along[b, h, i, torch.clamp(j - p, -reach, reach) + reach],
        *("s", "b", "h", "i", "p", "j"),
        names=("relative",),
        later=(along, FromQueries(along_queries)),
    )


@dataclass(frozen=True, eq=False)
class RelativeValues:
    """Shaw's relative values: each value v_j becomes v_j + table[clip(j - p)] for the query at p."""

    table: Tensor
    reach: int

    def check(self, width: int) -> None:
        if self.table.shape[-1] != width:
            raise SpecError(f"shaw_values needs a table as wide as v; got table={self.table.shape[-1]}, v={width}.")


def shaw_values(table: Tensor) -> RelativeValues:
    """Shaw's relative values, given as `value=`: o_i = sum a_ij (v_j + table[clip(j - p)]); `table` is (2 reach + 1, width of v)."""
    return RelativeValues(table, _reach(table))


def _reach(table: Tensor) -> int:
    if table.dim() != 2 or table.shape[0] % 2 == 0:
        raise SpecError(f"a relative table must be (2 reach + 1, width); got shape {tuple(table.shape)}.")
    return table.shape[0] // 2


def rotary(
    q: Tensor,
    k: Tensor,
    positions: Any = None,
    *,
    layout: str = "half",
    base: float = 10000.0,
    width: int | None = None,
) -> tuple[Tensor, Tensor]:
    """q and k turned by their positions, so that their product depends on the distance alone.

    `positions` is one tensor (n,) or (batch, n) for both, or a pair of them; None counts keys from 0 and stands the
    queries at the end. `layout` "half" pairs feature m with m + width/2 (Llama), "interleaved" with m + 1.
    `width` turns only the first features.
    """
    if layout not in ("half", "interleaved"):
        raise SpecError(f"layout must be 'half' or 'interleaved'; got {layout!r}.")
    n_q, n_k = q.shape[-2], k.shape[-2]
    if positions is None:
        positions = (torch.arange(n_k - n_q, n_k, device=q.device), torch.arange(n_k, device=k.device))
    at_q, at_k = positions if isinstance(positions, (tuple, list)) else (positions, positions)
    return _turned(q, torch.as_tensor(at_q), layout, base, width), _turned(k, torch.as_tensor(at_k), layout, base, width)


def _turned(x: Tensor, at: Tensor, layout: str, base: float, width: int | None) -> Tensor:
    width = x.shape[-1] if width is None else width
    if width % 2 or not 0 < width <= x.shape[-1]:
        raise SpecError(f"rotary needs an even width of at most {x.shape[-1]}; got {width}.")
    if at.shape[-1] != x.shape[-2]:
        raise SpecError(f"rotary needs a position for each of {x.shape[-2]} vectors; got {at.shape[-1]}.")
    # float64 angles: at position 100,000 a float32 angle is already off by 0.004
    speed = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=x.device) / width)
    angle = at.to(x.device, torch.float64).unsqueeze(-1) * speed
    if at.dim() == 2 and x.dim() == 4:
        angle = angle.unsqueeze(1)
    return rotate(x, angle.cos(), angle.sin(), layout)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, layout: str = "half") -> Tensor:
    """x with its leading pairs of features turned by angles whose cosine and sine are given, (..., n, pairs)."""
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    cosine, sine = cosine.to(exact), sine.to(exact)
    pairs = cosine.shape[-1]
    turned, rest = x[..., : 2 * pairs].to(exact), x[..., 2 * pairs :]
    if layout == "half":
        one, other = turned[..., :pairs], turned[..., pairs:]
    else:
        one, other = turned[..., 0::2], turned[..., 1::2]
    new = one * cosine - other * sine, one * sine + other * cosine
    joined = torch.cat(new, dim=-1) if layout == "half" else torch.stack(new, dim=-1).flatten(-2)
    return torch.cat([joined.to(x.dtype), rest], dim=-1)


def _one_a_head(table: Tensor, what: str, axis: int) -> Callable[[Lengths, Any], None]:
    def fits(lengths: Lengths, start: Any) -> None:
        if table.shape[axis] != lengths[1]:
            raise SpecError(f"{what} must have one entry for each of {lengths[1]} heads; got shape {tuple(table.shape)}.")

    return fits


def _fine(x: Tensor) -> Tensor:
    """Half precision is enough for q and k, not for what is computed from them."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _as(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.to(_fine(x).dtype)


def _per_head(parameter: Tensor) -> Tensor:
    """One number, or one a head, so that it broadcasts over (batch, heads, length, width)."""
    return parameter.reshape(-1, 1, 1) if parameter.dim() == 1 else parameter


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], dim=1)


def _centre(k: Tensor) -> Tensor:
    """A point near the keys. The median, since one key that is hidden and wild must not move it."""
    with torch.no_grad():
        if k.shape[-2] == 0:
            return torch.zeros_like(k[..., :0, :].sum(-2, keepdim=True))
        finite = torch.where(torch.isfinite(k), k, torch.nan)
        return torch.nan_to_num(finite.nanmedian(dim=-2, keepdim=True).values)
