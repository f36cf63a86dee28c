"""Two recordings side by side, words in place of tokens, sizes of values, heads that look alike: dense formulas."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.errors import SpecError
from regard.inside import matrix
from regard.inside.places import on_image, on_time, sentence_ids, word_ids

N, HEADS, WIDTH = 10, 4, 8
CLOSE = dict(rtol=1e-4, atol=1e-6)  # float32 on both sides


class Model(nn.Module):
    """Two layers that attend to what they are given."""

    def __init__(self, key_heads: int = HEADS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.blocks = nn.ModuleList(Attend(key_heads) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for linear, block in zip(self.layers, self.blocks, strict=True):
            x = block(2 * linear(x))
        return x


class Attend(nn.Module):
    def __init__(self, key_heads: int) -> None:
        super().__init__()
        self.key_heads = key_heads

    def forward(self, x: Tensor) -> Tensor:
        k = x[:, : self.key_heads]
        return F.scaled_dot_product_attention(x, k, k, is_causal=True, enable_gqa=True)


def recorded(seed: int, n: int = N, key_heads: int = HEADS, dtype: torch.dtype = torch.float32) -> regard.Tape:
    torch.manual_seed(seed)
    model = Model(key_heads).to(dtype)
    x = torch.randn(2, HEADS, n, WIDTH).to(dtype)
    with torch.no_grad(), regard.record(model) as tape:
        model(x)
    return tape


def test_heads_are_compared_by_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = recorded(0), recorded(1)
    monkeypatch.setattr(matrix, "CELLS", 3 * 2 * HEADS * N)  # three rows at a time
    found = one.compare(other).heads
    assert [row["changed"] for row in found] == sorted((row["changed"] for row in found), reverse=True)
    for row in found:
        difference = (one[row["layer"]].weights[:, row["head"]] - other[row["layer"]].weights[:, row["head"]]).abs()
        assert row["changed"] == pytest.approx(float(difference.sum(-1).mean() / 2), rel=1e-4)
        assert row["largest"] == pytest.approx(float(difference.max()), rel=1e-4)
        assert float(difference[row["batch"], row["query"], row["key"]]) == pytest.approx(row["largest"], rel=1e-4)
    assert len(found) == 2 * HEADS


def test_a_recording_differs_in_nothing_from_itself() -> None:
    one = recorded(0)
    assert max(row["changed"] for row in one.compare(one).heads) == 0.0
    assert not one.compare(one).difference(1)[...].any()
    assert not one.compare(one).map(0).any()


def test_differences_are_taken_like_weights() -> None:
    one, other = recorded(0), recorded(1)
    whole = one[1].weights[...] - other[1].weights[...]
    found = one.compare(other).difference(1)
    assert torch.equal(found[...], whole)
    torch.testing.assert_close(found[1, 2, 3:5, [0, 1]], whole[1, 2, 3:5][..., [0, 1]], **CLOSE)
    assert found.shape == (2, HEADS, N, N) and "Difference(shape=" in repr(found)


def test_texts_of_different_lengths_are_compared_by_maps() -> None:
    short, long = recorded(0, 128), recorded(0, 256)
    comparison = short.compare(long)
    assert all(0 < row["changed"] < 1 for row in comparison.heads)
    map_ = comparison.map(0, cells=8)
    assert map_.shape == (2, HEADS, 8, 8)
    sums = [
        tape[0].weights[...].unflatten(3, (8, -1)).sum(-1).unflatten(2, (8, -1)).sum(3) / n
        for tape, n in ((short, 128), (long, 256))
    ]
    torch.testing.assert_close(map_, sums[0] - sums[1], **CLOSE)
    with pytest.raises(SpecError, match=r"one shape to be subtracted; got \(2, 4, 128, 128\) and \(2, 4, 256, 256\)"):
        comparison.difference(0)


def test_what_cannot_be_compared_says_so() -> None:
    one, other = recorded(0), regard.Tape()
    with pytest.raises(SpecError, match="must have layers in common"):
        one.compare(other)
    with pytest.raises(SpecError, match=r"a layer must be in both recordings: 0, 1; got 5"):
        one.compare(one).map(5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_words_add_up_keys_and_average_queries(dtype: torch.dtype) -> None:
    tape = recorded(0, dtype=dtype)
    groups = [0, 0, 1, 2, 2, 2, 3, -1, 4, 4]
    found, weights = tape.words(1, groups), tape[1].weights[...]
    assert found.shape == (2, HEADS, 5, 5)
    for u in range(5):
        for w in range(5):
            rows, keys = ([i for i, g in enumerate(groups) if g == which] for which in (u, w))
            right = weights[:, :, rows][..., keys].sum(-1).mean(-1)
            torch.testing.assert_close(found[:, :, u, w], right, **CLOSE)
    tape.tokens = ["The", "Ġwh", "ale", "Ġsw", "im", "s", ".", "Ġa", "Ġb", "c"]
    assert tape.words(0).shape == (2, HEADS, 6, 6)
    with pytest.raises(SpecError, match=r"each of 10 queries must have the number of its group; got 3 numbers"):
        tape.words(0, [0, 1, 2])


def test_tokens_become_words_and_sentences() -> None:
    assert word_ids(["▁The", "▁big", "gest", "▁one", "."]) == [0, 1, 1, 2, 3]
    assert word_ids([" the", " wha", "le", "'s", " fin"]) == [0, 1, 1, 2, 3]
    assert word_ids(["a", "b"]) == [0, 1]
    assert word_ids([]) == []
    assert sentence_ids(["Hi", "!", ' "Ho', '."', " x"]) == [0, 0, 1, 1, 2]


def test_patches_are_laid_back_on_the_picture_and_frames_on_time() -> None:
    weights = torch.arange(7.0)
    picture = on_image(weights, (2, 3), (4, 6))
    assert picture.tolist() == [[1, 1, 2, 2, 3, 3]] * 2 + [[4, 4, 5, 5, 6, 6]] * 2
    assert on_image(weights[1:], (2, 3), (2, 3), before=0).tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(SpecError, match=r"on 1 \+ 3 x 3 tokens; got 7"):
        on_image(weights, (3, 3), (6, 6))
    assert on_time(torch.tensor([1.0, 2.0, 3.0]), 0.6, 0.1).tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("key_heads", [4, 2])
def test_weights_by_the_size_of_values_and_of_what_they_become(key_heads: int) -> None:
    tape = recorded(0, key_heads=key_heads)
    weights, v = tape[1].weights[...], tape.layers[1].take.v.repeat_interleave(HEADS // key_heads, 1)
    size = v.norm(dim=-1)
    torch.testing.assert_close(
        tape.weighted(1)[...], weights * (size / size.amax(-1, keepdim=True))[:, :, None], **CLOSE
    )
    out = torch.randn(5, HEADS * WIDTH)
    become = torch.stack([v[:, h] @ out[:, h * WIDTH : (h + 1) * WIDTH].mT for h in range(HEADS)], 1).norm(dim=-1)
    right = weights * (become / become.amax(-1, keepdim=True))[:, :, None]
    torch.testing.assert_close(tape.weighted(1, out)[0, 2, 3:6, [1, 2]], right[0, 2, 3:6][..., [1, 2]], **CLOSE)
    with pytest.raises(SpecError, match=r"out must have 4 x 8 columns.*got Tensor of shape \(5, 7\)"):
        tape.weighted(1, torch.randn(5, 7))


def test_heads_that_look_alike_have_no_divergence() -> None:
    tape = recorded(0)
    found = tape.similarity(rows=6, seed=3)
    assert len(found.rows) == 6 and len(found.heads) == 2 * HEADS
    p = torch.cat([tape[n].weights[:, :, found.rows] for n in (0, 1)], 1).double()

    def divergence(a: Tensor, b: Tensor) -> Tensor:
        middle = (a + b) / 2
        return sum((torch.special.xlogy(x, x) - torch.special.xlogy(x, middle)).sum(-1) for x in (a, b)) / 2  # type: ignore[return-value]

    right = torch.tensor([[divergence(p[:, a], p[:, b]).mean() for b in range(8)] for a in range(8)])
    torch.testing.assert_close(found.divergence.double(), right.double(), rtol=1e-4, atol=1e-6)
    assert "over 6 drawn rows" in repr(found)
