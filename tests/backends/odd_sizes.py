"""The native backend agrees with the definition at sizes that leave a remainder in every loop.

Only `make sanitize` runs these tests, on a core that is built with sanitizers. On the usual core they add little to
`native/test_native_backend.py`.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import mask, normalizer, score
from regard.backends.native.backend import NativeBackend, builds
from regard.backends.protocol import Backend
from regard.backends.reference import ReferenceBackend
from regard.backends.shared.autograd import differentiable_forward
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call

LENGTHS = [0, 1, 7, 23, 24, 25, 191, 193]
HEAD_DIMS = [8, 24, 40, 80, 256, 320]
BATCH, HEADS, KV_HEADS = 2, 4, 2


def documents(n_q: int, n_k: int) -> mask.Mask:
    return mask.document((torch.arange(n_q) + 3) // 11, torch.arange(n_k) // 11)


def random_mask(n_q: int, n_k: int) -> Tensor:
    return torch.rand(BATCH, 1, n_q, n_k) < 0.4


# the options of a call with n_q queries and n_k keys
CASES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "plain": lambda n_q, n_k: {},
    "causal": lambda n_q, n_k: dict(mask=mask.causal()),
    "window": lambda n_q, n_k: dict(mask=mask.causal() & mask.sliding_window(9)),
    "documents": lambda n_q, n_k: dict(mask=documents(n_q, n_k)),
    "boolean tensor": lambda n_q, n_k: dict(mask=random_mask(n_q, n_k)),
    "ALiBi": lambda n_q, n_k: dict(score=score.alibi(), mask=mask.causal()),
    "softcap": lambda n_q, n_k: dict(score=score.softcap(2.0), mask=mask.sliding_window(40)),
    "dense bias": lambda n_q, n_k: dict(score=score.bias(torch.randn(HEADS, n_q, n_k))),
    "dropout": lambda n_q, n_k: dict(mask=mask.causal(), dropout=0.3, seed=2**40 + 5),
    "sparsemax": lambda n_q, n_k: dict(mask=mask.causal() & mask.sliding_window(40), normalizer=normalizer.sparsemax()),
    "entmax": lambda n_q, n_k: dict(score=score.alibi(), normalizer=normalizer.entmax(1.3), dropout=0.2, seed=3),
    "topk": lambda n_q, n_k: dict(mask=random_mask(n_q, n_k), normalizer=normalizer.topk(7)),
    "hardmax": lambda n_q, n_k: dict(mask=mask.causal(), normalizer=normalizer.hardmax()),
}


def plain(x: Tensor) -> Tensor:
    return x


def rows_before_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def with_gaps(x: Tensor) -> Tensor:
    """x with NaN between its rows, so that a read beyond a row shows."""
    return torch.nn.functional.pad(x, (0, 3), value=torch.nan)[..., :-3]


LAYOUTS = (plain, rows_before_heads, with_gaps)


def output_and_gradients(
    backend: Backend, tensors: tuple[Tensor, ...], d_output: Tensor, options: dict[str, Any]
) -> Iterator[Tensor]:
    """Output, lse and the three gradients."""
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    call = parse_call(AttentionCall(q, k, v, **options))
    output, lse = differentiable_forward(backend, call.spec, backend.tiling(call.spec), call.prepare_inputs())[:2]
    assert lse is not None
    yield from (output, lse, *torch.autograd.grad(output, (q, k, v), d_output))


def every_build_agrees_with_the_definition(name: str, n_q: int, n_k: int, head_dim: int, layout: int) -> None:
    value_dim = head_dim + 1 if layout else head_dim
    sizes = ((HEADS, n_q, head_dim), (KV_HEADS, n_k, head_dim), (KV_HEADS, n_k, value_dim), (HEADS, n_q, value_dim))
    layouts = cycle(LAYOUTS[layout:] + LAYOUTS[:layout])
    *tensors, d_output = (next(layouts)(torch.randn(BATCH, *size)) for size in sizes)
    options = CASES[name](n_q, n_k)

    expected = list(output_and_gradients(ReferenceBackend(), tuple(tensors), d_output, options))

    for build in builds():  # without a fallback
        actual = output_and_gradients(NativeBackend(None, build), tuple(tensors), d_output, options)
        for one, other in zip(actual, expected, strict=True):
            # gradients of keys are sums over hundreds of queries
            torch.testing.assert_close(one.detach(), other.detach().float(), rtol=1e-4, atol=3e-5)


def test_core_is_built() -> None:
    assert builds()


@pytest.mark.parametrize("n_q", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_every_pair_of_lengths_agrees_with_the_definition(name: str, n_q: int) -> None:
    for index, n_k in enumerate(LENGTHS):
        head_dim = HEAD_DIMS[(index + LENGTHS.index(n_q) + list(CASES).index(name)) % 4]
        every_build_agrees_with_the_definition(name, n_q, n_k, head_dim, layout=index % 3)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", CASES)
def test_every_head_dim_agrees_with_the_definition(name: str, head_dim: int) -> None:
    for layout in range(3):
        every_build_agrees_with_the_definition(name, 25, 193, head_dim, layout)


BEYOND = """
import dataclasses, torch
from regard.backends.native.backend import NativeBackend, builds
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call

call = parse_call(AttentionCall(torch.ones(1, 1, 5, 8), torch.ones(1, 1, 24, 8), torch.ones(1, 1, 24, 8)))
spec = dataclasses.replace(call.spec, n_k=25)
backend = NativeBackend(None, builds()[{number}])
backend.forward(spec, call.prepare_inputs(), backend.tiling(spec))
print("not detected")
"""


@pytest.mark.skipif("libasan" not in Path("/proc/self/maps").read_text(), reason="this core has no sanitizers")
@pytest.mark.parametrize("number", range(len(builds())))
def test_read_beyond_the_last_key_is_reported(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEYOND.format(number=number)], capture_output=True, text=True, check=False
    )

    assert done.returncode != 0 and "not detected" not in done.stdout
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
