"""Captions of canvases: what they say, what they are drawn from, where the model looks, and that they are learned."""

from itertools import product
from pathlib import Path

import pytest
import torch

from regard.errors import LoadError
from regard.models.multimodal import Describer
from regard.models.tasks.captions import (
    BRIGHT,
    CELL,
    DARK,
    END,
    LONGEST,
    NAMES,
    PAD,
    PATCH,
    PLURALS,
    WAYS,
    WORDS,
    CaptionsTask,
    cell_of_patch,
    decode,
    described,
    drawn,
    encode,
    looking,
)
from regard.models.tasks.digits import Labelled
from regard.models.train import Training, changed

DATA = Path(__file__).parents[2] / "data"
ARRANGEMENTS = [found for found in product([None, *range(10)], repeat=4) if any(d is not None for d in found)]


def _flat() -> Labelled:
    """An image of each digit that is told by its brightness."""
    return Labelled(((torch.arange(10) + 1) / 10).view(10, 1, 1).expand(10, 28, 28), torch.arange(10))


def test_each_caption_describes_one_arrangement() -> None:
    said = [(way, *(word.text for word in described(d, way))) for d in ARRANGEMENTS for way in WAYS]
    assert len(said) == 2 * (11**4 - 1)
    assert len(set(said)) == len(said)
    assert {word for words in said for word in words} == set(WORDS) - {PAD, END}
    assert max(len(words) for words in said) + 1 == LONGEST


def test_a_caption_names_each_digit_once_and_by_its_cell() -> None:
    for digits in ARRANGEMENTS:
        for way in WAYS:
            named = [word for word in described(digits, way) if word.cells]
            cells = [cell for word in named for cell in word.cells]
            assert sorted(cells) == [cell for cell, digit in enumerate(digits) if digit is not None]
            for word in named:
                names = NAMES if len(word.cells) == 1 else PLURALS
                assert {names[digits[cell]] for cell in word.cells} == {word.text}


@pytest.mark.parametrize(
    "digits, way, caption",
    [
        ((7, 2, None, 3), "across", "at the top a seven left of a two , at the bottom a three on the right"),
        ((7, 2, None, 3), "down", "on the left a seven at the top , on the right a two above a three"),
        ((8, 8, 8, None), "across", "at the top a pair of eights , at the bottom an eight on the left"),
        ((None, None, None, 0), "down", "on the right a zero at the bottom"),
    ],
)
def test_captions_read_well(digits: tuple[int | None, ...], way: str, caption: str) -> None:
    assert " ".join(word.text for word in described(digits, way)) == caption


def test_captions_go_into_tokens_and_back() -> None:
    tokens = encode([["across", "a", "seven", END], ["down", END]])
    assert tokens.shape == (2, 4)
    assert decode(tokens[0, 1:].tolist()) == "a seven"
    assert tokens[1, 2:].tolist() == [WORDS.index(PAD)] * 2


def test_a_canvas_shows_what_its_caption_says() -> None:
    canvases = drawn(_flat(), 200, torch.Generator().manual_seed(0))
    assert canvases.images.shape == (200, 1, 2 * CELL, 2 * CELL)
    assert {sum(d is not None for d in digits) for digits in canvases.digits} == {1, 2, 3, 4}
    assert set(canvases.ways) == set(WAYS)
    corners = [(0, 0), (0, CELL), (CELL, 0), (CELL, CELL)]
    for image, digits in zip(canvases.images[:, 0], canvases.digits, strict=True):
        for digit, (top, left) in zip(digits, corners, strict=True):
            bright = (float(image[top + CELL // 2, left + CELL // 2]) - DARK) / (BRIGHT - DARK)
            assert bright == pytest.approx(0.0 if digit is None else (digit + 1) / 10, abs=1e-5)
    sentence = [canvases.ways[0], *(word.text for word in canvases.captions[0]), END]
    assert [WORDS[token] for token in canvases.tokens[0].tolist()][: len(sentence)] == sentence


def test_a_canvas_follows_from_its_draw_alone() -> None:
    one, again = (drawn(_flat(), 5, torch.Generator().manual_seed(2), turn=0.2, grow=0.1) for _ in range(2))
    assert torch.equal(one.images, again.images)
    assert (one.digits, one.ways) == (again.digits, again.ways)


def test_patches_belong_to_the_cell_they_lie_in() -> None:
    cell = cell_of_patch()
    assert cell.bincount().tolist() == [(CELL // PATCH) ** 2] * 4
    canvases = drawn(_flat(), 50, torch.Generator().manual_seed(1))
    light = torch.nn.functional.max_pool2d(canvases.images, PATCH).flatten(1)  # patches row by row
    for row, digits in zip(light, canvases.digits, strict=True):
        lit = {int(c) for c in cell[row > DARK]}
        assert lit == {c for c, digit in enumerate(digits) if digit is not None}


def _model() -> Describer:
    made = CaptionsTask(DATA).model().eval()
    assert isinstance(made, Describer)
    return made


def test_who_looks_everywhere_alike_looks_by_chance() -> None:
    model = _model()
    with torch.no_grad():
        for block in model.decoder.layers:
            block.look.attention.in_proj_weight[: block.self_attn.out_proj.weight.shape[0]] = 0.0  # queries
        canvases = drawn(_flat(), 40, torch.Generator().manual_seed(0))
        shares, by_chance = looking(model, canvases)
    cells = [len(word.cells) for caption in canvases.captions for word in caption if word.cells]
    assert by_chance == pytest.approx(sum(cells) / len(cells) / 4)
    torch.testing.assert_close(shares, torch.full_like(shares, by_chance))


def test_looking_is_measured_where_a_digit_is_about_to_be_written() -> None:
    model = _model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        canvases = drawn(_flat(), 6, torch.Generator().manual_seed(0))
        shares, _ = looking(model, canvases)
        weights = model.attend(canvases.tokens[:, :-1], canvases.images)[1].memory.weights[...]
    cell, found = cell_of_patch(), []
    for b, caption in enumerate(canvases.captions):
        written = [canvases.ways[b], *(word.text for word in caption)]
        for place in range(1, len(written)):
            if written[place] in NAMES + PLURALS:
                on = sum((cell == c) for c in caption[place - 1].cells).bool()
                found.append(weights[b, :, place - 1, on].sum(-1))  # the token before it asks
    torch.testing.assert_close(shares[1], torch.stack(found).mean(0))


def test_without_data_it_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"0\.json to 9\.json; got no 0\.json\. Run make data"):
        _ = CaptionsTask(tmp_path).parts


@pytest.fixture(scope="module")
def task() -> CaptionsTask:
    if not (DATA / "mnist").is_dir():
        pytest.skip("data/mnist is not there; make data fetches it")
    return CaptionsTask(DATA)


def test_a_tenth_of_the_digits_is_held_out_and_none_is_on_both_sides(task: CaptionsTask) -> None:
    train, held = task.parts
    assert len(train) + len(held) == 10_000
    assert 0.09 < len(held) / 10_000 < 0.11
    both = [{image.numpy().tobytes() for image in part.images} for part in (train, held)]
    assert not both[0] & both[1]
    assert bool((held.digits.bincount(minlength=10) > 50).all())


def test_a_short_training_lowers_the_loss(task: CaptionsTask) -> None:
    training = Training(task, changed(task.recipe, {"steps": 40}))
    reports = [training.advance() for _ in range(40)]
    assert reports[0].loss > 3.0  # that of 37 words alike is 3.6
    assert sum(r.loss for r in reports[-5:]) / 5 < 2.0
