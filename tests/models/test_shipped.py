"""The two models that come with the package: what they can do, as said in docs/training.md."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import nn
from regard.models.shipped import WEIGHTS, language_model, translator
from regard.models.store import read
from regard.models.tasks import dates, language
from regard.models.text import END

NOTICE = (
    "We the people of a small valley met on the first evening of the year to speak about the bridge, the mill and the "
    "school. "
)


def test_both_together_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 12_000_000


def test_the_language_model_looks_for_what_followed_the_last_time() -> None:
    model, _ = language_model()
    best = max(float(layer.max()) for layer in language.induction(model, seed=123))
    torch.manual_seed(0)
    _, words = read(WEIGHTS / "language.safetensors")
    untrained = language.made(words).eval()
    nothing = max(float(layer.max()) for layer in language.induction(untrained, seed=123))
    assert best >= 0.5
    assert best >= 2 * nothing


def test_it_says_again_what_it_was_told() -> None:
    model, tokens = language_model()
    said = tokens.encode(NOTICE)
    prompt = torch.tensor([[tokens.end, *said, *said, *said[:8]]])
    found = nn.generate(model, prompt, most=12)[0].tolist()
    assert sum(a == b for a, b in zip(found, said[8:20], strict=True)) >= 10


def test_it_is_better_than_guessing_by_frequency() -> None:
    model, tokens = language_model()
    ids = torch.tensor([[tokens.end, *tokens.encode(NOTICE)]])
    with torch.no_grad():
        loss = float(cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]))
    assert loss < 6.0  # a guess among 4096 costs 8.3


@pytest.mark.long
def test_it_accepts_16384_tokens_and_uses_them() -> None:
    model, tokens = language_model()
    words = torch.randint(1, 4096, (1, 300), generator=torch.Generator().manual_seed(1))
    filler = torch.tensor([tokens.encode(NOTICE)]).repeat(1, 600)[:, : 16384 - 600]
    ids = torch.cat((words, filler, words), 1)
    assert ids.shape == (1, 16384)
    with torch.no_grad():
        losses = cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
    first, again = losses[:299].mean(), losses[-290:].mean()
    assert bool(losses.isfinite().all())
    assert first > 8.0  # a guess among 4096 costs 8.3
    assert again < 1.0  # random words said 15,000 tokens before are not random any more


def test_its_logits_token_by_token_are_those_of_the_whole_text() -> None:
    model, tokens = language_model()
    ids = torch.tensor([tokens.encode(NOTICE)])
    cache = nn.KeyValueCache()
    with torch.no_grad():
        found = torch.cat([model(part, cache=cache) for part in ids.split([10, *[1] * (ids.shape[1] - 10)], 1)], 1)
        torch.testing.assert_close(found, model(ids), rtol=1e-3, atol=1e-3)


def test_its_vocabulary_gives_every_text_back() -> None:
    _, tokens = language_model()
    for text in (NOTICE, "naïve café — 数 \U0001f600\n\ttabs", "", END):
        assert tokens.decode(tokens.encode(text)) == text
    assert tokens.size == 4096
    assert "".join(tokens.texts(tokens.encode(NOTICE))) == NOTICE


def test_the_translator_knows_days_it_has_not_seen() -> None:
    task = dates.DatesTask()
    days = task.days[1]
    source, lengths, target = task.batch(days, 400, torch.Generator().manual_seed(77))
    found = nn.generate(translator().reading(source, lengths), target[:, :1], most=11)
    assert float((found == target[:, 1:]).all(-1).float().mean()) >= 0.95


def test_its_alignment_is_visible() -> None:
    model = translator()
    words = "the twenty first of march nineteen eighty four".split()
    source, _ = dates.encode([words], "source")
    target, _ = dates.encode([[dates.BEGIN, *"1984-03-21"]], "target")
    memory = model.transformer.encoder(model.source_embedding(source))
    looks = model.transformer.decoder.attend(model.target_embedding(target), memory)
    weights = torch.stack([look.memory.weights[0] for look in looks if look.memory is not None])
    best = weights.amax((0, 1))  # (target token, source word): the strongest head's weight
    # what is written next, after each target token so far: 1 9 8 4 - 0 3 - 2 1
    for step, word in ((0, "nineteen"), (2, "eighty"), (3, "four"), (6, "march"), (8, "twenty")):
        assert best[step, words.index(word)] >= 0.3, (step, word, best[step])
