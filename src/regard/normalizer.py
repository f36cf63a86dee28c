"""Normalizers: how each row of scores becomes attention weights.

`softmax()` is the default. `sparsemax()`, `entmax()`, `topk()` and `hardmax()` give exact zeros; `sigmoid()` and
`relu()` weight each pair independently; `kernel()` is linear attention; `sinkhorn()` also balances the columns.

>>> import regard
>>> from regard import normalizer
>>> q = torch.randn(2, 8, 16, 64)
>>> regard.attention(q, q, q, normalizer=normalizer.entmax(1.5)).shape
torch.Size([2, 8, 16, 64])
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from regard.argument_types import UNCHECKED, check_types
from regard.catalog_entry import normalizer_entry
from regard.errors import ArgumentError
from regard.expr.closed_expr import ClosedExpr, QueryOffset, ShapeCheck, trace_builtin
from regard.expr.counter_rng import position_uniform
from regard.expr.ir import constant
from regard.expr.score_modifier import ScoreModifier, trace_builtin_modifier
from regard.expr.serialize import example, materialize, serializable
from regard.expr.shape_checks import check_scalar_or_per_head, require_one_per
from regard.expr.tile_coverage import ScoreShape
from regard.feature_map import FeatureMap, FeatureMapLike, as_feature_map
from regard.normalizers.streaming import (
    EXP_STAGES,
    SOFTMAX_WEIGHTS,
    Relu,
    RowNormalizer,
    Sigmoid,
    Softmax,
    relu_stages,
)
from regard.normalizers.threshold import SPARSEMAX_STAGES, Entmax, Hardmax, TopK
from regard.stage_spec import QUERY_AXES, SCALAR_AXES, StageSpec, StageSpecs, variable_name
from regard.tensors.precision import upcast

__all__ = [
    "Normalizer",
    "NormalizerLike",
    "entmax",
    "gumbel",
    "hardmax",
    "kernel",
    "relu",
    "sigmoid",
    "sink",
    "sinkhorn",
    "softmax",
    "sparsemax",
    "topk",
]


def __dir__() -> list[str]:
    return sorted(__all__)


MAX_ITERATIONS = 10_000  # of Sinkhorn; the weights converge much earlier
WeightFactor = Callable[[Tensor | None, int | Tensor], Tensor | float]


@dataclass(frozen=True, eq=False)
class Normalizer:
    """How a row of scores becomes weights: a score modifier, a row normalizer that the backend runs, and a factor.

    Attributes:
        row_normalizer: Turns a row of scores into weights, tile by tile.
        formula: Its name in plans and messages.
        score_mod: Modifier of the scores before the row normalizer.
        parameter: Learned parameter of the row normalizer, as an expression of the head.
        iterations: More than 1 normalizes columns and rows in turn (Sinkhorn).
        factor: `factor(statistic, n_k)` multiplies the weights of each row: a number, or (batch, heads, n_q).
        checks: Shape checks of the tensors.
        feature_map: Computes the scores from q and k instead of a score function.
        is_score_mod_implied: Whether `formula` is the name of both steps, so that plans do not print `score_mod`.
        stages: Stages of `regard.steps`, or a function that returns them. Default: those of the row normalizer.
    """

    row_normalizer: RowNormalizer
    formula: str
    score_mod: ScoreModifier | None = None
    parameter: ClosedExpr | None = None
    iterations: int = 1
    factor: WeightFactor | None = None
    checks: tuple[ShapeCheck, ...] = ()
    feature_map: FeatureMap | None = None
    is_score_mod_implied: bool = False
    stages: StageSpecs | Callable[[], StageSpecs] = ()
    constructor_call: ClassVar[Any] = None  # how to construct it again; see `expr/serialize.py`

    def check_shapes(self, score_shape: ScoreShape, query_offset: QueryOffset) -> None:
        """Raise an error if a tensor of the normalizer does not fit scores of shape (batch, heads, n_q, n_k)."""
        for check in self.checks:
            check(score_shape, query_offset)

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the row normalizer and of the factor, by name, for the expressions of stages."""
        return {**vars(self.row_normalizer), **getattr(self.factor, "__dict__", {})}

    @property
    def stage_specs(self) -> StageSpecs:
        """The stages from the scores to the weights; empty if none are declared."""
        own = self.stages() if callable(self.stages) else self.stages
        return own or (self.row_normalizer.stages if self.factor is None else ())


