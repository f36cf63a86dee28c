"""merge_states: merged parts of the keys equal attention to all keys, in any grouping and order."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import mask, normalizer, score

from . import cases, direct


def parts_of(backend, problem, cuts, **options):
    """Return (output, lse) of each range of keys between the cuts."""
    q, k, v = problem.tensors(cases.dtype_of(backend))
    edges = [0, *sorted(cuts), problem.n_k]
    parts = []
    for low, high in itertools.pairwise(edges):
        result = cases.attention_with_weights(backend, q, k[:, :, low:high], v[:, :, low:high], **options)
        parts.append((result.output, result.lse))
    return parts


cut_lists = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_lists)
@cases.examples(20)
def test_merged_parts_equal_attention_to_all_keys(backend, problem, cuts):
    output, lse = regard.merge_states(*parts_of(backend, problem, cuts))

    expected = direct.attention(*problem.tensors(cases.dtype_of(backend)))
    cases.close(output, expected.output, backend)
    cases.close(lse, expected.lse, backend)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_lists, data=st.data())
@cases.examples(15)
def test_merging_is_associative_and_commutative(backend, problem, cuts, data):
    parts = parts_of(backend, problem, cuts)
    middle = data.draw(st.integers(1, len(parts) - 1))

    at_once = regard.merge_states(*parts)
    in_groups = regard.merge_states(regard.merge_states(*parts[:middle]), regard.merge_states(*parts[middle:]))
    shuffled = regard.merge_states(*data.draw(st.permutations(parts)))

    for output, lse in (in_groups, shuffled):
        cases.close(output, at_once[0], backend)
        cases.close(lse, at_once[1], backend)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_lists)
@cases.examples(15)
def test_merging_parts_that_are_hidden_from_some_queries(backend, problem, cuts):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible = problem.random_mask(problem.batch_size, 1, problem.n_q, 9, probability=0.3)
    edges = [0, *sorted(cuts), 9]

    parts = []
    for low, high in itertools.pairwise(edges):
        result = cases.attention_with_weights(
            backend, q, k[:, :, low:high], v[:, :, low:high], mask=visible[..., low:high]
        )
        parts.append((result.output, result.lse))
    output, lse = regard.merge_states(*parts)

    expected = direct.attention(q, k, v, mask=lambda where: visible)
    cases.close(output, expected.output, backend)
    cases.close(lse, expected.lse, backend)
    assert (output[expected.lse == -math.inf] == 0).all()


def test_merging_an_empty_part_changes_no_bit(backend):
    q, k, v = cases.Problem(1, 2, 2, 4, 5, 3, 3, seed=2).tensors(cases.dtype_of(backend))
    result = cases.attention_with_weights(backend, q, k, v)
    empty_state = (torch.zeros_like(result.output), torch.full_like(result.lse, -math.inf))

    for output, lse in (
        regard.merge_states((result.output, result.lse), empty_state),
        regard.merge_states(empty_state, (result.output, result.lse)),
    ):
        cases.equal(output, result.output)
        cases.equal(lse, result.lse)


def test_merging_empty_parts_gives_an_empty_state():
    empty_state = (torch.zeros(2, 3, 4), torch.full((2, 3), -math.inf))

    output, lse = regard.merge_states(empty_state, empty_state, empty_state)

    assert (output == 0).all()
    assert (lse == -math.inf).all()


def test_merging_one_part_returns_it(backend):
    result = cases.attention_with_weights(
        backend, *cases.Problem(1, 2, 2, 4, 5, 3, 3, seed=2).tensors(cases.dtype_of(backend))
    )

    output, lse = regard.merge_states((result.output, result.lse))

    cases.equal(output, result.output)
    cases.equal(lse, result.lse)


@pytest.mark.parametrize("offset", [-5000.0, 5000.0])
def test_merging_does_not_overflow_for_large_scores(backend, offset):
    q, k, v = cases.Problem(1, 1, 1, 3, 8, 2, 2, seed=3).tensors(cases.dtype_of(backend))
    shift = torch.tensor(offset, dtype=q.dtype)

    parts = []
    for low, high in ((0, 3), (3, 8)):
        result = cases.attention_with_weights(backend, q, k[:, :, low:high], v[:, :, low:high], score=score.bias(shift))
        parts.append((result.output, result.lse))

    # 5000 in the exponent loses four digits
    cases.close(regard.merge_states(*parts)[0], direct.attention(q, k, v).output, backend, times=5000)


def test_a_part_with_a_much_smaller_lse_has_no_effect(backend):
    q, k, v = cases.Problem(1, 1, 1, 3, 8, 2, 2, seed=3).tensors(cases.dtype_of(backend))
    near, far = (
        cases.attention_with_weights(backend, q, k, v),
        cases.attention_with_weights(backend, q, k, v + 9, score=score.bias(torch.tensor(-3000.0))),
    )

    output, _ = regard.merge_states((near.output, near.lse), (far.output, far.lse))

    cases.close(output, near.output, backend)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_lists)
@cases.examples(12)
def test_a_sink_is_a_factor_on_the_merged_softmax(backend, problem, cuts):
    """The lse excludes the sink: output = softmax output * sigmoid(lse - logit)."""
    q, k, v = problem.tensors(cases.dtype_of(backend))
    logit = torch.linspace(-1, 1, problem.num_heads, dtype=q.dtype)

    output, lse = regard.merge_states(*parts_of(backend, problem, cuts))
    full = cases.attention_with_weights(backend, q, k, v, normalizer=normalizer.sink(logit))

    cases.close(full.lse, lse, backend)
    cases.close(full.output, output * torch.sigmoid(lse - logit[:, None]).unsqueeze(-1), backend)


@given(problem=cases.problems(n_k=st.just(9)), cuts=cut_lists)
@cases.examples(10)
def test_the_gradient_through_merged_parts_equals_that_of_one_call(backend, problem, cuts):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    edges = [0, *sorted(cuts), 9]
    weights = problem.normal(problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim)

    parts = [
        cases.attention_with_weights(backend, q, k[:, :, low:high], v[:, :, low:high])
        for low, high in itertools.pairwise(edges)
    ]
    output, _ = regard.merge_states(*((part.output, part.lse) for part in parts))
    grads = cases.gradients(output, (q, k, v), weights)
    expected = cases.gradients(direct.attention(q, k, v).output, (q, k, v), weights)

    for grad, expected_grad in zip(grads, expected, strict=True):
        cases.close(grad, expected_grad, backend, times=10)


def test_merging_a_shared_prefix_and_a_causal_suffix(backend):
    problem = cases.Problem(batch_size=2, num_heads=2, num_kv_heads=1, n_q=6, n_k=10, head_dim=3, value_dim=3, seed=4)
    q, k, v = problem.tensors(cases.dtype_of(backend))

    prefix = cases.attention_with_weights(backend, q, k[:, :, :4], v[:, :, :4])
    rest = cases.attention_with_weights(backend, q, k[:, :, 4:], v[:, :, 4:], mask=mask.causal())
    output, _ = regard.merge_states((prefix.output, prefix.lse), (rest.output, rest.lse))

    cases.close(output, direct.attention(q, k, v, mask=direct.causal()).output, backend)
