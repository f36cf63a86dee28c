"""One rank that compares attention over ranks with a single process: `compare_worker FILE RUN...`.

Each RUN is `method/layout/dtype/case`. The rank compares its part of the output and of the gradients, and writes one
line of JSON for each run to FILE.rank: sums of squares, or an error. Started with torchrun's environment variables.
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
from tests.distributed.cases import CASES, DIRECT_FORMULAS

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def compare(run: str) -> dict[str, Any]:
    """Return sums of squares over this rank's part of the output and of each gradient.

    They are those of the exact values, of the errors over ranks, and of the errors of the direct formula in the same
    dtype.
    """
    method, layout, dtype_name, case_name = run.split("/")
    case, dtype = CASES[case_name], DTYPES[dtype_name]
    tensors = [x.to(dtype) for x in case.tensors()]

    def single_process(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q, k, v, **case.options(case.n, learned))

    def over_ranks(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return distributed.attention(q, k, v, **case.options(case.n, learned), method=method, layout=layout)

    def shard(x: Tensor) -> Tensor:
        return distributed.shard(x, layout=layout)

    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(2, case.num_heads, case.n, 6, generator=generator, dtype=torch.float64)
    results = output_and_gradients(over_ranks, [*map(shard, tensors[:3]), *tensors[3:]], shard(weights))
    exact = output_and_gradients(single_process, [x.double() for x in tensors], weights)
    direct = (
        output_and_gradients(DIRECT_FORMULAS[case_name], tensors, weights) if case_name in DIRECT_FORMULAS else exact
    )
    squares = []
    for index, (result, expected, baseline) in enumerate(zip(results, exact, direct, strict=True)):
        assert result.dtype == dtype, f"tensor {index} has dtype {result.dtype}"
        if index < 4:
            expected, baseline = shard(expected), shard(baseline)
        else:  # every rank has the tensor, so its gradient is the sum over ranks
            result = result.double()
            dist.all_reduce(result)
        assert result.shape == expected.shape, f"tensor {index} has shape {tuple(result.shape)}"
        errors = (expected, result.double() - expected, baseline.double() - expected)
        squares.append([float(x.double().square().sum()) for x in errors])
    return {"squares": squares}


def output_and_gradients(function: Callable[..., Tensor], tensors: list[Tensor], weights: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of sum(output * weights) for all tensors."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad((output * weights.to(output.dtype)).sum(), leaves)]


def main(path: str, *runs: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    with open(f"{path}.{dist.get_rank()}", "w", encoding="utf8") as file:
        for run in runs:
            try:
                result = compare(run)
            except Exception as error:
                result = {"error": f"{error}", "traceback": traceback.format_exc()}
            file.write(json.dumps({"name": run, **result}) + "\n")
            file.flush()
    dist.barrier()
    os._exit(0)  # threads of gloo may crash while Python shuts down


if __name__ == "__main__":
    main(*sys.argv[1:])
