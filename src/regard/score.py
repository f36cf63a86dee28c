"""Scores: how well a query and a key match, and modifiers that change a score by position.

A score is a function of q and k, such as `scaled_dot()` (the default), `cosine()` or `gaussian()`. A score modifier is
a function (s, b, h, i, j) -> s, as a `score_mod` of FlexAttention is; `score.then(modifier)` applies it to the score.
A modifier alone, such as `alibi()`, is applied to `scaled_dot()`.

>>> import regard
>>> from regard import score
>>> q = torch.randn(2, 8, 16, 64)
>>> regard.attention(q, q, q, score=score.cosine(10.0).then(score.alibi())).shape
torch.Size([2, 8, 16, 64])

All scores except `additive` and `custom` are a matrix product of transformed q and k. `gaussian` and `mahalanobis` are
computed in float64, which the native and flex backends do not support.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.argument_types import UNCHECKED, check_signature, check_types
from regard.checks import describe, tensor
from regard.errors import ArgumentError
from regard.expr.closed_expr import ClosedExpr
from regard.expr.score_modifier import (
    ScoreModifier,
    alibi,
    as_score_modifier,
    bias,
    compose,
    modifier,
    shaw_keys,
    shaw_max_distance,
    softcap,
    t5_bias,
)
from regard.expr.serialize import materialize, serializable
from regard.expr.shape_checks import check_scalar_or_per_head
from regard.stage_spec import (
    KEY_FEATURE_AXES,
    MATRIX_AXES,
    PAIR_AXES,
    QUERY_FEATURE_AXES,
    SCALAR_AXES,
    StageSpec,
    StageSpecs,
)
from regard.tensors.captured_tensors import FindCapturedTensors, SubstituteTensors
from regard.tensors.nonfinite import isolate_nonfinite
from regard.tensors.precision import upcast, upcast_like
from regard.tensors.rotary import rotary

__all__ = [
    "Score",
    "ScoreLike",
    "ScoreModifier",
    "ValueLike",
    "additive",
    "alibi",
    "bias",
    "bilinear",
    "cosine",
    "custom",
    "dot",
    "gaussian",
    "mahalanobis",
    "modifier",
    "rotary",
    "scaled_dot",
    "shaw_keys",
    "shaw_values",
    "softcap",
    "t5_bias",
]


def __dir__() -> list[str]:
    return sorted(__all__)


FloatOrTensor = float | Tensor
TileFunction = Callable[..., Tensor]

PRODUCTS = StageSpec(
    "products",
    "the dot product of each query with each key: large where both are long and point the same way",
    "s_ij = q_i · k_j",
    r"S = Q K^\top",
    code="Q @ K.mT",
)
SQUARED_DISTANCES = StageSpec(
    "squared distances",
    "the squared distance of each query from each key",
    "d_ij = |q_i - k_j|²",
    r"d_{ij} = \lVert q_i - k_j \rVert^2",
    code="(Q[:, None] - K[None]).square().sum(-1)",
)


class ProductInputs(NamedTuple):
    """Inputs of a backend's product: transformed q and k, parameters, and the function of a custom score."""

    q: Tensor
    k: Tensor
    parameters: tuple[Tensor, ...] = ()
    score_function: TileFunction | None = None


