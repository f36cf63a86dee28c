"""What the language model reads: rows of text, some of which say things twice."""

from pathlib import Path

import pytest
import torch

from regard.errors import LoadError
from regard.models.tasks.language import (
    UNASKED,
    LanguageTask,
    Stage,
    copying,
    induction,
    made,
    passages,
    repeated,
    say_again,
)
from regard.models.text import END, Tokens
from regard.models.train import Recipe, Training

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
    row, _ = repeated(1000, 200, torch.Generator().manual_seed(1))
    periods = [p for p in range(16, 101) if torch.equal(row[p:], row[:-p])]
    assert periods
    assert row.shape == (200,)
    assert int(row.min()) >= 1


def test_only_what_was_there_before_is_asked_for() -> None:
    for seed in range(20):
        row, targets = repeated(1000, 200, torch.Generator().manual_seed(seed))
        period = min(p for p in range(16, 101) if torch.equal(row[p:], row[:-p]))
        assert bool((targets[: period - 1] == UNASKED).all())  # target i is token i + 1
        assert torch.equal(targets[period - 1 :], row[period:])


def test_a_passage_comes_again_further_on() -> None:
    row = torch.arange(500)
    say_again(row, torch.Generator().manual_seed(2))
    moved = (row != torch.arange(500)).nonzero().flatten()
    assert len(moved) >= 16
    assert bool((row[moved] < moved).all())


def test_a_batch_is_decided_by_what_it_is_drawn_from(data: Path) -> None:
    task, stage = LanguageTask(data), Stage(1, 8, 300, 0.25, 0.25)
    one, two, other = (task.batch(stage, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize("random, again", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], ids=["text", "random", "again"])
def test_what_is_asked_for_is_the_token_that_comes_next(data: Path, random: float, again: float) -> None:
    task = LanguageTask(data)
    tokens, targets = task.batch(Stage(1, 6, 100, random, again), torch.Generator().manual_seed(3))
    assert tokens.shape == targets.shape == (6, 100)
    asked = targets[:, :-1] != UNASKED
    assert torch.equal(targets[:, :-1][asked], tokens[:, 1:][asked])
    assert bool(asked.all()) == (random == 0.0)
    text = task.train_stream.unfold(0, 100, 1)
    in_text = [bool((text == row).all(1).any()) for row in tokens]
    assert all(in_text) if random + again == 0.0 else not any(in_text)


def test_layers_that_see_everything_begin_by_handing_on_half_of_what_they_see() -> None:
    torch.manual_seed(0)
    design = {"width": 32, "heads": 4, "norm": "rms", "bias": False}
    model = copying(
        made({"vocabulary": 50, "layers": 4, "design": design, "windows": [4, None, 16, None], "base": 100.0})
    )
    x = torch.randn(2, 1, 32)  # one token, which can only look at itself
    for place, block in enumerate(model.decoder.blocks):
        seen = block.self_attn(x)
        assert torch.allclose(seen, x / 2, atol=1e-5) == (place % 2 == 1), place


def test_what_is_held_out_is_not_trained_on(data: Path) -> None:
    train, test = LanguageTask(data).texts
    assert not set(train) & set(test)
    assert len(train) + len(test) == 60
    assert test


def test_a_text_of_your_own_is_cut_into_passages_of_which_some_are_held_out(tmp_path: Path) -> None:
    words = (f"word{n % 997}" for n in range(150_000))
    text = " ".join(words)
    book = tmp_path / "book.txt"
    book.write_text(text)
    train, test = LanguageTask(book).texts
    assert len(test) >= 1
    assert 20_000 <= min(map(len, passages(text)[:-1])) <= max(map(len, passages(text))) < 20_200
    assert sorted(train + test) == sorted(passages(text))
    assert "".join(passages(text)) == text


def test_a_folder_of_your_own_is_read_with_all_below_it(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", "a/d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    train, test = LanguageTask(tmp_path).texts
    assert {*train, *test} == {"text of a/c.txt", "text of b.txt"}
    assert len(test) == 1  # of so few one is held out nevertheless


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    text = "鯨" * 70_000
    assert [len(each) for each in passages(text)] == [20_100, 20_100, 20_100, 9_700]


def test_a_training_does_not_go_on_with_other_texts(data: Path, tmp_path: Path) -> None:
    recipe, path = Recipe(steps=2, rate=1e-3), tmp_path / "checkpoint.safetensors"
    Training(LanguageTask(data), recipe).save(path)
    assert Training.resume(LanguageTask(data), path).step == 0
    (data / "sotu" / "00.txt").write_text("another text")
    with pytest.raises(LoadError, match=r"was begun on other data than this.*Give --data as before, --fresh"):
        Training.resume(LanguageTask(data), path)


def test_texts_that_are_too_short_are_refused_before_any_step(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("too short")
    (tmp_path / "b.txt").write_text("to learn from")
    with pytest.raises(
        LoadError, match=r"at least 8192 tokens to learn from and 513 .*; got \d+ and \d+ in .*Give more"
    ):
        LanguageTask(tmp_path).model()


def test_texts_without_words_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(LoadError, match=r"texts must have words in them; got none in"):
        _ = LanguageTask(tmp_path).texts


def test_a_text_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(LoadError, match=r"texts must be UTF-8; got .*a\.txt, which is not at byte 3"):
        _ = LanguageTask(tmp_path).texts
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(LoadError, match=r"texts must be files that can be read; got .*a\.txt: Is a directory"):
        _ = LanguageTask(tmp_path).texts


def test_missing_data_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"learns from texts, \*\.txt in .*; got none\. Run make data, or name a text"):
        _ = LanguageTask(tmp_path).texts
    (tmp_path / "sotu").mkdir()
    (tmp_path / "sotu" / "a.txt").write_text("a speech")
    with pytest.raises(LoadError, match=r"\*\.txt in .*moby-dick; got none"):
        _ = LanguageTask(tmp_path).texts


def test_the_measure_of_induction_is_its_definition() -> None:
    torch.manual_seed(0)
    design = {"width": 32, "heads": 4, "norm": "rms"}
    model = made({"vocabulary": 50, "layers": 4, "design": design, "windows": [8, None, 16, None], "base": 100.0})
    period, batch = 20, 2
    found = induction(model, batch=batch, period=period, seed=5)
    half = torch.randint(1, 50, (batch, period), generator=torch.Generator().manual_seed(5))
    looks = model.decoder.attend(model.embedding(torch.cat((half, half), 1)))
    for layer, expected in zip(looks, found, strict=True):
        weights = layer.own.weights[...].detach()
        total = torch.zeros(4)
        for i in range(period, 2 * period):
            total += weights[:, :, i, i - period + 1].sum(0)
        torch.testing.assert_close(total / (batch * period), expected, rtol=1e-4, atol=1e-6)
    assert float(found[0].max()) == 0.0  # a window of eight does not reach back a whole period
    assert float(found[1].min()) > 0.0


def test_a_vocabulary_gives_every_text_back(tmp_path: Path) -> None:
    learned = Tokens.learned(["the whale the whale the whale"] * 20, 300)
    for text in ("the whale", "naïve café — 数 \U0001f600\n\ttabs", "", END):
        assert learned.decode(learned.encode(text)) == text
    assert learned.texts(learned.encode("the whale"))[-1] == " whale"
    assert learned.encode(END) == [learned.end]
    learned.write(tmp_path / "x.json")
    assert Tokens.read(tmp_path / "x.json").encode("the whale") == learned.encode("the whale")
