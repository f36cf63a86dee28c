"""Serialization: masks, scores and normalizers survive a round trip through text."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import mask, normalizer, score
from regard.expr.serialize import NotSerializable, deserialize, serialize

TABLE = torch.arange(6.0)

MASKS: dict[str, Callable[[], Any]] = {
    "causal": mask.causal,
    "sliding window": lambda: mask.sliding_window(2, after=1),
    "dilated": lambda: mask.dilated(2, 2),
    "chunked": lambda: mask.chunked(2, look_back=1),
    "strided": lambda: mask.strided(2),
    "fixed": lambda: mask.fixed(stride=2),
    "padding": lambda: mask.padding([4]),
    "padding of an array": lambda: mask.padding(np.array([4]), side="left"),
    "document": lambda: mask.document(torch.arange(6) // 2),
    "prefix": lambda: mask.prefix(2),
    "a prefix from numpy": lambda: mask.prefix([np.int64(2)]),
    "global tokens": lambda: mask.global_tokens([0, 4]),
    "random blocks": lambda: mask.random_blocks(2, 1, seed=1),
    "longformer": lambda: mask.longformer(2, [3]),
    "bigbird": lambda: mask.bigbird(2, num_local_blocks=1, num_global_blocks=1, num_random_blocks=1),
    "a tensor": lambda: mask.tensor(torch.eye(6, dtype=torch.bool)),
    "a function": lambda: mask.from_function(lambda b, h, i, j: (i + j * 2 > 3) | (TABLE[j] < 2.5)),
    "combined": lambda: ~(mask.causal() & mask.sliding_window(3)) | mask.padding([1]),
    "combined with a tensor": lambda: mask.causal() & torch.ones(6, 6, dtype=torch.bool),
}


def round_trip(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    ints: list[int] = []
    text = serialize(value, tensors, ints)
    json.loads(text)
    return deserialize(text, tensors, ints)


@pytest.mark.parametrize("name", MASKS)
def test_mask_survives_a_round_trip(name: str) -> None:
    original = MASKS[name]()

    copy = round_trip(original)

    assert copy.expr is original.expr
    assert str(copy) == str(original)
    assert torch.equal(copy.to_dense(6), original.to_dense(6))


@pytest.mark.parametrize("value", [None, True, 3, 2.5, -0.0, math.inf, -math.inf, 1e-300, "right"])
def test_plain_values_survive_a_round_trip(value: Any) -> None:
    assert repr(round_trip(value)) == repr(value)


def test_nan_survives_a_round_trip() -> None:
    assert math.isnan(round_trip(math.nan))


@pytest.mark.parametrize("number", [0.1, -0.0, math.inf, 7, -3])
def test_constants_of_an_expression_survive_a_round_trip_exactly(number: float) -> None:
    modifier = score.modifier(lambda s, b, h, i, j: torch.where(i > j, s * 2.0, s + number))

    assert round_trip(modifier).expr is modifier.expr


@pytest.mark.parametrize(
    "make",
    [
        lambda: score.scaled_dot(0.3).then(score.alibi()).then(score.softcap(2.0)),
        lambda: score.cosine(torch.ones(1)).then(score.modifier(lambda s, b, h, i, j: s + TABLE[j])),
        lambda: score.gaussian(2.0).then(score.bias(torch.eye(6))),
        lambda: score.additive(torch.eye(3), torch.eye(3), torch.ones(3)),
    ],
)
def test_score_survives_a_round_trip(make: Callable[[], Any]) -> None:
    q = torch.randn(6, 3)
    original = make()

    assert torch.equal(regard.attention(q, q, q, score=round_trip(original)), regard.attention(q, q, q, score=original))


@pytest.mark.parametrize(
    "make", [normalizer.softmax, normalizer.sink, lambda: normalizer.sigmoid(-1.0), lambda: normalizer.relu(0.5)]
)
def test_normalizer_survives_a_round_trip(make: Callable[[], Any]) -> None:
    q = torch.randn(6, 3)

    assert torch.equal(
        regard.attention(q, q, q, normalizer=round_trip(make())), regard.attention(q, q, q, normalizer=make())
    )


def test_mutating_an_argument_later_does_not_change_the_serialized_call() -> None:
    lengths = [4]
    mask_of_lengths = mask.padding(lengths)
    lengths[0] = 1

    assert torch.equal(round_trip(mask_of_lengths).to_dense(6), mask_of_lengths.to_dense(6))


def test_text_refers_to_tensors_and_ints_by_index() -> None:
    tensors: list[torch.Tensor] = []
    ints: list[int] = []

    text = serialize(mask.sliding_window(7) & mask.document(TABLE.long()), tensors, ints)

    assert text == (
        '["mask.logical_and", [["mask.sliding_window", [{"int": 0}], {}], ["mask.document", [{"tensor": 0}], {}]], {}]'
    )
    assert ints == [7]
    assert tensors[0] is not None and len(tensors) == 1


@pytest.mark.parametrize(
    "value",
    [lambda b, h, i, j: i >= j, mask.causal() & (lambda b, h, i, j: i > j), score.custom(lambda q, k: q @ k.mT)],
)
def test_function_is_not_serializable(value: Any) -> None:
    with pytest.raises(NotSerializable, match="not made by a constructor of regard"):
        serialize(value, [], [])
