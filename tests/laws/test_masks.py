"""Masks: True means may attend, and masks combine with &, | and ~."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask

from . import cases, direct


def assert_agrees(backend, problem, tested_mask, predicate, query_offset=None):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    result = cases.attention_with_weights(backend, q, k, v, mask=tested_mask, query_offset=query_offset)
    expected = direct.attention(q, k, v, mask=predicate, query_offset=query_offset)
    cases.close(result.output, expected.output, backend)
    cases.close(result.lse, expected.lse, backend)


@given(problem=cases.problems())
@cases.examples(20)
def test_true_in_a_boolean_tensor_means_may_attend(backend, problem):
    visible = problem.random_mask(problem.batch_size, problem.num_heads, problem.n_q, problem.n_k, probability=0.6)

    assert_agrees(backend, problem, visible, lambda where: visible)


@given(problem=cases.problems(), data=st.data())
@cases.examples(20)
def test_a_boolean_tensor_broadcasts_from_any_shape(backend, problem, data):
    full = (problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)
    shape = tuple(data.draw(st.sampled_from([1, size])) for size in full)[data.draw(st.integers(0, 4)) :]
    visible = problem.random_mask(*shape, probability=0.6)

    assert_agrees(backend, problem, visible, lambda where: visible)


@given(problem=cases.problems())
@cases.examples(15)
def test_true_of_a_function_means_may_attend(backend, problem):
    assert_agrees(
        backend,
        problem,
        lambda b, h, i, j: (i - j + b) % 3 != h,
        lambda where: (where.i - where.j + where.b) % 3 != where.h,
    )


@given(problem=cases.problems(), data=st.data())
@cases.examples(25)
def test_masks_combine_as_their_predicates_do(backend, problem, data):
    tested_mask, predicate = data.draw(cases.mask_pairs(problem, depth=3))

    assert_agrees(backend, problem, tested_mask, predicate)


@given(problem=cases.long_problems(), data=st.data())
@cases.examples(8)
def test_composed_masks_across_tile_borders(backend, problem, data):
    tested_mask, predicate = data.draw(cases.mask_pairs(problem, depth=2))

    assert_agrees(backend, problem, tested_mask, predicate)


@pytest.mark.parametrize(
    "name, tested_mask, predicate",
    [
        ("causal", mask.causal(), direct.causal()),
        ("sliding window", mask.sliding_window(37), direct.sliding_window(37)),
        ("two-sided window", mask.sliding_window(130, 5), direct.sliding_window(130, 5)),
        (
            "causal window",
            mask.causal() & mask.sliding_window(64),
            lambda w: direct.causal()(w) & direct.sliding_window(64)(w),
        ),
        ("chunked", mask.chunked(100, look_back=1), direct.chunked(100, 1)),
        ("strided", mask.strided(17), direct.strided(17)),
        ("fixed", mask.fixed(16, num_summary_keys=3), direct.fixed(16, 3)),
        ("dilated", mask.dilated(5, 30), direct.dilated(5, 30)),
        (
            "prefix model",
            mask.causal() | mask.prefix(130),
            lambda w: direct.causal()(w) | direct.prefix(130)(w),
        ),
        ("longformer", mask.longformer(20, [0, 150]), direct.longformer(20, [0, 150])),
        ("global tokens", mask.global_tokens([0, 128, 299]), direct.global_tokens([0, 128, 299])),
        ("anti-causal", ~mask.causal(), lambda w: ~direct.causal()(w)),
    ],
    ids=lambda part: part.replace(" ", "-") if isinstance(part, str) else "",
)
def test_a_structured_mask_skips_only_empty_tiles(backend, name, tested_mask, predicate):
    problem = cases.Problem(
        batch_size=1, num_heads=1, num_kv_heads=1, n_q=300, n_k=300, head_dim=4, value_dim=4, seed=5
    )

    assert_agrees(backend, problem, tested_mask, predicate)


def test_window_of_one_is_the_diagonal_and_a_causal_window_of_w_has_w_keys(backend):
    zeros = torch.zeros(1, 1, 9, 2, dtype=cases.dtype_of(backend))
    diagonal = torch.eye(9, dtype=zeros.dtype).view(1, 1, 9, 9)

    window_1 = cases.attention(backend, zeros, zeros, diagonal, mask=mask.sliding_window(1))
    window_4 = cases.attention(backend, zeros, zeros, diagonal, mask=mask.causal() & mask.sliding_window(4))

    cases.equal(window_1, diagonal)
    assert (window_4 > 0).sum(-1).flatten().tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    "tested_mask",
    [
        mask.random_blocks(16, 2, seed=3),
        mask.bigbird(16, num_random_blocks=1, seed=3),
        mask.causal() & mask.bigbird(8, seed=1),
    ],
    ids=["random-blocks", "bigbird", "causal-bigbird"],
)
def test_a_random_mask_equals_its_dense_form(backend, tested_mask):
    problem = cases.Problem(
        batch_size=1, num_heads=2, num_kv_heads=1, n_q=150, n_k=150, head_dim=3, value_dim=3, seed=5
    )
    visible = tested_mask.to_dense(150, 150, num_heads=2)

    assert 0 < visible.double().mean() < 1
    assert_agrees(backend, problem, tested_mask, lambda where: visible)


@given(problem=cases.problems(n_k=None))
@cases.examples(15)
def test_documents_attend_only_within_themselves(backend, problem):
    ids = torch.randint(0, 3, (problem.batch_size, problem.n_k), generator=torch.Generator().manual_seed(problem.seed))

    assert_agrees(backend, problem, mask.document(ids), direct.document(ids, ids))


@given(problem=cases.problems())
@cases.examples(15)
def test_queries_and_keys_may_have_separate_document_ids(backend, problem):
    generator = torch.Generator().manual_seed(problem.seed)
    ids_q = torch.randint(0, 2, (problem.batch_size, problem.n_q), generator=generator)
    ids_k = torch.randint(0, 2, (problem.batch_size, problem.n_k), generator=generator)

    assert_agrees(backend, problem, mask.document(ids_q, ids_k), direct.document(ids_q, ids_k))


@given(problem=cases.problems())
@cases.examples(15)
def test_a_mask_and_its_complement_partition_the_keys(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible = mask.tensor(problem.random_mask(problem.n_q, problem.n_k))

    both = cases.attention(backend, q, k, v, mask=visible | ~visible)
    neither = cases.attention(backend, q, k, v, mask=visible & ~visible)

    cases.close(both, direct.attention(q, k, v).output, backend)
    cases.equal(neither, torch.zeros_like(neither))


def test_a_function_is_traced_in_each_call(backend):
    problem = cases.Problem(batch_size=1, num_heads=1, num_kv_heads=1, n_q=5, n_k=5, head_dim=2, value_dim=2, seed=3)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    reach = {"back": 1}
    visible = lambda b, h, i, j: i - j < reach["back"]

    for back in (1, 3):
        reach["back"] = back
        output = cases.attention(backend, q, k, v, mask=visible)
        cases.close(
            output,
            direct.attention(q, k, v, mask=lambda where, back=back: where.i - where.j < back).output,
            backend,
        )


def test_a_captured_tensor_changed_in_place_is_read_again(backend):
    problem = cases.Problem(batch_size=1, num_heads=1, num_kv_heads=1, n_q=5, n_k=5, head_dim=2, value_dim=2, seed=3)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible = torch.ones(5, dtype=torch.bool)
    tested_mask = mask.from_function(lambda b, h, i, j: visible[j])

    for key in (0, 3):
        visible.fill_(True)
        visible[key] = False
        output = cases.attention(backend, q, k, v, mask=tested_mask)
        cases.close(output, direct.attention(q, k, v, mask=lambda where, key=key: where.j != key).output, backend)
