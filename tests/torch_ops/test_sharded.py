"""FSDP: two processes with sharded parameters train a model to the same parameters as one process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import free_port
from tests.torch_ops import sharded
from tests.torch_ops.cases import close


@pytest.mark.long
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
@pytest.mark.parametrize("kind", ["sharded", "wrapped", "compiled"])
def test_two_sharded_processes_train_to_the_same_parameters(kind, tmp_path: Path):
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
    actual = torch.load(path)
    assert list(actual) == [name for name, _ in alone.named_parameters()]
    close(list(actual.values()), [p.detach() for p in alone.parameters()])
    for query_offset, end in zip(before, actual.values(), strict=True):
        assert not torch.equal(query_offset, end)
