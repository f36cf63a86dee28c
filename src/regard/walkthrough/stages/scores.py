"""The stages of a score: one number for each query and key, before any score modifier."""

import torch
from torch import Tensor

from regard.feature_map import EluFeatureMap, FavorFeatureMap, FeatureMapScore, ReluFeatureMap
from regard.score import Additive, Bilinear, Cosine, Gaussian, ScaledDot, Score
from regard.walkthrough.expanded_call import ExpandedCall
from regard.walkthrough.stage import (
    KEY_FEATURE_AXES,
    PAIR_AXES,
    QUERY_FEATURE_AXES,
    SCALAR_AXES,
    StageBuilder,
    StageTensor,
)
from regard.walkthrough.stages.templates import SCORE_TEMPLATES

MATRIX_AXES = ("row", "feature")


def add_score_stages(builder: StageBuilder, call: ExpandedCall, q: StageTensor, k: StageTensor) -> StageTensor:
    """Add the stages of the score and return the last one, the score of each pair."""
    score = call.parsed_call.score
    if isinstance(score, Bilinear):
        return _add_bilinear_stages(builder, score, q, k)
    if isinstance(score, Cosine):
        return _add_cosine_stages(builder, score, q, k)
    if isinstance(score, Gaussian):
        return (
            _add_gaussian_stages(builder, score, q, k)
            if score.m is None
            else _add_mahalanobis_stages(builder, score.m, q, k)
        )
    if isinstance(score, Additive):
        return _add_additive_stages(builder, score, q, k)
    if isinstance(score, FeatureMapScore):
        return _add_kernel_stages(builder, score, q, k)
    if isinstance(score, ScaledDot):
        return _add_scaled_dot_stages(builder, score, q, k)
    if type(score) is Score:
        return _add_product_stage(builder, "products", q, k)
    return _add_custom_score_stage(builder, call, q, k)


def _add_product_stage(builder: StageBuilder, template_name: str, q: StageTensor, k: StageTensor) -> StageTensor:
    return builder.add(
        SCORE_TEMPLATES[template_name], q.tensor @ k.tensor.mT, PAIR_AXES, f"{q.variable} @ {k.variable}.mT"
    )


def _add_scaled_dot_stages(builder: StageBuilder, score: ScaledDot, q: StageTensor, k: StageTensor) -> StageTensor:
    products, head_dim = _add_product_stage(builder, "products", q, k), q.tensor.shape[-1]
    if score.scale is not None:
        return _add_scale_stages(builder, score.scale, products)
    code = f"{products.variable} / {head_dim} ** 0.5"
    scaled = products.tensor / head_dim**0.5
    return builder.add(SCORE_TEMPLATES["divided by sqrt(d)"], scaled, PAIR_AXES, code, head_dim=head_dim)


def _add_scale_stages(builder: StageBuilder, scale: float | Tensor, scores: StageTensor) -> StageTensor:
    """Multiply the scores by a number, or by one number per head."""
    if not isinstance(scale, Tensor):
        return builder.add(
            SCORE_TEMPLATES["scaled"],
            scores.tensor * scale,
            PAIR_AXES,
            f"{scores.variable} * {scale!r}",
            scale=f"{scale:g}",
        )
    factor = builder.add(SCORE_TEMPLATES["scale"], _per_head(scale), SCALAR_AXES)
    scaled = scores.tensor * factor.tensor[..., None, None]
    return builder.add(SCORE_TEMPLATES["scaled by head"], scaled, PAIR_AXES, f"{scores.variable} * {factor.variable}")


def _per_head(parameter: Tensor) -> Tensor:
    """Reshape one number, or one per head, to (1, heads)."""
    return parameter.detach().double().reshape(1, -1)


def _add_bilinear_stages(builder: StageBuilder, score: Bilinear, q: StageTensor, k: StageTensor) -> StageTensor:
    w = builder.add(SCORE_TEMPLATES["W"], score.w.detach().double(), MATRIX_AXES)
    projected = builder.add(
        SCORE_TEMPLATES["q W"], q.tensor @ w.tensor, QUERY_FEATURE_AXES, f"{q.variable} @ {w.variable}"
    )
    return _add_product_stage(builder, "products through W", projected, k)


def _add_cosine_stages(builder: StageBuilder, score: Cosine, q: StageTensor, k: StageTensor) -> StageTensor:
    units = [
        _add_unit_vector_stages(builder, "q", q, QUERY_FEATURE_AXES),
        _add_unit_vector_stages(builder, "k", k, KEY_FEATURE_AXES),
    ]
    cosines = _add_product_stage(builder, "cosines", units[0], units[1])
    is_plain = not isinstance(score.scale, Tensor) and score.scale == 1.0
    return cosines if is_plain else _add_scale_stages(builder, score.scale, cosines)


def _add_unit_vector_stages(builder: StageBuilder, letter: str, x: StageTensor, axes: tuple[str, ...]) -> StageTensor:
    length = x.tensor.square().sum(-1).sqrt()
    code = f"{x.variable}.square().sum(-1).sqrt()"
    norm = builder.add(SCORE_TEMPLATES["length"], length, axes[:1], code, letter=letter, kind=axes[0])
    unit = x.tensor / length.clamp(min=1e-12).unsqueeze(-1)  # a zero vector stays zero
    return builder.add(
        SCORE_TEMPLATES["unit"], unit, axes, f"{x.variable} / {norm.variable}.clamp(min=1e-12)[:, None]", letter=letter
    )


