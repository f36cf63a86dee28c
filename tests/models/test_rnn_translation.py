"""Recurrent translators compared with a loop over their formulas, and the bottleneck task."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.models.rnn_translation import ALIGNMENTS, RecurrentEncodedSource, RecurrentTranslator
from regard.models.tasks.bottleneck import (
    BATCH_SIZE,
    BEGIN,
    COPY,
    END,
    FIRST_LETTER_TOKEN,
    MAX_TRAIN_LETTERS,
    NUM_TEST_WORDS,
    PAD,
    REVERSE,
    TEST_LENGTHS,
    VOCAB_SIZE,
    BottleneckTask,
    TranslationBatch,
    TranslatorPair,
    exact_match,
    held_out_batch,
    is_held_out,
    make_batch,
    mean_alignment_weight,
    random_words,
)
from regard.models.training import Trainer, override_recipe
from regard.nn import KeyValueCache, beam_search, generate

SOURCE_VOCAB, TARGET_VOCAB, HIDDEN_SIZE = 11, 7, 6
SOURCE = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 1, 0, 0], [10, 0, 0, 0, 0]])
LENGTHS = torch.tensor([5, 3, 1])
TARGET = torch.tensor([[1, 2, 3, 4], [1, 5, 6, 0], [1, 1, 2, 2]])
every_attention = pytest.mark.parametrize("attention", ALIGNMENTS)
with_and_without = pytest.mark.parametrize("attention", [*ALIGNMENTS, None])


def translator(attention: str | None) -> RecurrentTranslator:
    """Return a translator in float64 with perturbed parameters, so that no bias is zero."""
    model = RecurrentTranslator((SOURCE_VOCAB, TARGET_VOCAB), hidden_size=HIDDEN_SIZE, attention=attention).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def gru_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor) -> Tensor:
    """Return the next hidden state of a GRU for one batch element, with gates r and z."""
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (w_x @ x + b_x).chunk(3), (w_h @ h + b_h).chunk(3)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + r * n_h) + z * h


def alignment_score(model: RecurrentTranslator, s: Tensor, m: Tensor) -> Tensor:
    alignment: Any = model.alignment
    if alignment.kind == "bahdanau":
        return alignment.u @ torch.tanh(alignment.w_q.T @ s + alignment.w_k.T @ m + alignment.bias)
    return s @ m if alignment.kind == "luong_dot" else s @ alignment.w @ m


def reference_translation(model: RecurrentTranslator, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Return the logits and the weights of one source and target, computed token by token."""
    encoder: Any = model.encoder
    forward_parameters = encoder.weight_ih_l0, encoder.weight_hh_l0, encoder.bias_ih_l0, encoder.bias_hh_l0
    backward_parameters = (
        encoder.weight_ih_l0_reverse,
        encoder.weight_hh_l0_reverse,
        encoder.bias_ih_l0_reverse,
        encoder.bias_hh_l0_reverse,
    )
    decoder = model.decoder
    decoder_parameters = decoder.weight_ih, decoder.weight_hh, decoder.bias_ih, decoder.bias_hh
    forward_states, backward_states = ([torch.zeros(HIDDEN_SIZE // 2, dtype=torch.float64)] for _ in range(2))
    for token in source:
        x = model.source_embedding.weight[token]
        forward_states.append(gru_step(x, forward_states[-1], *forward_parameters))
    for token in reversed(source):
        x = model.source_embedding.weight[token]
        backward_states.append(gru_step(x, backward_states[-1], *backward_parameters))
    memory = [torch.cat(states) for states in zip(forward_states[1:], reversed(backward_states[1:]), strict=True)]
    state = context = torch.cat((forward_states[-1], backward_states[-1]))
    logits, weights = [], []
    for token in target:
        x = torch.cat((model.target_embedding.weight[token], context))
        state = gru_step(x, state, *decoder_parameters)
        if model.alignment is not None:
            weights.append(torch.stack([alignment_score(model, state, m) for m in memory]).softmax(0))
            context = weights[-1] @ torch.stack(memory)
        logits.append(model.output_proj.weight @ torch.cat((state, context)) + model.output_proj.bias)
    return torch.stack(logits), torch.stack(weights) if weights else torch.empty(0)


@with_and_without
def test_logits_and_weights_match_the_formulas(attention: str | None) -> None:
    model = translator(attention)
    encoded = model.encode_source(SOURCE, LENGTHS)
    logits = model(SOURCE, TARGET, lengths=LENGTHS)
    assert logits.shape == (3, 4, TARGET_VOCAB)
    for b, n in enumerate(LENGTHS.tolist()):
        expected, weights = reference_translation(model, SOURCE[b, :n].tolist(), TARGET[b].tolist())
        torch.testing.assert_close(logits[b], expected)
        if attention is not None:
            torch.testing.assert_close(encoded.attention_weights(TARGET)[b, :, :n], weights)


@with_and_without
def test_padding_of_the_source_has_no_effect(attention: str | None) -> None:
    model = translator(attention)
    other_padding = torch.where(torch.arange(5) < LENGTHS[:, None], SOURCE, (SOURCE + 5) % SOURCE_VOCAB)
    longer = torch.cat((SOURCE, torch.full((3, 4), 9)), 1)
    assert not torch.equal(SOURCE, other_padding)
    expected = model(SOURCE, TARGET, lengths=LENGTHS)
    assert torch.equal(model(other_padding, TARGET, lengths=LENGTHS), expected)
    # sums of another size may be in a different order
    torch.testing.assert_close(model(longer, TARGET, lengths=LENGTHS), expected)
    if attention is not None:
        weights = model.encode_source(longer, LENGTHS).attention_weights(TARGET)
        assert (weights[torch.arange(9).expand_as(weights) >= LENGTHS[:, None, None]] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4).double())


def _with_random_memory(encoded: RecurrentEncodedSource) -> RecurrentEncodedSource:
    """Replace the encoder states, but not the final state."""
    return replace(encoded, memory=torch.randn_like(encoded.memory))


def test_without_attention_logits_depend_only_on_the_final_state() -> None:
    model = translator(None)
    encoded = model.encode_source(SOURCE, LENGTHS)
    assert torch.equal(_with_random_memory(encoded).logits(TARGET), encoded.logits(TARGET))
    without_memory = replace(encoded, memory=encoded.memory[:, :0], lengths=None)
    assert (
        generate(without_memory, TARGET[:, :1], max_new_tokens=6).tolist()
        == generate(encoded, TARGET[:, :1], max_new_tokens=6).tolist()
    )
    assert not torch.allclose(replace(encoded, final_state=-encoded.final_state).logits(TARGET), encoded.logits(TARGET))


@every_attention
def test_with_attention_logits_depend_on_every_unpadded_state(attention: str) -> None:
    model = translator(attention)
    encoded = model.encode_source(SOURCE, LENGTHS)
    assert not torch.allclose(_with_random_memory(encoded).logits(TARGET), encoded.logits(TARGET))
    memory = encoded.memory.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(replace(encoded, memory=memory).logits(TARGET).square().sum(), memory)
    assert torch.equal((gradient != 0).any(-1), torch.arange(5) < LENGTHS[:, None])


@with_and_without
def test_gradients_reach_every_parameter(attention: str | None) -> None:
    model = translator(attention)
    model(SOURCE, TARGET, lengths=LENGTHS).square().sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == set()


@with_and_without
def test_greedy_generation_matches_the_forward_pass(attention: str | None) -> None:
    model = translator(attention)
    encoded = model.encode_source(SOURCE, LENGTHS)
    sequence = TARGET[:, :2]
    for _ in range(6):
        sequence = torch.cat((sequence, encoded.logits(sequence)[:, -1:].argmax(-1)), 1)
    assert generate(encoded, TARGET[:, :2], max_new_tokens=6).tolist() == sequence[:, 2:].tolist()
    assert (
        generate(encoded, TARGET[:, :2], max_new_tokens=6, cache=KeyValueCache(sliding_window=2)).tolist()
        == sequence[:, 2:].tolist()
    )


@with_and_without
def test_beam_scores_are_log_probabilities(attention: str | None) -> None:
    encoded = translator(attention).encode_source(SOURCE, LENGTHS)
    with torch.no_grad():
        result = beam_search(encoded, TARGET[:, :1], max_new_tokens=4, num_beams=3)
        for beam in range(3):
            tokens = torch.cat((TARGET[:, :1], result.tokens[:, beam]), 1)
            log_probs = encoded.logits(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])
            # beam scores are float32
            torch.testing.assert_close(result.scores[:, beam].double(), log_probs.sum((1, 2)), rtol=1e-5, atol=1e-5)
    assert len({tuple(tokens) for tokens in result.tokens[0].tolist()}) == 3


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ArgumentError, match="one of bahdanau, luong_dot, luong_general, or None; got 'luong'"):
        RecurrentTranslator((SOURCE_VOCAB, TARGET_VOCAB), hidden_size=HIDDEN_SIZE, attention="luong")
    with pytest.raises(
        ArgumentError, match="hidden_size must be even, since each encoder direction has half of it; got 7"
    ):
        RecurrentTranslator((SOURCE_VOCAB, TARGET_VOCAB), hidden_size=7)
    model = translator("bahdanau")
    for lengths in ([5, 3, 0], [6, 3, 1], [5, 3]):
        with pytest.raises(ArgumentError, match=rf"from 1 to 5 for each of 3 sources; got \[{lengths[0]}, 3"):
            model.encode_source(SOURCE, torch.tensor(lengths))
    with pytest.raises(ArgumentError, match="needs a translator with attention; got attention=None"):
        translator(None).encode_source(SOURCE).attention_weights(TARGET)
    with pytest.raises(ArgumentError, match="got a cache with left_padding=None and sliding_window=1"):
        generate(model.encode_source(SOURCE), TARGET[:, :1], max_new_tokens=2, cache=KeyValueCache(sliding_window=1))
    with pytest.raises(
        ArgumentError, match=r"got a cache with left_padding=tensor\(\[0, 2, 3\]\) and sliding_window=None"
    ):
        generate(model.encode_source(SOURCE), TARGET, max_new_tokens=2, prompt_lengths=torch.tensor([4, 2, 1]))


