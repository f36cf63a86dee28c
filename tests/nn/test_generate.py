"""Writing on: choices, streams, beams."""

from itertools import product

import pytest
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.models.language import LanguageModel
from regard.nn import Design, KeyValueCache, Rotary, Sample, beam, generate, greedy, stream

VOCABULARY = 11


def _model(vocabulary: int = VOCABULARY) -> LanguageModel:
    torch.manual_seed(0)
    design = Design(32, heads=4)
    model = LanguageModel(vocabulary, layers=2, design=design, position=Rotary(8), tied=False).eval()
    assert model.head is not None
    with torch.no_grad():  # opinions, so that choices differ
        model.embedding.weight.mul_(50)
        model.head.weight.mul_(5)
    return model


def _log_probability(model: LanguageModel, prompt: Tensor, written: Tensor) -> Tensor:
    logits = model(torch.cat((prompt, written), dim=1)).detach().log_softmax(-1)
    about = logits[:, prompt.shape[1] - 1 : -1]
    return about.gather(-1, written.unsqueeze(-1)).squeeze(-1).sum(-1)


def test_greedy_takes_the_likeliest_token_each_time() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    found = generate(model, tokens, most=8)
    whole = tokens
    for _ in range(8):
        whole = torch.cat((whole, model(whole)[:, -1:].argmax(-1)), dim=1)
    assert found.tolist() == whole[:, 3:].tolist()


def test_a_stream_hands_out_tokens_as_they_come() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3]])
    coming = stream(model, tokens, most=5)
    first = next(coming)
    assert first.shape == (1,)
    assert [first.item(), *(t.item() for t in coming)] == generate(model, tokens, most=5)[0].tolist()


