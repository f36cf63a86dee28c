"""A stage of a walkthrough: a tensor with its name, description, formula and code."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from regard.stage_spec import variable_name
from regard.walkthrough.stages.templates import StageTemplate


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of a walkthrough: a named tensor with its description, formula and code.

    `tensor` has all batch elements and heads, (batch, heads, ...); `values` are those of the selected head. `axes` name
    the dimensions of the values: query, key, feature, hidden, row. `formula` is plain text, and `latex` is the formula
    in LaTeX without dollar signs. `code` computes the values in torch from earlier stages; a program contains the
    numbers themselves where `code` is empty.
    """

    name: str
    description: str
    formula: str
    latex: str
    axes: tuple[str, ...]
    tensor: Tensor
    code: str = ""
    batch: int = 0
    head: int = 0

    @property
    def values(self) -> Tensor:
        """The values of the selected head, with one dimension for each of the axes."""
        batch, heads = self.tensor.shape[:2]
        return self.tensor[self.batch if batch > 1 else 0, self.head if heads > 1 else 0]

    @property
    def variable(self) -> str:
        """The name as a Python variable."""
        return variable_name(self.name)

    def at(self, batch: int, head: int) -> "Stage":
        """Return the same stage with the values of batch element `batch` and head `head`."""
        return replace(self, batch=batch, head=head)


@dataclass(frozen=True, eq=False)
class StageTensor:
    """The tensor of a stage, (batch, heads, ...), and its variable name in code."""

    tensor: Tensor
    variable: str


class StageBuilder:
    """Collects the stages of a computation."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def add(
        self,
        template: StageTemplate,
        tensor: Tensor,
        axes: tuple[str, ...],
        code: str | Callable[[str], str] = "",
        **substitutions: object,
    ) -> StageTensor:
        """Append a stage, with `substitutions` for the placeholders of its template.

        `code` is an expression, which lines may precede, or a function from the variable's name to lines of code.
        Without code, the program contains the numbers.
        """
        name, description, formula, latex = template.fill(substitutions)
        name = self._unused_name(name)
        variable = variable_name(name)
        lines = code(variable) if callable(code) else _assign(variable, code)
        tensor = tensor[(None,) * (2 + len(axes) - tensor.dim())]  # heads may share a tensor without their dimensions
        self.stages.append(Stage(name, description, formula, latex, axes, tensor, lines))
        return StageTensor(tensor, variable)

    def _unused_name(self, name: str) -> str:
        used = {stage.name for stage in self.stages}
        return next(n for n in (name, *(f"{name} {count}" for count in range(2, len(used) + 3))) if n not in used)


def _assign(variable: str, code: str) -> str:
    *lines, expression = code.split("\n")
    return "\n".join([*lines, f"{variable} = {expression}"]) if code else ""
