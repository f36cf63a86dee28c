"""Generation: greedy decoding, sampling, streams and beam search."""

from itertools import product

import pytest
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.models.language import LanguageModel
from regard.nn import (
    BlockConfig,
    KeyValueCache,
    RotaryEmbedding,
    Sampler,
    beam_search,
    generate,
    generate_stream,
    greedy,
)

VOCAB_SIZE = 11


def _model(vocab_size: int = VOCAB_SIZE) -> LanguageModel:
    torch.manual_seed(0)
    config = BlockConfig(32, num_heads=4)
    model = LanguageModel(
        vocab_size, num_layers=2, block_config=config, position_encoding=RotaryEmbedding(8), tie_word_embeddings=False
    ).eval()
    assert model.lm_head is not None
    with torch.no_grad():  # peaked distributions, so that tokens differ in probability
        model.embedding.weight.mul_(50)
        model.lm_head.weight.mul_(5)
    return model


def _log_probability(model: LanguageModel, prompt: Tensor, continuation: Tensor) -> Tensor:
    log_probs = model(torch.cat((prompt, continuation), dim=1)).detach().log_softmax(-1)
    log_probs = log_probs[:, prompt.shape[1] - 1 : -1]
    return log_probs.gather(-1, continuation.unsqueeze(-1)).squeeze(-1).sum(-1)


def test_greedy_generation_takes_the_argmax_of_every_step() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    output = generate(model, tokens, max_new_tokens=8)
    sequence = tokens
    for _ in range(8):
        sequence = torch.cat((sequence, model(sequence)[:, -1:].argmax(-1)), dim=1)
    assert output.tolist() == sequence[:, 3:].tolist()


def test_a_stream_yields_the_tokens_of_generate() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3]])
    stream = generate_stream(model, tokens, max_new_tokens=5)
    first = next(stream)
    assert first.shape == (1,)
    assert [first.item(), *(t.item() for t in stream)] == generate(model, tokens, max_new_tokens=5)[0].tolist()


