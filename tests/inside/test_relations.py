"""Heads that find what belongs together, planted and counted by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.errors import SpecError
from regard.inside.relations import coreferent, syntactic

N = 8
EDGES = [(0, 3), (1, 0), (2, 3), (4, 3), (5, 6), (6, 3), (7, 6)]


class Planted(nn.Module):
    """Head 0 looks along the edges, head 1 one back, head 2 at the first token."""

    def forward(self, x: Tensor) -> Tensor:
        match = torch.zeros(3, N, N)
        for word, head in EDGES:
            match[0, word, head] = 30.0
        match[0, 3, 3] = 30.0
        match[1] = 30.0 * torch.eye(N).roll(-1, 1)
        match[2, :, 0] = 30.0
        q = x.unsqueeze(1) @ match
        k = x.unsqueeze(1).expand_as(q)
        return F.scaled_dot_product_attention(q, k, k, scale=1.0)


@pytest.fixture
def tape() -> regard.Tape:
    model = Planted()
    with regard.record(model) as tape:
        model(torch.eye(N)[None])
    return tape


def test_the_head_that_looks_along_edges_is_the_best_and_beats_every_distance(tape: regard.Tape) -> None:
    found = tape.related(syntactic(EDGES))
    assert [row["head"] for row in found] == [0, 1, 2]
    assert [row["right"] for row in found] == pytest.approx([1.0, 3 / 7, 1 / 7])
    assert found[0]["baseline"] == pytest.approx(3 / 7)  # one back is right for words 1, 4 and 7
    assert found[0]["offset"] == -1


def test_words_of_several_tokens_and_special_ones(tape: regard.Tape) -> None:
    words = [0, 0, 1, 2, 2, 3, 3, 4]
    found = tape.related(syntactic([(0, 2), (4, 3)]), words=words)
    # the first word is tokens 0 and 1; token 0 looks at token 3, of word 2, and token 1 at token 0
    head = next(row for row in found if row["head"] == 0)
    assert head["right"] in (0.5, 1.0)
    without = tape.related(syntactic([(0, 2), (4, 3)]), words=words, special=[0])
    assert next(row for row in without if row["head"] == 0)["right"] == 1.0


def test_mentions_look_for_those_before_them(tape: regard.Tape) -> None:
    found = tape.related(coreferent([[0, 3, 6], [1, 2]]))
    by_head = {row["head"]: row["right"] for row in found}
    # 3 looks at itself and 6 at 3 along edges, 2 at 3; one back 2 finds 1; the first token is right for 3 and 6
    assert by_head == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 2 / 3})


def test_what_cannot_be_asked_says_so(tape: regard.Tape) -> None:
    with pytest.raises(SpecError, match=r"by their numbers from 0 to 7; got \{9: \{1\}\}"):
        tape.related({9: {1}})
