"""Comparisons of recordings, word weights, value weighting and head divergence against dense formulas."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.errors import ArgumentError
from regard.recording import lazy_matrix
from regard.recording.metrics.token_groups import (
    frame_weights_to_timeline,
    patch_weights_to_image,
    sentence_ids,
    word_ids,
)

N, NUM_HEADS, HEAD_DIM = 10, 4, 8
CLOSE = dict(rtol=1e-4, atol=1e-6)  # float32 on both sides


class TwoLayers(nn.Module):
    """Two layers of a projection and causal attention."""

    def __init__(self, num_kv_heads: int = NUM_HEADS) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(HEAD_DIM, HEAD_DIM) for _ in range(2))
        self.blocks = nn.ModuleList(CausalAttention(num_kv_heads) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for projection, block in zip(self.projections, self.blocks, strict=True):
            x = block(2 * projection(x))
        return x


class CausalAttention(nn.Module):
    def __init__(self, num_kv_heads: int) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads

    def forward(self, x: Tensor) -> Tensor:
        k = x[:, : self.num_kv_heads]
        return F.scaled_dot_product_attention(x, k, k, is_causal=True, enable_gqa=True)


def make_recording(
    seed: int, n: int = N, num_kv_heads: int = NUM_HEADS, dtype: torch.dtype = torch.float32
) -> regard.Recording:
    torch.manual_seed(seed)
    model = TwoLayers(num_kv_heads).to(dtype)
    x = torch.randn(2, NUM_HEADS, n, HEAD_DIM).to(dtype)
    with torch.no_grad(), regard.record(model) as recording:
        model(x)
    return recording


def test_head_differences_are_the_dense_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_recording(0), make_recording(1)
    monkeypatch.setattr(lazy_matrix, "MAX_PAIRS_PER_BLOCK", 3 * 2 * NUM_HEADS * N)  # three rows at a time
    table = a.compare(b).head_differences
    variations = table.column("total_variation")
    assert variations == sorted(variations, reverse=True)
    for row in table:
        difference = (a[row["layer"]].weights[:, row["head"]] - b[row["layer"]].weights[:, row["head"]]).abs()
        assert row["total_variation"] == pytest.approx(float(difference.sum(-1).mean() / 2), rel=1e-4)
        assert row["max_difference"] == pytest.approx(float(difference.max()), rel=1e-4)
        assert float(difference[row["batch"], row["query"], row["key"]]) == pytest.approx(
            row["max_difference"], rel=1e-4
        )
    assert len(table) == 2 * NUM_HEADS


def test_a_recording_does_not_differ_from_itself() -> None:
    recording = make_recording(0)
    comparison = recording.compare(recording)
    assert max(row["total_variation"] for row in comparison.head_differences) == 0.0
    assert not comparison.difference(1)[...].any()
    assert not comparison.difference_map(0).any()


def test_weight_differences_are_indexed_like_weights() -> None:
    a, b = make_recording(0), make_recording(1)
    expected = a[1].weights[...] - b[1].weights[...]
    difference = a.compare(b).difference(1)
    assert torch.equal(difference[...], expected)
    torch.testing.assert_close(difference[1, 2, 3:5, [0, 1]], expected[1, 2, 3:5][..., [0, 1]], **CLOSE)
    assert difference.shape == (2, NUM_HEADS, N, N) and "Difference(shape=" in repr(difference)


def test_recordings_of_different_lengths_are_compared_by_maps() -> None:
    short, long = make_recording(0, 128), make_recording(0, 256)
    comparison = short.compare(long)
    assert all(0 < row["total_variation"] < 1 for row in comparison.head_differences)
    difference_map = comparison.difference_map(0, resolution=8)
    assert difference_map.shape == (2, NUM_HEADS, 8, 8)
    mass = [
        recording[0].weights[...].unflatten(3, (8, -1)).sum(-1).unflatten(2, (8, -1)).sum(3) / n
        for recording, n in ((short, 128), (long, 256))
    ]
    torch.testing.assert_close(difference_map, mass[0] - mass[1], **CLOSE)
    with pytest.raises(
        ArgumentError, match=r"the same shape to be subtracted; got \(2, 4, 128, 128\) and \(2, 4, 256, 256\)"
    ):
        comparison.difference(0)


def test_comparisons_need_common_layers() -> None:
    recording = make_recording(0)
    with pytest.raises(ArgumentError, match="must have layers in common"):
        recording.compare(regard.Recording())
    with pytest.raises(ArgumentError, match=r"layer must be in both recordings: 0, 1; got 5"):
        recording.compare(recording).difference_map(5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_word_weights_sum_over_keys_and_average_over_queries(dtype: torch.dtype) -> None:
    recording = make_recording(0, dtype=dtype)
    group_ids = [0, 0, 1, 2, 2, 2, 3, -1, 4, 4]
    word_weights, weights = recording.word_weights(1, group_ids), recording[1].weights[...]
    assert word_weights.shape == (2, NUM_HEADS, 5, 5)
    for query_word in range(5):
        for key_word in range(5):
            queries, keys = ([i for i, g in enumerate(group_ids) if g == word] for word in (query_word, key_word))
            expected = weights[:, :, queries][..., keys].sum(-1).mean(-1)
            torch.testing.assert_close(word_weights[:, :, query_word, key_word], expected, **CLOSE)
    recording.tokens = ["The", "Ġwh", "ale", "Ġsw", "im", "s", ".", "Ġa", "Ġb", "c"]
    assert recording.word_weights(0).shape == (2, NUM_HEADS, 6, 6)
    with pytest.raises(ArgumentError, match=r"group_ids must have an index for each of 10 queries; got 3 indices"):
        recording.word_weights(0, [0, 1, 2])


def test_word_and_sentence_ids() -> None:
    assert word_ids(["▁The", "▁big", "gest", "▁one", "."]) == [0, 1, 1, 2, 3]
    assert word_ids([" the", " wha", "le", "'s", " fin"]) == [0, 1, 1, 2, 3]
    assert word_ids(["a", "b"]) == [0, 1]
    assert word_ids([]) == []
    assert sentence_ids(["Hi", "!", ' "Ho', '."', " x"]) == [0, 0, 1, 1, 2]


def test_patch_weights_map_to_pixels_and_frame_weights_to_time() -> None:
    weights = torch.arange(7.0)
    image = patch_weights_to_image(weights, (2, 3), (4, 6))
    assert image.tolist() == [[1, 1, 2, 2, 3, 3]] * 2 + [[4, 4, 5, 5, 6, 6]] * 2
    assert patch_weights_to_image(weights[1:], (2, 3), (2, 3), num_prefix_tokens=0).tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ArgumentError, match=r"must have 1 \+ 3 x 3 tokens; got 7"):
        patch_weights_to_image(weights, (3, 3), (6, 6))
    assert frame_weights_to_timeline(torch.tensor([1.0, 2.0, 3.0]), 0.6, 0.1).tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_value_weighting_with_and_without_the_output_projection(num_kv_heads: int) -> None:
    recording = make_recording(0, num_kv_heads=num_kv_heads)
    weights, v = (
        recording[1].weights[...],
        recording.layers[1].merged_call.v.repeat_interleave(NUM_HEADS // num_kv_heads, 1),
    )
    norms = v.norm(dim=-1)
    torch.testing.assert_close(
        recording.value_weighted(1)[...], weights * (norms / norms.amax(-1, keepdim=True))[:, :, None], **CLOSE
    )
    w_o = torch.randn(5, NUM_HEADS * HEAD_DIM)
    projected = [v[:, h] @ w_o[:, h * HEAD_DIM : (h + 1) * HEAD_DIM].mT for h in range(NUM_HEADS)]
    norms = torch.stack(projected, 1).norm(dim=-1)
    expected = weights * (norms / norms.amax(-1, keepdim=True))[:, :, None]
    weighted = recording.value_weighted(1, w_o)
    torch.testing.assert_close(weighted[0, 2, 3:6, [1, 2]], expected[0, 2, 3:6][..., [1, 2]], **CLOSE)
    with pytest.raises(ArgumentError, match=r"out_proj_weight must have 4 x 8 columns.*got Tensor of shape \(5, 7\)"):
        recording.value_weighted(1, torch.randn(5, 7))


def test_head_divergence_is_the_jensen_shannon_divergence() -> None:
    recording = make_recording(0)
    result = recording.head_divergence(num_queries=6, seed=3)
    assert len(result.query_indices) == 6 and len(result.heads) == 2 * NUM_HEADS
    p = torch.cat([recording[n].weights[:, :, result.query_indices] for n in (0, 1)], 1).double()

    def divergence(a: Tensor, b: Tensor) -> Tensor:
        mixture = (a + b) / 2
        return sum((torch.special.xlogy(x, x) - torch.special.xlogy(x, mixture)).sum(-1) for x in (a, b)) / 2  # type: ignore[return-value]

    expected = torch.tensor([[divergence(p[:, a], p[:, b]).mean() for b in range(8)] for a in range(8)])
    torch.testing.assert_close(result.divergence.double(), expected.double(), rtol=1e-4, atol=1e-6)
    assert "8 x 8 heads, over 6 queries" in repr(result)
