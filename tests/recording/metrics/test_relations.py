"""Relation accuracy of planted heads, against counts by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.errors import ArgumentError
from regard.recording.metrics.relations import coreference_targets, dependency_targets

N = 8
EDGES = [(0, 3), (1, 0), (2, 3), (4, 3), (5, 6), (6, 3), (7, 6)]


class PlantedAttention(nn.Module):
    """Head 0 attends along the edges, head 1 to the previous token, head 2 to the first token."""

    def forward(self, x: Tensor) -> Tensor:
        w_qk = torch.zeros(3, N, N)
        for word, head in EDGES:
            w_qk[0, word, head] = 30.0
        w_qk[0, 3, 3] = 30.0
        w_qk[1] = 30.0 * torch.eye(N).roll(-1, 1)
        w_qk[2, :, 0] = 30.0
        q = x.unsqueeze(1) @ w_qk
        k = x.unsqueeze(1).expand_as(q)
        return F.scaled_dot_product_attention(q, k, k, scale=1.0)


@pytest.fixture
def recording() -> regard.Recording:
    model = PlantedAttention()
    with regard.record(model) as recording:
        model(torch.eye(N)[None])
    return recording


def test_dependency_heads_beat_every_fixed_offset(recording: regard.Recording) -> None:
    table = recording.relation_accuracy(dependency_targets(EDGES))
    assert [row["head"] for row in table] == [0, 1, 2]
    assert [row["accuracy"] for row in table] == pytest.approx([1.0, 3 / 7, 1 / 7])
    assert table[0]["baseline"] == pytest.approx(3 / 7)  # an offset of -1 is right for words 1, 4 and 7
    assert table[0]["offset"] == -1


def test_word_ids_and_special_words(recording: regard.Recording) -> None:
    word_ids = [0, 0, 1, 2, 2, 3, 3, 4]
    table = recording.relation_accuracy(dependency_targets([(0, 2), (4, 3)]), word_ids=word_ids)
    # word 0 is tokens 0 and 1; token 0 attends to token 3, of word 2, and token 1 to token 0
    head = next(row for row in table if row["head"] == 0)
    assert head["accuracy"] in (0.5, 1.0)
    without = recording.relation_accuracy(dependency_targets([(0, 2), (4, 3)]), word_ids=word_ids, special_words=[0])
    assert next(row for row in without if row["head"] == 0)["accuracy"] == 1.0


def test_coreference_targets_are_earlier_mentions(recording: regard.Recording) -> None:
    table = recording.relation_accuracy(coreference_targets([[0, 3, 6], [1, 2]]))
    by_head = {row["head"]: row["accuracy"] for row in table}
    # head 0: 6 attends to 3, but 3 to itself and 2 to 3; head 1: 2 attends to 1; head 2: 0 is right for 3 and 6
    assert by_head == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 2 / 3})


def test_targets_out_of_range_raise(recording: regard.Recording) -> None:
    with pytest.raises(ArgumentError, match=r"word indices from 0 to 7; got \{9: \{1\}\}"):
        recording.relation_accuracy({9: {1}})


def test_a_single_word_has_no_relations(recording: regard.Recording) -> None:
    with pytest.raises(ArgumentError, match="relations must have at least two words; got 1"):
        recording.relation_accuracy({0: {0}}, word_ids=[0] * N)