def test_words_are_copied_and_reversed() -> None:
    generator = torch.Generator().manual_seed(0)
    words = random_words(200, 1, MAX_TRAIN_LETTERS, generator, held_out=False)
    operations = torch.randint(COPY, REVERSE + 1, (200,), generator=generator)
    batch = make_batch(words, operations)
    assert words.shape == (200, MAX_TRAIN_LETTERS)
    for b, word in enumerate(words.tolist()):
        letters = word[: word.index(PAD)] if PAD in word else word
        assert all(FIRST_LETTER_TOKEN <= token < VOCAB_SIZE for token in letters)
        assert batch.source[b, : batch.lengths[b]].tolist() == [int(operations[b]), *letters]
        output = letters[::-1] if operations[b] == REVERSE else letters
        assert batch.target[b].tolist() == [BEGIN, *output, END, *[PAD] * (MAX_TRAIN_LETTERS - len(letters))]
    assert set(batch.lengths.tolist()) == set(range(2, MAX_TRAIN_LETTERS + 2))
    assert set(operations.tolist()) == {COPY, REVERSE}


def test_training_words_and_test_words_are_disjoint() -> None:
    task = BottleneckTask()
    assert not is_held_out(
        random_words(2000, 1, MAX_TRAIN_LETTERS, torch.Generator().manual_seed(0), held_out=False)
    ).any()
    for length in TEST_LENGTHS:
        batch = held_out_batch(length)
        assert batch.source.shape == (NUM_TEST_WORDS, length + 1) and (batch.lengths == length + 1).all()
        assert is_held_out(batch.source[:, 1:]).all()
        assert (batch.source[:, 0] == REVERSE).sum() == NUM_TEST_WORDS // 2
    # training batches have the right size and no held-out words
    model = task.untrained_model()
    assert isinstance(model, TranslatorPair)
    sources: list[Tensor] = []
    model.bottleneck.register_forward_hook(lambda module, inputs, output: sources.append(inputs[0]))
    task.training_step(model, 0, torch.Generator().manual_seed(0), task.recipe)
    assert sources[0].shape == (BATCH_SIZE, MAX_TRAIN_LETTERS + 1) and not is_held_out(sources[0][:, 1:]).any()


