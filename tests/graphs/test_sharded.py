"""FSDP: two processes that divide a model's parameters train it to what one process does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import free_port
from tests.graphs import sharded
from tests.graphs.cases import close


@pytest.mark.long
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.parametrize("kind", ["sharded", "wrapped", "compiled"])
def test_two_processes_train_a_model_to_the_same_parameters(kind, tmp_path: Path):
    path, port = tmp_path / "trained.pt", str(free_port())
    alone = sharded.model()
    before = [p.detach().clone() for p in alone.parameters()]

    command = [sys.executable, sharded.__file__]
    others = [subprocess.Popen([*command, str(rank), port, kind, str(path)]) for rank in range(sharded.PROCESSES)]
    try:
        codes = [process.wait(timeout=240) for process in others]
    finally:
        for process in others:
            process.kill()
    sharded.step(alone, sharded.batch())

    assert codes == [0] * sharded.PROCESSES
    found = torch.load(path)
    assert list(found) == [name for name, _ in alone.named_parameters()]
    close(list(found.values()), [p.detach() for p in alone.parameters()])
    for start, end in zip(before, found.values(), strict=True):
        assert not torch.equal(start, end)
