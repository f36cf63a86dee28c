"""The compiled engine against the definition, at sizes that leave something over in every loop.

`make sanitize` runs this on a core that is built with sanitizers, and there only: on the usual core it says little more
than `test_native.py`.
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

from regard import mask, score, weigh
from regard.engine.gradient import Engine, run
from regard.engine.native import Native, builds
from regard.engine.reference import Reference
from regard.spec.read import read

LENGTHS = [0, 1, 7, 23, 24, 25, 191, 193]
WIDTHS = [8, 24, 40, 80, 256, 320]
BATCH, HEADS, KEY_HEADS = 2, 4, 2


def documents(n_q: int, n_k: int) -> mask.Mask:
    return mask.documents((torch.arange(n_q) + 3) // 11, torch.arange(n_k) // 11)


def coins(n_q: int, n_k: int) -> Tensor:
    return torch.rand(BATCH, 1, n_q, n_k) < 0.4


# For so many queries and keys, what is asked beyond them.
CASES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "plain": lambda n_q, n_k: {},
    "causal": lambda n_q, n_k: dict(mask=mask.causal()),
    "window": lambda n_q, n_k: dict(mask=mask.causal() & mask.window(9)),
    "documents": lambda n_q, n_k: dict(mask=documents(n_q, n_k)),
    "boolean tensor": lambda n_q, n_k: dict(mask=coins(n_q, n_k)),
    "ALiBi": lambda n_q, n_k: dict(score=score.alibi(), mask=mask.causal()),
    "softcap": lambda n_q, n_k: dict(score=score.softcap(2.0), mask=mask.window(40)),
    "dense bias": lambda n_q, n_k: dict(score=score.bias(torch.randn(HEADS, n_q, n_k))),
    "dropout": lambda n_q, n_k: dict(mask=mask.causal(), dropout=0.3, seed=2**40 + 5),
    "sparsemax": lambda n_q, n_k: dict(mask=mask.causal() & mask.window(40), weigh=weigh.sparsemax()),
    "entmax": lambda n_q, n_k: dict(score=score.alibi(), weigh=weigh.entmax(1.3), dropout=0.2, seed=3),
    "top": lambda n_q, n_k: dict(mask=coins(n_q, n_k), weigh=weigh.top(7)),
    "argmax": lambda n_q, n_k: dict(mask=mask.causal(), weigh=weigh.argmax()),
}


def plain(x: Tensor) -> Tensor:
    return x


def rows_before_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def with_gaps(x: Tensor) -> Tensor:
    """NaN between the rows, so that a look beyond one of them shows."""
    return torch.nn.functional.pad(x, (0, 3), value=torch.nan)[..., :-3]


LAYOUTS = (plain, rows_before_heads, with_gaps)


def answers(engine: Engine, tensors: tuple[Tensor, ...], d_output: Tensor, options: dict[str, Any]) -> Iterator[Tensor]:
    """Output, lse and the three gradients."""
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    question = read(q, k, v, **options)
    output, lse = run(engine, question.spec, engine.tiles(question.spec), question.inputs())
    assert lse is not None
    yield from (output, lse, *torch.autograd.grad(output, (q, k, v), d_output))


def every_build_agrees_with_the_definition(name: str, n_q: int, n_k: int, width: int, layout: int) -> None:
    value_width = width + 1 if layout else width
    sizes = ((HEADS, n_q, width), (KEY_HEADS, n_k, width), (KEY_HEADS, n_k, value_width), (HEADS, n_q, value_width))
    places = cycle(LAYOUTS[layout:] + LAYOUTS[:layout])
    *tensors, d_output = (next(places)(torch.randn(BATCH, *size)) for size in sizes)
    options = CASES[name](n_q, n_k)

    expected = list(answers(Reference(), tuple(tensors), d_output, options))

    for build in builds():  # without an engine that they could leave it to
        found = answers(Native(None, build), tuple(tensors), d_output, options)
        for one, other in zip(found, expected, strict=True):
            # gradients of keys are sums over hundreds of queries
            torch.testing.assert_close(one.detach(), other.detach().float(), rtol=1e-4, atol=3e-5)


def test_there_is_a_core() -> None:
    assert builds()


@pytest.mark.parametrize("n_q", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_every_pair_of_lengths(name: str, n_q: int) -> None:
    for place, n_k in enumerate(LENGTHS):
        width = WIDTHS[(place + LENGTHS.index(n_q) + list(CASES).index(name)) % 4]
        every_build_agrees_with_the_definition(name, n_q, n_k, width, layout=place % 3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_every_width(name: str, width: int) -> None:
    for layout in range(3):
        every_build_agrees_with_the_definition(name, 25, 193, width, layout)


BEYOND = """
import dataclasses, torch
from regard.engine.native import Native, builds
from regard.spec.read import read

question = read(torch.ones(1, 1, 5, 8), torch.ones(1, 1, 24, 8), torch.ones(1, 1, 24, 8))
spec = dataclasses.replace(question.spec, n_k=25)
engine = Native(None, builds()[{number}])
engine.forward(spec, question.inputs(), engine.tiles(spec))
print("nothing noticed")
"""


@pytest.mark.skipif("libasan" not in Path("/proc/self/maps").read_text(), reason="this core has no sanitizers")
@pytest.mark.parametrize("number", range(len(builds())))
def test_a_key_beyond_the_last_one_is_reported(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEYOND.format(number=number)], capture_output=True, text=True, check=False
    )

    assert done.returncode != 0 and "nothing noticed" not in done.stdout
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