def test_both_translators_train_on_the_same_batch_and_have_similar_sizes() -> None:
    task = BottleneckTask()
    model = task.untrained_model()
    assert isinstance(model, TranslatorPair)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (model.attention, model.bottleneck)]
    assert sizes[0] < sizes[1] < 1.03 * sizes[0]
    first, second, other = (
        task.training_step(model, 0, torch.Generator().manual_seed(seed), task.recipe) for seed in (3, 3, 4)
    )
    assert first.loss.item() == second.loss.item() != other.loss.item()
    first.loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    # both translators predict every letter and every END
    words = random_words(BATCH_SIZE, 1, MAX_TRAIN_LETTERS, torch.Generator().manual_seed(3), held_out=False)
    assert first.num_targets == 2 * int((words != PAD).sum() + len(words))


def test_exact_match_requires_every_letter_and_the_end() -> None:
    model = RecurrentTranslator((VOCAB_SIZE, VOCAB_SIZE), hidden_size=8)
    batch = held_out_batch(5)
    output = generate(model.encode_source(batch.source, batch.lengths), batch.target[:, :1], max_new_tokens=6)
    target = torch.cat((batch.target[:, :1], output), 1)
    assert exact_match(model, TranslationBatch(batch.source, batch.lengths, target)) == 1.0
    target[7, 6] = (target[7, 6] + 1) % VOCAB_SIZE
    target[9, 1] = (target[9, 1] + 1) % VOCAB_SIZE
    assert exact_match(model, TranslationBatch(batch.source, batch.lengths, target)) == pytest.approx(
        1 - 2 / NUM_TEST_WORDS
    )


