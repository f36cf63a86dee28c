"""What the mathematics says must not change, and what must: permutations, shifts, limits, copies, causes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, score, weigh

from . import cases, direct

WEIGHS = {
    "softmax": weigh.softmax(),
    "sink": weigh.sink(0.5),
    "sigmoid": weigh.sigmoid(0.5),
    "relu": weigh.relu(0.5),
    "sparsemax": weigh.sparsemax(),
    "entmax": weigh.entmax(1.3),
    "top": weigh.top(2),
    "argmax": weigh.argmax(),
}
SPARSE = ("sparsemax", "entmax", "top", "argmax")
every_weigh = pytest.mark.parametrize("weighing", WEIGHS)


def shuffled(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@every_weigh
@given(problem=cases.problems())
@cases.examples(12)
def test_permuting_queries_keys_and_the_mask_permutes_the_output(engine, weighing, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may, added = problem.coins(problem.n_q, problem.n_k), problem.normal(problem.n_q, problem.n_k).to(q.dtype)
    rows, columns = shuffled(problem.n_q, problem.seed), shuffled(problem.n_k, problem.seed + 1)

    straight = cases.attention(engine, q, k, v, mask=may, score=score.bias(added), weigh=WEIGHS[weighing])
    permuted = cases.attention(
        engine,
        q[:, :, rows],
        k[:, :, columns],
        v[:, :, columns],
        mask=may[rows][:, columns],
        score=score.bias(added[rows][:, columns]),
        weigh=WEIGHS[weighing],
    )

    cases.close(permuted, straight[:, :, rows], engine)


@given(problem=cases.problems(n_k=None, groups=st.just(1)))
@cases.examples(12)
def test_self_attention_without_positions_is_equivariant(engine, problem):
    x = problem.tensors(cases.dtype_of(engine))[0]
    order = shuffled(problem.n_q, problem.seed)

    cases.close(
        cases.attention(engine, x[:, :, order], x[:, :, order], x[:, :, order]),
        cases.attention(engine, x, x, x)[:, :, order],
        engine,
    )


@given(problem=cases.problems(), data=st.data())
@cases.examples(15)
def test_a_softmax_output_lies_in_the_convex_hull_of_the_values_seen(engine, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    chosen, meaning = data.draw(cases.mask_pairs(problem, depth=1))
    seen = meaning(direct.places((problem.batch, problem.heads, problem.n_q, problem.n_k)))
    seen = seen.expand(problem.batch, problem.heads, problem.n_q, problem.n_k).unsqueeze(-1)
    values = v.repeat_interleave(problem.heads // problem.key_heads, 1).unsqueeze(2).double()

    got = cases.attention(engine, q, k, v, mask=chosen).double()

    low = torch.where(seen, values, torch.inf).amin(3)
    high = torch.where(seen, values, -torch.inf).amax(3)
    some = seen.any(3).expand_as(got)
    room = 10 * cases.TOLERANCE[cases.dtype_of(engine)]
    assert ((got >= low - room) & (got <= high + room))[some].all()


@given(problem=cases.problems(), shift=st.floats(-300, 300))
@cases.examples(15)
def test_a_constant_on_every_score_of_a_row_changes_nothing_but_the_lse(engine, problem, shift):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    added = shift * problem.normal(problem.n_q, 1).to(q.dtype)

    plain = cases.attend(engine, q, k, v)
    shifted = cases.attend(engine, q, k, v, score=score.bias(added))

    # a shift of 1000 in the exponent costs three digits
    cases.close(shifted.output, plain.output, engine, times=1000)
    cases.close(shifted.lse, plain.lse + added.squeeze(-1), engine, times=10)


@given(problem=cases.problems())
@cases.examples(15)
def test_moving_all_keys_by_one_vector_changes_no_softmax(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    c = 5 * problem.normal(problem.batch, problem.key_heads, 1, problem.width, salt=3).to(q.dtype)

    cases.close(
        cases.attention(engine, q, k + c, v), cases.attention(engine, q, k, v), engine, times=50
    )  # scores grow to about 50


@given(problem=cases.problems())
@cases.examples(15)
def test_moving_queries_and_keys_together_changes_no_distance(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    c = 5 * problem.normal(problem.width, salt=3).to(q.dtype)

    for chosen in (score.metric(1.2), score.mahalanobis(0.5 * torch.eye(problem.width, dtype=q.dtype))):
        moved = cases.attention(engine, q + c, k + c, v, score=chosen)
        cases.close(moved, cases.attention(engine, q, k, v, score=chosen), engine, times=50)


@given(problem=cases.problems())
@cases.examples(12)
def test_scale_zero_gives_the_mean_and_a_huge_scale_the_best_key(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    k, v = (x.repeat_interleave(problem.heads // problem.key_heads, 1) for x in (k, v))
    scores = q.double() @ k.double().mT
    best = scores.topk(min(2, problem.n_k), -1)
    apart = (best.values[..., 0] - best.values[..., -1] > 1e-2) | (problem.n_k == 1)

    flat = cases.attention(engine, q, k, v, score=score.scaled_dot(0.0))
    sharp = cases.attention(engine, q, k, v, score=score.scaled_dot(1e5))

    cases.close(flat, v.mean(2, keepdim=True).expand_as(flat), engine)
    picked = v.gather(2, best.indices[..., :1].expand(*q.shape[:3], problem.width_v))
    cases.close(sharp[apart], picked[apart], engine)  # the gap of 1e-2 times 1e5 leaves exp(-1000) for the others


@given(problem=cases.problems(), copies=st.integers(2, 3))
@cases.examples(12)
def test_repeating_every_key_changes_no_softmax_and_adds_log_of_the_copies_to_the_lse(engine, problem, copies):
    q, k, v = problem.tensors(cases.dtype_of(engine))

    once = cases.attend(engine, q, k, v)
    more = cases.attend(engine, q, k.repeat(1, 1, copies, 1), v.repeat(1, 1, copies, 1))

    cases.close(more.output, once.output, engine)
    cases.close(more.lse, once.lse + torch.tensor(copies).double().log(), engine)


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(12)
def test_two_equal_keys_share_their_weight_equally(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    k[:, :, 1] = k[:, :, 0]

    shown = cases.attend(engine, q, k, v).weights[:, :, :, :]

    cases.close(shown[..., 0], shown[..., 1], engine)
    cases.close(shown.sum(-1), torch.ones_like(shown[..., 0]), engine)


@every_weigh
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None), data=st.data())
@cases.examples(12)
def test_the_past_never_depends_on_the_future(engine, weighing, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    now = data.draw(st.integers(1, problem.n_q - 1))
    later = [torch.cat([x[:, :, :now], 2 * x[:, :, now:] + 1], 2) for x in (q, k, v)]
    run = lambda *tensors: cases.attention(engine, *tensors, mask=mask.causal(), weigh=WEIGHS[weighing])

    before, after = run(q, k, v), run(*later)

    cases.equal(after[:, :, :now], before[:, :, :now])
    if weighing not in SPARSE:  # these may look at the past alone
        assert (after[:, :, now:] != before[:, :, now:]).any()


def test_the_jacobian_under_a_causal_mask_is_lower_triangular(engine):
    q, k, v = cases.Problem(1, 1, 1, 5, 5, 2, 2, seed=3).tensors(cases.dtype_of(engine))
    run = lambda k, v: cases.attention(engine, q, k, v, mask=mask.causal())

    for slopes in torch.autograd.functional.jacobian(run, (k, v)):
        reach = slopes[0, 0, :, :, 0, 0].abs().sum((1, 3)) > 0  # (query, key)
        assert not reach.triu(1).any()
        assert reach[1:].diagonal(1).all()


@every_weigh
@given(problem=cases.problems(batch=st.just(3)))
@cases.examples(12)
def test_each_batch_element_and_head_is_computed_as_if_alone(engine, weighing, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    group = problem.heads // problem.key_heads

    together = cases.attention(engine, q, k, v, weigh=WEIGHS[weighing], mask=mask.causal())

    for b in range(3):
        for h in range(problem.heads):
            alone = cases.attention(
                engine,
                q[b, h],
                k[b, h // group],
                v[b, h // group],
                weigh=WEIGHS[weighing],
                mask=mask.causal(),
            )
            cases.close(together[b, h], alone, engine)


@given(problem=cases.problems())
@cases.examples(12)
def test_permuting_heads_permutes_the_output(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    k, v = (x.repeat_interleave(problem.heads // problem.key_heads, 1) for x in (k, v))
    order = shuffled(problem.heads, problem.seed)

    cases.close(
        cases.attention(engine, q[:, order], k[:, order], v[:, order]),
        cases.attention(engine, q, k, v)[:, order],
        engine,
    )


@given(problem=cases.problems(width=st.integers(2, 4)))
@cases.examples(12)
def test_a_change_of_basis_undone_by_the_keys_leaves_the_scores(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    basis = torch.eye(problem.width) * 2 + 0.3 * problem.normal(problem.width, problem.width).clamp(-1, 1)

    changed = cases.attention(engine, q @ basis.to(q.dtype), k @ torch.linalg.inv(basis).mT.to(q.dtype), v)

    cases.close(changed, cases.attention(engine, q, k, v), engine, times=50)  # the condition of the basis is under 5


@every_weigh
@given(problem=cases.problems(), factor=st.floats(-3, 3))
@cases.examples(10)
def test_the_output_is_linear_in_the_values(engine, weighing, problem, factor):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    other = problem.normal(*v.shape, salt=5).to(v.dtype)
    run = lambda values: cases.attention(engine, q, k, values, weigh=WEIGHS[weighing])

    cases.close(run(v + factor * other), run(v) + factor * run(other), engine, times=10)


@given(problem=cases.problems())
@cases.examples(10)
def test_an_affine_value_function_may_be_applied_after_a_softmax(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    w, c = problem.normal(problem.width_v, 3, salt=5).to(v.dtype), problem.normal(3, salt=6).to(v.dtype)

    inside = cases.attention(engine, q, k, v, value=lambda values: values @ w + c)

    cases.close(inside, cases.attention(engine, q, k, v) @ w + c, engine, times=10)


@given(problem=cases.problems())
@cases.examples(10)
def test_cosine_scores_ignore_the_lengths_of_queries_and_keys(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    longer = [x * (1 + problem.normal(*x.shape[:3], 1, salt=n).abs()).to(x.dtype) for n, x in enumerate((q, k), 3)]

    cases.close(
        cases.attention(engine, *longer, v, score=score.cosine(3.0)),
        cases.attention(engine, q, k, v, score=score.cosine(3.0)),
        engine,
        times=5,
    )


@given(problem=cases.problems(), data=st.data())
@cases.examples(12)
def test_rows_of_the_score_gradient_sum_to_zero_and_vanish_where_hidden(engine, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    chosen, meaning = data.draw(cases.mask_pairs(problem, depth=1))
    shape = (problem.batch, problem.heads, problem.n_q, problem.n_k)
    (zero,) = cases.leaves(torch.zeros(shape, dtype=q.dtype))
    output = cases.attention(engine, q, k, v, score=score.bias(zero), mask=chosen)

    (found,) = cases.gradients(output, (zero,), problem.normal(*output.shape, salt=8).to(q.dtype))

    seen = meaning(direct.places(shape)).expand(shape)
    assert (found[~seen] == 0).all()
    cases.close(found.sum(-1), torch.zeros(shape[:3]), engine, times=10)
