"""Torch code that computes one weight from the tensors of a recording."""

import torch

from regard.call.spec import ParsedCall
from regard.expr.ir import TRUE, Expr
from regard.normalizers.streaming import Relu, Sigmoid, Softmax
from regard.score import Bilinear, Cosine, ScaledDot, Score
from regard.walkthrough.render.expr_code import has_few_operations, tensor_literal, torch_expression

MAX_LITERAL_NUMBERS = 256  # a larger captured tensor is not written as a literal


def weight_code(parsed_call: ParsedCall, layer: int, batch: int, head: int, query: int, key: int) -> str:
    """Return code that computes a weight in plain torch, or by `attention_with_weights` if that would be long."""
    offset = parsed_call.query_offset
    position = query if isinstance(offset, torch.Tensor) and offset.numel() > 1 else int(offset) + query
    text = weight_code_template(parsed_call, layer, batch, head)
    return text.replace("{query}", str(query)).replace("{key}", str(key)).replace("{position}", str(position))


def weight_code_template(parsed_call: ParsedCall, layer: int, batch: int, head: int) -> str:
    """Return the code for any pair, with the placeholders {query}, {key} and {position}."""
    kv_index = f"{batch}, {head // parsed_call.spec.queries_per_kv_head}"
    lines = [
        f"call = recording.layer_named({layer}).merged_call",
        f"q, k, v = (x.double() for x in (call.q[{batch}, {head}], call.k[{kv_index}], call.v[{kv_index}]))",
    ]
    formula_lines = _formula_lines(parsed_call, head)
    if formula_lines is None:
        result = "result = regard.attention_with_weights(call.q, call.k, call.v, **call.options)"
        row = f"weights = result.weights[{batch}, {head}, {{query}}]"
        return "\n".join(["import regard", "", lines[0], result, row, "weights[{key}]"])
    output = ["weights @ v  # the output of this query"] if parsed_call.relative_values is None else []
    return "\n".join(["import torch", "", *lines, *formula_lines, "weights[{key}]  # the weight", *output])


def _formula_lines(parsed_call: ParsedCall, head: int) -> list[str] | None:
    score, normalizer = _score_lines(parsed_call.score), _normalizer_lines(parsed_call)
    modifier_and_mask = _modifier_and_mask_lines(parsed_call, head)
    if score is None or normalizer is None or modifier_and_mask is None:
        return None
    if parsed_call.normalizer.feature_map is not None:
        return None
    return [*score, *modifier_and_mask, *normalizer]


def _score_lines(score: Score) -> list[str] | None:
    if isinstance(score, ScaledDot) and not isinstance(score.scale, torch.Tensor):
        scale = " / q.shape[-1] ** 0.5" if score.scale is None else f" * {score.scale!r}"
        return [f"s = k @ q[{{query}}]{scale}"]
    if isinstance(score, Cosine) and not isinstance(score.scale, torch.Tensor):
        normalize = "torch.nn.functional.normalize"
        return [f"s = {normalize}(k, dim=-1) @ {normalize}(q[{{query}}], dim=-1) * {score.scale!r}"]
    if isinstance(score, Bilinear) and score.w.numel() <= MAX_LITERAL_NUMBERS and score.w.dim() == 2:
        return [f"w = {tensor_literal(score.w)}", "s = k @ (q[{query}] @ w)"]
    return ["s = k @ q[{query}]"] if type(score) is Score else None


def _modifier_and_mask_lines(parsed_call: ParsedCall, head: int) -> list[str] | None:
    """Return code of the score modifier and the mask over the positions i, p and j; None if it would be long."""
    spec = parsed_call.spec
    if spec.score_mod is None and spec.mask is TRUE:
        return []
    if isinstance(parsed_call.query_offset, torch.Tensor) and parsed_call.query_offset.numel() > 1:
        return None
    exprs = [expr for expr in (spec.score_mod, spec.mask) if expr is not None and expr is not TRUE]
    tensors = parsed_call.closed_expr.resolve_tensors(
        spec.score_shape, parsed_call.query_offset, parsed_call.q.double()
    )
    slots = sorted({n for expr in exprs for n in expr.captured_slots})
    if any(tensors[n].numel() > MAX_LITERAL_NUMBERS for n in slots):
        return None
    if not all(has_few_operations(expr) for expr in exprs):
        return None
    names = list(parsed_call.closed_expr.tensor_names)
    positions = f"b, h, i, p, j = 0, {head}, {{query}}, {{position}}, torch.arange({spec.n_k})"
    captured = [f"{names[n]} = {tensor_literal(tensors[n])}" for n in slots]
    lines = [positions, *_length_lines(exprs, parsed_call), *captured]
    if spec.score_mod is not None:
        lines.append(f"s = {torch_expression(spec.score_mod, names)}")
    if spec.mask is not TRUE:
        lines.append(f"s = torch.where({torch_expression(spec.mask, names)}, s, -torch.inf)")
    return lines


def _length_lines(exprs: list[Expr], parsed_call: ParsedCall) -> list[str]:
    are_used = any(name in expr.free_variables for expr in exprs for name in ("n_q", "n_k"))
    return [f"n_q, n_k = {parsed_call.spec.n_q}, {parsed_call.spec.n_k}"] if are_used else []


def _normalizer_lines(parsed_call: ParsedCall) -> list[str] | None:
    normalizer = parsed_call.normalizer
    if normalizer.factor is not None or normalizer.iterations > 1:
        return None
    if isinstance(normalizer.row_normalizer, Softmax):
        return ["exp = torch.exp(s - s.max())", "weights = exp / exp.sum()"]
    if isinstance(normalizer.row_normalizer, Sigmoid):
        return ["weights = torch.sigmoid(s)"]
    return ["weights = torch.relu(s)"] if isinstance(normalizer.row_normalizer, Relu) else None
