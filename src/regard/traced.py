"""A call inside a graph that torch.compile or torch.export is making: one operator, and the question as text.

torch reads this file while it makes a graph, so it is written in the simplest way. `operators.py` has the operator.
"""

from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.finite import shielded
from regard.spec.named import Named, Unspeakable, spell

NO_NAME = (
    "inside a graph regard.attention must be given tensors and regard's own masks, scores and weighings; "
    "got a function or an array. Keep a function outside, with mask.where or score.rule, or make the call outside."
)


def traced(
    q: Any,
    k: Any,
    v: Any,
    score: Any,
    mask: Any,
    weigh: Any,
    value: Any,
    dropout: float,
    seed: int | None,
    start: Any,
    engine: str | None,
) -> Tensor | None:
    """The answer as a node of the graph; None where the question has no name and the graph may stop."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return None
    function = value if callable(value) and not isinstance(value, Named) else None
    relative_values = value if function is None else None
    tensors: list[Tensor] = []
    numbers: list[int] = []
    try:
        parts = [spell(x, tensors, numbers) for x in (score, mask, weigh, relative_values, start, engine, dropout)]
    except Unspeakable:
        if torch.compiler.is_exporting():
            raise SpecError(NO_NAME) from None
        return None
    drawn = torch.randint(2**62, ()) if dropout and seed is None else seed
    question = '{"list": [' + ", ".join([*parts, spell(drawn, tensors, numbers)]) + "]}"
    if function is not None:
        v = shielded(lambda x: (function(x),), v)[0].to(v.dtype)
    is_raw = weigh is None and relative_values is None
    output: Tensor = torch.ops.regard.attention(q, k, v, tensors, numbers, question, is_raw)[0]
    return output
