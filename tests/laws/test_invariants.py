"""Mathematical invariants: permutations, shifts, limits, repeated keys and causality."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, normalizer, score

from . import cases, direct

NORMALIZERS = {
    "softmax": normalizer.softmax(),
    "sink": normalizer.sink(0.5),
    "sigmoid": normalizer.sigmoid(0.5),
    "relu": normalizer.relu(0.5),
    "sparsemax": normalizer.sparsemax(),
    "entmax": normalizer.entmax(1.3),
    "topk": normalizer.topk(2),
    "hardmax": normalizer.hardmax(),
}
SPARSE = ("sparsemax", "entmax", "topk", "hardmax")
every_normalizer = pytest.mark.parametrize("normalizer_name", NORMALIZERS)


def random_permutation(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@every_normalizer
@given(problem=cases.problems())
@cases.examples(12)
def test_permuting_queries_keys_and_the_mask_permutes_the_output(backend, normalizer_name, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible, bias = problem.random_mask(problem.n_q, problem.n_k), problem.normal(problem.n_q, problem.n_k).to(q.dtype)
    rows, columns = random_permutation(problem.n_q, problem.seed), random_permutation(problem.n_k, problem.seed + 1)

    unpermuted = cases.attention(
        backend, q, k, v, mask=visible, score=score.bias(bias), normalizer=NORMALIZERS[normalizer_name]
    )
    permuted = cases.attention(
        backend,
        q[:, :, rows],
        k[:, :, columns],
        v[:, :, columns],
        mask=visible[rows][:, columns],
        score=score.bias(bias[rows][:, columns]),
        normalizer=NORMALIZERS[normalizer_name],
    )

    cases.close(permuted, unpermuted[:, :, rows], backend)


@given(problem=cases.problems(n_k=None, groups=st.just(1)))
@cases.examples(12)
def test_self_attention_without_positions_is_equivariant(backend, problem):
    x = problem.tensors(cases.dtype_of(backend))[0]
    order = random_permutation(problem.n_q, problem.seed)

    cases.close(
        cases.attention(backend, x[:, :, order], x[:, :, order], x[:, :, order]),
        cases.attention(backend, x, x, x)[:, :, order],
        backend,
    )


@given(problem=cases.problems(), data=st.data())
@cases.examples(15)
def test_a_softmax_output_lies_in_the_convex_hull_of_the_visible_values(backend, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    tested_mask, predicate = data.draw(cases.mask_pairs(problem, depth=1))
    visible = predicate(direct.positions((problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)))
    visible = visible.expand(problem.batch_size, problem.num_heads, problem.n_q, problem.n_k).unsqueeze(-1)
    values = v.repeat_interleave(problem.num_heads // problem.num_kv_heads, 1).unsqueeze(2).double()

    output = cases.attention(backend, q, k, v, mask=tested_mask).double()

    low = torch.where(visible, values, torch.inf).amin(3)
    high = torch.where(visible, values, -torch.inf).amax(3)
    has_keys = visible.any(3).expand_as(output)
    tolerance = 10 * cases.TOLERANCE[cases.dtype_of(backend)]
    assert ((output >= low - tolerance) & (output <= high + tolerance))[has_keys].all()


@given(problem=cases.problems(), shift=st.floats(-300, 300))
@cases.examples(15)
def test_a_constant_added_to_a_row_of_scores_changes_only_the_lse(backend, problem, shift):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    bias = shift * problem.normal(problem.n_q, 1).to(q.dtype)

    plain = cases.attention_with_weights(backend, q, k, v)
    shifted = cases.attention_with_weights(backend, q, k, v, score=score.bias(bias))

    # a shift of 1000 in the exponent loses three digits
    cases.close(shifted.output, plain.output, backend, times=1000)
    cases.close(shifted.lse, plain.lse + bias.squeeze(-1), backend, times=10)


@given(problem=cases.problems())
@cases.examples(15)
def test_softmax_is_invariant_to_a_shift_of_all_keys(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    c = 5 * problem.normal(problem.batch_size, problem.num_kv_heads, 1, problem.head_dim, salt=3).to(q.dtype)

    cases.close(
        cases.attention(backend, q, k + c, v), cases.attention(backend, q, k, v), backend, times=50
    )  # scores grow to about 50


@given(problem=cases.problems())
@cases.examples(15)
def test_distances_are_invariant_to_a_shift_of_queries_and_keys(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    c = 5 * problem.normal(problem.head_dim, salt=3).to(q.dtype)

    for tested_score in (score.gaussian(1.2), score.mahalanobis(0.5 * torch.eye(problem.head_dim, dtype=q.dtype))):
        moved = cases.attention(backend, q + c, k + c, v, score=tested_score)
        cases.close(moved, cases.attention(backend, q, k, v, score=tested_score), backend, times=50)


@given(problem=cases.problems())
@cases.examples(12)
def test_scale_zero_gives_the_mean_and_a_huge_scale_the_largest_score(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    k, v = (x.repeat_interleave(problem.num_heads // problem.num_kv_heads, 1) for x in (k, v))
    scores = q.double() @ k.double().mT
    best = scores.topk(min(2, problem.n_k), -1)
    is_separated = (best.values[..., 0] - best.values[..., -1] > 1e-2) | (problem.n_k == 1)

    flat = cases.attention(backend, q, k, v, score=score.scaled_dot(0.0))
    sharp = cases.attention(backend, q, k, v, score=score.scaled_dot(1e5))

    cases.close(flat, v.mean(2, keepdim=True).expand_as(flat), backend)
    picked = v.gather(2, best.indices[..., :1].expand(*q.shape[:3], problem.value_dim))
    cases.close(
        sharp[is_separated], picked[is_separated], backend
    )  # a gap of 1e-2 times 1e5 leaves exp(-1000) for the other keys


@given(problem=cases.problems(), copies=st.integers(2, 3))
@cases.examples(12)
def test_repeating_every_key_only_adds_the_log_of_the_copies_to_the_lse(backend, problem, copies):
    q, k, v = problem.tensors(cases.dtype_of(backend))

    once = cases.attention_with_weights(backend, q, k, v)
    more = cases.attention_with_weights(backend, q, k.repeat(1, 1, copies, 1), v.repeat(1, 1, copies, 1))

    cases.close(more.output, once.output, backend)
    cases.close(more.lse, once.lse + torch.tensor(copies).double().log(), backend)


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(12)
def test_two_equal_keys_share_their_weight_equally(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    k[:, :, 1] = k[:, :, 0]

    weights = cases.attention_with_weights(backend, q, k, v).weights[:, :, :, :]

    cases.close(weights[..., 0], weights[..., 1], backend)
    cases.close(weights.sum(-1), torch.ones_like(weights[..., 0]), backend)


@every_normalizer
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None), data=st.data())
@cases.examples(12)
def test_causal_outputs_do_not_depend_on_later_tokens(backend, normalizer_name, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    now = data.draw(st.integers(1, problem.n_q - 1))
    later = [torch.cat([x[:, :, :now], 2 * x[:, :, now:] + 1], 2) for x in (q, k, v)]
    run = lambda *tensors: cases.attention(
        backend, *tensors, mask=mask.causal(), normalizer=NORMALIZERS[normalizer_name]
    )

    before, after = run(q, k, v), run(*later)

    cases.equal(after[:, :, :now], before[:, :, :now])
    if normalizer_name not in (*SPARSE, "relu"):  # these may give later keys weight 0
        assert (after[:, :, now:] != before[:, :, now:]).any()


def test_the_jacobian_under_a_causal_mask_is_lower_triangular(backend):
    q, k, v = cases.Problem(1, 1, 1, 5, 5, 2, 2, seed=3).tensors(cases.dtype_of(backend))
    run = lambda k, v: cases.attention(backend, q, k, v, mask=mask.causal())

    for slopes in torch.autograd.functional.jacobian(run, (k, v)):
        reach = slopes[0, 0, :, :, 0, 0].abs().sum((1, 3)) > 0  # (query, key)
        assert not reach.triu(1).any()
        assert reach[1:].diagonal(1).all()


@every_normalizer
@given(problem=cases.problems(batch_size=st.just(3)))
@cases.examples(12)
def test_each_batch_element_and_head_equals_a_separate_call(backend, normalizer_name, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    group = problem.num_heads // problem.num_kv_heads

    together = cases.attention(backend, q, k, v, normalizer=NORMALIZERS[normalizer_name], mask=mask.causal())

    for b in range(3):
        for h in range(problem.num_heads):
            alone = cases.attention(
                backend,
                q[b, h],
                k[b, h // group],
                v[b, h // group],
                normalizer=NORMALIZERS[normalizer_name],
                mask=mask.causal(),
            )
            cases.close(together[b, h], alone, backend)


@given(problem=cases.problems())
@cases.examples(12)
def test_permuting_heads_permutes_the_output(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    k, v = (x.repeat_interleave(problem.num_heads // problem.num_kv_heads, 1) for x in (k, v))
    order = random_permutation(problem.num_heads, problem.seed)

    cases.close(
        cases.attention(backend, q[:, order], k[:, order], v[:, order]),
        cases.attention(backend, q, k, v)[:, order],
        backend,
    )


@given(problem=cases.problems(head_dim=st.integers(2, 4)))
@cases.examples(12)
def test_scores_are_invariant_to_a_change_of_basis(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    basis = torch.eye(problem.head_dim) * 2 + 0.3 * problem.normal(problem.head_dim, problem.head_dim).clamp(-1, 1)

    changed = cases.attention(backend, q @ basis.to(q.dtype), k @ torch.linalg.inv(basis).mT.to(q.dtype), v)

    cases.close(
        changed, cases.attention(backend, q, k, v), backend, times=50
    )  # the condition number of the basis is below 5


@every_normalizer
@given(problem=cases.problems(), factor=st.floats(-3, 3))
@cases.examples(10)
def test_the_output_is_linear_in_the_values(backend, normalizer_name, problem, factor):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    other = problem.normal(*v.shape, salt=5).to(v.dtype)
    run = lambda values: cases.attention(backend, q, k, values, normalizer=NORMALIZERS[normalizer_name])

    cases.close(run(v + factor * other), run(v) + factor * run(other), backend, times=10)


@given(problem=cases.problems())
@cases.examples(10)
def test_an_affine_value_function_commutes_with_softmax_attention(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    w, c = problem.normal(problem.value_dim, 3, salt=5).to(v.dtype), problem.normal(3, salt=6).to(v.dtype)

    inside = cases.attention(backend, q, k, v, value=lambda values: values @ w + c)

    cases.close(inside, cases.attention(backend, q, k, v) @ w + c, backend, times=10)


@given(problem=cases.problems())
@cases.examples(10)
def test_cosine_scores_do_not_depend_on_the_norms(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    longer = [x * (1 + problem.normal(*x.shape[:3], 1, salt=n).abs()).to(x.dtype) for n, x in enumerate((q, k), 3)]

    cases.close(
        cases.attention(backend, *longer, v, score=score.cosine(3.0)),
        cases.attention(backend, q, k, v, score=score.cosine(3.0)),
        backend,
        times=5,
    )


@given(problem=cases.problems(), data=st.data())
@cases.examples(12)
def test_rows_of_the_score_gradient_sum_to_zero_and_are_zero_at_hidden_pairs(backend, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    tested_mask, predicate = data.draw(cases.mask_pairs(problem, depth=1))
    shape = (problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)
    (zero,) = cases.leaves(torch.zeros(shape, dtype=q.dtype))
    output = cases.attention(backend, q, k, v, score=score.bias(zero), mask=tested_mask)

    (grad,) = cases.gradients(output, (zero,), problem.normal(*output.shape, salt=8).to(q.dtype))

    visible = predicate(direct.positions(shape)).expand(shape)
    assert (grad[~visible] == 0).all()
    cases.close(grad.sum(-1), torch.zeros(shape[:3]), backend, times=10)
