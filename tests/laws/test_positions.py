"""Positions: query i is at p = query_offset + i, with query_offset = n_k - n_q by default; user functions get i."""

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
        (mask.sliding_window(size), direct.sliding_window(size)),
        (mask.sliding_window(size, 2 * size), direct.sliding_window(size, 2 * size)),
        (mask.chunked(size), direct.chunked(size)),
        (mask.chunked(size, look_back=2), direct.chunked(size, 2)),
        (mask.strided(size), direct.strided(size)),
        (mask.fixed(size, num_summary_keys=1), direct.fixed(size, 1)),
        (mask.global_tokens([1, 4]), direct.global_tokens([1, 4])),
        (mask.dilated(2, size), direct.dilated(2, size)),
        (mask.longformer(2 * size, [0]), direct.longformer(2 * size, [0])),
        (mask.prefix(size) & ~mask.causal(), lambda w: direct.prefix(size)(w) & ~direct.causal()(w)),
    ]


mask_indices = st.integers(0, len(built_in_masks(1)) - 1)


@given(problem=cases.problems(n_q=cases.short, n_k=cases.short), mask_index=mask_indices, size=st.integers(1, 4))
@cases.examples(25)
def test_the_last_query_is_at_the_last_key_by_default(backend, problem, mask_index, size):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    tested_mask, predicate = built_in_masks(size)[mask_index]

    output = cases.attention(backend, q, k, v, mask=tested_mask)

    cases.close(
        output, direct.attention(q, k, v, mask=predicate, query_offset=problem.n_k - problem.n_q).output, backend
    )


@given(problem=cases.problems(), mask_index=mask_indices, size=st.integers(1, 4), query_offset=st.integers(-6, 12))
@cases.examples(25)
def test_every_built_in_mask_uses_the_query_offset(backend, problem, mask_index, size, query_offset):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    tested_mask, predicate = built_in_masks(size)[mask_index]

    output = cases.attention(backend, q, k, v, mask=tested_mask, query_offset=query_offset)

    cases.close(output, direct.attention(q, k, v, mask=predicate, query_offset=query_offset).output, backend)


@given(problem=cases.problems(batch_size=st.just(3)), mask_index=mask_indices, as_tensor=st.booleans())
@cases.examples(20)
def test_each_batch_element_may_have_its_own_query_offset(backend, problem, mask_index, as_tensor):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    offsets = [0, problem.n_k - problem.n_q, 2]
    tested_mask, predicate = built_in_masks(2)[mask_index]

    output = cases.attention(
        backend, q, k, v, mask=tested_mask, query_offset=torch.tensor(offsets) if as_tensor else offsets
    )

    cases.close(output, direct.attention(q, k, v, mask=predicate, query_offset=offsets).output, backend)


