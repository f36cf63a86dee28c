"""Recurrent translators: what the decoder can know of a source, formulas written out, what a fixed length costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.models.rnn_translation import ALIGNMENTS, Reading, RecurrentTranslator
from regard.models.tasks.bottleneck import (
    BATCH,
    BEGIN,
    COPY,
    END,
    FIRST,
    LENGTHS,
    LONGEST,
    PAD,
    REVERSE,
    TESTED,
    VOCABULARY,
    Batch,
    BottleneckTask,
    Pair,
    alignment,
    asked,
    exact,
    held_out,
    is_held_out,
    words_of,
)
from regard.models.train import Training, changed
from regard.nn import KeyValueCache, beam, generate

SOURCES, TARGETS, WIDTH = 11, 7, 6
SOURCE = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 1, 0, 0], [10, 0, 0, 0, 0]])
REAL = torch.tensor([5, 3, 1])
TARGET = torch.tensor([[1, 2, 3, 4], [1, 5, 6, 0], [1, 1, 2, 2]])
every_attention = pytest.mark.parametrize("attention", ALIGNMENTS)
with_and_without = pytest.mark.parametrize("attention", [*ALIGNMENTS, None])


def translator(attention: str | None) -> RecurrentTranslator:
    """In double precision, and with biases that do something."""
    model = RecurrentTranslator((SOURCES, TARGETS), width=WIDTH, attention=attention).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def gru(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor) -> Tensor:
    """One step of one batch element: what is reset, what is kept, what is new."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (w_x @ x + b_x).chunk(3), (w_h @ h + b_h).chunk(3)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + r * n_h) + z * h


def score(model: RecurrentTranslator, s: Tensor, m: Tensor) -> Tensor:
    look: Any = model.alignment
    if look.kind == "bahdanau":
        return look.u @ torch.tanh(look.w_q.T @ s + look.w_k.T @ m + look.bias)
    return s @ m if look.kind == "luong_dot" else s @ look.w @ m


