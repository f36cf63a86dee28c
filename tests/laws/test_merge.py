"""merge: parts of the keys put together are the whole, in any grouping and any order."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import mask, score, weigh

from . import cases, direct


def parts_of(engine, problem, cuts, **options):
    """(output, lse) of each run of keys between the cuts."""
    q, k, v = problem.tensors(cases.dtype_of(engine))
    edges = [0, *sorted(cuts), problem.n_k]
    found = []
    for low, high in itertools.pairwise(edges):
        got = cases.attend(engine, q, k[:, :, low:high], v[:, :, low:high], **options)
        found.append((got.output, got.lse))
    return found


cut_places = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_places)
@cases.examples(20)
def test_merged_parts_are_the_whole(engine, problem, cuts):
    output, lse = regard.merge(*parts_of(engine, problem, cuts))

    expected = direct.attention(*problem.tensors(cases.dtype_of(engine)))
    cases.close(output, expected.output, engine)
    cases.close(lse, expected.lse, engine)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_places, data=st.data())
@cases.examples(15)
def test_merging_is_associative_and_has_no_favourite_order(engine, problem, cuts, data):
    parts = parts_of(engine, problem, cuts)
    middle = data.draw(st.integers(1, len(parts) - 1))

    at_once = regard.merge(*parts)
    in_groups = regard.merge(regard.merge(*parts[:middle]), regard.merge(*parts[middle:]))
    shuffled = regard.merge(*data.draw(st.permutations(parts)))

    for other in (in_groups, shuffled):
        cases.close(other[0], at_once[0], engine)
        cases.close(other[1], at_once[1], engine)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_places)
@cases.examples(15)
def test_parts_that_some_queries_do_not_see_merge_to_the_whole(engine, problem, cuts):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may = problem.coins(problem.batch, 1, problem.n_q, 9, chance=0.3)
    edges = [0, *sorted(cuts), 9]

    parts = []
    for low, high in itertools.pairwise(edges):
        got = cases.attend(engine, q, k[:, :, low:high], v[:, :, low:high], mask=may[..., low:high])
        parts.append((got.output, got.lse))
    output, lse = regard.merge(*parts)

    expected = direct.attention(q, k, v, mask=lambda where: may)
    cases.close(output, expected.output, engine)
    cases.close(lse, expected.lse, engine)
    assert (output[expected.lse == -math.inf] == 0).all()


def test_a_part_that_sees_nothing_changes_no_bit(engine):
    q, k, v = cases.Problem(1, 2, 2, 4, 5, 3, 3, seed=2).tensors(cases.dtype_of(engine))
    got = cases.attend(engine, q, k, v)
    nothing = (torch.zeros_like(got.output), torch.full_like(got.lse, -math.inf))

    for output, lse in (
        regard.merge((got.output, got.lse), nothing),
        regard.merge(nothing, (got.output, got.lse)),
    ):
        cases.equal(output, got.output)
        cases.equal(lse, got.lse)


def test_nothing_merged_with_nothing_is_nothing():
    nothing = (torch.zeros(2, 3, 4), torch.full((2, 3), -math.inf))

    output, lse = regard.merge(nothing, nothing, nothing)

    assert (output == 0).all()
    assert (lse == -math.inf).all()


def test_one_part_is_already_merged(engine):
    got = cases.attend(engine, *cases.Problem(1, 2, 2, 4, 5, 3, 3, seed=2).tensors(cases.dtype_of(engine)))

    output, lse = regard.merge((got.output, got.lse))

    cases.equal(output, got.output)
    cases.equal(lse, got.lse)


@pytest.mark.parametrize("offset", [-5000.0, 5000.0])
def test_merging_survives_scores_far_beyond_what_exp_can_hold(engine, offset):
    q, k, v = cases.Problem(1, 1, 1, 3, 8, 2, 2, seed=3).tensors(cases.dtype_of(engine))
    shift = torch.tensor(offset, dtype=q.dtype)

    parts = []
    for low, high in ((0, 3), (3, 8)):
        got = cases.attend(engine, q, k[:, :, low:high], v[:, :, low:high], score=score.bias(shift))
        parts.append((got.output, got.lse))

    # 5000 in the exponent costs four digits
    cases.close(regard.merge(*parts)[0], direct.attention(q, k, v).output, engine, times=5000)


def test_a_far_smaller_part_does_not_count(engine):
    q, k, v = cases.Problem(1, 1, 1, 3, 8, 2, 2, seed=3).tensors(cases.dtype_of(engine))
    near, far = (
        cases.attend(engine, q, k, v),
        cases.attend(engine, q, k, v + 9, score=score.bias(torch.tensor(-3000.0))),
    )

    output, _ = regard.merge((near.output, near.lse), (far.output, far.lse))

    cases.close(output, near.output, engine)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_places)
@cases.examples(12)
def test_a_sink_is_a_factor_on_the_merged_softmax(engine, problem, cuts):
    """The row statistic of a sink is the lse without it: output = softmax output * sigmoid(lse - logit)."""
    q, k, v = problem.tensors(cases.dtype_of(engine))
    logit = torch.linspace(-1, 1, problem.heads, dtype=q.dtype)

    output, lse = regard.merge(*parts_of(engine, problem, cuts))
    whole = cases.attend(engine, q, k, v, weigh=weigh.sink(logit))

    cases.close(whole.lse, lse, engine)
    cases.close(whole.output, output * torch.sigmoid(lse - logit[:, None]).unsqueeze(-1), engine)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_places)
@cases.examples(10)
def test_the_gradient_through_merged_parts_is_that_of_the_whole(engine, problem, cuts):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    edges = [0, *sorted(cuts), 9]
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v)

    parts = [cases.attend(engine, q, k[:, :, low:high], v[:, :, low:high]) for low, high in itertools.pairwise(edges)]
    output, _ = regard.merge(*((part.output, part.lse) for part in parts))
    got = cases.gradients(output, (q, k, v), weights)
    expected = cases.gradients(direct.attention(q, k, v).output, (q, k, v), weights)

    for one, other in zip(got, expected, strict=True):
        cases.close(one, other, engine, times=10)


def test_a_shared_prefix_and_a_causal_rest_merge_to_the_whole(engine):
    problem = cases.Problem(batch=2, heads=2, key_heads=1, n_q=6, n_k=10, width=3, width_v=3, seed=4)
    q, k, v = problem.tensors(cases.dtype_of(engine))

    prefix = cases.attend(engine, q, k[:, :, :4], v[:, :, :4])
    rest = cases.attend(engine, q, k[:, :, 4:], v[:, :, 4:], mask=mask.causal())
    output, _ = regard.merge((prefix.output, prefix.lse), (rest.output, rest.lse))

    cases.close(output, direct.attention(q, k, v, mask=direct.causal()).output, engine)