@given(problem=cases.problems(n_q=st.integers(1, 5), n_k=st.integers(5, 9)), data=st.data())
@cases.examples(15)
def test_a_query_has_the_document_id_of_its_position(backend, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    ids = problem.random_mask(problem.batch_size, problem.n_k).long()
    query_offset = data.draw(st.none() | st.integers(0, problem.n_k - problem.n_q))

    output = cases.attention(backend, q, k, v, mask=mask.document(ids), query_offset=query_offset)

    cases.close(
        output, direct.attention(q, k, v, mask=direct.document_of_keys(ids), query_offset=query_offset).output, backend
    )


@given(problem=cases.problems(), query_offset=st.none() | st.integers(-4, 8))
@cases.examples(20)
def test_alibi_uses_the_distance_from_the_position(backend, problem, query_offset):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    slopes = torch.rand(problem.num_heads, generator=torch.Generator().manual_seed(problem.seed), dtype=torch.float64)

    output = cases.attention(backend, q, k, v, score=score.alibi(slopes.to(q.dtype)), query_offset=query_offset)
    expected = direct.attention(q, k, v, modifiers=[direct.alibi(slopes)], query_offset=query_offset)

    cases.close(output, expected.output, backend, times=10)  # biases up to 10 in the exponent


@given(
    problem=cases.problems(n_q=st.integers(1, 6), n_k=st.integers(1, 6)), query_offset=st.none() | st.integers(-3, 8)
)
@cases.examples(15)
def test_t5_bias_uses_the_distance_from_the_position(backend, problem, query_offset):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    table = problem.normal(8, problem.num_heads)

    output = cases.attention(
        backend, q, k, v, score=score.t5_bias(table.to(q.dtype), max_distance=6), query_offset=query_offset
    )
    expected = direct.attention(q, k, v, modifiers=[direct.t5_bias(table, max_distance=6)], query_offset=query_offset)

    cases.close(output, expected.output, backend)


@given(problem=cases.problems(), query_offset=st.none() | st.integers(-3, 8), max_distance=st.integers(0, 3))
@cases.examples(15)
def test_shaw_keys_and_values_use_the_distance_from_the_position(backend, problem, query_offset, max_distance):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    keys = problem.normal(2 * max_distance + 1, problem.head_dim, salt=2).to(q.dtype)
    values = problem.normal(2 * max_distance + 1, problem.value_dim, salt=3).to(q.dtype)

    output = cases.attention(
        backend, q, k, v, score=score.shaw_keys(keys), value=score.shaw_values(values), query_offset=query_offset
    )
    expected = direct.attention(
        q,
        k,
        v,
        modifiers=[direct.shaw_keys(q.double(), keys.double())],
        pair_value=direct.shaw_values(values.double()),
        query_offset=query_offset,
    )

    cases.close(output, expected.output, backend)


@given(problem=cases.problems(), query_offset=st.none() | st.integers(-4, 8))
@cases.examples(20)
def test_user_functions_get_the_query_index_without_the_offset(backend, problem, query_offset):
    q, k, v = problem.tensors(cases.dtype_of(backend))

    output = cases.attention(
        backend,
        q,
        k,
        v,
        score=lambda s, b, h, i, j: s + 0.25 * (i - j),
        mask=lambda b, h, i, j: (2 * i + j) % 3 != 0,
        query_offset=query_offset,
    )
    expected = direct.attention(
        q,
        k,
        v,
        modifiers=[lambda s, where: s + 0.25 * (where.i - where.j)],
        mask=lambda where: (2 * where.i + where.j) % 3 != 0,
        query_offset=query_offset,
    )

    cases.close(output, expected.output, backend)


@given(problem=cases.problems(), mask_index=mask_indices)
@cases.examples(15)
def test_built_in_masks_combine_with_user_functions(backend, problem, mask_index):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    tested_mask, predicate = built_in_masks(3)[mask_index]

    output = cases.attention(
        backend, q, k, v, mask=tested_mask & mask.from_function(lambda b, h, i, j: i != j), query_offset=2
    )
    expected = direct.attention(q, k, v, mask=lambda where: predicate(where) & (where.i != where.j), query_offset=2)

    cases.close(output, expected.output, backend)


@given(problem=cases.problems(n_q=cases.short, n_k=cases.short))
@cases.examples(15)
def test_query_offset_zero_equals_torch_is_causal(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))

    output = cases.attention(backend, q, k, v, mask=mask.causal(), query_offset=0)

    cases.close(output, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), backend)


@pytest.mark.parametrize(
    "tested_mask",
    [mask.causal(), mask.causal() & mask.sliding_window(3), mask.chunked(4, look_back=1), mask.strided(3)],
    ids=str,
)
def test_decoding_with_a_cache_equals_the_full_call(backend, tested_mask):
    problem = cases.Problem(batch_size=2, num_heads=4, num_kv_heads=2, n_q=11, n_k=11, head_dim=3, value_dim=2, seed=8)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    tested_mask = tested_mask & mask.causal()

    full = cases.attention(backend, q, k, v, mask=tested_mask)
    steps = [
        cases.attention(backend, q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], mask=tested_mask)
        for t in range(11)
    ]

    cases.close(torch.cat(steps, 2), full, backend)


def test_queries_before_the_first_key_are_fully_masked_by_causal(backend):
    problem = cases.Problem(batch_size=1, num_heads=1, num_kv_heads=1, n_q=5, n_k=2, head_dim=3, value_dim=3, seed=4)
    q, k, v = problem.tensors(cases.dtype_of(backend))

    output = cases.attention(backend, q, k, v, mask=mask.causal())

    assert (output[0, 0, :3] == 0).all()
    assert (output[0, 0, 3:] != 0).all()
