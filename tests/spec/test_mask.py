"""Every built-in mask, against its definition written down again; joining, counting, drawing, refusing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask
from regard.errors import SpecError, TraceError

N = 36


def grid(n_q: int = N, n_k: int = N, start: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions p of the queries, as a column, and j of the keys, as a row."""
    start = n_k - n_q if start is None else start
    return torch.arange(n_q).view(-1, 1) + start, torch.arange(n_k).view(1, -1)


def dense(m: mask.Mask, n_q: int = N, n_k: int = N, start: int | None = None) -> Tensor:
    return m.dense(n_q, n_k, start=start)[0, 0]


PLACES = [(N, N, None), (7, 20, None), (20, 7, None), (9, 9, 4), (5, 40, 11), (6, 6, -2), (1, 1, None), (1, 30, None)]
places = pytest.mark.parametrize("n_q, n_k, start", PLACES)


@places
def test_causal_sees_no_key_after_the_query(n_q: int, n_k: int, start: int | None) -> None:
    p, j = grid(n_q, n_k, start)
    assert torch.equal(dense(mask.causal(), n_q, n_k, start), j <= p)


@places
@pytest.mark.parametrize("before, after", [(1, None), (5, None), (4, 1), (1, 7), (100, 100)])
def test_a_window_sees_the_keys_between_its_ends(
    n_q: int, n_k: int, start: int | None, before: int, after: int | None
) -> None:
    p, j = grid(n_q, n_k, start)
    expected = (p - before < j) & (j < p + (before if after is None else after))
    assert torch.equal(dense(mask.window(before, after), n_q, n_k, start), expected)


def test_a_window_of_one_is_the_diagonal() -> None:
    assert torch.equal(dense(mask.window(1)), torch.eye(N, dtype=torch.bool))


def test_a_causal_window_of_256_sees_256_keys() -> None:
    rows = dense(mask.causal() & mask.window(256), 600, 600).sum(1)
    assert rows[255:].eq(256).all() and rows[:256].tolist() == list(range(1, 257))


@pytest.mark.parametrize("w", [1, 5, 36, 50])
def test_a_causal_window_has_as_many_pairs_as_the_formula_says(w: int) -> None:
    seen = int(dense(mask.causal() & mask.window(w)).sum())
    w = min(w, N)
    assert seen == N * w - w * (w - 1) // 2


@places
@pytest.mark.parametrize("width, step", [(3, 4), (1, 5), (4, 1)])
def test_a_dilated_window_sees_every_step_th_key(n_q: int, n_k: int, start: int | None, width: int, step: int) -> None:
    p, j = grid(n_q, n_k, start)
    expected = torch.zeros(n_q, n_k, dtype=torch.bool)
    for steps in range(-(width - 1), width):
        expected |= j == p + steps * step
    assert torch.equal(dense(mask.dilated(width, step), n_q, n_k, start), expected)


def test_a_dilated_window_of_step_one_is_a_window() -> None:
    assert torch.equal(dense(mask.dilated(5, 1)), dense(mask.window(5)))


@places
@pytest.mark.parametrize("size, look_back", [(5, 0), (4, 1), (3, 2), (1, 0)])
def test_blocks_see_themselves_and_those_before(
    n_q: int, n_k: int, start: int | None, size: int, look_back: int
) -> None:
    p, j = grid(n_q, n_k, start)
    block_q, block_k = p.div(size, rounding_mode="floor"), j.div(size, rounding_mode="floor")
    expected = torch.zeros(n_q, n_k, dtype=torch.bool)
    for back in range(look_back + 1):
        expected |= block_k == block_q - back
    assert torch.equal(dense(mask.blocks(size, look_back), n_q, n_k, start), expected)


@places
@pytest.mark.parametrize("stride", [1, 4, 6])
def test_strided_is_the_sparse_transformers_pattern(n_q: int, n_k: int, start: int | None, stride: int) -> None:
    p, j = grid(n_q, n_k, start)
    near = (p - stride <= j) & (j <= p)
    far = (j <= p) & ((p - j) % stride == 0)
    assert torch.equal(dense(mask.strided(stride), n_q, n_k, start), near | far)