def test_prompts_of_several_lengths_go_on_as_each_alone() -> None:
    model, lengths = _model(), torch.tensor([5, 2])
    tokens = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 7, 8]])
    found = generate(model, tokens, most=6, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        alone = generate(model, tokens[b : b + 1, 5 - length :], most=6)
        assert found[b].tolist() == alone[0].tolist()


def test_a_cache_goes_on_where_it_was_left() -> None:
    model, tokens, cache = _model(), torch.tensor([[1, 2, 3]]), KeyValueCache()
    first = generate(model, tokens, most=4, cache=cache)
    then = generate(model, first[:, -1:], most=4, cache=cache)
    assert torch.cat((first, then), 1).tolist() == generate(model, tokens, most=8).tolist()


class Counting:
    """Writes the next number, whatever came before."""

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        return torch.nn.functional.one_hot((tokens[:, -1] + 1) % 10, 10).float()


def test_an_element_that_stops_says_stop_and_the_rest_goes_on() -> None:
    found = generate(Counting(), torch.tensor([[1], [4]]), most=12, stop=6)
    assert found.tolist() == [[2, 3, 4, 5, 6], [5, 6, 6, 6, 6]]
    assert generate(Counting(), torch.tensor([[1], [4]]), most=3).tolist() == [[2, 3, 4], [5, 6, 7]]


def test_drawn_tokens_follow_their_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    torch.testing.assert_close(Sample().probabilities(logits), logits.exp())
    torch.testing.assert_close(Sample(top_k=2).probabilities(logits), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    torch.testing.assert_close(Sample(top_p=0.7).probabilities(logits), torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    torch.testing.assert_close(Sample(top_p=0.5).probabilities(logits), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    squared = logits.exp() ** 2
    torch.testing.assert_close(Sample(temperature=0.5).probabilities(logits), squared / squared.sum())
    draw = Sample(seed=1)
    counts = torch.bincount(torch.cat([draw(logits) for _ in range(2000)]), minlength=4) / 2000
    # three standard deviations of a share of 0.5 in 2000 draws
    torch.testing.assert_close(counts, logits.exp()[0], rtol=0, atol=0.034)


def test_a_seed_draws_the_same_tokens_again() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3]])
    one, two, other = (generate(model, tokens, most=20, choose=Sample(seed=s)).tolist() for s in (1, 1, 2))
    assert one == two
    assert one != other


def test_a_beam_that_is_wide_enough_finds_the_likeliest_text() -> None:
    model, prompt, steps = _model(4), torch.tensor([[1, 2]]), 3
    every = torch.tensor(list(product(range(4), repeat=steps)))
    scores = _log_probability(model, prompt.expand(len(every), -1), every)
    best = scores.argsort(descending=True)[:16]
    found = beam(model, prompt, most=steps, width=16)
    assert found.tokens[0].tolist() == every[best].tolist()
    torch.testing.assert_close(found.scores[0], scores[best], rtol=1e-4, atol=1e-4)


def test_a_beam_of_one_is_greedy() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert beam(model, tokens, most=7, width=1).tokens[:, 0].tolist() == generate(model, tokens, most=7).tolist()


def test_scores_of_beams_are_the_probabilities_of_their_texts() -> None:
    model, tokens = _model(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    found = beam(model, tokens, most=6, width=4)
    for place in range(4):
        expected = _log_probability(model, tokens, found.tokens[:, place])
        torch.testing.assert_close(found.scores[:, place], expected, rtol=1e-4, atol=1e-4)
    assert bool((found.scores.diff(dim=1) <= 0).all())


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_beams_that_stop_are_compared_by_their_score(power: float) -> None:
    model, prompt, stop = _model(5), torch.tensor([[1, 2]]), 3
    texts = []
    for steps in (1, 2, 3):
        for text in product(range(5), repeat=steps):
            inner, last = text[:-1], text[-1]
            if stop not in inner and (last == stop or steps == 3):
                texts.append(list(text))
    scores = [float(_log_probability(model, prompt, torch.tensor([t]))) / len(t) ** power for t in texts]
    best = max(range(len(texts)), key=scores.__getitem__)
    found = beam(model, prompt, most=3, width=25, stop=stop, length_power=power)
    text = found.tokens[0, 0].tolist()
    assert text[: len(texts[best])] == texts[best]
    assert abs(float(found.scores[0, 0]) - scores[best]) < 1e-4


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": 0.0}, "temperature must be a number above 0; got 0.0. For 0 use greedy"),
        ({"temperature": torch.inf}, "temperature must be a finite number above 0; got inf"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1; got 0"),
        ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1; got 1.5"),
    ],
)
def test_choices_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Sample(**options)


def test_wrong_prompts_are_refused() -> None:
    model = _model()
    with pytest.raises(SpecError, match=r"at least one token each; got shape \(1, 0\)"):
        generate(model, torch.zeros(1, 0, dtype=torch.long), most=3)
    with pytest.raises(SpecError, match=r"a number from 1 to 2 for each of 1; got \[3\]"):
        generate(model, torch.ones(1, 2, dtype=torch.long), most=3, lengths=torch.tensor([3]))
    with pytest.raises(SpecError, match="width must be a whole number from 1 to 65536; got 0"):
        beam(model, torch.ones(1, 2, dtype=torch.long), most=3, width=0)
    with pytest.raises(SpecError, match=r"length_power must be a number from 0 to 10\.0; got -0\.5"):
        beam(model, torch.ones(1, 2, dtype=torch.long), most=3, width=2, length_power=-0.5)


def test_a_temperature_near_nothing_takes_the_likeliest() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -torch.inf]])
    for temperature in (1e-3, 1e-38, 1e-300):
        assert Sample(temperature=temperature).probabilities(logits).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_as_many_tokens_are_left_as_asked_for_also_of_equals() -> None:
    equal = torch.zeros(1, 6)
    assert int((Sample(top_k=2).probabilities(equal) > 0).sum()) == 2
    assert int((Sample(top_p=0.5).probabilities(equal) > 0).sum()) == 3
    rare = torch.linspace(0, -60, 50_000).unsqueeze(0)
    assert bool((Sample(top_p=1.0).probabilities(rare) > 0).all())


def test_a_search_for_nobody_finds_nothing() -> None:
    found = beam(_model(), torch.ones(0, 2, dtype=torch.long), most=3, width=2)
    assert found.tokens.shape == (0, 2, 3)


def test_greedy_takes_the_first_of_equals() -> None:
    assert greedy(torch.tensor([[1.0, 2.0, 2.0]])).tolist() == [1]