def written_out(model: RecurrentTranslator, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Logits and weights of one pair, token by token."""
    encoder: Any = model.encoder
    inner = encoder.weight_ih_l0, encoder.weight_hh_l0, encoder.bias_ih_l0, encoder.bias_hh_l0
    back = (encoder.weight_ih_l0_reverse, encoder.weight_hh_l0_reverse)
    back += (encoder.bias_ih_l0_reverse, encoder.bias_hh_l0_reverse)
    outer = model.decoder.weight_ih, model.decoder.weight_hh, model.decoder.bias_ih, model.decoder.bias_hh
    forwards, backwards = ([torch.zeros(WIDTH // 2, dtype=torch.float64)] for _ in range(2))
    for token in source:
        forwards.append(gru(model.source_embedding.weight[token], forwards[-1], *inner))
    for token in reversed(source):
        backwards.append(gru(model.source_embedding.weight[token], backwards[-1], *back))
    memory = [torch.cat(both) for both in zip(forwards[1:], reversed(backwards[1:]), strict=True)]
    state = context = torch.cat((forwards[-1], backwards[-1]))
    logits, weights = [], []
    for token in target:
        state = gru(torch.cat((model.target_embedding.weight[token], context)), state, *outer)
        if model.alignment is not None:
            weights.append(torch.stack([score(model, state, m) for m in memory]).softmax(0))
            context = weights[-1] @ torch.stack(memory)
        logits.append(model.head.weight @ torch.cat((state, context)) + model.head.bias)
    return torch.stack(logits), torch.stack(weights) if weights else torch.empty(0)


@with_and_without
def test_logits_and_weights_are_those_of_a_loop_written_out(attention: str | None) -> None:
    model = translator(attention)
    reading = model.reading(SOURCE, REAL)
    logits = model(SOURCE, TARGET, lengths=REAL)
    assert logits.shape == (3, 4, TARGETS)
    for b, n in enumerate(REAL.tolist()):
        expected, weights = written_out(model, SOURCE[b, :n].tolist(), TARGET[b].tolist())
        torch.testing.assert_close(logits[b], expected)
        if attention is not None:
            torch.testing.assert_close(reading.attend(TARGET)[b, :, :n], weights)


@with_and_without
def test_what_stands_behind_the_end_of_a_source_does_not_matter(attention: str | None) -> None:
    model = translator(attention)
    other = torch.where(torch.arange(5) < REAL[:, None], SOURCE, (SOURCE + 5) % SOURCES)
    longer = torch.cat((SOURCE, torch.full((3, 4), 9)), 1)
    assert not torch.equal(SOURCE, other)
    expected = model(SOURCE, TARGET, lengths=REAL)
    assert torch.equal(model(other, TARGET, lengths=REAL), expected)
    torch.testing.assert_close(model(longer, TARGET, lengths=REAL), expected)  # other sizes may add in another order
    if attention is not None:
        weights = model.reading(longer, REAL).attend(TARGET)
        assert (weights[torch.arange(9).expand_as(weights) >= REAL[:, None, None]] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4).double())


def _with_other_states(reading: Reading) -> Reading:
    """All states of the encoder are others, but for the last ones."""
    return replace(reading, memory=torch.randn_like(reading.memory))


def test_without_attention_the_source_is_known_by_the_last_states_alone() -> None:
    model = translator(None)
    reading = model.reading(SOURCE, REAL)
    other = _with_other_states(reading)
    assert torch.equal(other.logits(TARGET), reading.logits(TARGET))
    cut = replace(reading, memory=reading.memory[:, :0], lengths=None)
    assert generate(cut, TARGET[:, :1], most=6).tolist() == generate(reading, TARGET[:, :1], most=6).tolist()
    assert not torch.allclose(replace(reading, last=-reading.last).logits(TARGET), reading.logits(TARGET))


@every_attention
def test_with_attention_every_state_that_is_real_matters(attention: str) -> None:
    model = translator(attention)
    reading = model.reading(SOURCE, REAL)
    assert not torch.allclose(_with_other_states(reading).logits(TARGET), reading.logits(TARGET))
    memory = reading.memory.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(replace(reading, memory=memory).logits(TARGET).square().sum(), memory)
    assert torch.equal((gradient != 0).any(-1), torch.arange(5) < REAL[:, None])


@with_and_without
def test_gradients_reach_every_parameter(attention: str | None) -> None:
    model = translator(attention)
    model(SOURCE, TARGET, lengths=REAL).square().sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == set()


@with_and_without
def test_writing_on_is_the_likeliest_token_after_all_that_was_written(attention: str | None) -> None:
    model = translator(attention)
    reading = model.reading(SOURCE, REAL)
    written = TARGET[:, :2]
    for _ in range(6):
        written = torch.cat((written, reading.logits(written)[:, -1:].argmax(-1)), 1)
    assert generate(reading, TARGET[:, :2], most=6).tolist() == written[:, 2:].tolist()
    assert generate(reading, TARGET[:, :2], most=6, cache=KeyValueCache(window=2)).tolist() == written[:, 2:].tolist()


@with_and_without
def test_beams_carry_the_state_of_their_own_past(attention: str | None) -> None:
    reading = translator(attention).reading(SOURCE, REAL)
    with torch.no_grad():
        found = beam(reading, TARGET[:, :1], most=4, width=3)
        for place in range(3):
            tokens = torch.cat((TARGET[:, :1], found.tokens[:, place]), 1)
            logs = reading.logits(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])
            # beams are scored in single precision
            torch.testing.assert_close(found.scores[:, place].double(), logs.sum((1, 2)), rtol=1e-5, atol=1e-5)
    assert len({tuple(row) for row in found.tokens[0].tolist()}) == 3


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(SpecError, match="one of bahdanau, luong_dot, luong_general, or None; got 'luong'"):
        RecurrentTranslator((SOURCES, TARGETS), width=WIDTH, attention="luong")
    with pytest.raises(SpecError, match="width must be even, half for each direction of the encoder; got 7"):
        RecurrentTranslator((SOURCES, TARGETS), width=7)
    model = translator("bahdanau")
    for lengths in ([5, 3, 0], [6, 3, 1], [5, 3]):
        with pytest.raises(SpecError, match=rf"from 1 to 5 for each of 3 sources; got \[{lengths[0]}, 3"):
            model.reading(SOURCE, torch.tensor(lengths))
    with pytest.raises(SpecError, match="from a translator with attention; got one with attention=None"):
        translator(None).reading(SOURCE).attend(TARGET)
    with pytest.raises(SpecError, match="got a cache with padding=None and window=1"):
        generate(model.reading(SOURCE), TARGET[:, :1], most=2, cache=KeyValueCache(window=1))
    with pytest.raises(SpecError, match=r"got a cache with padding=tensor\(\[0, 2, 3\]\) and window=None"):
        generate(model.reading(SOURCE), TARGET, most=2, lengths=torch.tensor([4, 2, 1]))


def test_words_are_copied_and_reversed() -> None:
    draw = torch.Generator().manual_seed(0)
    words = words_of(200, 1, LONGEST, draw, held_out=False)
    wanted = torch.randint(COPY, REVERSE + 1, (200,), generator=draw)
    batch = asked(words, wanted)
    assert words.shape == (200, LONGEST)
    for b, word in enumerate(words.tolist()):
        letters = word[: word.index(PAD)] if PAD in word else word
        assert all(FIRST <= token < VOCABULARY for token in letters)
        assert batch.source[b, : batch.lengths[b]].tolist() == [int(wanted[b]), *letters]
        written = letters[::-1] if wanted[b] == REVERSE else letters
        assert batch.target[b].tolist() == [BEGIN, *written, END, *[PAD] * (LONGEST - len(letters))]
    assert set(batch.lengths.tolist()) == set(range(2, LONGEST + 2))
    assert set(wanted.tolist()) == {COPY, REVERSE}


def test_what_is_tested_was_never_trained_on() -> None:
    task = BottleneckTask()
    assert not is_held_out(words_of(2000, 1, LONGEST, torch.Generator().manual_seed(0), held_out=False)).any()
    for length in LENGTHS:
        batch = held_out(length)
        assert batch.source.shape == (TESTED, length + 1) and (batch.lengths == length + 1).all()
        assert is_held_out(batch.source[:, 1:]).all()
        assert (batch.source[:, 0] == REVERSE).sum() == TESTED // 2
    # the batches of a training are those words, and as many of them as there should be
    model = task.model()
    assert isinstance(model, Pair)
    seen: list[Tensor] = []
    model.bottleneck.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    task.outcome(model, 0, torch.Generator().manual_seed(0), task.recipe)
    assert seen[0].shape == (BATCH, LONGEST + 1) and not is_held_out(seen[0][:, 1:]).any()


def test_both_translators_learn_from_the_same_batch_and_are_about_as_large() -> None:
    task = BottleneckTask()
    model = task.model()
    assert isinstance(model, Pair)
    sizes = [sum(p.numel() for p in each.parameters()) for each in (model.attention, model.bottleneck)]
    assert sizes[0] < sizes[1] < 1.03 * sizes[0]
    one, again, other = (task.outcome(model, 0, torch.Generator().manual_seed(s), task.recipe) for s in (3, 3, 4))
    assert one.loss.item() == again.loss.item() != other.loss.item()
    one.loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    # each letter and each END is asked of both
    batch = words_of(BATCH, 1, LONGEST, torch.Generator().manual_seed(3), held_out=False)
    assert one.of == 2 * int((batch != PAD).sum() + len(batch))


def test_an_answer_is_exact_if_every_letter_and_the_end_are_right() -> None:
    model = RecurrentTranslator((VOCABULARY, VOCABULARY), width=8)
    batch = held_out(5)
    written = generate(model.reading(batch.source, batch.lengths), batch.target[:, :1], most=6)
    target = torch.cat((batch.target[:, :1], written), 1)
    assert exact(model, Batch(batch.source, batch.lengths, target)) == 1.0
    target[7, 6] = (target[7, 6] + 1) % VOCABULARY
    target[9, 1] = (target[9, 1] + 1) % VOCABULARY
    assert exact(model, Batch(batch.source, batch.lengths, target)) == pytest.approx(1 - 2 / TESTED)


@pytest.mark.parametrize("wanted", [COPY, REVERSE])
def test_alignment_is_the_weight_on_the_letter_to_be_written(wanted: int) -> None:
    model = RecurrentTranslator((VOCABULARY, VOCABULARY), width=8)
    batch = held_out(5, wanted)
    weights = model.reading(batch.source, batch.lengths).attend(batch.target[:, :-1])
    total = 0.0
    for b in range(TESTED):
        for step in range(5):
            place = 1 + step if wanted == COPY else 5 - step
            assert batch.source[b, place] == batch.target[b, step + 1]
            total += float(weights[b, step, place])
    # single precision, summed in another order
    assert alignment(model, batch) == pytest.approx(total / (5 * TESTED), rel=1e-5)


def test_a_short_training_lowers_the_loss() -> None:
    training = Training(BottleneckTask(), changed(BottleneckTask.recipe, {"steps": 25}))
    losses = [training.advance().loss for _ in range(25)]
    # both begin at the logarithm of 31 tokens, 3.43, each
    assert 6.5 < losses[0] < 7.5
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


@pytest.mark.long
def test_attention_carries_words_that_one_state_cannot() -> None:
    training = Training(BottleneckTask())
    while not training.is_over:
        training.advance()
    found = training.test()
    assert found["attention_20"] > 0.95
    assert found["bottleneck_20"] < 0.5
    assert found["alignment"] > 0.6  # of a letter's weight; the rest is on its neighbours
