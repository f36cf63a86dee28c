"""Copying and reversing random words with recurrent translators, with and without attention.

The task shows the cost of a fixed-size state. Two translators train on the same batches. One attends to all encoder
states. The other receives only the last encoder states, which must encode the entire word. The first source token is
the operation, COPY or REVERSE. Words whose tokens sum to a multiple of ten are held out for testing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.rnn_translation import RecurrentTranslator
from regard.models.training import BatchResult, Recipe, classification_result
from regard.nn.generation import generate

PAD, BEGIN, END, COPY, REVERSE = range(5)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
FIRST_LETTER_TOKEN = 5
VOCAB_SIZE = FIRST_LETTER_TOKEN + len(LETTERS)
MAX_TRAIN_LETTERS = 20
HOLDOUT_EVERY = 10
BATCH_SIZE = 64
TEST_LENGTHS = (5, 10, 15, 20, 30)  # the last is longer than any training word
NUM_TEST_WORDS = 500  # per length


class TranslatorPair(nn.Module):
    """Two translators: `attention`, and `bottleneck` without attention."""

    def __init__(self, *, attention: dict[str, Any], bottleneck: dict[str, Any]) -> None:
        super().__init__()
        self.attention = RecurrentTranslator((VOCAB_SIZE, VOCAB_SIZE), **attention)
        self.bottleneck = RecurrentTranslator((VOCAB_SIZE, VOCAB_SIZE), **bottleneck)


def build_model(config: dict[str, Any]) -> TranslatorPair:
    """Return an untrained model from a saved configuration."""
    return TranslatorPair(attention=config["attention"], bottleneck=config["bottleneck"])


@dataclass(frozen=True, eq=False)
class TranslationBatch:
    """A batch of sources (batch, n + 1) with their lengths (batch,), and targets (batch, n + 2).

    A source is the operation and the letters; a target is BEGIN, the letters and END. Both are padded with PAD.
    """

    source: Tensor
    lengths: Tensor
    target: Tensor


def random_words(count: int, min_len: int, max_len: int, generator: torch.Generator, *, held_out: bool) -> Tensor:
    """Return tokens (count, max_len) of random words, padded at the end; all are held-out words, or none is."""
    num_candidates = 2 * count * (HOLDOUT_EVERY if held_out else 1)  # about 2 · count of these pass the filter
    lengths = torch.randint(min_len, max_len + 1, (num_candidates, 1), generator=generator)
    tokens = torch.randint(FIRST_LETTER_TOKEN, VOCAB_SIZE, (num_candidates, max_len), generator=generator)
    tokens = tokens.masked_fill(torch.arange(max_len) >= lengths, PAD)
    return tokens[is_held_out(tokens) == held_out][:count]


def is_held_out(words: Tensor) -> Tensor:
    """Return whether each word (..., n) is held out for testing.

    >>> is_held_out(torch.tensor([[5, 6, 9], [5, 6, 0]]))
    tensor([ True, False])
    """
    return words.sum(-1) % HOLDOUT_EVERY == 0


def make_batch(words: Tensor, operation: Tensor) -> TranslationBatch:
    """Return sources and targets of words (batch, n); `operation` (batch,) holds COPY or REVERSE.

    >>> batch = make_batch(torch.tensor([[7, 8, 9, 0]]), torch.tensor([REVERSE]))
    >>> batch.source.tolist(), batch.lengths.tolist(), batch.target.tolist()
    ([[4, 7, 8, 9, 0]], [4], [[1, 9, 8, 7, 2, 0]])
    """
    n, lengths = words.shape[1], (words != PAD).sum(-1, keepdim=True)
    reversed_words = words.gather(1, (lengths - 1 - torch.arange(n)) % n).masked_fill(words == PAD, PAD)
    outputs = torch.where(operation.unsqueeze(-1) == REVERSE, reversed_words, words)
    begin, pad = torch.full((len(words), 1), BEGIN), torch.full((len(words), 1), PAD)
    target = torch.cat((begin, outputs, pad), 1).scatter(1, lengths + 1, END)
    return TranslationBatch(torch.cat((operation.unsqueeze(-1), words), 1), lengths.squeeze(-1) + 1, target)


class BottleneckTask:
    """Copying and reversing random words; needs no data."""

    name = "bottleneck"
    recipe = Recipe(steps=3000, lr=2e-3, warmup_steps=200, weight_decay=0.0)

    def __init__(self, data: Path | None = None) -> None:
        del data

    def model_config(self) -> dict[str, Any]:
        # the hidden sizes give the translator without attention at least as many parameters
        return {
            "attention": {"hidden_size": 96, "attention": "bahdanau"},
            "bottleneck": {"hidden_size": 104, "attention": None},
        }

    def untrained_model(self) -> nn.Module:
        return build_model(self.model_config())

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        assert isinstance(model, TranslatorPair)
        words = random_words(BATCH_SIZE, 1, MAX_TRAIN_LETTERS, generator, held_out=False)
        batch = make_batch(words, torch.randint(COPY, REVERSE + 1, (len(words),), generator=generator))
        first, second = (
            classification_result(
                translator(batch.source, batch.target[:, :-1], lengths=batch.lengths),
                batch.target[:, 1:],
                recipe.label_smoothing,
                PAD,
            )
            for translator in (model.attention, model.bottleneck)
        )
        return BatchResult(
            first.loss + second.loss, first.num_correct + second.num_correct, first.num_targets + second.num_targets
        )

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return the exact match of each translator on held-out words of each length, and the alignment weights.

        Half of the words are copied and half reversed. An alignment weight is the mean attention weight on the source
        letter of the next target letter.
        """
        assert isinstance(model, TranslatorPair)
        results: dict[str, float] = {}
        for name, translator in (("attention", model.attention), ("bottleneck", model.bottleneck)):
            for length in TEST_LENGTHS:
                results[f"{name}_{length}"] = exact_match(translator, held_out_batch(length))
        for name, operation in (("alignment", REVERSE), ("alignment_copy", COPY)):
            batches = [held_out_batch(length, operation) for length in TEST_LENGTHS if length <= MAX_TRAIN_LETTERS]
            results[name] = sum(mean_alignment_weight(model.attention, batch) for batch in batches) / len(batches)
        return results


