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
from regard import mask, score, weigh
from tests.graphs.cases import LENGTH, WIDTH, close, normal

RUN = """
import sys, torch, regard
program = torch.export.load(sys.argv[1]).module()
torch.save(program(torch.load(sys.argv[2])), sys.argv[3])
"""


class Block(nn.Module):
    """Self-attention with a mask that is kept, and a rule, a sink and a mask that are made at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.1]))
        self.logit = nn.Parameter(torch.tensor([0.3, -0.2]))
        self.mask = mask.causal() & mask.window(4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.attend(q, k, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, engine: str | None = None) -> Tensor:
        seen = self.mask | mask.prefix(2)
        sink = weigh.sink(self.logit)
        return regard.attention(q, k, v, mask=seen, score=score.alibi(self.slopes), weigh=sink, engine=engine)


def expected(block: Block, x: Tensor) -> Tensor:
    q, k, v = block.project(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4).unbind(0)
    return block.attend(q, k, v, "reference")


def x_of(n: int = LENGTH) -> Tensor:
    return normal(2, n, WIDTH, seed=1)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_gives_the_same_numbers_and_gradients(strict):
    torch.manual_seed(2)
    block = Block()

    program = export(block, (x_of(),), strict=strict)

    assert any(node.target is torch.ops.regard.attention.default for node in program.graph.nodes)
    module: Any = program.module()
    output, wanted = module(x_of()), expected(block, x_of())
    close([output], [wanted])
    output.square().sum().backward()
    wanted.square().sum().backward()
    close(
        [p.grad for p in module.parameters()],
        [dict(block.named_parameters())[n].grad for n, _ in module.named_parameters()],
    )


@pytest.mark.parametrize("strict", [False, True])
def test_one_program_serves_every_length(strict):
    block = Block()

    program = export(block, (x_of(),), dynamic_shapes={"x": {1: Dim("n", min=2, max=64)}}, strict=strict).module()

    for n in (3, 9, 40):
        close([program(x_of(n))], [expected(block, x_of(n))])


def test_a_saved_program_runs_in_another_process(tmp_path: Path):
    block = Block()
    path, given, found = (tmp_path / name for name in ("block.pt2", "x.pt", "y.pt"))
    save(export(block, (x_of(),)), path)
    torch.save(x_of(), given)

    subprocess.run([sys.executable, "-c", RUN, *map(str, (path, given, found))], check=True, timeout=300)

    close([torch.load(found)], [expected(block, x_of())])
    close([load(path).module()(x_of())], [expected(block, x_of())])


class Functions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return regard.attention(x, x, x, mask=lambda b, h, i, j: i >= j)


def test_a_function_is_refused_with_what_to_do():
    with pytest.raises(regard.errors.SpecError, match=r"got a function or an array. Keep a function outside"):
        export(Functions(), (x_of(),), strict=False)
