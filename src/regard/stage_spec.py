"""Stage specs: scores, score modifiers and normalizers declare as data how they are computed step by step.

`regard.steps`, the command line and the explorer show the stages; an exported page computes those of normalizers
without Python.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

PAIR_AXES, QUERY_AXES = ("query", "key"), ("query",)
QUERY_FEATURE_AXES, KEY_FEATURE_AXES, MATRIX_AXES = ("query", "feature"), ("key", "feature"), ("row", "feature")
SCALAR_AXES: tuple[str, ...] = ()


class StageSpec(NamedTuple):
    """One stage of a score (from `Q` and `K` to the scores) or of a normalizer (from `scores` to the stage "weights").

    `formula` is plain text; `latex` is the same formula in LaTeX, without dollar signs. Both may contain fields of the
    score or the normalizer, such as `$k`. `axes` names the dimensions of one head's values.

    `code` is a torch expression for one head. It is shown in the program and evaluated in float64. It may use `Q` and
    `K`, or `scores` (-inf where masked); earlier stages by name, such as `row_maximum` for "row maximum"; fields that
    are numbers; `head_dim` or `n_k`; `inf` and `nan`. Lines before the last one are shown but not evaluated.

    Without `code`, the program contains the stage's numbers, and `value` is an expression of the fields. A tensor field
    is a stage of its own, such as `StageSpec("W", ..., axes=MATRIX_AXES, value="w")`; it may have a leading dimension
    for the heads.

    With `code`, `value` is evaluated instead of `code`. It is an expression, which is shown if its numbers differ from
    those of `code`, or a function that maps the variables of all heads to the values. With `finite_only`, the program
    contains the stage's numbers if one of them is not finite.

    All expressions are constants in the source code, never user input.
    """

    name: str
    description: str
    formula: str = ""
    latex: str = ""
    axes: tuple[str, ...] = PAIR_AXES
    code: str = ""
    value: "str | Callable[[Mapping[str, Any]], Tensor]" = ""
    finite_only: bool = False

    def with_variables(self, names: Mapping[str, str]) -> "StageSpec":
        """Return the spec with its variables renamed, such as {"scores": "top_k_scores"}."""
        value = rename(self.value, names) if isinstance(self.value, str) else self.value
        return self._replace(code=rename(self.code, names), value=value)


StageSpecs = tuple[StageSpec, ...]


def variable_name(name: str) -> str:
    """Return a name as a Python identifier.

    >>> variable_name("row maximum")
    'row_maximum'
    """
    return re.sub(r"\W", "_", name)


def rename(code: str, names: Mapping[str, str]) -> str:
    """Return code with its variables renamed; attributes keep their names.

    >>> rename("torch.exp(exp)", {"exp": "x"})
    'torch.exp(x)'
    """
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), code)