NormalizerLike: TypeAlias = Annotated[Normalizer | RowNormalizer, UNCHECKED]
"""A normalizer of this module, or one of your own."""


@example("softmax")
@normalizer_entry(
    "softmax",
    idea="Exponentials divided by their sum: all weights are positive, and each row sums to 1.",
    formula=r"a_{ij} = \frac{e^{s_{ij}}}{\sum_k e^{s_{ik}}}",
    paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
    example="softmax()",
    reference_test="tests/test_normalizer.py::test_softmax_is_torch_softmax",
)
@serializable
def softmax() -> Normalizer:
    """Return softmax: exp(s) / sum exp(s). Weights are positive, and each row sums to 1.

    It is the default normalizer of `attention`.

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[0.0], [1.0]])
    >>> regard.attention_with_weights(q, k, k, normalizer=softmax()).weights[0]
    tensor([0.2689, 0.7311])
    """
    return Normalizer(Softmax(), "softmax")


@example("sink")
@normalizer_entry(
    "sink (softmax1)",
    idea="A term in the denominator, which may be learned, takes weight: a query may attend to almost nothing.",
    learned=True,
    formula=r"a_{ij} = \frac{e^{s_{ij}}}{e^{b} + \sum_k e^{s_{ik}}}",
    paper=(
        "Miller, Attention Is Off By One, 2023; Xiao et al., Efficient Streaming Language Models with "
        "Attention Sinks, 2023, arXiv 2309.17453"
    ),
    example="sink(torch.zeros(4))",
    reference_test="tests/test_normalizer.py::test_sink_of_zero_is_add_zero_attn_of_torch",
)
@serializable
@check_types
def sink(logit: float | Tensor = 0.0) -> Normalizer:
    """Return softmax with an attention sink: one more key with score `logit` and value zero.

    exp(s) / (exp(logit) + sum exp(s)), so that a row may sum to less than 1. The default 0 is "softmax1". A tensor
    `logit` may be learned; its shape is () or (heads,). The `lse` of the result excludes the sink.

    >>> import regard
    >>> x = torch.zeros(2, 4)
    >>> regard.attention_with_weights(x, x, x, normalizer=sink()).weights[0]
    tensor([0.3333, 0.3333])
    """
    check_scalar_or_per_head(logit, "logit")
    logits = torch.as_tensor(logit, dtype=None if isinstance(logit, Tensor) else torch.float64)
    checks = () if logits.numel() == 1 else (require_one_per("sink logits", logits, 0, "heads"),)
    return Normalizer(Softmax(), "sink softmax", factor=_SinkFactor(logits), checks=checks, stages=SINK_STAGES)


@dataclass(frozen=True, eq=False)
class _SinkFactor:
    """The sum of the weights of all keys but the sink: sigmoid(lse - logit)."""

    logit: Tensor

    def __call__(self, lse: Tensor | None, n_k: int | Tensor) -> Tensor:
        assert lse is not None
        # the derivative y (1 - y) of sigmoid would lose precision for y near 1
        return torch.exp(torch.nn.functional.logsigmoid(lse - self.logit.reshape(-1, 1).to(lse)))


SINK_STAGES = (
    StageSpec("sink", "the score of one more key, whose value is zero", "b", "b", SCALAR_AXES, value="logit"),
    StageSpec(
        "row maximum",
        "the largest score of each query, or that of the sink if it is larger",
        "m_i = max(b, max_j s_ij)",
        r"m_i = \max(b, \max_j s_{ij})",
        QUERY_AXES,
        "torch.maximum(scores.amax(-1), sink)",
    ),
    *EXP_STAGES,
    StageSpec(
        "row sum",
        "the sum of each row, and the sink",
        "z_i = exp(b - m_i) + Σ_j exp(s_ij - m_i)",
        r"z_i = e^{b - m_i} + \sum_j e^{s_{ij} - m_i}",
        QUERY_AXES,
        "exp.sum(-1) + torch.exp(sink - row_maximum)",
    ),
    SOFTMAX_WEIGHTS,
)


