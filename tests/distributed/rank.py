"""One of the ranks that answer together: `rank FILE WHAT...`, started with torchrun's environment.

Each of WHAT is `method/layout/dtype/question`; this rank compares its part of the answer, and of the gradients, with
what one process gives. FILE.rank gets a line of JSON for each: how far off it was, or what went wrong.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import regard
from regard import distributed
from tests.distributed.questions import ASKED, DIRECT

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def compared(what: str) -> dict[str, Any]:
    """For the output and each gradient: sums of squares of this rank's exact numbers, of its errors, and of those of
    the direct formula in the same precision."""
    method, layout, dtype, name = what.split("/")
    asked, low = ASKED[name], DTYPES[dtype]
    tensors = [x.to(low) for x in asked.tensors()]

    def alone(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q, k, v, **asked.options(asked.n, learned))

    def together(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        options = asked.options(asked.n, learned)
        return distributed.attention(q, k, v, **options, method=method, layout=layout)

    def own(x: Tensor) -> Tensor:
        return distributed.shard(x, layout=layout)

    weights = torch.randn(2, asked.heads, asked.n, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = answers(together, [*map(own, tensors[:3]), *tensors[3:]], own(weights))
    exact = answers(alone, [x.double() for x in tensors], weights)
    rough = answers(DIRECT[name], tensors, weights) if name in DIRECT else exact
    squares = []
    for n, (mine, true, other) in enumerate(zip(found, exact, rough, strict=True)):
        assert mine.dtype == low, f"{mine.dtype} of number {n}"
        if n < 4:
            true, other = own(true), own(other)
        else:  # every rank has the tensor: its gradient is the sum over ranks
            mine = mine.double()
            dist.all_reduce(mine)
        assert mine.shape == true.shape, f"{tuple(mine.shape)} of number {n}, {tuple(true.shape)} expected"
        squares.append([float(x.double().square().sum()) for x in (true, mine.double() - true, other.double() - true)])
    return {"squares": squares}


def answers(run: Callable[..., Tensor], tensors: list[Tensor], weights: Tensor) -> list[Tensor]:
    """Output and gradients of all tensors, of a sum of outputs times weights."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    output = run(*leaves)
    return [output.detach(), *torch.autograd.grad((output * weights.to(output.dtype)).sum(), leaves)]


def main(path: str, *every: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    with open(f"{path}.{dist.get_rank()}", "w", encoding="utf8") as file:
        for what in every:
            try:
                found = compared(what)
            except Exception as error:
                found = {"error": f"{error}", "where": traceback.format_exc()}
            file.write(json.dumps({"what": what, **found}) + "\n")
            file.flush()
    dist.barrier()
    os._exit(0)  # as in tests/graphs/sharded.py: threads of gloo must not meet a Python that is being taken down


if __name__ == "__main__":
    main(*sys.argv[1:])
