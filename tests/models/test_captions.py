"""The captions task: captions, canvases, the attention metric, and a short training run."""

from itertools import product
from pathlib import Path

import pytest
import torch

from regard.errors import LoadError
from regard.models.multimodal import ImageCaptioner
from regard.models.tasks.captions import (
    BACKGROUND_VALUE,
    CELL_SIZE,
    DIGIT_NAMES,
    DIGIT_PLURALS,
    END,
    FOREGROUND_VALUE,
    MAX_CAPTION_TOKENS,
    PAD,
    PATCH_SIZE,
    READING_ORDERS,
    VOCABULARY,
    CaptionsTask,
    attention_on_named_cells,
    cell_of_patch,
    decode,
    encode,
    make_caption,
    sample_canvases,
)
from regard.models.tasks.digits import LabeledImages
from regard.models.training import Trainer, override_recipe

DATA = Path(__file__).parents[2] / "data"
ARRANGEMENTS = [digits for digits in product([None, *range(10)], repeat=4) if any(d is not None for d in digits)]


def _uniform_images() -> LabeledImages:
    """Return an image per digit with uniform brightness, by which the digit can be identified."""
    return LabeledImages(((torch.arange(10) + 1) / 10).view(10, 1, 1).expand(10, 28, 28), torch.arange(10))


def test_captions_of_different_arrangements_differ() -> None:
    captions = [
        (order, *(word.text for word in make_caption(digits, order)))
        for digits in ARRANGEMENTS
        for order in READING_ORDERS
    ]
    assert len(captions) == 2 * (11**4 - 1)
    assert len(set(captions)) == len(captions)
    assert {word for caption in captions for word in caption} == set(VOCABULARY) - {PAD, END}
    assert max(len(caption) for caption in captions) + 1 == MAX_CAPTION_TOKENS


def test_a_caption_names_each_digit_once_with_its_cell() -> None:
    for digits in ARRANGEMENTS:
        for order in READING_ORDERS:
            digit_words = [word for word in make_caption(digits, order) if word.cells]
            cells = [cell for word in digit_words for cell in word.cells]
            assert sorted(cells) == [cell for cell, digit in enumerate(digits) if digit is not None]
            for word in digit_words:
                names = DIGIT_NAMES if len(word.cells) == 1 else DIGIT_PLURALS
                assert {names[digits[cell]] for cell in word.cells} == {word.text}


@pytest.mark.parametrize(
    "digits, order, caption",
    [
        ((7, 2, None, 3), "across", "at the top a seven left of a two , at the bottom a three on the right"),
        ((7, 2, None, 3), "down", "on the left a seven at the top , on the right a two above a three"),
        ((8, 8, 8, None), "across", "at the top a pair of eights , at the bottom an eight on the left"),
        ((None, None, None, 0), "down", "on the right a zero at the bottom"),
    ],
)
def test_captions_of_examples(digits: tuple[int | None, ...], order: str, caption: str) -> None:
    assert " ".join(word.text for word in make_caption(digits, order)) == caption


def test_captions_are_encoded_and_decoded() -> None:
    tokens = encode([["across", "a", "seven", END], ["down", END]])
    assert tokens.shape == (2, 4)
    assert decode(tokens[0, 1:].tolist()) == "a seven"
    assert tokens[1, 2:].tolist() == [VOCABULARY.index(PAD)] * 2


