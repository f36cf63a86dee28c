"""The stages that a score or a normalizer declares: evaluated for every head, and shown as a program of one head."""

from collections.abc import Mapping
from itertools import product
from string import Template
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from regard.cache import memoize
from regard.stage_spec import StageSpec, StageSpecs, rename, variable_name
from regard.walkthrough.stage import StageBuilder, StageTensor
from regard.walkthrough.stages.templates import StageTemplate


def add_declared_stages(
    builder: StageBuilder,
    specs: StageSpecs,
    sources: Mapping[str, StageTensor],
    fields: Mapping[str, Any],
    **constants: object,
) -> StageTensor:
    """Add the stages of `specs` and return the last one.

    The variables of the specs are `sources`, such as Q and K, the `fields` of the score or the normalizer, and
    `constants`.
    """
    stages = _DeclaredStageBuilder(builder, sources, {**fields, **constants})
    return [stages.add(spec) for spec in specs][-1]


class _DeclaredStageBuilder:
    """Adds stages whose expressions may use those before them."""

    def __init__(self, builder: StageBuilder, sources: Mapping[str, StageTensor], fields: Mapping[str, Any]) -> None:
        self.builder = builder
        self.num_heads = max(source.tensor.shape[1] for source in sources.values())
        self.fields = {name: x.detach().double() if isinstance(x, Tensor) else x for name, x in fields.items()}
        self.tensors = {name: source.tensor for name, source in sources.items()}
        self.code_names = {name: _number_literal(x) for name, x in fields.items() if isinstance(x, (int, float))}
        self.code_names |= {name: source.variable for name, source in sources.items()}
        self.texts = {name: f"{x:g}" if isinstance(x, float) else x for name, x in fields.items()}

    def add(self, spec: StageSpec) -> StageTensor:
        values = self._values(spec)
        code = rename(Template(self._shown_code(spec, values)).substitute(self.fields), self.code_names)
        stage = self.builder.add(StageTemplate(*spec[:4]), values, spec.axes, code, **self.texts)
        variable = variable_name(spec.name)
        self.tensors[variable], self.code_names[variable] = stage.tensor, stage.variable
        return stage

    def _values(self, spec: StageSpec) -> Tensor:
        if callable(spec.value):
            return spec.value({**self.fields, **self.tensors})
        return self._evaluate(spec.value or spec.code) if spec.code else self._field_values(spec)

    def _field_values(self, spec: StageSpec) -> Tensor:
        """Return the values of an expression of the fields, with a dimension for the heads if they differ."""
        assert isinstance(spec.value, str)
        values = torch.as_tensor(eval(_compile_expression(spec.value), self._names()), dtype=torch.float64)
        if values.dim() > len(spec.axes) and values.shape[0] not in (1, self.num_heads):
            return values.repeat_interleave(self.num_heads // values.shape[0], dim=0)  # one per key head
        return values

    def _shown_code(self, spec: StageSpec, values: Tensor) -> str:
        """Return the code of a stage; empty if the program contains the numbers."""
        if not spec.code or (spec.finite_only and not bool(values.isfinite().all())):
            return ""
        if not spec.value or callable(spec.value):
            return spec.code
        same = torch.isclose(self._evaluate(spec.code), values, 0.0, 0.0, equal_nan=True)
        return spec.code if bool(same.all()) else spec.value

    def _evaluate(self, expression: str) -> Tensor:
        """Return the values of an expression, (batch, heads, ...), computed head by head, as the program does."""
        code = _compile_expression(expression)
        names, tensors = self._names(), {name: x for name, x in self.tensors.items() if name in code.co_names}
        batch, heads = torch.broadcast_shapes(*(x.shape[:2] for x in tensors.values()))
        per_head = [
            eval(code, names, {name: x[min(b, len(x) - 1), min(h, x.shape[1] - 1)] for name, x in tensors.items()})
            for b, h in product(range(batch), range(heads))
        ]
        stacked = torch.stack(per_head)
        return stacked.reshape(batch, heads, *stacked.shape[1:])

    def _names(self) -> dict[str, Any]:
        return {"torch": torch, "inf": torch.inf, "nan": torch.nan, **self.fields}


@memoize(256)
def _compile_expression(expression: str) -> CodeType:
    return compile(expression, "<stage>", "eval")


def _number_literal(number: float) -> str:
    return repr(number) if number >= 0 else f"({number!r})"
