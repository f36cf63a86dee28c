"""Models over ranks: training, generation, and data parallelism on another mesh dimension match a single process."""

import pytest
import torch
from torch import nn

from regard import distributed
from regard.errors import ArgumentError, RankError
from regard.models.training import Trainer
from regard.nn import beam_search, generate
from tests.distributed.test_scenarios import run_scenario
from tests.distributed.tiny_model import POSITION_ENCODINGS, VOCAB_SIZE, TinyTask, prompt, tiny_model


@pytest.mark.long
def test_training_on_two_ranks_has_the_losses_of_a_single_process():
    trainer = Trainer(TinyTask())
    while not trainer.is_done:
        trainer.advance()
    sums = [float(p.detach().abs().sum()) for p in trainer.model.parameters()]
    first, second = run_scenario("training", 2)
    assert first["losses"] == second["losses"]  # to the bit: every rank has the same parameters
    assert first["sums"] == second["sums"]
    assert len(trainer.curve) == 50 and trainer.curve[-1].loss < 0.8 * trainer.curve[0].loss
    # other orders of sums differ by 1e-16 per step; fifty steps amplify that to much less than 1e-9
    assert max(abs(loss - r.loss) for loss, r in zip(first["losses"], trainer.curve, strict=True)) < 1e-9
    assert first["accuracy"] == trainer.curve[-1].accuracy
    torch.testing.assert_close(torch.tensor(first["sums"]), torch.tensor(sums), rtol=1e-7, atol=0)


@pytest.mark.parametrize("position_encoding", POSITION_ENCODINGS)
def test_ranks_generate_the_tokens_of_a_single_process(position_encoding):
    model = tiny_model(position_encoding).eval()
    beams = beam_search(model, prompt(6), max_new_tokens=4, num_beams=3)
    for result in run_scenario("generation", 3):
        for n in (11, 2):
            expected = generate(model, prompt(n), max_new_tokens=8)
            assert result[f"{position_encoding} {n}"] == expected.tolist()
        assert result[f"{position_encoding} beam"] == beams.tokens.tolist()


def test_stacks_of_blocks_over_ranks_match_a_single_process():
    for result in run_scenario("stacks", 2):
        assert len(result) == 6
        # two layers in float64, a few hundred operations per number
        assert {name: difference for name, difference in result.items() if not difference < 1e-12} == {}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_context_parallelism_combines_with_data_parallelism(kind):
    model = tiny_model()
    tokens = torch.randint(VOCAB_SIZE, (4, 12), generator=torch.Generator().manual_seed(5))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    for result in run_scenario("mesh", 4):
        for name, parameter in model.named_parameters():
            weights = torch.linspace(1, 2, parameter.numel(), dtype=torch.float64)
            expected = float((parameter.grad.flatten() * weights).sum())
            assert result[kind][name] == pytest.approx(expected, rel=1e-9, abs=1e-12), name


def test_error_without_a_process_group_names_torchrun():
    with pytest.raises(RankError, match=r"needs a process group; got none. Start the script with torchrun"):
        distributed.ContextParallel(tiny_model())


def test_task_without_context_parallel_support_is_rejected():
    class SingleProcessTask(TinyTask):
        supports_context_parallel = False

    with pytest.raises(ArgumentError, match=r"the task 'tiny' does not support context parallelism"):
        Trainer(SingleProcessTask(), parallel_wrapper=lambda model: model)