@dataclass(frozen=True, eq=False)
class Score:
    """A score function and the modifier applied to its result.

    `kind` names the product that backends compute: "dot", "additive" or "custom". `min_dtype` is the least precise
    dtype in which the product may be computed.
    """

    score_mod: ScoreModifier | None = None
    kind: ClassVar[str] = "dot"
    min_dtype: ClassVar[torch.dtype] = torch.float32
    constructor_call: ClassVar[Any] = None  # how to construct it again; see `expr/serialize.py`

    @property
    def leaves_inputs_unchanged(self) -> bool:
        """Whether `prepare` returns q and k unchanged."""
        return type(self) in (Score, Custom) or (type(self) is ScaledDot and not isinstance(self.scale, Tensor))

    def then(self, modifier: "ModifierLike") -> "Score":
        """Return this score followed by a modifier.

        `modifier` is a score modifier such as `alibi()`, a function (s, b, h, i, j), or a tensor to add that
        broadcasts to (batch, heads, n_q, n_k).

        >>> capped = dot().then(softcap(30.0)).then(lambda s, b, h, i, j: s - (i - j) ** 2)
        """
        return modified(self, _traced_modifier(modifier))

    def check_head_dims(self, q_dim: int, k_dim: int) -> None:
        """Raise an error if queries of dimension `q_dim` cannot be compared with keys of dimension `k_dim`."""
        if q_dim != k_dim:
            raise ArgumentError(
                f"q and k must have the same head dimension; got q={q_dim}, k={k_dim}. "
                "Use score.bilinear for different dimensions."
            )

    def per_head_parameters(self) -> dict[str, Tensor]:
        """Return the parameters that have one entry per head, by name."""
        return {}

    def check_num_heads(self, num_heads: int, num_kv_heads: int) -> None:
        """Raise an error if a parameter has neither one entry nor one for each of `num_heads` heads.

        Parameters of keys may also have one entry for each of `num_kv_heads` heads.
        """
        for name, parameter in self.per_head_parameters().items():
            valid_sizes = (1, num_heads, num_kv_heads) if name == "w_k" else (1, num_heads)
            if parameter.shape[0] not in valid_sizes:
                raise ArgumentError(
                    f"{name} must have one entry, or one for each of {num_heads} heads; got {parameter.shape[0]} "
                    f"(shape {tuple(parameter.shape)})."
                )

    def needs_separate_kv_heads(self, num_heads: int, num_kv_heads: int) -> bool:
        """Whether query heads that share a key head transform its keys differently."""
        key_parameters = [p for name, p in self.per_head_parameters().items() if name in ("w_k", "m")]
        return num_heads != num_kv_heads and any(p.shape[0] == num_heads for p in key_parameters)

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        """Transform q (batch, heads, n_q, d) and k (batch, kv heads, n_k, d) into the inputs of the product."""
        return ProductInputs(q, k)

    def prepare_safely(self, q: Tensor, k: Tensor) -> ProductInputs:
        """Call `prepare` such that NaN in a hidden key or a fully masked query reaches no gradient of a parameter."""
        if self.leaves_inputs_unchanged:
            return self.prepare(q, k)
        prepared: list[ProductInputs] = []

        def prepare_rows(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            prepared.append(self.prepare(q, k))
            return prepared[-1].q, prepared[-1].k

        isolated_q, isolated_k = isolate_nonfinite(prepare_rows, q, k)
        return prepared[0]._replace(q=isolated_q, k=isolated_k)

    def product_scale(self, head_dim: int) -> float:
        """Return the factor of the product that backends compute, for q of dimension `head_dim`."""
        return 1.0

    def product_dim(self, head_dim: int) -> int:
        """Return the head dimension of the product that backends compute, for q of dimension `head_dim`."""
        return head_dim

    def formula(self) -> str:
        """Return the formula as text, without the modifier."""
        return "q·k"

    def stage_specs(self) -> StageSpecs:
        """Return the stages of `regard.steps` from `Q` and `K` to the scores; empty if it shows the scores only."""
        return (PRODUCTS,) if type(self) is Score else ()


ModifierLike: TypeAlias = Annotated[ScoreModifier | Tensor | Callable[..., Any], UNCHECKED]
ScoreLike: TypeAlias = Annotated[Score | ScoreModifier | Tensor | NDArray[Any] | Callable[..., Any], UNCHECKED]
"""A score, a score modifier, a tensor that is added to the scores, or a function (s, b, h, i, j) -> score."""


def _traced_modifier(value: Any) -> Any:
    """Return the modifier; a function is traced first, since only expressions can be serialized."""
    return modifier(value) if callable(value) and not isinstance(value, ClosedExpr) else value


@serializable
def modified(score: Any, modifier: Any) -> Score:
    """Return the score with one more modifier, applied after those it has."""
    first: Score = materialize(score)
    modifier = as_score_modifier(modifier)
    return replace(first, score_mod=modifier if first.score_mod is None else compose(first.score_mod, modifier))


@dataclass(frozen=True, eq=False)
class ScaledDot(Score):
    scale: FloatOrTensor | None = None

    def per_head_parameters(self) -> dict[str, Tensor]:
        return _per_head_tensors(1, scale=self.scale)

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        if isinstance(self.scale, Tensor):
            return ProductInputs(upcast(q) * _broadcast_per_head(self.scale), upcast(k))
        return ProductInputs(q, k)

    def product_scale(self, head_dim: int) -> float:
        if isinstance(self.scale, Tensor):
            return 1.0
        return 1.0 / math.sqrt(head_dim) if self.scale is None else float(self.scale)

    def formula(self) -> str:
        return (
            "q·k / √d"
            if self.scale is None
            else "q·k · scale"
            if isinstance(self.scale, Tensor)
            else f"q·k · {self.scale:g}"
        )

    def stage_specs(self) -> StageSpecs:
        if self.scale is not None:
            return PRODUCTS, *_scale_stages(self.scale, "products")
        scaled = StageSpec(
            "scaled",
            "divided by the square root of the head dimension, so that scores do not grow with it",
            "s_ij = q_i · k_j / √$head_dim",
            r"\frac{Q K^\top}{\sqrt{$head_dim}}",
            code="products / head_dim ** 0.5",
        )
        return PRODUCTS, scaled


def _scale_stages(scale: FloatOrTensor, scores: str) -> StageSpecs:
    """Return the stages that multiply the stage `scores` by a number, or by one number per head."""
    code = f"{scores} * scale"
    if not isinstance(scale, Tensor):
        return (StageSpec("scaled", "times $scale", "s_ij = $scale s_ij", r"$scale \, S", code=code),)
    return (
        StageSpec("scale", "a number that every score is multiplied by", "c", "c", SCALAR_AXES, value="scale"),
        StageSpec("scaled", "times the scale", "s_ij = c s_ij", r"c \, S", code=code),
    )


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    w: Tensor = None  # type: ignore[assignment]  # required; a default must follow score_mod

    def check_head_dims(self, q_dim: int, k_dim: int) -> None:
        if tuple(self.w.shape[-2:]) != (q_dim, k_dim):
            raise ArgumentError(
                f"w must have shape (..., head_dim of q, head_dim of k) = (..., {q_dim}, {k_dim}); "
                f"got {tuple(self.w.shape)}."
            )

    def per_head_parameters(self) -> dict[str, Tensor]:
        return _per_head_tensors(3, w=self.w)

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        if self.w.dim() == 3:  # one matrix per query head: heads that share a key head transform the queries
            return ProductInputs(upcast(q) @ upcast_like(self.w, q), upcast(k))
        return ProductInputs(upcast(q), upcast(k) @ upcast_like(self.w, k).mT)

    def product_dim(self, head_dim: int) -> int:
        return int(self.w.shape[-1]) if self.w.dim() == 3 else head_dim

    def formula(self) -> str:
        return "q·W·k"

    def stage_specs(self) -> StageSpecs:
        return (
            StageSpec("W", "the matrix between queries and keys", "W", "W", MATRIX_AXES, value="w"),
            StageSpec("q W", "each query times W", "q_i W", "Q W", QUERY_FEATURE_AXES, code="Q @ W"),
            StageSpec(
                "products",
                "the dot product of each projected query with each key",
                "s_ij = q_i · W · k_j",
                r"S = Q W K^\top",
                code="q_W @ K.mT",
            ),
        )


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    scale: FloatOrTensor = 1.0

    def per_head_parameters(self) -> dict[str, Tensor]:
        return _per_head_tensors(1, scale=self.scale)

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        q, k = (torch.nn.functional.normalize(upcast(x), dim=-1) for x in (q, k))
        return ProductInputs(q * _broadcast_per_head(self.scale) if isinstance(self.scale, Tensor) else q, k)

    def product_scale(self, head_dim: int) -> float:
        return 1.0 if isinstance(self.scale, Tensor) else float(self.scale)

    def formula(self) -> str:
        return "cos(q, k) · " + ("scale" if isinstance(self.scale, Tensor) else f"{self.scale:g}")

    def stage_specs(self) -> StageSpecs:
        cosines = StageSpec(
            "cosines",
            "the cosine of the angle between each query and each key: from -1 to 1",
            "s_ij = cos(q_i, k_j)",
            r"s_{ij} = \cos(q_i, k_j)",
            code="unit_q @ unit_k.mT",
        )
        is_plain = not isinstance(self.scale, Tensor) and self.scale == 1.0
        scaled = () if is_plain else _scale_stages(self.scale, "cosines")
        return (
            *_unit_vector_stages("q", QUERY_FEATURE_AXES),
            *_unit_vector_stages("k", KEY_FEATURE_AXES),
            cosines,
            *scaled,
        )


def _unit_vector_stages(letter: str, axes: tuple[str, ...]) -> StageSpecs:
    """Return the stages that divide each query or key by its length; a zero vector stays zero."""
    return (
        StageSpec(
            f"length of {letter}",
            f"the Euclidean length of each {axes[0]}",
            f"|{letter}|",
            rf"\lVert {letter} \rVert",
            axes[:1],
            f"{letter.upper()}.square().sum(-1).sqrt()",
        ),
        StageSpec(
            f"unit {letter}",
            "the same directions, each of length 1",
            f"{letter} / |{letter}|",
            rf"\frac{{{letter}}}{{\lVert {letter} \rVert}}",
            axes,
            f"{letter.upper()} / length_of_{letter}.clamp(min=1e-12)[:, None]",
        ),
    )


@dataclass(frozen=True, eq=False)
class Gaussian(Score):
    """-(q - k)ᵀ M (q - k) / 2 with M = 1/sigma^2 or a matrix, as a product with two more columns.

    The product is computed in float64, because the score of a near pair is a small difference of large squares.
    """

    sigma: FloatOrTensor = 1.0
    m: Tensor | None = None
    center: Tensor | None = None  # the origin of all vectors; default: `query_center`
    min_dtype: ClassVar[torch.dtype] = torch.float64

    def per_head_parameters(self) -> dict[str, Tensor]:
        return {**_per_head_tensors(1, sigma=self.sigma), **_per_head_tensors(3, m=self.m)}

    def check_head_dims(self, q_dim: int, k_dim: int) -> None:
        if q_dim != k_dim or (self.m is not None and tuple(self.m.shape[-2:]) != (q_dim, q_dim)):
            names, matrix = ("q and k", "") if self.m is None else ("q, k and m", f", m={tuple(self.m.shape)}")
            raise ArgumentError(f"{names} must have the same head dimension; got q={q_dim}, k={k_dim}{matrix}.")

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        q, k = q.double(), k.double()
        # a common shift leaves distances unchanged and makes the squares small
        center = query_center(q, k.shape[1]) if self.center is None else self.center
        k = k - center
        q = q - _repeat_heads(center, q.shape[1])
        if self.m is None:
            sigma = torch.as_tensor(self.sigma, dtype=torch.float64)
            inverse_variance = 1.0 / _broadcast_per_head(sigma.to(q)) ** 2
            m_q, m_k, row_scale = q, k, inverse_variance
        else:
            m = self.m.to(q)
            m = (m + m.mT) / 2
            m_q, m_k, row_scale = q @ m, k @ m, torch.ones((), dtype=q.dtype, device=q.device)
        ones = torch.ones_like(k[..., :1])
        q_square, k_square = -(m_q * q).sum(-1, keepdim=True) / 2, -(m_k * k).sum(-1, keepdim=True) / 2
        q_rows = torch.cat([m_q, torch.ones_like(q[..., :1]), q_square], dim=-1) * row_scale
        return ProductInputs(q_rows, torch.cat([k, k_square, ones], dim=-1))

    def product_dim(self, head_dim: int) -> int:
        return head_dim + 2

    def formula(self) -> str:
        return "-|q - k|² / 2σ²" if self.m is None else "-(q - k)ᵀM(q - k) / 2"

    def stage_specs(self) -> StageSpecs:
        if self.m is not None:
            return MAHALANOBIS_STAGES
        return (
            SQUARED_DISTANCES,
            StageSpec("sigma", "the standard deviation of the Gaussian", "σ", r"\sigma", SCALAR_AXES, value="sigma"),
            StageSpec(
                "negative distances",
                "minus the squared distance over 2σ²: larger for nearer pairs",
                "s_ij = -d_ij / 2σ²",
                r"s_{ij} = -\frac{d_{ij}}{2 \sigma^2}",
                code="-squared_distances / (2.0 * sigma ** 2)",
            ),
        )


MAHALANOBIS_STAGES = (
    StageSpec("M", "the matrix of the distance; only its symmetric part counts", "M", "M", MATRIX_AXES, value="m"),
    SQUARED_DISTANCES._replace(
        description="the squared distance of each query from each key, with the matrix M",
        formula="d_ij = (q_i - k_j)ᵀ M (q_i - k_j)",
        latex=r"d_{ij} = (q_i - k_j)^\top M (q_i - k_j)",
        code="((Q[:, None] - K[None]) @ M * (Q[:, None] - K[None])).sum(-1)",
    ),
    StageSpec(
        "negative distances",
        "minus half of the squared distance: larger for nearer pairs",
        "s_ij = -d_ij / 2",
        r"s_{ij} = -\frac{d_{ij}}{2}",
        code="-squared_distances / 2",
    ),
)


@dataclass(frozen=True, eq=False)
class Additive(Score):
    w_q: Tensor = None  # type: ignore[assignment]  # required; a default must follow score_mod
    w_k: Tensor = None  # type: ignore[assignment]  # required; a default must follow score_mod
    u: Tensor = None  # type: ignore[assignment]  # required; a default must follow score_mod
    bias: Tensor | None = None
    kind: ClassVar[str] = "additive"

    def per_head_parameters(self) -> dict[str, Tensor]:
        return {**_per_head_tensors(3, w_q=self.w_q, w_k=self.w_k), **_per_head_tensors(2, u=self.u, bias=self.bias)}

    def check_head_dims(self, q_dim: int, k_dim: int) -> None:
        hidden_dim = self.u.shape[-1]
        if tuple(self.w_q.shape[-2:]) != (q_dim, hidden_dim) or tuple(self.w_k.shape[-2:]) != (k_dim, hidden_dim):
            w_q, w_k, u = (tuple(x.shape) for x in (self.w_q, self.w_k, self.u))
            raise ArgumentError(
                f"w_q must have shape (head_dim of q, hidden_dim) = ({q_dim}, {hidden_dim}), w_k (head_dim of k, "
                f"hidden_dim) = ({k_dim}, {hidden_dim}) and u (hidden_dim,); got w_q={w_q}, w_k={w_k}, u={u}."
            )
        if self.bias is not None and self.bias.shape[-1] != hidden_dim:
            raise ArgumentError(
                f"bias must have shape (hidden_dim,) = ({hidden_dim},); got bias={tuple(self.bias.shape)}."
            )

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        q = upcast(q) @ upcast_like(self.w_q, q)
        if self.bias is not None:
            q = q + upcast_like(self.bias, q).unsqueeze(-2)  # (heads, 1, hidden_dim), or (1, hidden_dim) for all heads
        u = self.u[0] if self.u.shape[:-1] == (1,) else self.u
        return ProductInputs(q, upcast(k) @ upcast_like(self.w_k, k), (upcast_like(u, q),))

    def product_dim(self, head_dim: int) -> int:
        return int(self.u.shape[-1])

    def formula(self) -> str:
        return "u·tanh(W_q q + W_k k" + (")" if self.bias is None else " + bias)")

    def stage_specs(self) -> StageSpecs:
        has_bias = self.bias is not None
        bias = StageSpec("bias", "added to the hidden layer of every query", "b", "b", ("hidden",), value="bias")
        return (
            _hidden_matrix_stage("q", "query"),
            *((bias,) if has_bias else ()),
            _hidden_layer_stage("q", "query", has_bias),
            _hidden_matrix_stage("k", "key"),
            _hidden_layer_stage("k", "key", False),
            StageSpec("u", "the weight of each hidden unit", "u", "u", ("hidden",), value="u"),
            StageSpec(
                "tanh",
                "tanh of the sum of both hidden layers, for each pair",
                "tanh(W_q q_i + W_k k_j)",
                r"\tanh(W_q q_i + W_k k_j)",
                (*PAIR_AXES, "hidden"),
                "torch.tanh(hidden_q[:, None] + hidden_k[None])",
            ),
            StageSpec(
                "scores",
                "the dot product of the hidden layer of each pair with u",
                "s_ij = u · tanh(W_q q_i + W_k k_j)",
                r"s_{ij} = u^\top \tanh(W_q q_i + W_k k_j)",
                code="tanh @ u",
            ),
        )


def _hidden_matrix_stage(letter: str, kind: str) -> StageSpec:
    name = f"W_{letter}"
    description = f"the matrix that projects each {kind} to the hidden layer"
    return StageSpec(name, description, name, name, ("row", "hidden"), value=f"w_{letter}")


def _hidden_layer_stage(letter: str, kind: str, has_bias: bool) -> StageSpec:
    formula = f"W_{letter} {letter}" + (" + b" if has_bias else "")
    code = f"{letter.upper()} @ W_{letter}" + (" + bias" if has_bias else "")
    return StageSpec(f"hidden {letter}", f"the hidden layer of each {kind}", formula, formula, (kind, "hidden"), code)


@dataclass(frozen=True, eq=False)
class Custom(Score):
    function: TileFunction = None  # type: ignore[assignment]  # required; a default must follow score_mod
    kind: ClassVar[str] = "custom"

    def check_head_dims(self, q_dim: int, k_dim: int) -> None:
        """Accept any head dimensions; the function checks them."""

    def prepare(self, q: Tensor, k: Tensor) -> ProductInputs:
        """Find the tensors that the function uses by calling it on a corner of q and k; they get gradients."""
        corners = upcast(q[..., :2, :].detach()), upcast(_repeat_heads(k[..., :3, :].detach(), q.shape[1]))
        with FindCapturedTensors(*corners) as captured:
            corner = self.function(*corners)
        expected = (*q.shape[:-2], min(2, q.shape[-2]), min(3, k.shape[-2]))
        if not isinstance(corner, Tensor) or tuple(corner.shape) != expected:
            got = tuple(corner.shape) if isinstance(corner, Tensor) else describe(corner)
            raise ArgumentError(
                "a custom score must map queries (..., m, d) and keys (..., n, d) to scores (..., m, n), "
                f"here {expected}; got {got}."
            )
        self._check_one_head(*corners, corner.detach())
        function, sources = self.function, tuple(captured.sources)

        def with_parameters(q: Tensor, k: Tensor, *parameters: Tensor) -> Tensor:
            with SubstituteTensors(sources, parameters):
                return function(q, k)

        return ProductInputs(q, k, sources, with_parameters if sources else function)

    def _check_one_head(self, q: Tensor, k: Tensor, scores: Tensor) -> None:
        """Raise if the scores of one head depend on the other heads in the call."""
        if q.shape[:2].numel() <= 1 or torch._C._are_functorch_transforms_active():
            return
        expected = scores[-1:, -1:]
        with torch.no_grad():
            alone = self.function(q[-1:, -1:], k[-1:, -1:])
        # a product with another batch size may round differently
        if alone.shape != expected.shape or not torch.allclose(alone, expected, 1e-2, 1e-2, equal_nan=True):
            raise ArgumentError(
                "a custom score must return the same scores for a head when it is called with that head alone, because "
                f"a tile may have only some of the heads; for q {tuple(q.shape)}, got different scores for the last "
                f"head alone, of shape {tuple(alone.shape)}. Append per-head parameters to q, or apply them with "
                "`.then(lambda s, b, h, i, j: ...)`."
            )

    def formula(self) -> str:
        return f"{getattr(self.function, '__name__', type(self.function).__name__)}(q, k)"


@serializable
def dot() -> Score:
    """Return the dot product q·k, without a scale.

    >>> dot().formula()
    'q·k'
    """
    return Score()


@serializable
@check_types
def scaled_dot(scale: FloatOrTensor | None = None) -> Score:
    """Return the scaled dot product q·k · scale, the default score of attention.

    `scale` defaults to 1/√d, with d the head dimension. A tensor `scale` may be learned; its shape is () or (heads,).

    >>> scaled_dot(0.125).formula()
    'q·k · 0.125'
    """
    check_scalar_or_per_head(scale, "scale")
    return ScaledDot(scale=scale)


@serializable
@check_types
def bilinear(w: Tensor) -> Score:
    """Return the bilinear score q·W·k, Luong's "general" score. q and k may have different head dimensions.

    `w` has shape (head_dim of q, head_dim of k), or (heads, head_dim of q, head_dim of k).

    >>> import regard
    >>> q, k = torch.randn(5, 8), torch.randn(7, 3)
    >>> regard.attention(q, k, k, score=bilinear(torch.randn(8, 3))).shape
    torch.Size([5, 3])
    """
    tensor(w, "w", dims=(2, 3), dtype_kind="floats")
    return Bilinear(w=w)


@serializable
@check_types
def cosine(scale: FloatOrTensor = 1.0) -> Score:
    """Return the cosine similarity of q and k times `scale`: scale · q·k / (|q| |k|).

    `scale` defaults to 1. A tensor `scale` may be learned; its shape is () or (heads,). A zero vector has similarity 0.

    >>> cosine(10.0).formula()
    'cos(q, k) · 10'
    """
    check_scalar_or_per_head(scale, "scale")
    return Cosine(scale=scale)


@serializable
@check_types
def gaussian(sigma: FloatOrTensor = 1.0) -> Score:
    """Return the Gaussian score -|q - k|² / 2σ²: with softmax, the weights of kernel regression.

    `sigma` defaults to 1. A tensor `sigma` may be learned; its shape is () or (heads,).

    >>> import regard
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> regard.attention_with_weights(x, x, x, score=gaussian(0.5)).weights[0]
    tensor([0.8808, 0.1192])
    """
    check_scalar_or_per_head(sigma, "sigma")
    if not isinstance(sigma, Tensor) and not sigma > 0:
        raise ArgumentError(f"sigma must be greater than 0; got {sigma}.")
    return Gaussian(sigma=sigma)


@serializable
@check_types
def mahalanobis(m: Tensor) -> Score:
    """Return the Mahalanobis score -(q - k)ᵀ M (q - k) / 2.

    `m` has shape (d, d) or (heads, d, d). Only its symmetric part has an effect.

    >>> mahalanobis(torch.eye(8)).formula()
    '-(q - k)ᵀM(q - k) / 2'
    """
    tensor(m, "m", dims=(2, 3), dtype_kind="floats")
    return Gaussian(m=m)


@serializable
@check_types
def additive(w_q: Tensor, w_k: Tensor, u: Tensor, bias: Tensor | None = None) -> Score:
    """Return Bahdanau's additive score u·tanh(W_q q + W_k k + bias).

    Every parameter may have one more leading dimension, the heads.

    Args:
        w_q: (head_dim of q, hidden_dim).
        w_k: (head_dim of k, hidden_dim).
        u: (hidden_dim,).
        bias: (hidden_dim,). Default: None, no bias.

    >>> import regard
    >>> q, k = torch.randn(5, 8), torch.randn(7, 3)
    >>> bahdanau = additive(torch.randn(8, 16), torch.randn(3, 16), torch.randn(16))
    >>> regard.attention(q, k, k, score=bahdanau).shape
    torch.Size([5, 3])
    """
    for name, matrix in (("w_q", w_q), ("w_k", w_k)):
        tensor(matrix, name, dims=(2, 3), dtype_kind="floats")
    for name, vector in (("u", u), ("bias", bias)):
        if vector is not None:
            tensor(vector, name, dims=(1, 2), dtype_kind="floats")
    return Additive(w_q=w_q, w_k=w_k, u=u, bias=bias)


@check_types
def custom(function: TileFunction) -> Score:
    """Return a score computed by a function: queries (..., m, d), keys (..., n, d) -> scores (..., m, n).

    The function is called on tiles of queries and keys, and must not depend on their positions or on the other heads in
    the tile. Gradients reach q, k and every tensor that the function uses.

    >>> manhattan = custom(lambda q, k: -torch.cdist(q, k, p=1))
    """
    return Custom(function=check_signature(function, "function", "queries", "keys"))


def as_score(value: Any) -> Score:
    """Convert a score, a modifier (applied to `scaled_dot()`) or None (`scaled_dot()`) to a `Score`."""
    if value is None:
        return ScaledDot()
    value = materialize(value)
    return value if isinstance(value, Score) else materialize(ScaledDot().then(value))


@dataclass(frozen=True, eq=False)
class RelativeValues:
    """Relative values of Shaw et al.: for the query at position p, v_j becomes v_j + table[clip(j - p)]."""

    table: Tensor
    max_distance: int
    constructor_call: ClassVar[Any] = None

    def check_head_dim(self, head_dim: int) -> None:
        if self.table.shape[-1] != head_dim:
            raise ArgumentError(
                f"the table of shaw_values must have the head dimension of v; "
                f"got table={self.table.shape[-1]}, v={head_dim}."
            )


ValueLike: TypeAlias = Annotated[RelativeValues | Callable[[Tensor], Tensor], UNCHECKED]
"""A function that is applied to v, or the relative values of `shaw_values`."""


@serializable
@check_types
def shaw_values(table: Tensor) -> RelativeValues:
    """Return the relative values of Shaw et al. (2018), for `attention(..., value=)`.

    o_i = sum_j a_ij (v_j + table[clip(j - p, -r, r) + r]). `table` has shape (2r + 1, head_dim of v), with r the
    largest distance that has its own entry.

    >>> import regard
    >>> x = torch.randn(5, 8)
    >>> regard.attention(x, x, x, value=shaw_values(torch.randn(9, 8))).shape
    torch.Size([5, 8])
    """
    return RelativeValues(table, shaw_max_distance(table))


def _per_head_tensors(dimensions: int, **parameters: Any) -> dict[str, Tensor]:
    """Return the parameters that are tensors with `dimensions` dimensions, heads first."""
    return {name: p for name, p in parameters.items() if isinstance(p, Tensor) and p.dim() == dimensions}


def _broadcast_per_head(parameter: Tensor) -> Tensor:
    """Reshape a () or (heads,) parameter to broadcast over (batch, heads, length, head_dim)."""
    return parameter.reshape(-1, 1, 1) if parameter.dim() == 1 else parameter


def _repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    return x if x.shape[1] in (1, num_heads) else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def query_center(q: Tensor, num_kv_heads: int) -> Tensor:
    """Return the median query of each key head, (batch, kv heads, 1, head_dim).

    Keys are not used, so that a hidden key cannot change the result. The median is robust to a nonfinite query.
    """
    with torch.no_grad():
        grouped = q.reshape(q.shape[0], num_kv_heads, -1, q.shape[-1])
        if grouped.shape[-2] == 0:
            return torch.zeros_like(grouped.sum(-2, keepdim=True))
        finite = torch.where(torch.isfinite(grouped), grouped, torch.nan)
        return torch.nan_to_num(finite.nanmedian(dim=-2, keepdim=True).values)
