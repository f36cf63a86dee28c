"""The common form of an attention call, which every adapter returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class CapturedCall:
    """A call of an attention function, before that function runs.

    Args:
        make_arguments: returns the arguments of `regard.attention_with_weights` that give the same weights.
        source: name of the attention function, for messages.
        submodule_path: path of the attending module below the running module, if the running module computes the
            attention of a submodule itself. Empty by default.
        extract_output: returns the output (batch, heads, n_q, v_dim) in the function's return value. None if the
            return value does not contain it.
        replace_output: returns the function's return value with another output. None like `extract_output`.
    """

    make_arguments: Callable[[], dict[str, Any]]
    source: str
    submodule_path: str = ""
    extract_output: Callable[[Any], Tensor] | None = None
    replace_output: Callable[[Any, Tensor], Any] | None = None