@example("sigmoid")
@normalizer_entry(
    "sigmoid",
    idea="Each weight is the sigmoid of its own score; keys do not compete.",
    formula=r"a_{ij} = \sigma(s_{ij} + b)",
    paper=("Ramapuram et al., Theory, Analysis, and Best Practices for Sigmoid Self-Attention, 2024, arXiv 2409.04431"),
    example="sigmoid(-5.5)",
    reference_test="tests/test_normalizer.py::test_sigmoid_weights_each_pair_independently",
)
@serializable
@check_types
def sigmoid(bias: float | Tensor = 0.0) -> Normalizer:
    """Return the elementwise sigmoid 1 / (1 + exp(-(s + bias))). Rows do not sum to 1.

    `bias` defaults to 0. A tensor `bias` may be learned; its shape is () or (heads,). A bias of -log(n_k) makes the
    rows of an untrained model sum to about 1.

    >>> import regard
    >>> x = torch.zeros(2, 4)
    >>> regard.attention_with_weights(x, x, x, normalizer=sigmoid()).weights[0]
    tensor([0.5000, 0.5000])
    """
    check_scalar_or_per_head(bias, "bias")
    if not isinstance(bias, Tensor) and bias == 0.0:
        return Normalizer(Sigmoid(), "sigmoid")
    if isinstance(bias, Tensor) and bias.dim() == 1:
        checks = (require_one_per("a sigmoid bias", bias, 0, "heads"),)
        score_mod = trace_builtin_modifier(
            lambda s, h: s + bias[h], "s", "h", tensor_names=("bias",), shape_checks=checks, stage=SIGMOID_BIAS
        )
    else:
        score_mod = trace_builtin_modifier(lambda s: s + bias, "s", tensor_names=("bias",), stage=SIGMOID_BIAS)
    return Normalizer(Sigmoid(), "sigmoid", score_mod)


SIGMOID_BIAS = StageSpec("plus bias", "plus a bias")


@example("relu")
@normalizer_entry(
    "ReLU",
    idea="Weights are the positive scores, divided by the number of keys; negative scores give exactly 0.",
    sparse=True,
    formula=r"a_{ij} = \max(s_{ij}, 0) / n",
    paper="Wortsman et al., Replacing softmax with ReLU in Vision Transformers, 2023, arXiv 2309.08586",
    example="relu()",
    reference_test="tests/test_normalizer.py::test_relu_weights_positive_scores",
)
@serializable
@check_types
def relu(scale: float | Tensor | None = None) -> Normalizer:
    """Return the elementwise max(s, 0) · scale. Rows do not sum to 1.

    `scale` defaults to 1 / n_k; hidden keys count. A tensor `scale` may be learned; its shape is () or (heads,).

    >>> import regard
    >>> x = torch.eye(2)
    >>> regard.attention_with_weights(x, x, x, score=regard.score.dot(), normalizer=relu()).weights[0]
    tensor([0.5000, 0.0000])
    """
    check_scalar_or_per_head(scale, "scale")
    per_head = scale if isinstance(scale, Tensor) and scale.numel() != 1 else None
    checks = () if per_head is None else (require_one_per("relu scales", per_head, 0, "heads"),)
    name, stages = ("1/n · relu", RELU_STAGES) if scale is None else ("scale · relu", SCALED_RELU_STAGES)
    return Normalizer(Relu(), name, factor=_ScaleFactor(scale), checks=checks, stages=stages)


RELU_STAGES, SCALED_RELU_STAGES = relu_stages("1.0 / n_k"), relu_stages("scale")


@dataclass(frozen=True, eq=False)
class _ScaleFactor:
    """A constant factor, or 1 / n_k."""

    scale: float | Tensor | None

    def __call__(self, statistic: Tensor | None, n_k: int | Tensor) -> Tensor | float:
        if isinstance(self.scale, Tensor):
            # (heads, 1) broadcasts over (batch, heads, n_q)
            return self.scale.reshape(-1, 1) if self.scale.dim() else self.scale
        if self.scale is not None:
            return self.scale
        return 1.0 / n_k.clamp(min=1).double() if isinstance(n_k, Tensor) else 1.0 / max(n_k, 1)


