"""torch.export: a program that runs here, is saved, and runs in another process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export, load, save

import regard
from regard import mask, normalizer, score
from tests.random_tensors import normal
from tests.torch_ops.cases import EMBED_DIM, LENGTH, close

RUN = """
import sys, torch, regard
program = torch.export.load(sys.argv[1]).module()
torch.save(program(torch.load(sys.argv[2])), sys.argv[3])
"""


class Block(nn.Module):
    """Self-attention with a stored mask, and a score, a sink and a mask that are made in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(EMBED_DIM, 3 * EMBED_DIM)
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.1]))
        self.logit = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.mask = mask.causal() & mask.sliding_window(4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, EMBED_DIM // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.attention(q, k, v)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, backend: str | None = None) -> Tensor:
        visible = self.mask | mask.prefix(2)
        sink = normalizer.sink(self.logit)
        return regard.attention(q, k, v, mask=visible, score=score.alibi(self.slopes), normalizer=sink, backend=backend)


def expected(block: Block, x: Tensor) -> Tensor:
    q, k, v = block.project(x).unflatten(-1, (3, 2, EMBED_DIM // 2)).permute(2, 0, 3, 1, 4).unbind(0)
    return block.attention(q, k, v, "reference")


def make_input(n: int = LENGTH) -> Tensor:
    return normal(2, n, EMBED_DIM, seed=1, dtype=torch.float32)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_has_the_same_outputs_and_gradients(strict):
    torch.manual_seed(2)
    block = Block()

    program = export(block, (make_input(),), strict=strict)

    assert any(node.target is torch.ops.regard.attention.default for node in program.graph.nodes)
    module: Any = program.module()
    output, reference = module(make_input()), expected(block, make_input())
    close([output], [reference])
    output.square().sum().backward()
    reference.square().sum().backward()
    close(
        [p.grad for p in module.parameters()],
        [dict(block.named_parameters())[n].grad for n, _ in module.named_parameters()],
    )


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_supports_every_length(strict):
    block = Block()

    program = export(block, (make_input(),), dynamic_shapes={"x": {1: Dim("n", min=2, max=64)}}, strict=strict).module()

    for n in (3, 9, 40):
        close([program(make_input(n))], [expected(block, make_input(n))])


def test_saved_program_runs_in_another_process(tmp_path: Path):
    block = Block()
    path, input_path, actual = (tmp_path / name for name in ("block.pt2", "x.pt", "y.pt"))
    save(export(block, (make_input(),)), path)
    torch.save(make_input(), input_path)

    subprocess.run([sys.executable, "-c", RUN, *map(str, (path, input_path, actual))], check=True, timeout=300)

    close([torch.load(actual)], [expected(block, make_input())])
    close([load(path).module()(make_input())], [expected(block, make_input())])


class Functions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return regard.attention(x, x, x, mask=lambda b, h, i, j: i >= j)


def test_exporting_a_function_raises_error_with_the_fix():
    with pytest.raises(regard.errors.ArgumentError, match=r"got a function or an array. Convert a function outside"):
        export(Functions(), (make_input(),), strict=False)
