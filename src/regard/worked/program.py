"""Stages as a program: lines of plain torch that give the same numbers, with nothing of regard in them."""

import re
from collections.abc import Sequence

from torch import Tensor

from regard.worked.lines import numbers
from regard.worked.stage import Stage


def program_of(stages: Sequence[Stage], start: int | Tensor, n_q: int, n_k: int) -> str:
    """A program that ends with `output`. What a function of one's own gave stands there as numbers."""
    batch, head = (stages[0].batch, stages[0].head) if stages else (0, 0)
    begin = start if isinstance(start, int) else int(start[batch])
    positions = {
        "b": f"b = torch.tensor({batch})",
        "h": f"h = torch.tensor({head})",
        "n_q": f"n_q = {n_q}",
        "n_k": f"n_k = {n_k}",
        "i": f"i = torch.arange({n_q})[:, None]",
        "j": f"j = torch.arange({n_k})",
        "p": f"p = torch.arange({n_q})[:, None] + {begin}",
    }
    lines = [code_of(stage) for stage in stages]
    used = set(re.findall(r"[A-Za-z_]\w*", "\n".join(lines)))
    needed = [line for name, line in positions.items() if name in used]
    special = sorted(used & {"inf", "nan"})
    imports = [f"from math import {', '.join(special)}", ""] if special else []
    body = [f"# {stage.words}\n{line}" for stage, line in zip(stages, lines, strict=True)]
    return "\n".join([*imports, "import torch", "", *needed, *body])


def code_of(stage: Stage) -> str:
    """The lines that make a stage, or its numbers."""
    return stage.code or f"{stage.variable} = {numbers(stage.values)}"
