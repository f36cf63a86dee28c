"""The two trained models of the package have the abilities that docs/training.md describes."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from regard import nn
from regard.files.tensors_with_metadata import load_tensors_and_metadata
from regard.models.bundled import WEIGHTS_DIR, date_translator, language_model
from regard.models.tasks import dates, language
from regard.models.tokenizer import END_OF_TEXT

NOTICE = (
    "We the people of a small valley met on the first evening of the year to speak about the bridge, the mill and the "
    "school. "
)


def test_the_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS_DIR.iterdir()) <= 12_000_000


def test_the_language_model_has_induction_heads() -> None:
    model, _ = language_model()
    best = max(float(layer.max()) for layer in language.induction_scores(model, seed=123))
    torch.manual_seed(0)
    _, config = load_tensors_and_metadata(WEIGHTS_DIR / "language.safetensors")
    untrained = language.build_model(config).eval()
    best_untrained = max(float(layer.max()) for layer in language.induction_scores(untrained, seed=123))
    assert best >= 0.5
    assert best >= 2 * best_untrained


def test_the_language_model_continues_a_repeated_text() -> None:
    model, tokenizer = language_model()
    ids = tokenizer.encode(NOTICE)
    prompt = torch.tensor([[tokenizer.eos_token_id, *ids, *ids, *ids[:8]]])
    output = nn.generate(model, prompt, max_new_tokens=12)[0].tolist()
    assert sum(a == b for a, b in zip(output, ids[8:20], strict=True)) >= 10


def test_the_loss_of_the_language_model_is_below_chance() -> None:
    model, tokenizer = language_model()
    ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer.encode(NOTICE)]])
    with torch.no_grad():
        loss = float(cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]))
    assert loss < 6.0  # ln 4096 is 8.3


@pytest.mark.long
def test_the_language_model_uses_a_context_of_16384_tokens() -> None:
    model, tokenizer = language_model()
    random_ids = torch.randint(1, 4096, (1, 300), generator=torch.Generator().manual_seed(1))
    filler = torch.tensor([tokenizer.encode(NOTICE)]).repeat(1, 600)[:, : 16384 - 600]
    ids = torch.cat((random_ids, filler, random_ids), 1)
    assert ids.shape == (1, 16384)
    with torch.no_grad():
        losses = cross_entropy(model(ids)[0, :-1], ids[0, 1:], reduction="none")
    first_loss, repeated_loss = losses[:299].mean(), losses[-290:].mean()
    assert bool(losses.isfinite().all())
    assert first_loss > 8.0  # ln 4096 is 8.3
    assert repeated_loss < 1.0  # the same tokens occurred 15,000 tokens before


def test_the_language_model_with_a_cache_equals_one_forward_pass() -> None:
    model, tokenizer = language_model()
    ids = torch.tensor([tokenizer.encode(NOTICE)])
    cache = nn.KeyValueCache()
    with torch.no_grad():
        logits = torch.cat([model(step, cache=cache) for step in ids.split([10, *[1] * (ids.shape[1] - 10)], 1)], 1)
        torch.testing.assert_close(logits, model(ids), rtol=1e-3, atol=1e-3)


def test_the_tokenizer_decodes_every_text_it_encodes() -> None:
    _, tokenizer = language_model()
    for text in (NOTICE, "naïve café — 数 \U0001f600\n\ttabs", "", END_OF_TEXT):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == 4096
    assert "".join(tokenizer.token_texts(tokenizer.encode(NOTICE))) == NOTICE


def test_the_translator_translates_held_out_dates() -> None:
    task = dates.DatesTask()
    days = task.splits[1]
    source, lengths, target = task.batch(days, 400, torch.Generator().manual_seed(77))
    output = nn.generate(date_translator().encode_source(source, lengths), target[:, :1], max_new_tokens=11)
    assert float((output == target[:, 1:]).all(-1).float().mean()) >= 0.95


def test_the_translator_attends_to_the_word_it_translates() -> None:
    model = date_translator()
    words = "the twenty first of march nineteen eighty four".split()
    source, _ = dates.encode([words], "source")
    target, _ = dates.encode([[dates.BEGIN, *"1984-03-21"]], "target")
    memory = model.transformer.encoder(model.source_embedding(source))
    layers = model.transformer.decoder.attention_with_weights(model.target_embedding(target), memory)
    weights = torch.stack([layer.cross_attention.weights[0] for layer in layers if layer.cross_attention is not None])
    best = weights.amax((0, 1))  # (target token, source word): the largest weight of a head
    # step i generates character i of 1984-03-21
    for step, word in ((0, "nineteen"), (2, "eighty"), (3, "four"), (6, "march"), (8, "twenty")):
        assert best[step, words.index(word)] >= 0.3, (step, word, best[step])