def _add_gaussian_stages(builder: StageBuilder, score: Gaussian, q: StageTensor, k: StageTensor) -> StageTensor:
    differences = q.tensor.unsqueeze(-2) - k.tensor.unsqueeze(-3)
    code = f"({q.variable}[:, None] - {k.variable}[None]).square().sum(-1)"
    squared = builder.add(SCORE_TEMPLATES["squared distances"], differences.square().sum(-1), PAIR_AXES, code)
    sigma = builder.add(
        SCORE_TEMPLATES["sigma"], _per_head(torch.as_tensor(score.sigma, dtype=torch.float64)), SCALAR_AXES
    )
    scores = -squared.tensor / (2.0 * sigma.tensor[..., None, None] ** 2)
    return builder.add(
        SCORE_TEMPLATES["negative distances"], scores, PAIR_AXES, f"-{squared.variable} / (2.0 * {sigma.variable} ** 2)"
    )


def _add_mahalanobis_stages(builder: StageBuilder, m: Tensor, q: StageTensor, k: StageTensor) -> StageTensor:
    matrix = builder.add(SCORE_TEMPLATES["M"], m.detach().double(), MATRIX_AXES)
    differences = q.tensor.unsqueeze(-2) - k.tensor.unsqueeze(-3)
    distances = (differences @ matrix.tensor.unsqueeze(2) * differences).sum(-1)
    difference_code = f"({q.variable}[:, None] - {k.variable}[None])"
    code = f"({difference_code} @ {matrix.variable} * {difference_code}).sum(-1)"
    squared = builder.add(SCORE_TEMPLATES["squared distances by M"], distances, PAIR_AXES, code)
    return builder.add(
        SCORE_TEMPLATES["negative distances by M"], -squared.tensor / 2, PAIR_AXES, f"-{squared.variable} / 2"
    )


def _add_additive_stages(builder: StageBuilder, score: Additive, q: StageTensor, k: StageTensor) -> StageTensor:
    hidden_q = _add_hidden_projection_stages(builder, "q", q, score.w_q, score.bias)
    hidden_k = _add_hidden_projection_stages(builder, "k", k, score.w_k, None)
    u = builder.add(SCORE_TEMPLATES["u"], score.u.detach().double(), ("hidden",))
    inside = hidden_q.tensor.unsqueeze(-2) + hidden_k.tensor.unsqueeze(-3)
    code = f"torch.tanh({hidden_q.variable}[:, None] + {hidden_k.variable}[None])"
    tanh = builder.add(SCORE_TEMPLATES["tanh"], torch.tanh(inside), ("query", "key", "hidden"), code)
    scores = (tanh.tensor * u.tensor[:, :, None, None]).sum(-1)
    return builder.add(SCORE_TEMPLATES["additive"], scores, PAIR_AXES, f"{tanh.variable} @ {u.variable}")


def _add_hidden_projection_stages(
    builder: StageBuilder, letter: str, x: StageTensor, w: Tensor, bias: Tensor | None
) -> StageTensor:
    """Add the projection W x of queries or keys to the hidden layer, plus a bias if there is one."""
    kind, heads = ("query" if letter == "q" else "key"), x.tensor.shape[1]
    w = w.detach().double()
    if w.dim() == 3 and w.shape[0] not in (1, heads):  # query heads share the matrix of their key head
        w = w.repeat_interleave(heads // w.shape[0], dim=0)
    matrix = builder.add(SCORE_TEMPLATES["additive matrix"], w, ("row", "hidden"), letter=letter, kind=kind)
    hidden, code, formula = x.tensor @ matrix.tensor, f"{x.variable} @ {matrix.variable}", f"W_{letter} {letter}"
    if bias is not None:
        added = builder.add(SCORE_TEMPLATES["bias"], bias.detach().double(), ("hidden",))
        hidden, code, formula = hidden + added.tensor.unsqueeze(-2), f"{code} + {added.variable}", f"{formula} + b"
    return builder.add(
        SCORE_TEMPLATES["hidden"], hidden, (kind, "hidden"), code, letter=letter, kind=kind, formula=formula
    )


def _add_kernel_stages(builder: StageBuilder, score: FeatureMapScore, q: StageTensor, k: StageTensor) -> StageTensor:
    """Add the features and their products, which are the scores of `normalizer.kernel`."""
    phi = score.feature_map
    line = {EluFeatureMap: "torch.nn.functional.elu({}) + 1.0", ReluFeatureMap: "torch.relu({})"}.get(type(phi), "")
    cancels = ", up to a factor of each row that cancels" if isinstance(phi, FavorFeatureMap) else ""
    features = []
    for letter, x, kind, apply_map, more in (
        ("q", q, "query", phi.map_queries, cancels),
        ("k", k, "key", phi.map_keys, ""),
    ):
        axes, code = (kind, "hidden"), line.format(x.variable)
        substitutions = dict(letter=letter, kind=kind, more=more, formula=phi.formula)
        mapped = apply_map(x.tensor).double()
        features.append(builder.add(SCORE_TEMPLATES["features"], mapped, axes, code, **substitutions))
    return _add_product_stage(builder, "kernel products", features[0], features[1])


def _add_custom_score_stage(builder: StageBuilder, call: ExpandedCall, q: StageTensor, k: StageTensor) -> StageTensor:
    """Add the scores of a custom score function, without code."""
    parsed_call = call.parsed_call
    inputs = parsed_call.prepare_inputs(torch.float64)
    if inputs.score_function is not None:
        scores = inputs.score_function(q.tensor, k.tensor, *inputs.parameters)
    else:
        keys = inputs.k.double().repeat_interleave(q.tensor.shape[1] // inputs.k.shape[1], dim=1)
        scores = (inputs.q.double() * parsed_call.spec.scale) @ keys.mT
    formula = parsed_call.score.formula()
    return builder.add(SCORE_TEMPLATES["custom score"], scores.detach().double(), PAIR_AXES, formula=formula)
