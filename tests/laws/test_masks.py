"""Boolean masks: True may attend, and masks compose with &, | and ~."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask

from . import cases, direct


def agrees(engine, problem, chosen, meaning, start=None):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    got = cases.attend(engine, q, k, v, mask=chosen, start=start)
    expected = direct.attention(q, k, v, mask=meaning, start=start)
    cases.close(got.output, expected.output, engine)
    cases.close(got.lse, expected.lse, engine)


@given(problem=cases.problems())
@cases.examples(20)
def test_true_may_attend_in_a_boolean_tensor(engine, problem):
    may = problem.coins(problem.batch, problem.heads, problem.n_q, problem.n_k, chance=0.6)

    agrees(engine, problem, may, lambda where: may)


@given(problem=cases.problems(), data=st.data())
@cases.examples(20)
def test_a_boolean_tensor_broadcasts_from_any_shape(engine, problem, data):
    full = (problem.batch, problem.heads, problem.n_q, problem.n_k)
    shape = tuple(data.draw(st.sampled_from([1, size])) for size in full)[data.draw(st.integers(0, 4)) :]
    may = problem.coins(*shape, chance=0.6)

    agrees(engine, problem, may, lambda where: may)


@given(problem=cases.problems())
@cases.examples(15)
def test_a_function_says_true_where_a_query_may_attend(engine, problem):
    agrees(
        engine,
        problem,
        lambda b, h, i, j: (i - j + b) % 3 != h,
        lambda where: (where.i - where.j + where.b) % 3 != where.h,
    )


@given(problem=cases.problems(), data=st.data())
@cases.examples(25)
def test_masks_compose_as_their_predicates_do(engine, problem, data):
    chosen, meaning = data.draw(cases.mask_pairs(problem, depth=3))

    agrees(engine, problem, chosen, meaning)


@given(problem=cases.long_problems(), data=st.data())
@cases.examples(8)
def test_composed_masks_hold_across_the_borders_of_tiles(engine, problem, data):
    chosen, meaning = data.draw(cases.mask_pairs(problem, depth=2))

    agrees(engine, problem, chosen, meaning)


@pytest.mark.parametrize(
    "name, chosen, meaning",
    [
        ("causal", mask.causal(), direct.causal()),
        ("window", mask.window(37), direct.window(37)),
        ("two-sided window", mask.window(130, 5), direct.window(130, 5)),
        (
            "causal window",
            mask.causal() & mask.window(64),
            lambda w: direct.causal()(w) & direct.window(64)(w),
        ),
        ("blocks", mask.blocks(100, look_back=1), direct.blocks(100, 1)),
        ("strided", mask.strided(17), direct.strided(17)),
        ("fixed", mask.fixed(16, summary=3), direct.fixed(16, 3)),
        ("dilated", mask.dilated(5, 30), direct.dilated(5, 30)),
        (
            "prefix model",
            mask.causal() | mask.prefix(130),
            lambda w: direct.causal()(w) | direct.prefix(130)(w),
        ),
        ("longformer", mask.longformer(20, [0, 150]), direct.longformer(20, [0, 150])),
        ("tokens", mask.tokens([0, 128, 299]), direct.tokens([0, 128, 299])),
        ("anti-causal", ~mask.causal(), lambda w: ~direct.causal()(w)),
    ],
    ids=lambda part: part.replace(" ", "-") if isinstance(part, str) else "",
)
def test_a_structured_mask_skips_no_tile_it_should_visit(engine, name, chosen, meaning):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=300, n_k=300, width=4, width_v=4, seed=5)

    agrees(engine, problem, chosen, meaning)


def test_one_window_is_the_diagonal_and_a_causal_window_sees_as_many_keys_as_it_says(engine):
    zeros = torch.zeros(1, 1, 9, 2, dtype=cases.dtype_of(engine))
    diagonal = torch.eye(9, dtype=zeros.dtype).view(1, 1, 9, 9)

    alone = cases.attention(engine, zeros, zeros, diagonal, mask=mask.window(1))
    four = cases.attention(engine, zeros, zeros, diagonal, mask=mask.causal() & mask.window(4))

    cases.equal(alone, diagonal)
    assert (four > 0).sum(-1).flatten().tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    "chosen",
    [
        mask.random_blocks(16, 2, seed=3),
        mask.bigbird(16, random=1, seed=3),
        mask.causal() & mask.bigbird(8, seed=1),
    ],
    ids=["random-blocks", "bigbird", "causal-bigbird"],
)
def test_a_drawn_mask_is_the_one_that_it_shows(engine, chosen):
    problem = cases.Problem(batch=1, heads=2, key_heads=1, n_q=150, n_k=150, width=3, width_v=3, seed=5)
    may = chosen.dense(150, 150, heads=2)

    assert 0 < may.double().mean() < 1
    agrees(engine, problem, chosen, lambda where: may)


@given(problem=cases.problems(n_k=None))
@cases.examples(15)
def test_documents_attend_only_within_themselves(engine, problem):
    ids = torch.randint(0, 3, (problem.batch, problem.n_k), generator=torch.Generator().manual_seed(problem.seed))

    agrees(engine, problem, mask.documents(ids), direct.documents(ids, ids))


@given(problem=cases.problems())
@cases.examples(15)
def test_queries_and_keys_may_have_document_numbers_of_their_own(engine, problem):
    numbers = torch.Generator().manual_seed(problem.seed)
    ids_q = torch.randint(0, 2, (problem.batch, problem.n_q), generator=numbers)
    ids_k = torch.randint(0, 2, (problem.batch, problem.n_k), generator=numbers)

    agrees(engine, problem, mask.documents(ids_q, ids_k), direct.documents(ids_q, ids_k))


@given(problem=cases.problems())
@cases.examples(15)
def test_a_mask_and_its_complement_share_out_every_key(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may = mask.tensor(problem.coins(problem.n_q, problem.n_k))

    both = cases.attention(engine, q, k, v, mask=may | ~may)
    neither = cases.attention(engine, q, k, v, mask=may & ~may)

    cases.close(both, direct.attention(q, k, v).output, engine)
    cases.equal(neither, torch.zeros_like(neither))


def test_a_function_is_read_anew_at_each_call_so_a_changed_closure_is_never_stale(engine):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=5, n_k=5, width=2, width_v=2, seed=3)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    reach = {"back": 1}
    may = lambda b, h, i, j: i - j < reach["back"]

    for back in (1, 3):
        reach["back"] = back
        got = cases.attention(engine, q, k, v, mask=may)
        cases.close(
            got,
            direct.attention(q, k, v, mask=lambda where, back=back: where.i - where.j < back).output,
            engine,
        )


def test_a_captured_tensor_changed_in_place_is_read_anew(engine):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=5, n_k=5, width=2, width_v=2, seed=3)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may = torch.ones(5, dtype=torch.bool)
    chosen = mask.where(lambda b, h, i, j: may[j])

    for key in (0, 3):
        may.fill_(True)
        may[key] = False
        got = cases.attention(engine, q, k, v, mask=chosen)
        cases.close(got, direct.attention(q, k, v, mask=lambda where, key=key: where.j != key).output, engine)