@example("sparsemax")
@normalizer_entry(
    "sparsemax",
    idea="Scores are projected onto the probability simplex: weak keys get a weight of exactly 0.",
    sparse=True,
    formula=r"a_i = \arg\min_{p \in \Delta} |p - s_i|^2 = \max(s_i - \tau_i, 0)",
    paper="Martins and Astudillo, From Softmax to Sparsemax, 2016, arXiv 1602.02068",
    exactness="the definition; τ is exact up to rounding",
    example="sparsemax()",
    reference_test="tests/conformance/test_entmax.py::test_weights_equal_the_package_for_any_alpha",
    note=(
        "The tests of the entmax package also pass with regard as its implementation. The normmax and budget "
        "variants of that package are not included."
    ),
)
@serializable
def sparsemax() -> Normalizer:
    """Return sparsemax (Martins & Astudillo, 2016): the projection of the scores onto the probability simplex.

    max(s - tau, 0), with tau such that each row sums to 1; most weights are exactly 0. The `statistic` of the result is
    tau.

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[-2.0], [0.0], [0.5]])
    >>> regard.attention_with_weights(q, k, k, score=regard.score.dot(), normalizer=sparsemax()).weights[0]
    tensor([0.0000, 0.2500, 0.7500])
    """
    return Normalizer(Entmax(constant(1.0)), "sparsemax", stages=SPARSEMAX_STAGES)


@example("entmax(1.5)")
@normalizer_entry(
    "entmax",
    idea="Between softmax and sparsemax: α sets how sparse the weights are, and may be learned.",
    sparse=True,
    learned=True,
    formula=r"a_{ij} = \max((\alpha - 1) s_{ij} - \tau_i, 0)^{1/(\alpha - 1)}",
    paper=(
        "Peters, Niculae, Martins, Sparse Sequence-to-Sequence Models, 2019, arXiv 1905.05702; Correia and "
        "others, Adaptively Sparse Transformers, 2019, arXiv 1909.00015"
    ),
    exactness="the definition; α is a number or learned",
    example="entmax(1.5)",
    reference_test="tests/conformance/test_entmax.py::test_weights_equal_the_package_for_any_alpha",
    note="As for sparsemax.",
)
@serializable
@check_types
def entmax(alpha: float | Tensor = 1.5) -> Normalizer:
    """Return alpha-entmax (Peters et al., 2019): softmax for alpha = 1, sparsemax for alpha = 2.

    max((alpha - 1) s - tau, 0)^(1 / (alpha - 1)), with tau such that each row sums to 1; the `statistic` of the result
    is tau. A larger `alpha` gives more weights of exactly 0. A tensor `alpha`, above 1, may be learned; its shape is ()
    or (heads,).

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[-2.0], [0.0], [0.5]])
    >>> regard.attention_with_weights(q, k, k, score=regard.score.dot(), normalizer=entmax(1.5)).weights[0]
    tensor([0.0000, 0.3260, 0.6740])
    """
    if isinstance(alpha, Tensor):
        return _learned_entmax(alpha)
    if not 1.0 <= alpha <= 2.0:
        raise ArgumentError(f"alpha must be from 1 (softmax) to 2 (sparsemax); got {alpha}.")
    if alpha == 1.0:
        return softmax()
    if alpha == 2.0:
        return sparsemax()
    factor = alpha - 1.0
    score_mod = trace_builtin_modifier(lambda s: s * factor, "s", stage=ENTMAX_SCORES)
    return Normalizer(Entmax(constant(1.0 / factor)), f"{alpha:g}-entmax", score_mod, is_score_mod_implied=True)


ENTMAX_SCORES = StageSpec("times alpha minus 1", "times α - 1, the input of entmax")


