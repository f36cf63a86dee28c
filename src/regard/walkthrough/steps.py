"""`regard.steps`: every number of an attention call, from the inputs to the output."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import QueryOffsetLike
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.errors import ArgumentError
from regard.mask import MaskLike
from regard.normalizer import NormalizerLike
from regard.score import ScoreLike, ValueLike
from regard.walkthrough.expanded_call import expand_call
from regard.walkthrough.projection import NumbersLike, Projection, projected_tensor
from regard.walkthrough.render.html import format_html, format_html_page
from regard.walkthrough.render.latex import format_latex
from regard.walkthrough.render.tables import DEFAULT_DECIMALS, AxisLabels
from regard.walkthrough.render.text import format_text
from regard.walkthrough.render.torch_program import stage_code, torch_program
from regard.walkthrough.stage import Stage
from regard.walkthrough.stages.build import build_stages

__all__ = ["Steps", "steps"]

InputLike = Projection | NumbersLike


@check_types
def steps(
    q: InputLike,
    k: InputLike,
    v: InputLike,
    *,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
    normalizer: NormalizerLike | None = None,
    value: ValueLike | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    query_offset: QueryOffsetLike | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> "Steps":
    """Compute attention in float64 and return every intermediate result.

    Print the result, display it in a notebook, or index it by the name of a stage. A call with too many numbers to read
    raises `BudgetError`.

    Args:
        q: Queries, as in `attention`: a tensor, an array or nested lists of numbers. `project(x, w)` adds the stages
            that compute the queries from tokens x.
        k: Keys, in the same forms.
        v: Values, in the same forms.
        score: See `attention`, also for mask, normalizer, value, dropout, seed and query_offset.
        tokens: Labels of the queries, and of the keys if `key_tokens` is None and there are as many keys as queries.
            Default: q0, q1, ...
        key_tokens: Labels of the keys. Default: k0, k1, ...

    Returns:
        The stages of the call, from the inputs to the output.

    >>> result = steps([[1, 0], [0, 2]], [[1, 0], [0, 1]], [[1.0], [0.0]], tokens=["to", "be"])
    >>> print(result[["weights"]])
    weights: each number divided by the sum of its row
      a_ij = exp(s_ij - m_i) / z_i
              to     be
      to  0.6698 0.3302
      be  0.1956 0.8044
    """
    inputs = {"Q": q, "K": k, "V": v}
    q_tensor, k_tensor, v_tensor = _unify_dtypes([projected_tensor(x, letter.lower()) for letter, x in inputs.items()])
    attention_call = AttentionCall(
        q_tensor, k_tensor, v_tensor, score, mask, normalizer, value, dropout, seed, query_offset
    )
    parsed = parse_call(attention_call)
    call = expand_call(parsed)
    labels = AxisLabels.from_tokens(parsed.spec.n_q, parsed.spec.n_k, tokens, key_tokens)
    with torch.no_grad():
        call_without_value = AttentionCall(q_tensor, k_tensor, v_tensor, score=score, query_offset=query_offset)
        stages = build_stages(call, inputs, expand_call(parse_call(call_without_value)).v)
    return Steps(tuple(stages), labels, parsed.spec.formula, parsed.query_offset, parsed.seed)


def _unify_dtypes(tensors: list[Tensor]) -> list[Tensor]:
    """Convert tensors of different dtypes to float64: lists of numbers are float64 and tensors may be float32."""
    return tensors if len({x.dtype for x in tensors}) == 1 else [x.double() for x in tensors]


@dataclass(frozen=True, eq=False)
class Steps(Sequence[Stage]):
    """The stages of one call, in order: `steps["weights"].values`, `steps[-1]`, `for stage in steps`.

    A slice or a list of names, such as `steps[["Q", "weights"]]`, selects some stages. `str` formats all stages as
    text; a notebook displays them as HTML. With several heads, the output shows batch element 0 and head 0; `at`
    selects another head. `formula` is the formula of the call, `labels` name its queries and keys, and `query_offset`
    and `seed` are those of `regard.attention`.
    """

    stages: tuple[Stage, ...]
    labels: AxisLabels
    formula: str
    query_offset: int | Tensor
    seed: int

    @overload
    def __getitem__(self, key: int | str) -> Stage: ...
    @overload
    def __getitem__(self, key: slice | list[str]) -> "Steps": ...
    def __getitem__(self, key: int | str | slice | list[str]) -> "Stage | Steps":
        if isinstance(key, slice):
            return replace(self, stages=self.stages[key])
        if isinstance(key, list):
            return replace(self, stages=tuple(self._stage_named(name) for name in key))
        return self._stage_named(key) if isinstance(key, str) else self.stages[key]

    def _stage_named(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ArgumentError(f"a stage must be one of {', '.join(self.names)}; got {name!r}.")

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    @property
    def names(self) -> list[str]:
        """The names of all stages, in order."""
        return [stage.name for stage in self.stages]

    @property
    def leading_shape(self) -> tuple[int, int]:
        """The shape (batch, num_heads) of the call."""
        shapes = [stage.tensor.shape for stage in self.stages]
        return max(s[0] for s in shapes), max(s[1] for s in shapes)

    @check_types
    def at(self, batch: int = 0, head: int = 0) -> "Steps":
        """Return the same stages with the values of batch element `batch` and head `head`."""
        batches, heads = self.leading_shape
        if not (0 <= batch < batches and 0 <= head < heads):
            raise ArgumentError(
                f"batch must be from 0 to {batches - 1} and head from 0 to {heads - 1}; got batch={batch}, head={head}."
            )
        return replace(self, stages=tuple(stage.at(batch, head) for stage in self.stages))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Steps({self.formula}: {', '.join(self.names)})"

    @check_types
    def text(self, digits: int = DEFAULT_DECIMALS) -> str:
        """Format every stage as aligned matrices, with at most `digits` decimals."""
        return format_text(self.stages, self.labels, digits)

    @check_types
    def latex(self, digits: int = DEFAULT_DECIMALS) -> str:
        """Format every stage as a line of an `align*` environment of amsmath, with at most `digits` decimals."""
        return format_latex(self.stages, self.labels, digits)

    @check_types
    def html(self, digits: int = DEFAULT_DECIMALS) -> str:
        """Format all stages as a self-contained HTML page, with at most `digits` decimals."""
        return format_html_page(self.stages, self.labels, self.formula, digits)

    def _repr_html_(self) -> str:
        return format_html(self.stages, self.labels, self.formula)

    def code(self) -> str:
        """Return a program in plain torch that computes every stage of the selected head and ends with `output`."""
        return torch_program(self.stages, self.query_offset, len(self.labels.queries), len(self.labels.keys))

    def as_dict(self) -> dict[str, object]:
        """Return all stages of the selected head as JSON values; "inf", "-inf" and "nan" are strings."""
        batch, head = (self.stages[0].batch, self.stages[0].head) if self.stages else (0, 0)
        return {
            "formula": self.formula,
            "batch": batch,
            "head": head,
            "query_labels": list(self.labels.queries),
            "key_labels": list(self.labels.keys),
            "stages": [_stage_to_dict(stage) for stage in self.stages],
        }

    def json(self) -> str:
        """Return the values of `as_dict` as JSON text."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False)


def _stage_to_dict(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "description": stage.description,
        "formula": stage.formula,
        "latex": stage.latex,
        "code": stage_code(stage),
        "axes": list(stage.axes),
        "shape": list(stage.values.shape),
        "values": _json_values(stage.values.tolist()),
    }


def _json_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_values(item) for item in value]
    is_finite = isinstance(value, bool) or abs(value) < float("inf")
    return value if is_finite else str(value)
