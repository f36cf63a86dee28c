"""Positions: query i stands at p = start + i, start is n_k - n_q by default; user functions get the raw i."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, score

from . import cases, direct


def built_in_masks(size):
    return [
        (mask.causal(), direct.causal()),
        (mask.window(size), direct.window(size)),
        (mask.window(size, 2 * size), direct.window(size, 2 * size)),
        (mask.blocks(size), direct.blocks(size)),
        (mask.blocks(size, look_back=2), direct.blocks(size, 2)),
        (mask.strided(size), direct.strided(size)),
        (mask.fixed(size, summary=1), direct.fixed(size, 1)),
        (mask.tokens([1, 4]), direct.tokens([1, 4])),
        (mask.dilated(2, size), direct.dilated(2, size)),
        (mask.longformer(2 * size, [0]), direct.longformer(2 * size, [0])),
        (mask.prefix(size) & ~mask.causal(), lambda w: direct.prefix(size)(w) & ~direct.causal()(w)),
    ]


choices = st.integers(0, len(built_in_masks(1)) - 1)


@given(problem=cases.problems(n_q=cases.short, n_k=cases.short), choice=choices, size=st.integers(1, 4))
@cases.examples(25)
def test_the_last_query_stands_at_the_last_key_unless_told_otherwise(engine, problem, choice, size):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    chosen, meaning = built_in_masks(size)[choice]

    got = cases.attention(engine, q, k, v, mask=chosen)

    cases.close(got, direct.attention(q, k, v, mask=meaning, start=problem.n_k - problem.n_q).output, engine)


@given(problem=cases.problems(), choice=choices, size=st.integers(1, 4), start=st.integers(-6, 12))
@cases.examples(25)
def test_every_built_in_mask_counts_from_start(engine, problem, choice, size, start):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    chosen, meaning = built_in_masks(size)[choice]

    got = cases.attention(engine, q, k, v, mask=chosen, start=start)

    cases.close(got, direct.attention(q, k, v, mask=meaning, start=start).output, engine)


@given(problem=cases.problems(batch=st.just(3)), choice=choices, as_tensor=st.booleans())
@cases.examples(20)
def test_each_batch_element_may_start_elsewhere(engine, problem, choice, as_tensor):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    starts = [0, problem.n_k - problem.n_q, 2]
    chosen, meaning = built_in_masks(2)[choice]

    got = cases.attention(engine, q, k, v, mask=chosen, start=torch.tensor(starts) if as_tensor else starts)

    cases.close(got, direct.attention(q, k, v, mask=meaning, start=starts).output, engine)


@given(problem=cases.problems(n_q=st.integers(1, 5), n_k=st.integers(5, 9)), data=st.data())
@cases.examples(15)
def test_a_query_belongs_to_the_document_of_the_key_at_its_position(engine, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    ids = problem.coins(problem.batch, problem.n_k).long()
    start = data.draw(st.none() | st.integers(0, problem.n_k - problem.n_q))

    got = cases.attention(engine, q, k, v, mask=mask.documents(ids), start=start)

    cases.close(got, direct.attention(q, k, v, mask=direct.documents_of_keys(ids), start=start).output, engine)


@given(problem=cases.problems(), start=st.none() | st.integers(-4, 8))
@cases.examples(20)
def test_alibi_measures_distance_from_the_position(engine, problem, start):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    slopes = torch.rand(problem.heads, generator=torch.Generator().manual_seed(problem.seed), dtype=torch.float64)

    got = cases.attention(engine, q, k, v, score=score.alibi(slopes.to(q.dtype)), start=start)
    expected = direct.attention(q, k, v, rules=[direct.alibi(slopes)], start=start)

    cases.close(got, expected.output, engine, times=10)  # biases up to 10 enter the exponent


@given(problem=cases.problems(n_q=st.integers(1, 6), n_k=st.integers(1, 6)), start=st.none() | st.integers(-3, 8))
@cases.examples(15)
def test_relative_buckets_count_from_the_position(engine, problem, start):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    table = problem.normal(8, problem.heads)

    got = cases.attention(engine, q, k, v, score=score.relative(table.to(q.dtype), max_distance=6), start=start)
    expected = direct.attention(q, k, v, rules=[direct.relative(table, max_distance=6)], start=start)

    cases.close(got, expected.output, engine)


@given(problem=cases.problems(), start=st.none() | st.integers(-3, 8), reach=st.integers(0, 3))
@cases.examples(15)
def test_relative_keys_and_values_count_from_the_position(engine, problem, start, reach):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    keys = problem.normal(2 * reach + 1, problem.width, salt=2).to(q.dtype)
    values = problem.normal(2 * reach + 1, problem.width_v, salt=3).to(q.dtype)

    got = cases.attention(engine, q, k, v, score=score.shaw_keys(keys), value=score.shaw_values(values), start=start)
    expected = direct.attention(
        q,
        k,
        v,
        rules=[direct.shaw_keys(q.double(), keys.double())],
        pair_value=direct.shaw_values(values.double()),
        start=start,
    )

    cases.close(got, expected.output, engine)


@given(problem=cases.problems(), start=st.none() | st.integers(-4, 8))
@cases.examples(20)
def test_user_functions_get_the_raw_query_number_whatever_the_start(engine, problem, start):
    q, k, v = problem.tensors(cases.dtype_of(engine))

    got = cases.attention(
        engine,
        q,
        k,
        v,
        score=lambda s, b, h, i, j: s + 0.25 * (i - j),
        mask=lambda b, h, i, j: (2 * i + j) % 3 != 0,
        start=start,
    )
    expected = direct.attention(
        q,
        k,
        v,
        rules=[lambda s, where: s + 0.25 * (where.i - where.j)],
        mask=lambda where: (2 * where.i + where.j) % 3 != 0,
        start=start,
    )

    cases.close(got, expected.output, engine)


@given(problem=cases.problems(), choice=choices)
@cases.examples(15)
def test_built_in_masks_and_user_functions_meet_in_one_mask(engine, problem, choice):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    chosen, meaning = built_in_masks(3)[choice]

    got = cases.attention(engine, q, k, v, mask=chosen & mask.where(lambda b, h, i, j: i != j), start=2)
    expected = direct.attention(q, k, v, mask=lambda where: meaning(where) & (where.i != where.j), start=2)

    cases.close(got, expected.output, engine)


@given(problem=cases.problems(n_q=cases.short, n_k=cases.short))
@cases.examples(15)
def test_start_zero_is_the_convention_of_torch(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))

    got = cases.attention(engine, q, k, v, mask=mask.causal(), start=0)

    cases.close(got, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), engine)


@pytest.mark.parametrize(
    "chosen",
    [mask.causal(), mask.causal() & mask.window(3), mask.blocks(4, look_back=1), mask.strided(3)],
    ids=str,
)
def test_decoding_one_query_at_a_time_with_a_cache_gives_the_rows_of_the_whole(engine, chosen):
    problem = cases.Problem(batch=2, heads=4, key_heads=2, n_q=11, n_k=11, width=3, width_v=2, seed=8)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    chosen = chosen & mask.causal()

    whole = cases.attention(engine, q, k, v, mask=chosen)
    steps = [
        cases.attention(engine, q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], mask=chosen) for t in range(11)
    ]

    cases.close(torch.cat(steps, 2), whole, engine)


def test_queries_before_the_first_key_see_nothing_under_a_causal_mask(engine):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=5, n_k=2, width=3, width_v=3, seed=4)
    q, k, v = problem.tensors(cases.dtype_of(engine))

    got = cases.attention(engine, q, k, v, mask=mask.causal())

    assert (got[0, 0, :3] == 0).all()
    assert (got[0, 0, 3:] != 0).all()