def _learned_entmax(alpha: Tensor) -> Normalizer:
    check_scalar_or_per_head(alpha, "alpha")
    # the gradients of the two uses of alpha nearly cancel: add them before rounding
    alpha = upcast(alpha)
    values = alpha.detach()
    if alpha.device.type != "meta" and not bool(((values > 1.0) & (values <= 2.0)).all()):
        raise ArgumentError(
            f"every alpha must be above 1 and at most 2; got {values.tolist()}. For 1 use normalizer.softmax(); "
            "keep a learned alpha in range with torch.clamp or 1 + torch.sigmoid(x)."
        )
    checks = (require_one_per("alpha", alpha, 0, "heads"),) if alpha.numel() > 1 else ()

    def alpha_of_head(h: Any) -> Any:
        return alpha if alpha.dim() == 0 else alpha[h] if len(alpha) > 1 else alpha[0]

    score_mod = trace_builtin_modifier(
        lambda s, h: s * (alpha_of_head(h) - 1.0),
        *("s", "h"),
        tensor_names=("alpha",),
        shape_checks=checks,
        stage=ENTMAX_SCORES,
    )
    power = trace_builtin(lambda h: 1.0 / (alpha_of_head(h) - 1.0), "h", tensor_names=("alpha",))
    return Normalizer(Entmax(constant(1.0)), "entmax", score_mod, power, is_score_mod_implied=True)


@example("topk(2)")
@normalizer_entry(
    "top k",
    idea="Softmax over the k largest scores of each query; all other weights are 0.",
    sparse=True,
    formula=r"\mathrm{softmax}(s_{ij} : s_{ij} \ge s_{i(k)})",
    paper="Gupta et al., Memory-efficient Transformers via Top-k Attention, 2021, arXiv 2106.06899",
    exactness="the definition; keys that tie with the k-th are included",
    example="topk(16)",
    reference_test="tests/normalizers/test_threshold.py::test_topk_agrees_with_torch_topk",
)
@serializable
@check_types
def topk(k: int) -> Normalizer:
    """Return softmax over the `k` largest scores of each row; all other weights are 0.

    Scores equal to the k-th largest are all included.

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[-2.0], [0.0], [0.5]])
    >>> regard.attention_with_weights(q, k, k, score=regard.score.dot(), normalizer=topk(2)).weights[0]
    tensor([0.0000, 0.3775, 0.6225])
    """
    if k < 1:
        raise ArgumentError(f"k must be at least 1; got {k}.")
    return Normalizer(TopK(k), f"top-{k} softmax")


@example("hardmax")
@normalizer_entry(
    "hardmax",
    idea="The key with the largest score gets all of the weight.",
    sparse=True,
    formula=r"a_{ij} = [j = \arg\max_k s_{ik}]",
    paper="Xu et al., Show, Attend and Tell, 2015, arXiv 1502.03044",
    exactness="the definition; the gradient is a straight-through estimate",
    example="hardmax()",
    reference_test=(
        "tests/normalizers/test_threshold.py::test_hardmax_selects_the_largest_score_with_the_gradient_of_softmax"
    ),
)
@serializable
def hardmax() -> Normalizer:
    """Return hardmax: weight 1 for the largest score, the limit of softmax(c s) as c goes to infinity.

    Keys with exactly equal largest scores share the weight. The gradient is a straight-through estimate: the gradient
    of v uses these weights, and the gradient of the scores is that of softmax.

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[-2.0], [0.5], [0.5]])
    >>> regard.attention_with_weights(q, k, k, score=regard.score.dot(), normalizer=hardmax()).weights[0]
    tensor([0.0000, 0.5000, 0.5000])
    """
    return Normalizer(Hardmax(), "hardmax")