@places
@pytest.mark.parametrize("stride, summary", [(6, 1), (4, 2), (3, 3)])
def test_fixed_is_the_sparse_transformers_pattern(
    n_q: int, n_k: int, start: int | None, stride: int, summary: int
) -> None:
    p, j = grid(n_q, n_k, start)
    own = (j <= p) & (j.div(stride, rounding_mode="floor") == p.div(stride, rounding_mode="floor"))
    last = torch.isin(j % stride, torch.arange(stride - summary, stride))
    assert torch.equal(dense(mask.fixed(stride, summary), n_q, n_k, start), own | (last & (j <= p)))


def test_two_steps_of_the_strided_pattern_reach_every_key_before() -> None:
    near = dense(mask.causal() & mask.window(7)).double()  # the last l = 6 keys and the query
    far = dense(mask.causal() & mask.where(lambda b, h, i, j: (i - j) % 6 == 0)).double()
    causal = dense(mask.causal())
    assert torch.equal(near @ far > 0, causal)
    assert torch.equal((near + far) > 0, dense(mask.strided(6)))


def test_two_steps_of_the_fixed_pattern_reach_every_key_before() -> None:
    step = dense(mask.fixed(6, 1)).double()
    assert torch.equal(step @ step > 0, dense(mask.causal()))


def test_padding_on_the_right_keeps_the_first_keys() -> None:
    found = mask.padding([3, 0, 5]).dense(2, 5, batch=3)
    assert found[:, 0, 0].int().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert torch.equal(found[:, :, 0], found[:, :, 1])


def test_padding_on_the_left_keeps_the_last_keys() -> None:
    found = mask.padding(torch.tensor([3, 0, 5]), side="left").dense(2, 5, batch=3)
    assert found[:, 0, 0].int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("ids", [[0, 0, 1, 1, 1, 2], [2, 0, 2, 0, 1, 1]])
def test_documents_see_only_themselves(ids: list[int]) -> None:
    t = torch.tensor(ids)
    assert torch.equal(dense(mask.documents(ids), 6, 6), t.view(-1, 1) == t)
    assert torch.equal(dense(mask.documents(t), 2, 6), t[4:].view(-1, 1) == t)
    assert torch.equal(dense(mask.documents(t), 2, 6, start=1), t[1:3].view(-1, 1) == t)


def test_documents_may_differ_by_batch_element() -> None:
    ids = torch.tensor([[0, 0, 1], [3, 4, 4]])
    found = mask.documents(ids).dense(3, batch=2)
    assert torch.equal(found[:, 0], ids.unsqueeze(2) == ids.unsqueeze(1))


@pytest.mark.parametrize("q_by_batch", [False, True])
@pytest.mark.parametrize("k_by_batch", [False, True])
def test_documents_of_queries_and_of_keys_may_be_given_apart(q_by_batch: bool, k_by_batch: bool) -> None:
    of_q, of_k = torch.tensor([[0, 1], [2, 1]]), torch.tensor([[0, 1, 1], [2, 0, 2]])
    found = mask.documents(of_q if q_by_batch else of_q[0], of_k if k_by_batch else of_k[0]).dense(2, 3, batch=2)
    for b in range(2):
        q, k = of_q[b if q_by_batch else 0], of_k[b if k_by_batch else 0]
        assert torch.equal(found[b, 0], q.view(-1, 1) == k)


