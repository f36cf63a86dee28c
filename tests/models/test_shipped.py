"""The model that comes with the package: what it can do, as said in docs/training/dates.md."""

import torch

from regard import nn
from regard.models.shipped import WEIGHTS, translator
from regard.models.tasks import dates


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 12_000_000


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
