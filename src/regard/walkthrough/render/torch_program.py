"""Stages as a program in plain torch, without regard, that computes the same numbers."""

import re
from collections.abc import Sequence

from torch import Tensor

from regard.walkthrough.render.expr_code import tensor_literal
from regard.walkthrough.stage import Stage


def torch_program(stages: Sequence[Stage], query_offset: int | Tensor, n_q: int, n_k: int) -> str:
    """Return a program that ends with `output`. It contains the results of custom functions as numbers."""
    batch, head = (stages[0].batch, stages[0].head) if stages else (0, 0)
    first_position = query_offset if isinstance(query_offset, int) else int(query_offset[batch])
    positions = {
        "b": f"b = torch.tensor({batch})",
        "h": f"h = torch.tensor({head})",
        "n_q": f"n_q = {n_q}",
        "n_k": f"n_k = {n_k}",
        "i": f"i = torch.arange({n_q})[:, None]",
        "j": f"j = torch.arange({n_k})",
        "p": f"p = torch.arange({n_q})[:, None] + {first_position}",
    }
    lines = [stage_code(stage) for stage in stages]
    used = set(re.findall(r"[A-Za-z_]\w*", "\n".join(lines)))
    needed = [line for name, line in positions.items() if name in used]
    special = sorted(used & {"inf", "nan"})
    imports = [f"from math import {', '.join(special)}", ""] if special else []
    body = [f"# {stage.description}\n{line}" for stage, line in zip(stages, lines, strict=True)]
    return "\n".join([*imports, "import torch", "", *needed, *body])


def stage_code(stage: Stage) -> str:
    """Return the code of a stage: its own lines, or a literal of its values."""
    return stage.code or f"{stage.variable} = {tensor_literal(stage.values)}"
