"""Models over ranks: they train, write and combine with other ways to use ranks as one process does."""

import pytest
import torch
from torch import nn

from regard import distributed
from regard.errors import RankError, SpecError
from regard.models.train import Training
from regard.nn import beam, generate
from tests.distributed.test_scenes import played
from tests.distributed.tiny import POSITIONS, VOCABULARY, Tiny, model, prompt


def test_a_model_trained_by_two_ranks_has_the_losses_of_one_process():
    alone = Training(Tiny())
    while not alone.is_over:
        alone.advance()
    sums = [float(p.detach().abs().sum()) for p in alone.model.parameters()]
    every = played("training", 2)
    assert every[0]["losses"] == every[1]["losses"]  # to the bit: every rank has the same parameters
    assert every[0]["sums"] == every[1]["sums"]
    assert len(alone.curve) == 50 and alone.curve[-1].loss < 0.8 * alone.curve[0].loss
    # other orders of sums differ by 1e-16 a step; steps amplify that, far less than to a nanonat
    assert max(abs(a - r.loss) for a, r in zip(every[0]["losses"], alone.curve, strict=True)) < 1e-9
    assert every[0]["right"] == alone.curve[-1].accuracy
    torch.testing.assert_close(torch.tensor(every[0]["sums"]), torch.tensor(sums), rtol=1e-7, atol=0)


@pytest.mark.parametrize("kind", POSITIONS)
def test_ranks_write_what_one_process_writes(kind):
    whole = model(kind).eval()
    for found in played("writing", 3):
        for n in (11, 2):
            assert found[f"{kind} {n}"] == generate(whole, prompt(n), most=8).tolist()
        assert found[f"{kind} beam"] == beam(whole, prompt(6), most=4, width=3).tokens.tolist()


def test_stacks_of_blocks_over_ranks_give_what_one_process_gives():
    for found in played("stacks", 2):
        assert len(found) == 6
        # two layers in float64, some hundred operations a number
        assert {name: apart for name, apart in found.items() if not apart < 1e-12} == {}


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_parts_of_texts_combine_with_other_texts_on_other_ranks(kind):
    whole = model()
    tokens = torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(5))
    loss = nn.functional.cross_entropy(whole(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    for found in played("mesh", 4):
        for name, parameter in whole.named_parameters():
            weights = torch.linspace(1, 2, parameter.numel(), dtype=torch.float64)
            expected = float((parameter.grad.flatten() * weights).sum())
            assert found[kind][name] == pytest.approx(expected, rel=1e-9, abs=1e-12), name


def test_without_a_group_ranks_say_how_to_make_one():
    with pytest.raises(RankError, match=r"a process group must be there.*Start the script with torchrun"):
        distributed.SequenceParallel(model())


def test_a_task_whose_texts_cannot_be_divided_is_refused():
    class Whole(Tiny):
        divides = False

    with pytest.raises(SpecError, match=r"texts of 'tiny' cannot be divided among processes"):
        Training(Whole(), spread=lambda m: m)
