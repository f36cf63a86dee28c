"""Built-in masks against independent definitions; combining, counting, rendering and rejecting masks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, noop_mask

import regard
from regard import mask
from regard.errors import ArgumentError, TraceError

N = 36


def grid(n_q: int = N, n_k: int = N, query_offset: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions p of the queries, as a column, and j of the keys, as a row."""
    query_offset = n_k - n_q if query_offset is None else query_offset
    return torch.arange(n_q).view(-1, 1) + query_offset, torch.arange(n_k).view(1, -1)


def dense(m: mask.Mask, n_q: int = N, n_k: int = N, query_offset: int | None = None) -> Tensor:
    return m.to_dense(n_q, n_k, query_offset=query_offset)[0, 0]


SHAPES = [(N, N, None), (7, 20, None), (20, 7, None), (9, 9, 4), (5, 40, 11), (6, 6, -2), (1, 1, None), (1, 30, None)]
all_shapes = pytest.mark.parametrize("n_q, n_k, query_offset", SHAPES)


@all_shapes
def test_causal_hides_every_later_key(n_q: int, n_k: int, query_offset: int | None) -> None:
    p, j = grid(n_q, n_k, query_offset)
    assert torch.equal(dense(mask.causal(), n_q, n_k, query_offset), j <= p)


