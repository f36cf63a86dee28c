"""Calls in bfloat16: the forward pass, the backward pass alone, and decoding, on one thread.

    python -m benchmarks.studies.bfloat16 [--rounds 25]

Three implementations alternate in each round: torch's `scaled_dot_product_attention` in bfloat16, regard in bfloat16,
and regard in float32. Times are CPU times of the thread. Prints the ratios to regard in bfloat16, best and median, and
writes them to benchmarks/results/bfloat16.json with the errors relative to float64.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks.run import RESULTS, machine_info
from regard import mask

FLOPS_PER_PAIR_AND_CHANNEL = {"forward": 4, "backward": 10}  # 2 or 5 products


@dataclass(frozen=True)
class Bf16Case:
    """Attention of q (batch, heads, n_q, dim) over n_k keys; `part` is "forward" or "backward"."""

    part: str
    batch: int
    num_heads: int
    num_kv_heads: int
    n_q: int
    n_k: int
    dim: int
    is_causal: bool = False
    calls_per_round: int = 1

    @property
    def flops(self) -> float:
        pairs = self.batch * self.num_heads * self.n_q * self.n_k / (2 if self.is_causal else 1)
        return pairs * self.dim * FLOPS_PER_PAIR_AND_CHANNEL[self.part]

    def inputs(self) -> list[Tensor]:
        """q, k, v and the gradient of the output."""
        generator = torch.Generator().manual_seed(0)
        q_shape, k_shape = (
            (self.batch, heads, n, self.dim) for heads, n in ((self.num_heads, self.n_q), (self.num_kv_heads, self.n_k))
        )
        return [torch.randn(s, generator=generator).bfloat16() for s in (q_shape, k_shape, k_shape, q_shape)]


@dataclass(frozen=True)
class Bf16Result:
    """Ratios are times of the other implementation over those of regard in bfloat16; errors are relative, rms."""

    case: Bf16Case
    over_torch: float
    over_torch_median: float
    over_float32: float
    over_float32_median: float
    seconds: float
    gflops: float
    error: float
    torch_error: float


CASES = [
    Bf16Case("forward", 1, 2, 2, 4096, 4096, 64),
    Bf16Case("forward", 1, 2, 2, 2048, 2048, 128),
    Bf16Case("forward", 8, 8, 8, 128, 128, 64, calls_per_round=10),
    Bf16Case("forward", 1, 2, 2, 4096, 4096, 64, is_causal=True),
    Bf16Case("backward", 1, 2, 2, 4096, 4096, 64),
    Bf16Case("backward", 1, 2, 2, 2048, 2048, 128),
    Bf16Case("backward", 8, 8, 8, 144, 144, 64, calls_per_round=10),
    Bf16Case("backward", 1, 2, 2, 4096, 4096, 64, is_causal=True),
    Bf16Case("forward", 1, 8, 8, 1, 65536, 64),
    Bf16Case("forward", 1, 32, 8, 1, 16384, 128),
    Bf16Case("forward", 1, 9, 3, 1, 4096, 64, calls_per_round=100),
    Bf16Case("forward", 1, 9, 3, 1, 512, 64, calls_per_round=100),
]


def torch_attention(q: Tensor, k: Tensor, v: Tensor, case: Bf16Case) -> Tensor:
    return sdpa(q, k, v, is_causal=case.is_causal, enable_gqa=case.num_heads != case.num_kv_heads)


def regard_attention(q: Tensor, k: Tensor, v: Tensor, case: Bf16Case) -> Tensor:
    return regard.attention(q, k, v, mask=mask.causal() if case.is_causal else None)


Attention = Callable[[Tensor, Tensor, Tensor, Bf16Case], Tensor]


def time_round(run: Attention, inputs: list[Tensor], case: Bf16Case) -> float:
    """Return the seconds of CPU time of one call; of its backward pass alone if the case asks for it."""
    *qkv, d_output = inputs
    if case.part == "forward":
        start = time.thread_time()
        for _ in range(case.calls_per_round):
            run(*qkv, case)
        return (time.thread_time() - start) / case.calls_per_round
    leaves = [x.detach().requires_grad_() for x in qkv]
    outputs = [run(*leaves, case) for _ in range(case.calls_per_round)]
    start = time.thread_time()
    for output in outputs:
        torch.autograd.grad(output, leaves, d_output)
    return (time.thread_time() - start) / case.calls_per_round


def results_of(run: Attention, inputs: list[Tensor], case: Bf16Case) -> list[Tensor]:
    """The output, or the gradients of q, k and v."""
    *qkv, d_output = inputs
    if case.part == "forward":
        return [run(*qkv, case)]
    leaves = [x.detach().requires_grad_() for x in qkv]
    return list(torch.autograd.grad(run(*leaves, case), leaves, d_output))


def largest_error(actual: list[Tensor], exact: list[Tensor]) -> float:
    return max(float((x.double() - y).norm() / y.norm()) for x, y in zip(actual, exact, strict=True))


def measure(case: Bf16Case, rounds: int) -> Bf16Result:
    inputs = case.inputs()
    runs = [
        partial(time_round, torch_attention, inputs, case),
        partial(time_round, regard_attention, inputs, case),
        partial(time_round, regard_attention, [x.float() for x in inputs], case),
    ]
    for run in runs:
        run()
    times = list(zip(*([run() for run in runs] for _ in range(rounds)), strict=True))
    (torch_best, best, float32_best), (torch_median, median, float32_median) = (
        [summary(x) for x in times] for summary in (min, statistics.median)
    )
    exact = results_of(regard_attention, [x.double() for x in inputs], case)
    error, torch_error = (
        largest_error(results_of(run, inputs, case), exact) for run in (regard_attention, torch_attention)
    )
    return Bf16Result(
        case,
        over_torch=torch_best / best,
        over_torch_median=torch_median / median,
        over_float32=float32_best / best,
        over_float32_median=float32_median / median,
        seconds=best,
        gflops=case.flops / best / 1e9,
        error=error,
        torch_error=torch_error,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for case in CASES:
        r = measure(case, args.rounds)
        results.append(r)
        shape = f"{case.batch}x{case.num_heads}/{case.num_kv_heads} heads, {case.n_q} x {case.n_k}, dim {case.dim}"
        causal = ", causal" if case.is_causal else ""
        print(f"{case.part} {shape}{causal}: {r.seconds * 1e3:.2f} ms, {r.gflops:.0f} GFLOP/s")
        print(f"  over torch {r.over_torch:.2f} (median {r.over_torch_median:.2f}), ", end="")
        print(f"over float32 {r.over_float32:.2f} (median {r.over_float32_median:.2f}), ", end="")
        print(f"error {r.error:.1e} (torch {r.torch_error:.1e})")
    data = {"machine": machine_info(), "threads": 1, "rounds": args.rounds, "rows": [asdict(r) for r in results]}
    (RESULTS / "bfloat16.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