@example("gumbel")
@normalizer_entry(
    "Gumbel",
    idea="One key is drawn for each query, with the probabilities of softmax.",
    sparse=True,
    formula=r"a_{ij} = [j = \arg\max_k (s_{ik} - \log(-\log u_{ik}))]",
    paper=(
        "Jang, Gu, Poole, Categorical Reparameterization with Gumbel-Softmax, 2017, arXiv 1611.01144; Maddison, "
        "Mnih, Teh, The Concrete Distribution, 2017, arXiv 1611.00712"
    ),
    exactness=(
        "exact samples from the softmax weights; the noise is a function of seed and position; the gradient is a "
        "straight-through estimate"
    ),
    example="gumbel(0.5, seed=1)",
    reference_test="tests/expr/test_counter_rng.py::test_gumbel_samples_keys_with_the_probabilities_of_softmax",
)
@serializable
@check_types
def gumbel(temperature: float = 1.0, *, seed: int = 0, hard: bool = True) -> Normalizer:
    """Return Gumbel softmax (Jang et al., 2017; Maddison et al., 2017): samples one key per query from softmax(s).

    The sampled key has the largest s - log(-log u), with u uniform noise that depends only on `seed` and the position.

    Args:
        temperature: Temperature of softmax((s + noise) / temperature), which gives the gradient. Default: 1.
        seed: Seed of the noise. Default: 0.
        hard: If True (default), the sampled key has weight 1, with a straight-through gradient; if False, the weights
            are the softmax of the noisy scores.

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[-2.0], [0.0], [0.5]])
    >>> regard.attention_with_weights(q, k, k, normalizer=gumbel(seed=1)).weights[0].sum()
    tensor(1.)
    """
    if not temperature > 0:
        raise ArgumentError(f"temperature must be greater than 0; got {temperature}.")
    score_mod = trace_builtin_modifier(
        lambda s, b, h, i, j: (s - torch.log(-torch.log(position_uniform(seed, b, h, i, j)))) / temperature,
        *("s", "b", "h", "i", "j"),
        stage=GUMBEL_SCORES,
    )
    row_normalizer, name = (Hardmax(), "gumbel hardmax") if hard else (Softmax(), "gumbel softmax")
    return Normalizer(row_normalizer, name, score_mod, is_score_mod_implied=True)


GUMBEL_SCORES = StageSpec(
    "with gumbel noise",
    "plus noise of a Gumbel distribution, divided by the temperature",
    "(s - log(-log(u_ij))) / temperature",
    r"\frac{s - \log(-\log u_{ij})}{T}",
)


@example("kernel")
@serializable
def kernel(feature_map: FeatureMapLike | None = None) -> Normalizer:
    """Return the weights of linear attention, φ(q)·φ(k) / sum φ(q)·φ(k), under any mask.

    `feature_map` is a map of `regard.feature_map`, or a function (..., length, head_dim) -> (..., length, features)
    with nonnegative results; it defaults to `feature_map.elu()`. It replaces the score, so `score=` must not be passed.
    The `lse` of the result is log sum φ(q)·φ(k). `regard.mechanisms.linear` computes the same output in linear time,
    for a causal mask or none.

    >>> import regard
    >>> x = torch.randn(5, 8)
    >>> regard.attention(x, x, x, normalizer=kernel(), mask=regard.mask.sliding_window(2)).shape
    torch.Size([5, 8])
    """
    phi = as_feature_map(feature_map)
    if phi.depends_on_distance:
        score_mod = trace_builtin_modifier(
            lambda s, p, j: torch.log(s * phi.distance_factor(p - j)), "s", "p", "j", tensor_names=("angle",)
        )
    else:
        score_mod = trace_builtin_modifier(torch.log, "s")
    return Normalizer(Softmax(), "softmax", score_mod, feature_map=phi, stages=KERNEL_STAGES)


KERNEL_STAGES = (
    StageSpec("row sum", "the sum of each row", "z_i = Σ_j w_ij", r"z_i = \sum_j w_{ij}", QUERY_AXES, "scores.sum(-1)"),
    StageSpec(
        "weights",
        "each number divided by the sum of its row",
        "a_ij = w_ij / z_i",
        r"a_{ij} = \frac{w_{ij}}{z_i}",
        code="scores / row_sum[:, None]",
        value="torch.where(row_sum[:, None] == 0, 0.0, scores / row_sum[:, None])",
    ),
)


