"""Endpoints about one weight: every number from q and k to the output."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.backends.shared.dense import make_positions, normalizer_parameter, score_block
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import BackendInputs, ParsedCall
from regard.explorer.api.endpoint import endpoint
from regard.explorer.api.packing import Payload, to_float32_array
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.explorer.head_weights import HeadWeights
from regard.explorer.weight_code import weight_code, weight_code_template
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import TRUE
from regard.expr.printing import to_text
from regard.tensors.nonfinite import all_finite


@endpoint
def cell_steps(explorer: Explorer, params: Params) -> Payload:
    """Return every number from q and k to one weight and the output of its query."""
    session = explorer.find_session(params)
    layer, head = params.integer("layer", 0, 10**6), params.integer("head", 0, 10**6)
    hidden = params.integers("hidden_keys", 0, 10**9, ())
    head_weights = session.head(layer, head, hidden)
    n_q, n_k = head_weights.shape
    row = QueryRow(head_weights, params.integer("query", 0, n_q - 1))
    key = params.integer("key", 0, n_k - 1)
    call = session.layer_call(layer, hidden)
    parsed = parse_call(AttentionCall(call.q, call.k, call.v, **call.options))
    values = {**row.score_steps(key), **_call_formulas(parsed), **row.normalizer_steps(key), **row.output_steps(key)}
    head_index = session.layer(layer).head_indices.index(head)
    lines = weight_code(parsed, layer, session.batch_index, head_index, row.query, key)
    return Payload({"layer": layer, "head": head, "query": row.query, "key": key, **values, "code": lines})


@endpoint
def head_vectors(explorer: Explorer, params: Params) -> Payload:
    """Return q, k, v and the visible pairs of a head, from which the page computes any weight without Python.

    The scores are included if the call has a score modifier. `is_supported` is False if the page cannot compute the
    weights: for scores other than products and for normalizers other than softmax.
    """
    session = explorer.find_session(params)
    layer, head = params.integer("layer", 0, 10**6), params.integer("head", 0, 10**6)
    row, call = QueryRow(session.head(layer, head), 0), session.layer_call(layer)
    head_call, spec = row.parsed_call, row.parsed_call.spec
    normalizer = head_call.normalizer
    is_softmax = spec.normalizer.name == "softmax" and normalizer.iterations == 1 and normalizer.factor is None
    if (
        spec.score_kind != "dot"
        or not is_softmax
        or head_call.relative_values is not None
        or normalizer.feature_map is not None
    ):
        return Payload({"is_supported": False})
    parsed = parse_call(AttentionCall(call.q, call.k, call.v, **call.options))
    values = {"is_supported": True, "scale": spec.scale, "normalizer": normalizer.formula}
    head_index = session.layer(layer).head_indices.index(head)
    lines = weight_code_template(parsed, layer, session.batch_index, head_index)
    offset = head_call.query_offset
    first_position = 0 if isinstance(offset, Tensor) and offset.numel() > 1 else int(offset)
    arrays = {
        "q": row.inputs.q[0, row.head_weights.head_index],
        "k": row.inputs.k[0, row.kv_head_slice.start],
        "v": row.values,
    }
    packed = {name: to_float32_array(x) for name, x in arrays.items()}
    packed["visible"] = (row.head_scores() > -torch.inf).numpy().astype(np.uint8)
    if spec.score_mod is not None:
        packed["scores"] = to_float32_array(row.modified_scores())
    return Payload({**values, **_call_formulas(parsed), "code": lines, "query_offset": first_position}, packed)


def _call_formulas(parsed_call: ParsedCall) -> dict[str, Any]:
    """Return the formulas of the call, its score modifier and its mask, as text."""
    spec, names = parsed_call.spec, parsed_call.closed_expr.tensor_names
    modifier = None if spec.score_mod is None else {"text": to_text(spec.score_mod, names)}
    mask = None if spec.mask is TRUE else {"text": to_text(spec.mask, names)}
    return {"formula": {"text": spec.formula}, "modifier": modifier, "mask": mask}


@dataclass(eq=False)
class QueryRow:
    """The numbers of one query of a head, in float64."""

    head_weights: HeadWeights
    query: int

    @cached_property
    def parsed_call(self) -> ParsedCall:
        call = self.head_weights.recorded_call
        return parse_call(AttentionCall(call.q, call.k, call.v, **call.options))

    @cached_property
    def inputs(self) -> BackendInputs:
        with torch.no_grad():
            return self.parsed_call.prepare_inputs(torch.float64)

    @property
    def kv_head_slice(self) -> slice:
        """The key head of this query head, as a slice."""
        first = self.head_weights.head_index // self.parsed_call.spec.queries_per_kv_head
        return slice(first, first + 1)

    def positions(self, j: range) -> IndexGrid:
        h, i = self.head_weights.head_index, self.query
        return make_positions(self.parsed_call.spec, self.inputs, range(1), range(h, h + 1), range(i, i + 1), j)

    def key_scores(self, j: range) -> Tensor:
        """Return the scores of the keys in `j`, -inf where hidden."""
        q, k = self.q[None, None, None], self.inputs.k[:1, self.kv_head_slice, j.start : j.stop]
        block = score_block(self.parsed_call.spec, self.inputs, self.positions(j), q, k, all_finite(q, k))
        return block.scores[0, 0, 0]

    @property
    def q(self) -> Tensor:
        return self.inputs.q[0, self.head_weights.head_index, self.query]

    @cached_property
    def scores(self) -> Tensor:
        return self.key_scores(range(self.parsed_call.spec.n_k))

    def head_scores(self) -> Tensor:
        """Return the scores (n_q, n_k) of the head, -inf where hidden."""
        q, k, positions = self._head_inputs()
        with torch.no_grad():
            return score_block(self.parsed_call.spec, self.inputs, positions, q, k, all_finite(q, k)).scores[0, 0]

    def modified_scores(self) -> Tensor:
        """Return the scores (n_q, n_k) of the head after the score modifier, of hidden pairs too."""
        q, k, positions = self._head_inputs()
        score_mod = self.parsed_call.spec.score_mod
        assert score_mod is not None
        scaled = q @ k.mT * self.parsed_call.spec.scale
        modified = Evaluator(self.inputs.tensors, positions, scaled, torch.float64).score_value(score_mod)
        return modified.expand(scaled.shape)[0, 0]

    def _head_inputs(self) -> tuple[Tensor, Tensor, IndexGrid]:
        """Return all queries and keys of the head, and their positions."""
        spec, h = self.parsed_call.spec, self.head_weights.head_index
        heads, i, j = range(h, h + 1), range(spec.n_q), range(spec.n_k)
        positions = make_positions(spec, self.inputs, range(1), heads, i, j)
        return self.inputs.q[:1, h : h + 1], self.inputs.k[:1, self.kv_head_slice], positions

    @property
    def values(self) -> Tensor:
        """The values of this head, (n_k, v_head_dim)."""
        return self.inputs.v[
            0, self.head_weights.head_index // (self.parsed_call.spec.num_heads // self.inputs.v.shape[1])
        ]

    def score_steps(self, key: int) -> dict[str, Any]:
        """Return the numbers from q and k to the score of a key, the input of the normalizer."""
        spec = self.parsed_call.spec
        k = self.inputs.k[0, self.kv_head_slice.start, key]
        steps: dict[str, Any] = {"q": self.q, "k": k, "scale": spec.scale, "score_kind": spec.score_kind}
        if spec.score_kind == "dot":
            steps |= {"products": self.q * k, "dot": (self.q * k).sum(), "scaled": (self.q * k).sum() * spec.scale}
        elif spec.score_kind == "additive":
            u = self.inputs.parameters[0]
            hidden = torch.tanh(self.q + k) * (u if u.dim() == 1 else u[self.head_weights.head_index])
            steps |= {"products": hidden, "dot": hidden.sum(), "scaled": hidden.sum()}
        modified = None
        if spec.score_mod is not None and "scaled" in steps:
            positions = self.positions(range(key, key + 1))
            evaluator = Evaluator(self.inputs.tensors, positions, steps["scaled"], torch.float64)
            modified = float(evaluator.score_value(spec.score_mod).flatten()[0])
        score = float(self.scores[key])
        visible = score != -torch.inf
        return {**_tensors_to_lists(steps), "modified_score": modified, "is_visible": visible, "score": score}

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor | None]:
        """The weights (n_k,) of the query, and the statistic of the row if the normalizer has one."""
        spec, normalizer = self.parsed_call.spec, self.parsed_call.normalizer
        if normalizer.iterations > 1:  # weights of sinkhorn depend on the other rows
            return self.head_weights.weights([self.query], slice(None))[0].double(), None
        parameter = normalizer_parameter(spec, self.inputs, self.positions(range(1)), torch.float64)
        row = self.scores[None, None, None]
        parameters = () if parameter is None else (parameter.detach(),)
        weights, statistic = spec.normalizer.normalize(row, *parameters)
        return weights[0, 0, 0].detach() * self.factor(statistic), None if statistic is None else statistic[0, 0, 0]

    def factor(self, statistic: Tensor | None) -> Tensor | float:
        """Return the factor of the normalizer for this row."""
        factor = self.parsed_call.normalizer.factor
        if factor is None:
            return 1.0
        heads = self.parsed_call.spec.num_heads
        rows = None if statistic is None else statistic.reshape(1, 1, 1).expand(1, heads, 1)
        scale = torch.as_tensor(factor(rows, self.parsed_call.spec.n_k)).detach().double()
        return scale[0, self.head_weights.head_index, 0] if scale.dim() == 3 else scale

    def normalizer_steps(self, key: int) -> dict[str, Any]:
        """Return the numbers from the score to the weight of a key; for softmax, with maximum, exponent and sum."""
        weights, statistic = self.weights
        row_normalizer, is_per_row = self.parsed_call.spec.normalizer, self.parsed_call.normalizer.iterations == 1
        values: dict[str, Any] = {"normalizer": self.parsed_call.normalizer.formula}
        values |= {"weight": float(weights[key]), "row_sum": float(weights.sum())}
        if statistic is not None:
            values["statistic"] = {"name": row_normalizer.statistic, "value": float(statistic)}
            values["factor"] = float(self.factor(statistic))
        if row_normalizer.name == "softmax" and is_per_row and bool((self.scores > -torch.inf).any()):
            row_max = self.scores.max()
            exp = torch.exp(self.scores - row_max)
            values |= {
                "row_max": float(row_max),
                "exponent": float(self.scores[key] - row_max),
                "exp": float(exp[key]),
                "exp_sum": float(exp.sum()),
                "lse": float(row_max + exp.sum().log()),
                "argmax_key": int(self.scores.argmax()),
                "num_visible_keys": int((self.scores > -torch.inf).sum()),
            }
        return values

    def output_steps(self, key: int) -> dict[str, Any]:
        """Return the value of a key, the weighted value, and the output of the query."""
        weights, _ = self.weights
        v = self.values
        output = weights @ torch.where(weights[:, None] > 0, v, 0.0)
        if self.parsed_call.relative_values is not None:
            output = self.head_weights.result.output[0, self.head_weights.head_index, self.query].double()
        return _tensors_to_lists({"v": v[key], "weighted_value": weights[key] * v[key], "output": output})


def _tensors_to_lists(values: dict[str, Any]) -> dict[str, Any]:
    return {name: x.tolist() if isinstance(x, Tensor) else x for name, x in values.items()}