def test_a_prefix_is_seen_by_all() -> None:
    assert dense(mask.prefix(2), 3, 4).int().tolist() == [[1, 1, 0, 0]] * 3
    assert not dense(mask.prefix(0), 3, 4).any()
    by_batch = mask.prefix([1, 3]).dense(2, 4, batch=2)
    assert by_batch[:, 0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    p, j = grid(6, 6)
    assert torch.equal(dense(mask.causal() | mask.prefix(3), 6, 6), (j <= p) | (j < 3))


@places
@pytest.mark.parametrize("chosen", [[0], [0, 3, 8], [], [5, 5], [39]])
def test_global_tokens_see_and_are_seen_by_all(n_q: int, n_k: int, start: int | None, chosen: list[int]) -> None:
    p, j = grid(n_q, n_k, start)
    which = torch.tensor(chosen, dtype=torch.long)
    assert torch.equal(dense(mask.tokens(chosen), n_q, n_k, start), torch.isin(p, which) | torch.isin(j, which))


def test_random_blocks_draw_exactly_the_count_for_each_row_of_blocks() -> None:
    found = dense(mask.random_blocks(4, 3, seed=5), 30, 37)
    blocks = found.view(30, 37)[::4, ::4]
    assert blocks.shape == (8, 10) and blocks.sum(1).eq(3).all()
    spread = blocks.repeat_interleave(4, 0)[:30].repeat_interleave(4, 1)[:, :37]
    assert torch.equal(found, spread)


def test_random_blocks_draw_each_block_of_keys_equally_often() -> None:
    blocks = dense(mask.random_blocks(1, 3, seed=2), 20_000, 7)
    # 20,000 draws with a chance of 3/7: one standard deviation is 0.0035
    assert (blocks.double().mean(0) - 3 / 7).abs().max() < 5 * 0.0035


def test_random_blocks_are_given_by_their_seed_alone() -> None:
    one, other = (dense(mask.random_blocks(4, 2, seed=s), 64, 64) for s in (1, 2))
    torch.manual_seed(99)
    assert torch.equal(one, dense(mask.random_blocks(4, 2, seed=1), 64, 64))
    assert not torch.equal(one, other)


def test_drawing_random_blocks_leaves_torchs_own_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    dense(mask.random_blocks(4, 2), 64, 64)
    assert torch.equal(torch.rand(2), expected)


def test_more_random_blocks_than_there_are_means_all_of_them() -> None:
    assert dense(mask.random_blocks(8, 10), 20, 20).all()
    assert not dense(mask.random_blocks(8, 0), 20, 20).any()


@places
@pytest.mark.parametrize("width, chosen", [(8, []), (8, [0, 5]), (5, [2])])
def test_longformer_is_a_window_and_global_tokens(
    n_q: int, n_k: int, start: int | None, width: int, chosen: list[int]
) -> None:
    p, j = grid(n_q, n_k, start)
    which = torch.tensor(chosen, dtype=torch.long)
    expected = ((p - j).abs() <= width // 2) | torch.isin(p, which) | torch.isin(j, which)
    assert torch.equal(dense(mask.longformer(width, chosen), n_q, n_k, start), expected)


@pytest.mark.parametrize("n", [32, 30])
@pytest.mark.parametrize("near, ends, random", [(3, 1, 0), (1, 0, 0), (5, 2, 0), (3, 1, 2)])
def test_bigbird_is_near_blocks_end_blocks_and_drawn_blocks(n: int, near: int, ends: int, random: int) -> None:
    block = torch.arange(n) // 4
    q, k, count = block.view(-1, 1), block, -(-n // 4)
    expected = (q - k).abs() <= near // 2
    if ends:
        expected = expected | (q < ends) | (k < ends) | (q >= count - ends) | (k >= count - ends)
    if random:
        expected = expected | dense(mask.random_blocks(4, random, 7), n, n)
    found = dense(mask.bigbird(4, near=near, ends=ends, random=random, seed=7), n, n)
    assert torch.equal(found, expected)


def test_masks_join_as_their_pairs_do() -> None:
    one, other = mask.causal(), mask.blocks(5)
    a, b = dense(one), dense(other)
    assert torch.equal(dense(one & other), a & b)
    assert torch.equal(dense(one | other), a | b)
    assert torch.equal(dense(~one), ~a)
    assert torch.equal(dense(~(one & ~other) | mask.window(2)), ~(a & ~b) | dense(mask.window(2)))


def test_functions_and_tensors_join_with_masks_on_either_side() -> None:
    table = torch.rand(N, N) < 0.5
    odd = lambda b, h, i, j: (i + j) % 2 == 1
    p, j = grid()
    for joined in (mask.causal() & odd, odd & mask.causal()):
        assert torch.equal(dense(joined), (j <= p) & ((p + j) % 2 == 1))
    assert torch.equal(dense(mask.causal() | table), (j <= p) | table)
    assert torch.equal(dense(mask.causal() & table.numpy()), (j <= p) & table)
    assert torch.equal(
        dense(mask.where(odd) | mask.tensor(table) | mask.causal()), (j <= p) | table | ((p + j) % 2 == 1)
    )


def test_joined_masks_that_look_things_up_keep_their_tables_apart() -> None:
    one, other = torch.randint(0, 3, (2, 12)), torch.randint(0, 3, (2, 12))
    joined = mask.documents(one) & mask.documents(other) & mask.padding([7, 12])
    found = joined.dense(12, batch=2)[:, 0]
    same = (one.unsqueeze(2) == one.unsqueeze(1)) & (other.unsqueeze(2) == other.unsqueeze(1))
    assert torch.equal(found, same & (torch.arange(12) < torch.tensor([7, 12]).view(2, 1, 1)))
    assert len(joined.tensors) == 3


def test_a_mask_has_no_truth_value() -> None:
    with pytest.raises(SpecError, match=r"join masks with & \| ~"):
        bool(mask.causal())
    with pytest.raises(SpecError, match="no truth value"):
        mask.causal() and mask.window(3)


def test_a_function_gets_the_raw_number_of_the_query() -> None:
    found = mask.where(lambda b, h, i, j: j <= i).dense(2, 4)[0, 0]
    assert found.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize(
    "function, kind, line",
    [
        (lambda b, h, i, j: i - j, "int", "i - j"),
        (lambda b, h, i, j: (i - j) / 2, "float", r"\(i - j\) / 2"),
        (lambda b, h, i, j: 1, "int", "1"),
    ],
)
def test_a_function_of_numbers_is_no_mask(function: Any, kind: str, line: str) -> None:
    with pytest.raises(TraceError, match=rf"a mask function must say True or False; got the {kind} {line}\."):
        mask.where(function)


def test_a_function_may_give_a_constant() -> None:
    assert dense(mask.where(lambda b, h, i, j: True), 3, 3).all()
    assert not dense(mask.where(lambda b, h, i, j: False), 3, 3).any()


@pytest.mark.parametrize(
    "shape", [(), (5,), (4, 5), (1, 5), (4, 1), (3, 4, 5), (2, 1, 4, 5), (2, 3, 4, 5), (2, 1, 1, 1)]
)
def test_a_boolean_tensor_broadcasts_over_batch_heads_queries_and_keys(shape: tuple[int, ...]) -> None:
    table = torch.rand(shape) < 0.5
    found = mask.tensor(table).dense(4, 5, batch=2, heads=3)
    assert torch.equal(found, table.expand(2, 3, 4, 5))
    assert torch.equal(mask.tensor(table.numpy()).dense(4, 5, batch=2, heads=3), found)


@pytest.mark.parametrize("name", ["tensor", "list", "numpy"])
def test_lengths_and_ids_may_be_lists_arrays_or_tensors(name: str) -> None:
    make = {"tensor": torch.tensor, "list": list, "numpy": np.array}[name]
    assert torch.equal(mask.padding(make([2, 3])).dense(4, batch=2), mask.padding([2, 3]).dense(4, batch=2))
    assert torch.equal(dense(mask.tokens(make([1])), 4, 4), dense(mask.tokens([1]), 4, 4))


def test_a_mask_is_printed_as_a_formula() -> None:
    assert str(mask.causal() & mask.window(3)) == "j <= p and p - 3 < j and j < p + 3"
    assert str(mask.documents([0, 1])) == "documents[p] == documents[j]"
    assert str(~mask.padding([1])) == "not j < lengths[b]"
    assert mask.causal().latex() == r"j \leq p"


def test_the_built_in_masks_of_equal_numbers_are_the_same_formula() -> None:
    assert mask.window(5).term is mask.window(5, 5).term
    assert mask.causal() is mask.causal()
    assert mask.window(5).term is not mask.window(6).term
    assert mask.dilated(5, 2).term is mask.dilated(5, 2).term


def test_a_picture_shows_every_pair_of_a_small_mask() -> None:
    assert mask.causal().picture(3) == "█··\n██·\n███"
    assert mask.causal().picture(2, 4) == "███·\n████"
    assert mask.causal().picture(2, 4, start=0) == "█···\n██··"
    assert mask.prefix(1).picture(1, 3) == "█··"


def test_a_picture_of_a_large_mask_shows_tiles() -> None:
    rows = mask.causal().picture(1000, most=10).split("\n")
    assert len(rows) == 10 and all(len(row) == 10 for row in rows)
    for r, row in enumerate(rows):
        assert row == "█" * r + "▒" + "·" * (9 - r)
    wide = mask.causal().picture(100, 1000, most=10).split("\n")
    assert [len(row) for row in wide] == [10] and wide[0] == "█" * 9 + "▒"


def test_regions_counts_tiles_of_the_size_asked_for() -> None:
    assert mask.causal().regions(1024).counts == {"empty": 28, "partial": 8, "full": 28}
    assert mask.causal().regions(1000, 2000, size=500).counts == {"empty": 1, "partial": 2, "full": 5}
    assert mask.causal().regions(8, size=4, start=7).counts == {"empty": 0, "partial": 0, "full": 4}


REFUSED = {
    "window of nothing": (lambda: mask.window(0), r"before must be a whole number of at least 1; got 0\."),
    "window after": (lambda: mask.window(3, 0), r"after must be a whole number of at least 1; got 0\."),
    "window of a float": (lambda: mask.window(2.5), r"before must be a whole number; got 2\.5\."),
    "dilated width": (lambda: mask.dilated(0, 2), r"width must be a whole number of at least 1; got 0\."),
    "dilated step": (lambda: mask.dilated(3, -2), r"step must be a whole number of at least 1; got -2\."),
    "blocks": (lambda: mask.blocks(0), r"size must be a whole number of at least 1; got 0\."),
    "look back": (lambda: mask.blocks(4, -1), r"look_back must be a whole number of at least 0; got -1\."),
    "strided": (lambda: mask.strided(0), r"stride must be a whole number of at least 1; got 0\."),
    "fixed": (lambda: mask.fixed(4, 0), r"summary must be a whole number of at least 1; got 0\."),
    "random size": (lambda: mask.random_blocks(0, 1), r"size must be a whole number of at least 1; got 0\."),
    "random count": (lambda: mask.random_blocks(4, -1), r"count must be a whole number of at least 0; got -1\."),
    "bigbird near": (lambda: mask.bigbird(4, near=0), r"near must be a whole number of at least 1; got 0\."),
    "bigbird ends": (lambda: mask.bigbird(4, ends=-1), r"ends must be a whole number of at least 0; got -1\."),
    "padding side": (lambda: mask.padding([1], "top"), r"padding side must be one of 'left', 'right'; got 'top'\."),
    "padding floats": (lambda: mask.padding([1.5]), r"padding lengths must be whole numbers; got torch\.float32\."),
    "document floats": (lambda: mask.documents([0.5]), r"document ids must be whole numbers; got torch\.float32\."),
    "document booleans": (
        lambda: mask.documents([0], [True]),
        r"document ids of the keys must be whole numbers; got torch\.bool\.",
    ),
    "prefix floats": (lambda: mask.prefix([0.5]), r"prefix lengths must be whole numbers; got torch\.float32\."),
    "token floats": (lambda: mask.tokens([0.5]), r"token indices must be whole numbers; got torch\.float32\."),
    "negative tokens": (lambda: mask.tokens([3, -2]), r"token indices must not be negative; got -2\."),
    "a float tensor": (
        lambda: mask.tensor(torch.zeros(2)),
        r"a mask tensor must be boolean, True meaning may attend; got torch\.float32\. .* use score\.bias\(tensor\)",
    ),
    "five dimensions": (
        lambda: mask.tensor(torch.ones(1, 1, 1, 2, 2, dtype=torch.bool)),
        r"at most 4 dimensions; got shape \(1, 1, 1, 2, 2\)\.",
    ),
    "a string": (lambda: mask.causal() & "causal", r"mask must be a mask, a boolean tensor or a function .* got str\."),
    "a tensor of the wrong size": (
        lambda: mask.tensor(torch.ones(3, 4, dtype=torch.bool)).dense(3, 5),
        r"must broadcast to \(batch, heads, n_q, n_k\) = \(1, 1, 3, 5\); got shape \(3, 4\)",
    ),
    "lengths for another batch": (
        lambda: mask.padding([1, 2, 3]).dense(4, batch=2),
        r"padding lengths must have one entry for each of batch = 2; got 3 \(shape \(3,\)\)",
    ),
    "prefixes for another batch": (
        lambda: mask.prefix([1, 2, 3]).dense(4, batch=2),
        r"prefix lengths must have one entry for each of batch = 2; got 3 \(shape \(3,\)\)",
    ),
    "documents for other keys": (
        lambda: mask.documents([0, 0, 1]).dense(2, 4),
        r"document ids must have one entry for each of n_k = 4; got 3 \(shape \(3,\)\)",
    ),
    "documents for another batch": (
        lambda: mask.documents([[0, 0], [1, 1]]).dense(2, batch=3),
        r"document ids must have one entry for each of batch = 3; got 2 \(shape \(2, 2\)\)",
    ),
    "documents for other queries": (
        lambda: mask.documents([0, 0, 1], [0, 1]).dense(2, 2),
        r"document ids of the queries must have one entry for each of n_q = 2; got 3",
    ),
    "documents for other keys apart": (
        lambda: mask.documents([0, 0], [0, 1, 1]).dense(2, 2),
        r"document ids of the keys must have one entry for each of n_k = 2; got 3",
    ),
    "queries before the first key": (
        lambda: mask.documents([0, 1]).dense(5, 2),
        r"got 5 queries that begin before the first key\. .* documents\(ids_q, ids_k\)",
    ),
    "queries before the first key of one batch element": (
        lambda: mask.documents([0, 1]).dense(1, 2, batch=2, start=torch.tensor([0, -1])),
        r"got 1 queries that begin before the first key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mask_that_cannot_be_meant_is_refused_with_its_numbers(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        make()


def test_queries_that_stand_after_the_last_key_have_no_document() -> None:
    """As before the first key: their document is not known, whatever the ids of the others are."""
    for ids in ([0, 0, 1, 1], [0, 0, 0, 0]):
        with pytest.raises(SpecError, match=r"document|look-up"):
            regard.attention(*(torch.randn(4, 8) for _ in "qkv"), mask=mask.documents(ids), start=2)


@pytest.mark.parametrize("engine", regard.engines())
def test_a_look_up_outside_its_tensor_is_refused_where_it_is_seen_also_in_full_tiles(engine: str) -> None:
    ids = torch.zeros(4, dtype=torch.long)  # too short for 8 keys, and everywhere the same
    with pytest.raises(SpecError, match=r"a look-up in a rule must stay inside its tensor"):
        regard.attention(*(torch.randn(8, 4) for _ in "qkv"), mask=lambda b, h, i, j: ids[i] == ids[j], engine=engine)


def test_a_mask_on_the_whole_plane_can_be_given_per_batch_and_head() -> None:
    found = mask.where(lambda b, h, i, j: (i + j) % (b + h + 2) == 0).dense(5, 6, batch=2, heads=3)
    b, h, i, j = torch.meshgrid(*(torch.arange(n) for n in (2, 3, 5, 6)), indexing="ij")
    assert torch.equal(found, (i + j) % (b + h + 2) == 0)


def test_each_batch_element_may_start_elsewhere() -> None:
    start = torch.tensor([0, 3])
    found = mask.causal().dense(2, 5, batch=2, start=start)[:, 0]
    assert found.int().tolist() == [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]], [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]]
