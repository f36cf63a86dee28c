"""Scores: how well a query and a key match, and rules that change a score by position.

Every score but two is "prepare q and k, then multiply", so they all run on the same product. A rule is a function
(s, b, h, i, j) read as a formula; `.then(rule)` applies it. A rule given alone means scaled dot, then the rule.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from regard.argument_types import check_signature, check_types
from regard.checks import describe, tensor
from regard.errors import SpecError
from regard.spec.finite import shielded
from regard.spec.fit import one_or_each
from regard.spec.formula import Formula
from regard.spec.named import named, unnamed
from regard.spec.precision import fine, fine_as
from regard.spec.rotary import rotary
from regard.spec.rule import alibi, as_rule, bias, composed, reach_of, relative, rule, shaw_keys, softcap

__all__ = [
    "additive",
    "alibi",
    "bias",
    "cosine",
    "custom",
    "dot",
    "mahalanobis",
    "metric",
    "multiplicative",
    "relative",
    "rotary",
    "rule",
    "scaled_dot",
    "shaw_keys",
    "shaw_values",
    "softcap",
]

Number = float | Tensor
TileFunction = Callable[..., Tensor]


class Prepared(NamedTuple):
    """Queries and keys ready for the engine's product, its scale and parameters, and a custom one's function."""

    q: Tensor
    k: Tensor
    scale: float = 1.0
    parameters: tuple[Tensor, ...] = ()
    function: TileFunction | None = None


@dataclass(frozen=True, eq=False)
class Score:
    """A score and the rule applied to it. `kind` names the product an engine computes: dot, additive or custom."""

    rule: Formula | None = None
    kind: ClassVar[str] = "dot"
    precision: ClassVar[torch.dtype] = torch.float32  # the least that its product must be computed in
    named: ClassVar[Any] = None  # what it was made by; see `spec/named.py`

    @property
    def keeps_rows(self) -> bool:
        """Whether preparation hands out q and k as they are."""
        return type(self) in (Score, Custom) or (type(self) is ScaledDot and not isinstance(self.scale, Tensor))

    def then(self, rule: Any) -> "Score":
        """This score, changed by a rule: a `Rule`, a function (s, b, h, i, j), or a tensor to add."""
        return _changed(self, _with_a_name(rule))

    def check(self, q_width: int, k_width: int) -> None:
        if q_width != k_width:
            raise SpecError(
                f"q and k must have the same width; got q={q_width}, k={k_width}. "
                "For unequal widths use score.multiplicative."
            )

    def by_head(self) -> dict[str, Tensor]:
        """The parameters that have an entry a head, by name."""
        return {}

    def check_heads(self, heads: int, key_heads: int) -> None:
        for name, parameter in self.by_head().items():
            fits = (1, heads, key_heads) if name == "w_k" else (1, heads)
            if parameter.shape[0] not in fits:
                raise SpecError(
                    f"{name} must have one entry, or one for each of {heads} heads; got {parameter.shape[0]} "
                    f"(shape {tuple(parameter.shape)})."
                )

    def splits_keys(self, heads: int, key_heads: int) -> bool:
        """Whether heads that share keys turn them into different ones."""
        turns = [p for name, p in self.by_head().items() if name in ("w_k", "m")]
        return heads != key_heads and any(p.shape[0] == heads for p in turns)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        return Prepared(q, k)

    def prepared(self, q: Tensor, k: Tensor) -> Prepared:
        """`prepare`, so that a NaN in a hidden key or a blind query reaches no parameter's gradient."""
        if self.keeps_rows:
            return self.prepare(q, k)
        rest: list[Prepared] = []

        def both(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            rest.append(self.prepare(q, k))
            return rest[-1].q, rest[-1].k

        shielded_q, shielded_k = shielded(both, q, k)
        return rest[0]._replace(q=shielded_q, k=shielded_k)

    def prepared_width(self, width: int) -> int:
        """How wide the product is that the engine computes."""
        return width

    def formula(self) -> str:
        return "q·k"


def _with_a_name(given: Any) -> Any:
    """What a rule is made of; a function is read here, or else the score could not be written down."""
    return rule(given) if callable(given) else given


@named
def _changed(score: Any, rule: Any) -> Score:
    first: Score = unnamed(score)
    rule = as_rule(rule)
    return replace(first, rule=rule if first.rule is None else composed(first.rule, rule))


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    scale: Number | None = None

    def by_head(self) -> dict[str, Tensor]:
        return _with_heads(1, scale=self.scale)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        if isinstance(self.scale, Tensor):
            return Prepared(fine(q) * _per_head(self.scale), fine(k))
        return Prepared(q, k, 1.0 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale)

    def formula(self) -> str:
        return (
            "q·k / √d"
            if self.scale is None
            else "q·k · scale"
            if isinstance(self.scale, Tensor)
            else f"q·k · {self.scale:g}"
        )


@dataclass(frozen=True, eq=False)
class Multiplicative(Score):
    w: Tensor = None  # type: ignore[assignment]  # always given

    def check(self, q_width: int, k_width: int) -> None:
        if tuple(self.w.shape[-2:]) != (q_width, k_width):
            raise SpecError(
                f"w must end in (width of q, width of k) = ({q_width}, {k_width}); got shape {tuple(self.w.shape)}."
            )

    def by_head(self) -> dict[str, Tensor]:
        return _with_heads(3, w=self.w)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        if self.w.dim() == 3:  # one matrix a query head acts on the queries
            return Prepared(fine(q) @ fine_as(self.w, q), fine(k))
        return Prepared(fine(q), fine(k) @ fine_as(self.w, k).mT)

    def prepared_width(self, width: int) -> int:
        return int(self.w.shape[-1]) if self.w.dim() == 3 else width

    def formula(self) -> str:
        return "q·W·k"


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    scale: Number = 1.0

    def by_head(self) -> dict[str, Tensor]:
        return _with_heads(1, scale=self.scale)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        q, k = (torch.nn.functional.normalize(fine(x), dim=-1) for x in (q, k))
        return Prepared(q * _per_head(self.scale), k) if isinstance(self.scale, Tensor) else Prepared(q, k, self.scale)

    def formula(self) -> str:
        return "cos(q, k) · " + ("scale" if isinstance(self.scale, Tensor) else f"{self.scale:g}")


@dataclass(frozen=True, eq=False)
class Metric(Score):
    """-(q - k)' M (q - k) / 2 with M = 1/sigma^2 or a matrix: a product with two more columns.

    The columns cancel: near neighbours are small differences of large squares, as are their gradients. Hence float64.
    """

    sigma: Number = 1.0
    m: Tensor | None = None
    centre: Tensor | None = None  # where to measure from, if not amid the queries
    precision: ClassVar[torch.dtype] = torch.float64

    def by_head(self) -> dict[str, Tensor]:
        return {**_with_heads(1, sigma=self.sigma), **_with_heads(3, m=self.m)}

    def check(self, q_width: int, k_width: int) -> None:
        if q_width != k_width or (self.m is not None and tuple(self.m.shape[-2:]) != (q_width, q_width)):
            matrix = "" if self.m is None else f", m={tuple(self.m.shape)}"
            raise SpecError(f"a distance must compare vectors of one width; got q={q_width}, k={k_width}{matrix}.")

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        q, k = q.double(), k.double()
        # distances do not change when both move; near the queries the squares are small
        centre = centre_of(q, k.shape[1]) if self.centre is None else self.centre
        k = k - centre
        q = q - _repeat_heads(centre, q.shape[1])
        if self.m is None:
            sigma = torch.as_tensor(self.sigma, dtype=torch.float64)
            inverse = 1.0 / _per_head(sigma.to(q)) ** 2
            q_moved, k_moved, q_scale = q, k, inverse
        else:
            m = self.m.to(q)
            m = (m + m.mT) / 2
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

    def by_head(self) -> dict[str, Tensor]:
        return {**_with_heads(3, w_q=self.w_q, w_k=self.w_k), **_with_heads(2, u=self.u, bias=self.bias)}

    def check(self, q_width: int, k_width: int) -> None:
        hidden = self.u.shape[-1]
        if tuple(self.w_q.shape[-2:]) != (q_width, hidden) or tuple(self.w_k.shape[-2:]) != (k_width, hidden):
            w_q, w_k, u = (tuple(x.shape) for x in (self.w_q, self.w_k, self.u))
            raise SpecError(
                f"w_q must be (width of q, hidden) = ({q_width}, {hidden}), w_k (width of k, hidden) = ({k_width}, "
                f"{hidden}) and u (hidden,); got w_q={w_q}, w_k={w_k}, u={u}."
            )
        if self.bias is not None and self.bias.shape[-1] != hidden:
            raise SpecError(f"bias must be (hidden,) = ({hidden},); got bias={tuple(self.bias.shape)}.")

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        q = fine(q) @ fine_as(self.w_q, q)
        if self.bias is not None:
            q = q + fine_as(self.bias, q).unsqueeze(-2)  # (heads, 1, hidden), or (1, hidden) for all heads
        u = self.u[0] if self.u.shape[:-1] == (1,) else self.u
        return Prepared(q, fine(k) @ fine_as(self.w_k, k), 1.0, (fine_as(u, q),))

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
        corners = fine(q[..., :2, :].detach()), fine(_repeat_heads(k[..., :3, :].detach(), q.shape[1]))
        with _Watching(*corners) as seen:
            corner = self.function(*corners)
        wanted = (*q.shape[:-2], min(2, q.shape[-2]), min(3, k.shape[-2]))
        if not isinstance(corner, Tensor) or tuple(corner.shape) != wanted:
            got = tuple(corner.shape) if isinstance(corner, Tensor) else describe(corner)
            raise SpecError(
                "a custom score must turn queries (..., m, d) and keys (..., n, d) into (..., m, n); where "
                f"{wanted} was due it gave {got}."
            )
        self._check_one_head(*corners, corner.detach())
        function, sources = self.function, tuple(seen.sources)

        def with_parameters(q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
            with _Replacing(sources, parameters):
                return function(q, k)

        return Prepared(q, k, 1.0, sources, with_parameters if sources else function)

    def _check_one_head(self, q: Tensor, k: Tensor, scores: Tensor) -> None:
        """Refuse a function whose scores of one head depend on which other heads it is called with."""
        if q.shape[:2].numel() <= 1 or torch._C._are_functorch_transforms_active():
            return
        expected = scores[-1:, -1:]
        with torch.no_grad():
            alone = self.function(q[-1:, -1:], k[-1:, -1:])
        # a product of another batch size may round in another order
        if alone.shape != expected.shape or not torch.allclose(alone, expected, 1e-2, 1e-2, equal_nan=True):
            raise SpecError(
                "a custom score must give each head the same scores when it is called with that head alone, since "
                f"tiles hold some heads only; for q {tuple(q.shape)} the last head alone gave {tuple(alone.shape)} or "
                "other numbers. Append parameters of a head to q, or add them with `.then(lambda s, b, h, i, j: ...)`."
            )

    def formula(self) -> str:
        return f"{getattr(self.function, '__name__', type(self.function).__name__)}(q, k)"


class _Replacing(TorchFunctionMode):
    """Puts other tensors in the place of those a function closes over."""

    def __init__(self, sources: tuple[Tensor, ...], places: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._places = {id(source): place for source, place in zip(sources, places, strict=True)}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: self._places.get(id(x), x), (args, kwargs or {}))
        return function(*args, **kwargs)


class _Watching(TorchFunctionMode):
    """Notices the float tensors that come into a computation from outside."""

    def __init__(self, *made: Tensor) -> None:
        super().__init__()
        self.sources: list[Tensor] = []
        self._made = list(made)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves((args, kwargs)):
            known = any(x is other for other in (*self._made, *self.sources))
            if isinstance(x, Tensor) and x.is_floating_point() and not known:
                self.sources.append(x)
        self._made.extend(x for x in tree_leaves(result) if isinstance(x, Tensor))
        return result


@named
def dot() -> Score:
    """q·k."""
    return Score()


@named
@check_types
def scaled_dot(scale: Number | None = None) -> Score:
    """q·k times `scale`; None means 1/√d. A tensor scale may be learned: one number, or one a head."""
    one_or_each(scale, "scale")
    return ScaledDot(scale=scale)


@named
@check_types
def multiplicative(w: Tensor) -> Score:
    """q·W·k, Luong's general form; `w` is (width of q, width of k), or one such matrix a head."""
    tensor(w, "w", dims=(2, 3), dtype="floats")
    return Multiplicative(w=w)


@named
@check_types
def cosine(scale: Number = 1.0) -> Score:
    """The cosine of the angle between q and k, times `scale`. A zero vector has cosine 0 with everything."""
    one_or_each(scale, "scale")
    return Cosine(scale=scale)


@named
@check_types
def metric(sigma: Number = 1.0) -> Score:
    """-|q - k|² / 2σ²: nearness. A tensor sigma may be learned: one number, or one a head."""
    one_or_each(sigma, "sigma")
    if not isinstance(sigma, Tensor) and not sigma > 0:
        raise SpecError(f"sigma must be greater than 0; got {sigma}.")
    return Metric(sigma=sigma)


@named
@check_types
def mahalanobis(m: Tensor) -> Score:
    """-(q - k)' M (q - k) / 2 with a symmetric matrix `m`, or one a head; only the symmetric part of m counts."""
    tensor(m, "m", dims=(2, 3), dtype="floats")
    return Metric(m=m)


@named
@check_types
def additive(w_q: Tensor, w_k: Tensor, u: Tensor, bias: Tensor | None = None) -> Score:
    """u·tanh(W_q q + W_k k + bias), Bahdanau's form.

    w_q is (width of q, hidden), w_k (width of k, hidden), u and bias (hidden,); each may have one more, leading
    dimension for heads.
    """
    for name, matrix in (("w_q", w_q), ("w_k", w_k)):
        tensor(matrix, name, dims=(2, 3), dtype="floats")
    for name, vector in (("u", u), ("bias", bias)):
        if vector is not None:
            tensor(vector, name, dims=(1, 2), dtype="floats")
    return Additive(w_q=w_q, w_k=w_k, u=u, bias=bias)


@check_types
def custom(function: TileFunction) -> Score:
    """Any function of whole tiles: (queries (..., m, d), keys (..., n, d)) -> scores (..., m, n).

    It must treat every query and key alike wherever they stand, since it is called tile by tile. Gradients reach q, k
    and every tensor the function uses.
    """
    return Custom(function=check_signature(function, "function", "queries", "keys"))


def as_score(value: Any) -> Score:
    """A score from a score, or scaled dot followed by a rule."""
    value = unnamed(value)
    return value if isinstance(value, Score) else ScaledDot() if value is None else unnamed(ScaledDot().then(value))


@dataclass(frozen=True, eq=False)
class RelativeValues:
    """Shaw's relative values: each value v_j becomes v_j + table[clip(j - p)] for the query at p."""

    table: Tensor
    reach: int
    named: ClassVar[Any] = None

    def check(self, width: int) -> None:
        if self.table.shape[-1] != width:
            raise SpecError(f"shaw_values needs a table as wide as v; got table={self.table.shape[-1]}, v={width}.")


@named
@check_types
def shaw_values(table: Tensor) -> RelativeValues:
    """Shaw's relative values, given as `value=`: o_i = sum_j a_ij (v_j + table[clip(j - p)]).

    `table` is (2 reach + 1, width of v).
    """
    return RelativeValues(table, reach_of(table))


def _with_heads(dimensions: int, **parameters: Any) -> dict[str, Tensor]:
    """Those of the parameters that are tensors of this many dimensions, the first of them heads."""
    return {name: p for name, p in parameters.items() if isinstance(p, Tensor) and p.dim() == dimensions}


def _per_head(parameter: Tensor) -> Tensor:
    """One number, or one a head, so that it broadcasts over (batch, heads, length, width)."""
    return parameter.reshape(-1, 1, 1) if parameter.dim() == 1 else parameter


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], dim=1)


def centre_of(q: Tensor, key_heads: int) -> Tensor:
    """A point amid the queries of each group, (batch, key heads, 1, width).

    Of the queries, since a key may be hidden and must then change nothing. The median, since one wild query must not
    move it for the others.
    """
    with torch.no_grad():
        together = q.reshape(q.shape[0], key_heads, -1, q.shape[-1])
        if together.shape[-2] == 0:
            return torch.zeros_like(together.sum(-2, keepdim=True))
        finite = torch.where(torch.isfinite(together), together, torch.nan)
        return torch.nan_to_num(finite.nanmedian(dim=-2, keepdim=True).values)