def held_out_batch(length: int, operation: int | None = None) -> TranslationBatch:
    """Return a batch of `NUM_TEST_WORDS` held-out words of one length; operations alternate if `operation` is None."""
    words = random_words(NUM_TEST_WORDS, length, length, torch.Generator().manual_seed(length), held_out=True)
    operations = torch.tensor([COPY, REVERSE]).repeat(-(-len(words) // 2))[: len(words)]
    return make_batch(words, operations if operation is None else torch.full_like(operations, operation))


def exact_match(translator: RecurrentTranslator, batch: TranslationBatch) -> float:
    """Return the fraction of targets that greedy decoding reproduces exactly, including END."""
    target = batch.target[:, 1:]
    encoded = translator.encode_source(batch.source, batch.lengths)
    output = generate(encoded, batch.target[:, :1], max_new_tokens=target.shape[1], eos_token_id=END)
    output = nn.functional.pad(output, (0, target.shape[1] - output.shape[1]), value=END)
    return float(((output == target) | (target == PAD)).all(-1).float().mean())


def mean_alignment_weight(translator: RecurrentTranslator, batch: TranslationBatch) -> float:
    """Return the mean attention weight on the source letter of the next target letter, for words of one length."""
    weights = translator.encode_source(batch.source, batch.lengths).attention_weights(batch.target[:, :-1])
    n = batch.source.shape[1] - 1
    forward = 1 + torch.arange(n)  # the operation comes first
    positions = torch.where(batch.source[:, :1] == REVERSE, forward.flip(0), forward)
    return float(weights[:, :n].gather(2, positions.unsqueeze(-1)).mean())