@example("sinkhorn(5)")
@normalizer_entry(
    "Sinkhorn",
    idea="Rows and columns are normalized in turn, so that every key receives the same total weight.",
    causal=False,
    formula=r"a_{ij} = e^{s_{ij} + u_i + v_j}, \quad \sum_j a_{ij} = 1, \; \sum_i a_{ij} = n_q / n_k",
    paper=("Sander et al., Sinkformers: Transformers with Doubly Stochastic Attention, 2021, arXiv 2110.11773"),
    exactness="the given number of Sinkhorn iterations; each stores one number per row",
    time_complexity="n^2 d per iteration",
    example="sinkhorn(10)",
    reference_test="tests/backends/shared/test_sinkhorn.py::test_limit_is_the_optimal_transport_plan",
    note=(
        "The limit is compared with POT, which does not support masks; masked calls are compared with an "
        "explicit iteration."
    ),
)
@serializable
@check_types
def sinkhorn(iterations: int = 5) -> Normalizer:
    """Return Sinkhorn normalization: the columns and rows of exp(s) are normalized in turn, `iterations` times.

    Rows are normalized last, so that each sums to 1; one iteration is softmax. For many iterations every column sums
    to n_q / n_k: the weights of a square matrix are doubly stochastic. `iterations` defaults to 5. A mask under
    which the identity is the only doubly stochastic matrix, such as `causal()` with n_q = n_k, raises an error.

    >>> import regard
    >>> x = torch.randn(6, 4)
    >>> regard.attention_with_weights(x, x, x, normalizer=sinkhorn(50)).weights[:].sum(0)
    tensor([1.0000, 1.0000, 1.0000, 1.0000, 1.0000, 1.0000])
    """
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise ArgumentError(f"iterations must be from 1 to {MAX_ITERATIONS:,}; got {iterations}.")
    stages = partial(_sinkhorn_stages, iterations) if iterations > 1 else ()
    return Normalizer(Softmax(), f"{iterations}-step sinkhorn", iterations=iterations, stages=stages)


def _sinkhorn_stages(iterations: int) -> StageSpecs:
    """Return the stages that normalize rows and columns in turn, rows first and last."""
    specs, source = [], "torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e300))"  # -inf - -inf is nan
    logs = _SinkhornLogs()
    for step in range(2 * iterations - 1):
        kind, axis, index = ("column", -2, "i") if step % 2 else ("row", -1, "j")
        name = "weights" if step == 2 * iterations - 2 else f"{kind}s {step // 2 + 1}"
        sums = f"{source if step else f'({source})'}.sum({axis}, keepdim=True)"
        specs.append(
            StageSpec(
                name,
                f"each {kind} divided by its sum",
                f"a_ij / Σ_{index} a_ij",
                rf"\frac{{a_{{ij}}}}{{\sum_{index} a_{{ij}}}}",
                code=f"{source} / torch.where({sums} == 0, 1.0, {sums})",
                value=partial(logs.values, step),
            )
        )
        source = variable_name(name)
    return tuple(specs)


class _SinkhornLogs:
    """The logarithms of the weights after each step, stored because small weights underflow."""

    def __init__(self) -> None:
        self._logs: list[Tensor] = []

    def values(self, step: int, variables: Mapping[str, Any]) -> Tensor:
        """Return the weights after a step: even steps normalize rows, odd ones columns. Steps are taken in order."""
        log: Tensor = self._logs[step - 1] if step else variables["scores"]
        lse = torch.logsumexp(log, -2 if step % 2 else -1, keepdim=True)
        self._logs.append(log - torch.where(lse == -torch.inf, 0.0, lse))
        return torch.exp(self._logs[-1])


DEFAULT_NORMALIZER = Normalizer(Softmax(), "softmax")


def as_normalizer(value: Any) -> Normalizer:
    """Convert a normalizer, a row normalizer or None (softmax) to a `Normalizer`."""
    if value is None:
        return DEFAULT_NORMALIZER
    value = materialize(value)
    if isinstance(value, Normalizer):
        return value
    if isinstance(value, RowNormalizer):
        return Normalizer(value, value.name)
    raise ArgumentError(
        "normalizer must be a normalizer of regard.normalizer, such as normalizer.softmax(); "
        f"got {type(value).__name__}."
    )
