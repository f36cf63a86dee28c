"""Names: what was made is spelled as text and made again, the same in every way."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import mask, score, weigh
from regard.spec.named import Unspeakable, read_back, spell

TABLE = torch.arange(6.0)

MASKS: dict[str, Callable[[], Any]] = {
    "causal": mask.causal,
    "window": lambda: mask.window(2, after=1),
    "dilated": lambda: mask.dilated(2, 2),
    "blocks": lambda: mask.blocks(2, look_back=1),
    "strided": lambda: mask.strided(2),
    "fixed": lambda: mask.fixed(stride=2),
    "padding": lambda: mask.padding([4]),
    "padding of an array": lambda: mask.padding(np.array([4]), side="left"),
    "documents": lambda: mask.documents(torch.arange(6) // 2),
    "prefix": lambda: mask.prefix(2),
    "a prefix from numpy": lambda: mask.prefix([np.int64(2)]),
    "tokens": lambda: mask.tokens([0, 4]),
    "random blocks": lambda: mask.random_blocks(2, 1, seed=1),
    "longformer": lambda: mask.longformer(2, [3]),
    "bigbird": lambda: mask.bigbird(2, near=1, ends=1, random=1),
    "a tensor": lambda: mask.tensor(torch.eye(6, dtype=torch.bool)),
    "a function": lambda: mask.where(lambda b, h, i, j: (i + j * 2 > 3) | (TABLE[j] < 2.5)),
    "joined": lambda: ~(mask.causal() & mask.window(3)) | mask.padding([1]),
    "joined with a tensor": lambda: mask.causal() & torch.ones(6, 6, dtype=torch.bool),
}


def again(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    numbers: list[int] = []
    text = spell(value, tensors, numbers)
    json.loads(text)
    return read_back(text, tensors, numbers)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_was_spelled_is_the_same_mask(name):
    original = MASKS[name]()

    made = again(original)

    assert made.term is original.term
    assert str(made) == str(original)
    assert torch.equal(made.dense(6), original.dense(6))


@pytest.mark.parametrize("value", [None, True, 3, 2.5, -0.0, math.inf, -math.inf, 1e-300, "right"])
def test_plain_values_come_back_as_they_were(value):
    assert repr(again(value)) == repr(value)


def test_a_number_that_is_not_one_comes_back():
    assert math.isnan(again(math.nan))


@pytest.mark.parametrize("number", [0.1, -0.0, math.inf, 7, -3])
def test_the_numbers_of_a_formula_come_back_exactly(number):
    rule = score.rule(lambda s, b, h, i, j: torch.where(i > j, s * 2.0, s + number))

    assert again(rule).term is rule.term


@pytest.mark.parametrize(
    "made",
    [
        lambda: score.scaled_dot(0.3).then(score.alibi()).then(score.softcap(2.0)),
        lambda: score.cosine(torch.ones(1)).then(score.rule(lambda s, b, h, i, j: s + TABLE[j])),
        lambda: score.metric(2.0).then(score.bias(torch.eye(6))),
        lambda: score.additive(torch.eye(3), torch.eye(3), torch.ones(3)),
    ],
)
def test_a_score_that_was_spelled_is_the_same_score(made):
    q = torch.randn(6, 3)
    original = made()

    assert torch.equal(regard.attention(q, q, q, score=again(original)), regard.attention(q, q, q, score=original))


@pytest.mark.parametrize("made", [weigh.softmax, weigh.sink, lambda: weigh.sigmoid(-1.0), lambda: weigh.relu(0.5)])
def test_a_weighing_that_was_spelled_is_the_same_weighing(made):
    q = torch.randn(6, 3)

    assert torch.equal(regard.attention(q, q, q, weigh=again(made())), regard.attention(q, q, q, weigh=made()))


def test_a_list_that_changes_later_does_not_change_a_name():
    lengths = [4]
    seen = mask.padding(lengths)
    lengths[0] = 1

    assert torch.equal(again(seen).dense(6), seen.dense(6))


def test_the_text_holds_no_numbers_of_tensors():
    tensors: list[torch.Tensor] = []
    numbers: list[int] = []

    text = spell(mask.window(7) & mask.documents(TABLE.long()), tensors, numbers)

    assert text == (
        '["mask.both", [["mask.window", [{"number": 0}], {}], ["mask.documents", [{"tensor": 0}], {}]], {}]'
    )
    assert numbers == [7]
    assert tensors[0] is not None and len(tensors) == 1


@pytest.mark.parametrize(
    "value",
    [lambda b, h, i, j: i >= j, mask.causal() & (lambda b, h, i, j: i > j), score.custom(lambda q, k: q @ k.mT)],
)
def test_a_function_has_no_name(value):
    with pytest.raises(Unspeakable, match="has no name"):
        spell(value, [], [])
