"""What the language model reads: rows of text, some of which say things twice."""

from pathlib import Path

import pytest
import torch

from regard.errors import LoadError
from regard.models.tasks.language import LanguageTask, repeated, say_again

WORDS = "whale sea ship captain mast harpoon wind night storm shore".split()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Texts in the place of the real ones."""
    draw = torch.Generator().manual_seed(0)
    for folder in ("sotu", "moby-dick"):
        (tmp_path / folder).mkdir()
        for place in range(30):
            chosen = torch.randint(len(WORDS), (200,), generator=draw).tolist()
            (tmp_path / folder / f"{place:02}.txt").write_text(" ".join(WORDS[c] for c in chosen))
    return tmp_path


def test_random_tokens_come_again_after_their_period() -> None:
    row = repeated(1000, 200, torch.Generator().manual_seed(1))
    periods = [p for p in range(16, 101) if torch.equal(row[p:], row[:-p])]
    assert periods
    assert row.shape == (200,)
    assert int(row.min()) >= 1


def test_a_passage_comes_again_further_on() -> None:
    row = torch.arange(500)
    say_again(row, torch.Generator().manual_seed(2))
    moved = (row != torch.arange(500)).nonzero().flatten()
    assert len(moved) >= 16
    assert bool((row[moved] < moved).all())


def test_a_batch_is_decided_by_what_it_is_drawn_from(data: Path) -> None:
    task = LanguageTask(data)
    one, two, other = (task.batch(8, 300, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_what_is_held_out_is_not_trained_on(data: Path) -> None:
    train, test = LanguageTask(data).texts
    assert not set(train) & set(test)
    assert len(train) + len(test) == 60
    assert test


def test_missing_data_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"trained on .*sotu, texts as \*\.txt; got none\. Run make data"):
        _ = LanguageTask(tmp_path).texts
