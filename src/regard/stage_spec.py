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
    """One stage: of a score, from `Q` and `K` to the scores, or of a normalizer, from `scores` to "weights".

    `formula` is plain text, and `latex` the same without dollar signs. The texts may contain fields of the score or
    the normalizer, such as `$k`. `axes` name the dimensions of the values of one head.

    `code` is a torch expression of one head, evaluated in float64 and shown. It may use `Q` and `K`, or `scores`, which
    are -inf where masked; earlier stages by name, `row_maximum` for "row maximum"; fields that are numbers; `head_dim`
    or `n_k`; and `inf` and `nan`. Lines before the last one are shown only.

    Without `code`, the program contains the numbers, and `value` is an expression of the fields: a tensor field is a
    stage of its own, such as `StageSpec("W", ..., axes=MATRIX_AXES, value="w")`. It may have a leading dimension for
    the heads.

    With `code`, `value` is evaluated in its place: an expression, which is shown where its numbers differ from those of
    `code`, or a function from the variables of all heads to the values. For `finite_only`, the program contains the
    numbers if one is not finite.

    All expressions are constants of the source, never user input.
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
        """Return the spec with other variables, such as {"scores": "top_k_scores"}."""
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
    """Return code with other names of variables; attributes keep theirs.

    >>> rename("torch.exp(exp)", {"exp": "x"})
    'torch.exp(x)'
    """
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), code)