def test_a_canvas_shows_the_digits_of_its_caption() -> None:
    canvases = sample_canvases(_uniform_images(), 200, torch.Generator().manual_seed(0))
    assert canvases.images.shape == (200, 1, 2 * CELL_SIZE, 2 * CELL_SIZE)
    assert {sum(d is not None for d in digits) for digits in canvases.digits} == {1, 2, 3, 4}
    assert set(canvases.reading_orders) == set(READING_ORDERS)
    corners = [(0, 0), (0, CELL_SIZE), (CELL_SIZE, 0), (CELL_SIZE, CELL_SIZE)]
    for image, digits in zip(canvases.images[:, 0], canvases.digits, strict=True):
        for digit, (top, left) in zip(digits, corners, strict=True):
            brightness = (float(image[top + CELL_SIZE // 2, left + CELL_SIZE // 2]) - BACKGROUND_VALUE) / (
                FOREGROUND_VALUE - BACKGROUND_VALUE
            )
            assert brightness == pytest.approx(0.0 if digit is None else (digit + 1) / 10, abs=1e-5)
    sentence = [canvases.reading_orders[0], *(word.text for word in canvases.captions[0]), END]
    assert [VOCABULARY[token] for token in canvases.tokens[0].tolist()][: len(sentence)] == sentence


def test_canvases_depend_only_on_the_generator() -> None:
    first, second = (
        sample_canvases(_uniform_images(), 5, torch.Generator().manual_seed(2), max_rotation=0.2, max_log_scale=0.1)
        for _ in range(2)
    )
    assert torch.equal(first.images, second.images)
    assert (first.digits, first.reading_orders) == (second.digits, second.reading_orders)


def test_cell_of_patch_matches_the_canvas() -> None:
    cell = cell_of_patch()
    assert cell.bincount().tolist() == [(CELL_SIZE // PATCH_SIZE) ** 2] * 4
    canvases = sample_canvases(_uniform_images(), 50, torch.Generator().manual_seed(1))
    patch_maxima = torch.nn.functional.max_pool2d(canvases.images, PATCH_SIZE).flatten(1)
    for maxima, digits in zip(patch_maxima, canvases.digits, strict=True):
        bright_cells = {int(c) for c in cell[maxima > BACKGROUND_VALUE]}
        assert bright_cells == {c for c, digit in enumerate(digits) if digit is not None}


def _model() -> ImageCaptioner:
    model = CaptionsTask(DATA).untrained_model().eval()
    assert isinstance(model, ImageCaptioner)
    return model


def test_uniform_attention_has_the_mass_of_chance() -> None:
    model = _model()
    with torch.no_grad():
        for block in model.decoder.layers:
            query_dim = block.self_attn.out_proj.weight.shape[0]
            block.gated_cross_attn.cross_attn.in_proj_weight[:query_dim] = 0.0
        canvases = sample_canvases(_uniform_images(), 40, torch.Generator().manual_seed(0))
        mass, uniform_mass = attention_on_named_cells(model, canvases)
    num_cells = [len(word.cells) for caption in canvases.captions for word in caption if word.cells]
    assert uniform_mass == pytest.approx(sum(num_cells) / len(num_cells) / 4)
    torch.testing.assert_close(mass, torch.full_like(mass, uniform_mass))


def test_attention_is_measured_at_the_token_before_a_digit_word() -> None:
    model = _model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        canvases = sample_canvases(_uniform_images(), 6, torch.Generator().manual_seed(0))
        mass, _ = attention_on_named_cells(model, canvases)
        weights = model.attention_with_weights(canvases.tokens[:, :-1], canvases.images)[1].cross_attention.weights[...]
    cell, expected = cell_of_patch(), []
    for b, caption in enumerate(canvases.captions):
        words = [canvases.reading_orders[b], *(word.text for word in caption)]
        for position in range(1, len(words)):
            if words[position] in DIGIT_NAMES + DIGIT_PLURALS:
                is_named = sum((cell == c) for c in caption[position - 1].cells).bool()
                expected.append(weights[b, :, position - 1, is_named].sum(-1))
    torch.testing.assert_close(mass[1], torch.stack(expected).mean(0))


def test_missing_data_raises_with_the_command_to_run(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"needs 0\.json to 9\.json in .*; got no 0\.json\. Run make data"):
        _ = CaptionsTask(tmp_path).splits


@pytest.fixture(scope="module")
def task() -> CaptionsTask:
    if not (DATA / "mnist").is_dir():
        pytest.skip("needs data/mnist, which make data downloads")
    return CaptionsTask(DATA)


def test_a_tenth_of_the_digits_is_held_out(task: CaptionsTask) -> None:
    train, test = task.splits
    assert len(train) + len(test) == 10_000
    assert 0.09 < len(test) / 10_000 < 0.11
    train_images, test_images = ({image.numpy().tobytes() for image in split.images} for split in (train, test))
    assert not train_images & test_images
    assert bool((test.labels.bincount(minlength=10) > 50).all())


def test_a_short_training_lowers_the_loss(task: CaptionsTask) -> None:
    trainer = Trainer(task, override_recipe(task.recipe, {"steps": 40}))
    reports = [trainer.advance() for _ in range(40)]
    assert reports[0].loss > 3.0  # ln 37 is 3.6
    assert sum(r.loss for r in reports[-5:]) / 5 < 2.0