@all_shapes
@pytest.mark.parametrize("before, after", [(1, None), (5, None), (4, 1), (1, 7), (100, 100)])
def test_sliding_window_allows_the_keys_between_its_ends(
    n_q: int, n_k: int, query_offset: int | None, before: int, after: int | None
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    expected = (p - before < j) & (j < p + (before if after is None else after))
    assert torch.equal(dense(mask.sliding_window(before, after), n_q, n_k, query_offset), expected)


def test_sliding_window_of_one_is_the_diagonal() -> None:
    assert torch.equal(dense(mask.sliding_window(1)), torch.eye(N, dtype=torch.bool))


def test_causal_window_of_256_has_256_keys() -> None:
    rows = dense(mask.causal() & mask.sliding_window(256), 600, 600).sum(1)
    assert rows[255:].eq(256).all() and rows[:256].tolist() == list(range(1, 257))


@pytest.mark.parametrize("w", [1, 5, 36, 50])
def test_number_of_pairs_of_a_causal_window(w: int) -> None:
    num_pairs = int(dense(mask.causal() & mask.sliding_window(w)).sum())
    w = min(w, N)
    assert num_pairs == N * w - w * (w - 1) // 2


@all_shapes
@pytest.mark.parametrize("window_size, dilation", [(3, 4), (1, 5), (4, 1)])
def test_dilated_window_allows_every_dilation_th_key(
    n_q: int, n_k: int, query_offset: int | None, window_size: int, dilation: int
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    expected = torch.zeros(n_q, n_k, dtype=torch.bool)
    for step in range(-(window_size - 1), window_size):
        expected |= j == p + step * dilation
    assert torch.equal(dense(mask.dilated(window_size, dilation), n_q, n_k, query_offset), expected)


def test_dilation_of_one_is_a_sliding_window() -> None:
    assert torch.equal(dense(mask.dilated(5, 1)), dense(mask.sliding_window(5)))


@all_shapes
@pytest.mark.parametrize("chunk_size, look_back", [(5, 0), (4, 1), (3, 2), (1, 0)])
def test_chunked_allows_the_chunk_of_the_query_and_chunks_before_it(
    n_q: int, n_k: int, query_offset: int | None, chunk_size: int, look_back: int
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    chunk_q, chunk_k = p.div(chunk_size, rounding_mode="floor"), j.div(chunk_size, rounding_mode="floor")
    expected = torch.zeros(n_q, n_k, dtype=torch.bool)
    for back in range(look_back + 1):
        expected |= chunk_k == chunk_q - back
    assert torch.equal(dense(mask.chunked(chunk_size, look_back), n_q, n_k, query_offset), expected)


@all_shapes
@pytest.mark.parametrize("stride", [1, 4, 6])
def test_strided_is_the_pattern_of_the_sparse_transformer(
    n_q: int, n_k: int, query_offset: int | None, stride: int
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    near = (p - stride <= j) & (j <= p)
    far = (j <= p) & ((p - j) % stride == 0)
    assert torch.equal(dense(mask.strided(stride), n_q, n_k, query_offset), near | far)


@all_shapes
@pytest.mark.parametrize("stride, num_summary_keys", [(6, 1), (4, 2), (3, 3)])
def test_fixed_is_the_pattern_of_the_sparse_transformer(
    n_q: int, n_k: int, query_offset: int | None, stride: int, num_summary_keys: int
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    same_block = (j <= p) & (j.div(stride, rounding_mode="floor") == p.div(stride, rounding_mode="floor"))
    summary = torch.isin(j % stride, torch.arange(stride - num_summary_keys, stride))
    assert torch.equal(
        dense(mask.fixed(stride, num_summary_keys), n_q, n_k, query_offset), same_block | (summary & (j <= p))
    )


def test_two_strided_layers_reach_every_earlier_key() -> None:
    near = dense(mask.causal() & mask.sliding_window(7)).double()  # the query itself and the 6 keys before it
    far = dense(mask.causal() & mask.from_function(lambda b, h, i, j: (i - j) % 6 == 0)).double()
    causal = dense(mask.causal())
    assert torch.equal(near @ far > 0, causal)
    assert torch.equal((near + far) > 0, dense(mask.strided(6)))


def test_two_fixed_layers_reach_every_earlier_key() -> None:
    layer = dense(mask.fixed(6, 1)).double()
    assert torch.equal(layer @ layer > 0, dense(mask.causal()))


def test_padding_on_the_right_keeps_the_first_keys() -> None:
    visible = mask.padding([3, 0, 5]).to_dense(2, 5, batch_size=3)
    assert visible[:, 0, 0].int().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert torch.equal(visible[:, :, 0], visible[:, :, 1])


def test_padding_on_the_left_keeps_the_last_keys() -> None:
    visible = mask.padding(torch.tensor([3, 0, 5]), side="left").to_dense(2, 5, batch_size=3)
    assert visible[:, 0, 0].int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("ids", [[0, 0, 1, 1, 1, 2], [2, 0, 2, 0, 1, 1]])
def test_document_hides_other_documents(ids: list[int]) -> None:
    table = torch.tensor(ids)
    assert torch.equal(dense(mask.document(ids), 6, 6), table.view(-1, 1) == table)
    assert torch.equal(dense(mask.document(table), 2, 6), table[4:].view(-1, 1) == table)
    assert torch.equal(dense(mask.document(table), 2, 6, query_offset=1), table[1:3].view(-1, 1) == table)


def test_document_ids_may_differ_by_batch_element() -> None:
    ids = torch.tensor([[0, 0, 1], [3, 4, 4]])
    visible = mask.document(ids).to_dense(3, batch_size=2)
    assert torch.equal(visible[:, 0], ids.unsqueeze(2) == ids.unsqueeze(1))


@pytest.mark.parametrize("batched_q", [False, True])
@pytest.mark.parametrize("batched_k", [False, True])
def test_document_with_separate_ids_of_queries_and_keys(batched_q: bool, batched_k: bool) -> None:
    ids_q, ids_k = torch.tensor([[0, 1], [2, 1]]), torch.tensor([[0, 1, 1], [2, 0, 2]])
    visible = mask.document(ids_q if batched_q else ids_q[0], ids_k if batched_k else ids_k[0]).to_dense(
        2, 3, batch_size=2
    )
    for b in range(2):
        q, k = ids_q[b if batched_q else 0], ids_k[b if batched_k else 0]
        assert torch.equal(visible[b, 0], q.view(-1, 1) == k)


def test_the_length_of_a_prefix_may_be_a_numpy_integer() -> None:
    assert mask.prefix(np.int64(2)).render_text(4) == mask.prefix(2).render_text(4)


def test_every_query_attends_to_the_prefix() -> None:
    assert dense(mask.prefix(2), 3, 4).int().tolist() == [[1, 1, 0, 0]] * 3
    assert not dense(mask.prefix(0), 3, 4).any()
    by_batch = mask.prefix([1, 3]).to_dense(2, 4, batch_size=2)
    assert by_batch[:, 0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    p, j = grid(6, 6)
    assert torch.equal(dense(mask.causal() | mask.prefix(3), 6, 6), (j <= p) | (j < 3))


@all_shapes
@pytest.mark.parametrize("indices", [[0], [0, 3, 8], [], [5, 5], [39]])
def test_global_tokens_attend_and_are_attended_to_everywhere(
    n_q: int, n_k: int, query_offset: int | None, indices: list[int]
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    global_positions = torch.tensor(indices, dtype=torch.long)
    assert torch.equal(
        dense(mask.global_tokens(indices), n_q, n_k, query_offset),
        torch.isin(p, global_positions) | torch.isin(j, global_positions),
    )


def test_random_blocks_has_num_blocks_per_row_of_blocks() -> None:
    visible = dense(mask.random_blocks(4, 3, seed=5), 30, 37)
    blocks = visible.view(30, 37)[::4, ::4]
    assert blocks.shape == (8, 10) and blocks.sum(1).eq(3).all()
    spread = blocks.repeat_interleave(4, 0)[:30].repeat_interleave(4, 1)[:, :37]
    assert torch.equal(visible, spread)


def test_random_blocks_draws_each_block_of_keys_equally_often() -> None:
    blocks = dense(mask.random_blocks(1, 3, seed=2), 20_000, 7)
    # 20,000 draws with a chance of 3/7: one standard deviation is 0.0035
    assert (blocks.double().mean(0) - 3 / 7).abs().max() < 5 * 0.0035


def test_random_blocks_depends_only_on_its_seed() -> None:
    first, second = (dense(mask.random_blocks(4, 2, seed=s), 64, 64) for s in (1, 2))
    torch.manual_seed(99)
    assert torch.equal(first, dense(mask.random_blocks(4, 2, seed=1), 64, 64))
    assert not torch.equal(first, second)


def test_random_blocks_leaves_the_global_torch_generator_unchanged() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    dense(mask.random_blocks(4, 2), 64, 64)
    assert torch.equal(torch.rand(2), expected)


def test_more_random_blocks_than_exist_means_all_of_them() -> None:
    assert dense(mask.random_blocks(8, 10), 20, 20).all()
    assert not dense(mask.random_blocks(8, 0), 20, 20).any()


@all_shapes
@pytest.mark.parametrize("attention_window, indices", [(8, []), (8, [0, 5]), (5, [2])])
def test_longformer_is_a_sliding_window_and_global_tokens(
    n_q: int, n_k: int, query_offset: int | None, attention_window: int, indices: list[int]
) -> None:
    p, j = grid(n_q, n_k, query_offset)
    global_positions = torch.tensor(indices, dtype=torch.long)
    expected = (
        ((p - j).abs() <= attention_window // 2) | torch.isin(p, global_positions) | torch.isin(j, global_positions)
    )
    assert torch.equal(dense(mask.longformer(attention_window, indices), n_q, n_k, query_offset), expected)


@pytest.mark.parametrize("n", [32, 30])
@pytest.mark.parametrize("num_local, num_global, num_random", [(3, 1, 0), (1, 0, 0), (5, 2, 0), (3, 1, 2)])
def test_bigbird_is_local_global_and_random_blocks(n: int, num_local: int, num_global: int, num_random: int) -> None:
    block = torch.arange(n) // 4
    q, k, count = block.view(-1, 1), block, -(-n // 4)
    expected = (q - k).abs() <= num_local // 2
    if num_global:
        last = count - num_global
        expected = expected | (q < num_global) | (k < num_global) | (q >= last) | (k >= last)
    if num_random:
        expected = expected | dense(mask.random_blocks(4, num_random, 7), n, n)
    visible = dense(
        mask.bigbird(4, num_local_blocks=num_local, num_global_blocks=num_global, num_random_blocks=num_random, seed=7),
        n,
        n,
    )
    assert torch.equal(visible, expected)


def test_masks_combine_as_their_dense_forms_do() -> None:
    left, right = mask.causal(), mask.chunked(5)
    a, b = dense(left), dense(right)
    assert torch.equal(dense(left & right), a & b)
    assert torch.equal(dense(left | right), a | b)
    assert torch.equal(dense(~left), ~a)
    assert torch.equal(dense(~(left & ~right) | mask.sliding_window(2)), ~(a & ~b) | dense(mask.sliding_window(2)))


def test_functions_and_tensors_combine_with_masks_on_either_side() -> None:
    table = torch.rand(N, N) < 0.5
    odd = lambda b, h, i, j: (i + j) % 2 == 1
    p, j = grid()
    for combined in (mask.causal() & odd, odd & mask.causal()):
        assert torch.equal(dense(combined), (j <= p) & ((p + j) % 2 == 1))
    assert torch.equal(dense(mask.causal() | table), (j <= p) | table)
    assert torch.equal(dense(mask.causal() & table.numpy()), (j <= p) & table)
    assert torch.equal(
        dense(mask.from_function(odd) | mask.tensor(table) | mask.causal()), (j <= p) | table | ((p + j) % 2 == 1)
    )


def test_combined_masks_index_their_own_tensors() -> None:
    first, second = torch.randint(0, 3, (2, 12)), torch.randint(0, 3, (2, 12))
    combined = mask.document(first) & mask.document(second) & mask.padding([7, 12])
    visible = combined.to_dense(12, batch_size=2)[:, 0]
    same = (first.unsqueeze(2) == first.unsqueeze(1)) & (second.unsqueeze(2) == second.unsqueeze(1))
    assert torch.equal(visible, same & (torch.arange(12) < torch.tensor([7, 12]).view(2, 1, 1)))
    assert len(combined.tensors) == 3


def test_bool_of_a_mask_raises() -> None:
    with pytest.raises(ArgumentError, match=r"combine masks with &, \| and ~ instead of"):
        bool(mask.causal())
    with pytest.raises(ArgumentError, match="no truth value"):
        mask.causal() and mask.sliding_window(3)


def test_a_function_gets_the_query_index_without_the_offset() -> None:
    visible = mask.from_function(lambda b, h, i, j: j <= i).to_dense(2, 4)[0, 0]
    assert visible.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize(
    "function, kind, formula",
    [
        (lambda b, h, i, j: i - j, "int", "i - j"),
        (lambda b, h, i, j: (i - j) / 2, "float", r"\(i - j\) / 2"),
        (lambda b, h, i, j: 1, "int", "1"),
    ],
)
def test_a_function_that_returns_numbers_raises(function: Any, kind: str, formula: str) -> None:
    with pytest.raises(TraceError, match=rf"a mask function must return a boolean; got the {kind} {formula}\."):
        mask.from_function(function)


def test_a_function_may_return_a_constant() -> None:
    assert dense(mask.from_function(lambda b, h, i, j: True), 3, 3).all()
    assert not dense(mask.from_function(lambda b, h, i, j: False), 3, 3).any()


@pytest.mark.parametrize(
    "shape", [(), (5,), (4, 5), (1, 5), (4, 1), (3, 4, 5), (2, 1, 4, 5), (2, 3, 4, 5), (2, 1, 1, 1)]
)
def test_a_boolean_tensor_broadcasts_over_batch_heads_queries_and_keys(shape: tuple[int, ...]) -> None:
    table = torch.rand(shape) < 0.5
    visible = mask.tensor(table).to_dense(4, 5, batch_size=2, num_heads=3)
    assert torch.equal(visible, table.expand(2, 3, 4, 5))
    assert torch.equal(mask.tensor(table.numpy()).to_dense(4, 5, batch_size=2, num_heads=3), visible)


@pytest.mark.parametrize("container", ["tensor", "list", "numpy"])
def test_lengths_and_ids_may_be_lists_arrays_or_tensors(container: str) -> None:
    make = {"tensor": torch.tensor, "list": list, "numpy": np.array}[container]
    assert torch.equal(
        mask.padding(make([2, 3])).to_dense(4, batch_size=2), mask.padding([2, 3]).to_dense(4, batch_size=2)
    )
    assert torch.equal(dense(mask.global_tokens(make([1])), 4, 4), dense(mask.global_tokens([1]), 4, 4))


def test_a_mask_is_printed_as_a_formula() -> None:
    assert str(mask.causal() & mask.sliding_window(3)) == "j <= p and p - 3 < j and j < p + 3"
    assert str(mask.document([0, 1])) == "documents[p] == documents[j]"
    assert str(~mask.padding([1])) == "not j < lengths[b]"
    assert mask.causal().latex() == r"j \leq p"


def test_equal_built_in_masks_share_their_expression() -> None:
    assert mask.sliding_window(5).expr is mask.sliding_window(5, 5).expr
    assert mask.causal() is mask.causal()
    assert mask.sliding_window(5).expr is not mask.sliding_window(6).expr
    assert mask.dilated(5, 2).expr is mask.dilated(5, 2).expr


def test_render_text_shows_every_pair_of_a_small_mask() -> None:
    assert mask.causal().render_text(3) == "█··\n██·\n███"
    assert mask.causal().render_text(2, 4) == "███·\n████"
    assert mask.causal().render_text(2, 4, query_offset=0) == "█···\n██··"
    assert mask.prefix(1).render_text(1, 3) == "█··"


def test_render_text_shows_tiles_of_a_large_mask() -> None:
    rows = mask.causal().render_text(1000, max_size=10).split("\n")
    assert len(rows) == 10 and all(len(row) == 10 for row in rows)
    for r, row in enumerate(rows):
        assert row == "█" * r + "▒" + "·" * (9 - r)
    wide = mask.causal().render_text(100, 1000, max_size=10).split("\n")
    assert [len(row) for row in wide] == [10] and wide[0] == "█" * 9 + "▒"


def test_tile_coverage_counts_tiles_of_the_given_size() -> None:
    assert mask.causal().tile_coverage(1024).tile_counts == {"empty": 28, "partial": 8, "full": 28}
    assert mask.causal().tile_coverage(1000, 2000, tile_size=500).tile_counts == {"empty": 1, "partial": 2, "full": 5}
    assert mask.causal().tile_coverage(8, tile_size=4, query_offset=7).tile_counts == {
        "empty": 0,
        "partial": 0,
        "full": 4,
    }


INVALID = {
    "sliding_window before": (lambda: mask.sliding_window(0), r"before must be an integer of at least 1; got 0\."),
    "sliding_window after": (lambda: mask.sliding_window(3, 0), r"after must be an integer of at least 1; got 0\."),
    "sliding_window of a float": (lambda: mask.sliding_window(2.5), r"before must be an integer; got 2\.5\."),
    "dilated window_size": (lambda: mask.dilated(0, 2), r"window_size must be an integer of at least 1; got 0\."),
    "dilated dilation": (lambda: mask.dilated(3, -2), r"dilation must be an integer of at least 1; got -2\."),
    "chunked chunk_size": (lambda: mask.chunked(0), r"chunk_size must be an integer of at least 1; got 0\."),
    "chunked look_back": (lambda: mask.chunked(4, -1), r"look_back must be an integer of at least 0; got -1\."),
    "strided": (lambda: mask.strided(0), r"stride must be an integer of at least 1; got 0\."),
    "fixed": (lambda: mask.fixed(4, 0), r"num_summary_keys must be an integer of at least 1; got 0\."),
    "random_blocks block_size": (
        lambda: mask.random_blocks(0, 1),
        r"block_size must be an integer of at least 1; got 0\.",
    ),
    "random_blocks num_blocks": (
        lambda: mask.random_blocks(4, -1),
        r"num_blocks must be an integer of at least 0; got -1\.",
    ),
    "bigbird local": (
        lambda: mask.bigbird(4, num_local_blocks=0),
        r"num_local_blocks must be an integer of at least 1; got 0\.",
    ),
    "bigbird global": (
        lambda: mask.bigbird(4, num_global_blocks=-1),
        r"num_global_blocks must be an integer of at least 0; got -1\.",
    ),
    "padding side": (lambda: mask.padding([1], "top"), r"padding side must be one of 'left', 'right'; got 'top'\."),
    "padding floats": (lambda: mask.padding([1.5]), r"padding lengths must be integers; got torch\.float32\."),
    "document floats": (lambda: mask.document([0.5]), r"document ids must be integers; got torch\.float32\."),
    "document booleans": (
        lambda: mask.document([0], [True]),
        r"document ids of the keys must be integers; got torch\.bool\.",
    ),
    "prefix floats": (lambda: mask.prefix([0.5]), r"prefix lengths must be integers; got torch\.float32\."),
    "token floats": (lambda: mask.global_tokens([0.5]), r"token indices must be integers; got torch\.float32\."),
    "negative tokens": (lambda: mask.global_tokens([3, -2]), r"token indices must not be negative; got -2\."),
    "a float tensor": (
        lambda: mask.tensor(torch.zeros(2)),
        r"a mask tensor must be boolean \(True: may attend\); got torch\.float32\. .* use score\.bias\(tensor\)",
    ),
    "five dimensions": (
        lambda: mask.tensor(torch.ones(1, 1, 1, 2, 2, dtype=torch.bool)),
        r"at most 4 dimensions; got shape \(1, 1, 1, 2, 2\)\.",
    ),
    "a string": (lambda: mask.causal() & "causal", r"mask must be a mask, a boolean tensor or a function .* got str\."),
    "a block mask of FlexAttention": (
        lambda: mask.causal() & create_block_mask(lambda b, h, i, j: j <= i, None, None, 8, 8, device="cpu"),
        r"mask must be a mask, a boolean tensor or a function .* got BlockMask\. Pass its function, \.mask_mod\.",
    ),
    "a block mask without a function": (
        lambda: mask.causal() & create_block_mask(noop_mask, None, None, 8, 8, device="cpu"),
        r"got BlockMask\. It has blocks, but no function: pass the function or the boolean tensor",
    ),
    "a tensor of the wrong size": (
        lambda: mask.tensor(torch.ones(3, 4, dtype=torch.bool)).to_dense(3, 5),
        r"must broadcast to \(batch, heads, n_q, n_k\) = \(1, 1, 3, 5\); got shape \(3, 4\)",
    ),
    "lengths for another batch": (
        lambda: mask.padding([1, 2, 3]).to_dense(4, batch_size=2),
        r"padding lengths must have one entry for each of 2 batch elements; got 3 \(shape \(3,\)\)",
    ),
    "prefixes for another batch": (
        lambda: mask.prefix([1, 2, 3]).to_dense(4, batch_size=2),
        r"prefix lengths must have one entry for each of 2 batch elements; got 3 \(shape \(3,\)\)",
    ),
    "documents for other keys": (
        lambda: mask.document([0, 0, 1]).to_dense(2, 4),
        r"document ids must have one entry for each of 4 keys; got 3 \(shape \(3,\)\)",
    ),
    "documents for another batch": (
        lambda: mask.document([[0, 0], [1, 1]]).to_dense(2, batch_size=3),
        r"document ids must have one entry for each of 3 batch elements; got 2 \(shape \(2, 2\)\)",
    ),
    "documents for other queries": (
        lambda: mask.document([0, 0, 1], [0, 1]).to_dense(2, 2),
        r"document ids of the queries must have one entry for each of 2 queries; got 3",
    ),
    "documents for other keys apart": (
        lambda: mask.document([0, 0], [0, 1, 1]).to_dense(2, 2),
        r"document ids of the keys must have one entry for each of 2 keys; got 3",
    ),
    "queries before the first key": (
        lambda: mask.document([0, 1]).to_dense(5, 2),
        r"got 5 queries that begin before the first key\. .*key_document_ids",
    ),
    "queries before the first key of one batch element": (
        lambda: mask.document([0, 1]).to_dense(1, 2, batch_size=2, query_offset=torch.tensor([0, -1])),
        r"got 1 queries that begin before the first key",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_masks_raise_with_the_given_values(name: str) -> None:
    make, message = INVALID[name]
    with pytest.raises(ArgumentError, match=message):
        make()


def test_queries_after_the_last_key_have_no_document() -> None:
    """The document of such a query is unknown, even if all other ids are equal."""
    for ids in ([0, 0, 1, 1], [0, 0, 0, 0]):
        with pytest.raises(ArgumentError, match=r"document|captured tensor"):
            regard.attention(*(torch.randn(4, 8) for _ in "qkv"), mask=mask.document(ids), query_offset=2)


@pytest.mark.parametrize("backend", regard.available_backends())
def test_an_out_of_range_lookup_of_a_visible_pair_raises_in_full_tiles_too(backend: str) -> None:
    ids = torch.zeros(4, dtype=torch.long)  # too short for 8 keys; equal ids make every tile full
    with pytest.raises(ArgumentError, match=r"an index of a captured tensor must be in range"):
        regard.attention(*(torch.randn(8, 4) for _ in "qkv"), mask=lambda b, h, i, j: ids[i] == ids[j], backend=backend)


def test_a_function_may_depend_on_batch_element_and_head() -> None:
    visible = mask.from_function(lambda b, h, i, j: (i + j) % (b + h + 2) == 0).to_dense(
        5, 6, batch_size=2, num_heads=3
    )
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in (2, 3, 5, 6)), indexing="ij")
    assert torch.equal(visible, (i + j) % (b + h + 2) == 0)


def test_each_batch_element_may_have_its_own_query_offset() -> None:
    query_offset = torch.tensor([0, 3])
    visible = mask.causal().to_dense(2, 5, batch_size=2, query_offset=query_offset)[:, 0]
    assert visible.int().tolist() == [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]
