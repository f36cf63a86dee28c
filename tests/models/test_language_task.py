"""The language task: texts, batches with repetitions, initialization and the induction score."""

from pathlib import Path

import pytest
import torch

from regard.errors import LoadError
from regard.models.tasks.language import (
    IGNORE_INDEX,
    CurriculumStage,
    LanguageTask,
    build_model,
    induction_scores,
    init_copying_heads,
    repeat_passages_,
    repeated_random_tokens,
    split_passages,
)
from regard.models.tokenizer import END_OF_TEXT, Tokenizer
from regard.models.training import Recipe, Trainer

WORDS = "whale sea ship captain mast harpoon wind night storm shore".split()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of random texts in the layout of `make data`."""
    generator = torch.Generator().manual_seed(0)
    for folder in ("sotu", "moby-dick"):
        (tmp_path / folder).mkdir()
        for number in range(30):
            indices = torch.randint(len(WORDS), (200,), generator=generator).tolist()
            (tmp_path / folder / f"{number:02}.txt").write_text(" ".join(WORDS[i] for i in indices))
    return tmp_path


def test_random_tokens_repeat_with_a_period() -> None:
    tokens, _ = repeated_random_tokens(1000, 200, torch.Generator().manual_seed(1))
    periods = [p for p in range(16, 101) if torch.equal(tokens[p:], tokens[:-p])]
    assert periods
    assert tokens.shape == (200,)
    assert int(tokens.min()) >= 1


def test_targets_of_the_first_period_are_ignored() -> None:
    for seed in range(20):
        tokens, targets = repeated_random_tokens(1000, 200, torch.Generator().manual_seed(seed))
        period = min(p for p in range(16, 101) if torch.equal(tokens[p:], tokens[:-p]))
        assert bool((targets[: period - 1] == IGNORE_INDEX).all())  # target i is token i + 1
        assert torch.equal(targets[period - 1 :], tokens[period:])


def test_passages_are_copied_to_later_positions() -> None:
    tokens = torch.arange(500)
    repeat_passages_(tokens, torch.Generator().manual_seed(2))
    changed = (tokens != torch.arange(500)).nonzero().flatten()
    assert len(changed) >= 16
    assert bool((tokens[changed] < changed).all())


def test_batches_depend_only_on_the_generator(data: Path) -> None:
    task, stage = LanguageTask(data), CurriculumStage(1, 8, 300, 0.25, 0.25)
    first, second, other = (task.batch(stage, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    "random_fraction, repeat_fraction", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], ids=["text", "random", "repeated"]
)
def test_targets_are_the_next_tokens(data: Path, random_fraction: float, repeat_fraction: float) -> None:
    task = LanguageTask(data)
    stage = CurriculumStage(1, 6, 100, random_fraction, repeat_fraction)
    tokens, targets = task.batch(stage, torch.Generator().manual_seed(3))
    assert tokens.shape == targets.shape == (6, 100)
    is_counted = targets[:, :-1] != IGNORE_INDEX
    assert torch.equal(targets[:, :-1][is_counted], tokens[:, 1:][is_counted])
    assert bool(is_counted.all()) == (random_fraction == 0.0)
    windows = task.train_stream.unfold(0, 100, 1)
    in_text = [bool((windows == row).all(1).any()) for row in tokens]
    assert all(in_text) if random_fraction + repeat_fraction == 0.0 else not any(in_text)


def test_layers_without_a_window_start_by_copying_half_of_their_input() -> None:
    torch.manual_seed(0)
    config = {"embed_dim": 32, "num_heads": 4, "norm": "rms", "bias": False}
    model = init_copying_heads(
        build_model(
            {
                "vocab_size": 50,
                "num_layers": 4,
                "block_config": config,
                "sliding_windows": [4, None, 16, None],
                "rope_base": 100.0,
            }
        )
    )
    x = torch.randn(2, 1, 32)  # a single token attends only to itself
    for layer, block in enumerate(model.decoder.blocks):
        assert torch.allclose(block.self_attn(x), x / 2, atol=1e-5) == (layer % 2 == 1), layer


def test_training_and_held_out_texts_are_disjoint(data: Path) -> None:
    train, test = LanguageTask(data).splits
    assert not set(train) & set(test)
    assert len(train) + len(test) == 60
    assert test


def test_a_text_file_is_split_into_passages(tmp_path: Path) -> None:
    words = (f"word{n % 997}" for n in range(150_000))
    text = " ".join(words)
    book = tmp_path / "book.txt"
    book.write_text(text)
    train, test = LanguageTask(book).splits
    assert len(test) >= 1
    assert 20_000 <= min(map(len, split_passages(text)[:-1])) <= max(map(len, split_passages(text))) < 20_200
    assert sorted(train + test) == sorted(split_passages(text))
    assert "".join(split_passages(text)) == text


def test_a_folder_is_read_with_its_subfolders(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", "a/d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    train, test = LanguageTask(tmp_path).splits
    assert {*train, *test} == {"text of a/c.txt", "text of b.txt"}
    assert len(test) == 1  # at least one text is held out


def test_a_text_without_spaces_is_split() -> None:
    text = "鯨" * 70_000
    assert [len(passage) for passage in split_passages(text)] == [20_100, 20_100, 20_100, 9_700]


def test_resuming_with_other_texts_raises(data: Path, tmp_path: Path) -> None:
    recipe, path = Recipe(steps=2, lr=1e-3), tmp_path / "checkpoint.safetensors"
    Trainer(LanguageTask(data), recipe).save(path)
    assert Trainer.resume(LanguageTask(data), path).step == 0
    (data / "sotu" / "00.txt").write_text("another text")
    with pytest.raises(
        LoadError, match=r"the data it was trained on; got other data\. Pass the same --data, --from-scratch"
    ):
        Trainer.resume(LanguageTask(data), path)


def test_too_short_texts_raise_before_any_step(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("too short")
    (tmp_path / "b.txt").write_text("to learn from")
    with pytest.raises(
        LoadError, match=r"at least 8192 tokens for training and 513 held out; got \d+ and \d+ in .*Use more"
    ):
        LanguageTask(tmp_path).untrained_model()


def test_empty_texts_raise(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(LoadError, match=r"texts must not be empty; got no words in"):
        _ = LanguageTask(tmp_path).splits


def test_unreadable_texts_raise(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(LoadError, match=r"texts must be UTF-8; got .*a\.txt, which is invalid at byte 3"):
        _ = LanguageTask(tmp_path).splits
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(LoadError, match=r"texts must be readable files; got .*a\.txt: Is a directory"):
        _ = LanguageTask(tmp_path).splits


def test_missing_data_raises_with_the_command_to_run(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"needs texts, \*\.txt in .*; got none\. Run make data, or pass a text file"):
        _ = LanguageTask(tmp_path).splits
    (tmp_path / "sotu").mkdir()
    (tmp_path / "sotu" / "a.txt").write_text("a speech")
    with pytest.raises(LoadError, match=r"\*\.txt in .*moby-dick; got none"):
        _ = LanguageTask(tmp_path).splits


def test_induction_scores_follow_their_definition() -> None:
    torch.manual_seed(0)
    config = {"embed_dim": 32, "num_heads": 4, "norm": "rms"}
    model = build_model(
        {
            "vocab_size": 50,
            "num_layers": 4,
            "block_config": config,
            "sliding_windows": [8, None, 16, None],
            "rope_base": 100.0,
        }
    )
    period, batch = 20, 2
    scores = induction_scores(model, batch_size=batch, period=period, seed=5)
    half = torch.randint(1, 50, (batch, period), generator=torch.Generator().manual_seed(5))
    layers = model.decoder.attention_with_weights(model.embedding(torch.cat((half, half), 1)))
    for layer, layer_scores in zip(layers, scores, strict=True):
        weights = layer.self_attention.weights[...].detach()
        total = torch.zeros(4)
        for i in range(period, 2 * period):
            total += weights[:, :, i, i - period + 1].sum(0)
        torch.testing.assert_close(layer_scores, total / (batch * period), rtol=1e-4, atol=1e-6)
    assert float(scores[0].max()) == 0.0  # the window of 8 is shorter than the period
    assert float(scores[1].min()) > 0.0


def test_a_tokenizer_decodes_every_text_it_encodes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the whale the whale the whale"] * 20, 300)
    for text in ("the whale", "naïve café — 数 \U0001f600\n\ttabs", "", END_OF_TEXT):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.token_texts(tokenizer.encode("the whale"))[-1] == " whale"
    assert tokenizer.encode(END_OF_TEXT) == [tokenizer.eos_token_id]
    tokenizer.save(tmp_path / "x.json")
    assert Tokenizer.from_file(tmp_path / "x.json").encode("the whale") == tokenizer.encode("the whale")