def test_prompts_of_different_lengths_equal_single_prompts() -> None:
    model, lengths = _model(), torch.tensor([5, 2])
    tokens = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 7, 8]])
    output = generate(model, tokens, max_new_tokens=6, prompt_lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        expected = generate(model, tokens[b : b + 1, 5 - length :], max_new_tokens=6)
        assert output[b].tolist() == expected[0].tolist()


def test_generation_continues_from_a_cache() -> None:
    model, tokens, cache = _model(), torch.tensor([[1, 2, 3]]), KeyValueCache()
    first = generate(model, tokens, max_new_tokens=4, cache=cache)
    second = generate(model, first[:, -1:], max_new_tokens=4, cache=cache)
    assert torch.cat((first, second), 1).tolist() == generate(model, tokens, max_new_tokens=8).tolist()


class CountingModel:
    """A model that predicts the last token plus one, modulo 10."""

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        return torch.nn.functional.one_hot((tokens[:, -1] + 1) % 10, 10).float()


def test_an_ended_sequence_repeats_eos_while_others_continue() -> None:
    output = generate(CountingModel(), torch.tensor([[1], [4]]), max_new_tokens=12, eos_token_id=6)
    assert output.tolist() == [[2, 3, 4, 5, 6], [5, 6, 6, 6, 6]]
    assert generate(CountingModel(), torch.tensor([[1], [4]]), max_new_tokens=3).tolist() == [[2, 3, 4], [5, 6, 7]]


def test_samples_follow_the_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    torch.testing.assert_close(Sampler().probabilities(logits), logits.exp())
    torch.testing.assert_close(Sampler(top_k=2).probabilities(logits), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    torch.testing.assert_close(Sampler(top_p=0.7).probabilities(logits), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    torch.testing.assert_close(Sampler(top_p=0.5).probabilities(logits), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    squared = logits.exp() ** 2
    torch.testing.assert_close(Sampler(temperature=0.5).probabilities(logits), squared / squared.sum())
    sampler = Sampler(seed=1)
    frequencies = torch.bincount(torch.cat([sampler(logits) for _ in range(2000)]), minlength=4) / 2000
    # three standard deviations of a frequency of 0.5 in 2000 samples
    torch.testing.assert_close(frequencies, logits.exp()[0], rtol=0, atol=0.034)


def test_the_same_seed_samples_the_same_tokens() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3]])
    first, second, other_seed = (
        generate(model, tokens, max_new_tokens=20, sampler=Sampler(seed=seed)).tolist() for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other_seed


def test_a_wide_enough_beam_search_is_exhaustive() -> None:
    model, prompt, steps = _model(4), torch.tensor([[1, 2]]), 3
    continuations = torch.tensor(list(product(range(4), repeat=steps)))
    scores = _log_probability(model, prompt.expand(len(continuations), -1), continuations)
    best = scores.argsort(descending=True)[:16]
    result = beam_search(model, prompt, max_new_tokens=steps, num_beams=16)
    assert result.tokens[0].tolist() == continuations[best].tolist()
    torch.testing.assert_close(result.scores[0], scores[best], rtol=1e-4, atol=1e-4)


def test_beam_search_with_one_beam_is_greedy() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert (
        beam_search(model, tokens, max_new_tokens=7, num_beams=1).tokens[:, 0].tolist()
        == generate(model, tokens, max_new_tokens=7).tolist()
    )


def test_beam_scores_are_log_probabilities() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    result = beam_search(model, tokens, max_new_tokens=6, num_beams=4)
    for beam in range(4):
        expected = _log_probability(model, tokens, result.tokens[:, beam])
        torch.testing.assert_close(result.scores[:, beam], expected, rtol=1e-4, atol=1e-4)
    assert bool((result.scores.diff(dim=1) <= 0).all())


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_finished_beams_are_ranked_by_their_score(length_penalty: float) -> None:
    model, prompt, eos = _model(5), torch.tensor([[1, 2]]), 3
    sequences = [
        list(sequence)
        for steps in (1, 2, 3)
        for sequence in product(range(5), repeat=steps)
        if eos not in sequence[:-1] and (sequence[-1] == eos or steps == 3)
    ]
    scores = [
        float(_log_probability(model, prompt, torch.tensor([sequence]))) / len(sequence) ** length_penalty
        for sequence in sequences
    ]
    best = max(range(len(sequences)), key=scores.__getitem__)
    result = beam_search(model, prompt, max_new_tokens=3, num_beams=25, eos_token_id=eos, length_penalty=length_penalty)
    assert result.tokens[0, 0, : len(sequences[best])].tolist() == sequences[best]
    assert abs(float(result.scores[0, 0]) - scores[best]) < 1e-4


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": 0.0}, "temperature must be a number above 0; got 0.0. Use greedy instead"),
        ({"temperature": torch.inf}, "temperature must be a finite number above 0; got inf"),
        ({"top_k": 0}, "top_k must be an integer of at least 1; got 0"),
        ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1; got 1.5"),
    ],
)
def test_invalid_sampler_options_raise(options: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Sampler(**options)


def test_invalid_prompts_and_beam_options_raise() -> None:
    model = _model()
    with pytest.raises(ArgumentError, match=r"at least 1 token each; got shape \(1, 0\)"):
        generate(model, torch.zeros(1, 0, dtype=torch.long), max_new_tokens=3)
    with pytest.raises(ArgumentError, match=r"a number from 1 to 2 for each of 1 prompts; got \[3\]"):
        generate(model, torch.ones(1, 2, dtype=torch.long), max_new_tokens=3, prompt_lengths=torch.tensor([3]))
    with pytest.raises(ArgumentError, match="num_beams must be an integer from 1 to 65536; got 0"):
        beam_search(model, torch.ones(1, 2, dtype=torch.long), max_new_tokens=3, num_beams=0)
    with pytest.raises(ArgumentError, match=r"length_penalty must be a number from 0 to 10\.0; got -0\.5"):
        beam_search(model, torch.ones(1, 2, dtype=torch.long), max_new_tokens=3, num_beams=2, length_penalty=-0.5)


def test_prompt_lengths_with_a_filled_cache_raise() -> None:
    model, tokens, cache = _model(), torch.ones(1, 2, dtype=torch.long), KeyValueCache()
    generate(model, tokens, max_new_tokens=1, cache=cache)
    with pytest.raises(ArgumentError, match="prompt_lengths need an empty cache; got a cache that holds 2 tokens"):
        generate(model, tokens, max_new_tokens=1, prompt_lengths=torch.tensor([1]), cache=cache)


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -torch.inf]])
    for temperature in (1e-3, 1e-38, 1e-300):
        assert Sampler(temperature=temperature).probabilities(logits).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_top_k_and_top_p_keep_the_right_number_of_equal_logits() -> None:
    equal = torch.zeros(1, 6)
    assert int((Sampler(top_k=2).probabilities(equal) > 0).sum()) == 2
    assert int((Sampler(top_p=0.5).probabilities(equal) > 0).sum()) == 3
    rare = torch.linspace(0, -60, 50_000).unsqueeze(0)
    assert bool((Sampler(top_p=1.0).probabilities(rare) > 0).all())


def test_beam_search_of_an_empty_batch_is_empty() -> None:
    result = beam_search(_model(), torch.ones(0, 2, dtype=torch.long), max_new_tokens=3, num_beams=2)
    assert result.tokens.shape == (0, 2, 3)


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert greedy(torch.tensor([[1.0, 2.0, 2.0]])).tolist() == [1]