@pytest.mark.parametrize("operation", [COPY, REVERSE])
def test_alignment_weight_follows_its_definition(operation: int) -> None:
    model = RecurrentTranslator((VOCAB_SIZE, VOCAB_SIZE), hidden_size=8)
    batch = held_out_batch(5, operation)
    with torch.no_grad():
        weights = model.encode_source(batch.source, batch.lengths).attention_weights(batch.target[:, :-1])
        alignment_weight = mean_alignment_weight(model, batch)
    total = 0.0
    for b in range(NUM_TEST_WORDS):
        for step in range(5):
            position = 1 + step if operation == COPY else 5 - step
            assert batch.source[b, position] == batch.target[b, step + 1]
            total += float(weights[b, step, position])
    # float32 sums in a different order
    assert alignment_weight == pytest.approx(total / (5 * NUM_TEST_WORDS), rel=1e-5)


@pytest.mark.long
def test_a_short_training_lowers_the_loss() -> None:
    trainer = Trainer(BottleneckTask(), override_recipe(BottleneckTask.recipe, {"steps": 25}))
    losses = [trainer.advance().loss for _ in range(25)]
    # each translator starts at ln 31, which is 3.43
    assert 6.5 < losses[0] < 7.5
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


@pytest.mark.long
def test_attention_translates_words_that_exceed_a_fixed_size_state() -> None:
    trainer = Trainer(BottleneckTask())
    while not trainer.is_done:
        trainer.advance()
    results = trainer.test()
    assert results["attention_20"] > 0.95
    assert results["bottleneck_20"] < 0.5
    assert results["alignment"] > 0.6  # the rest of the weight is on adjacent letters
