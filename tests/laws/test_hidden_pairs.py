"""Hidden pairs, even NaN or inf, do not affect outputs or gradients; a score of -inf hides a pair."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, normalizer, score

from . import cases, direct

POISONS = {"nan": math.nan, "inf": math.inf, "minus-inf": -math.inf, "huge": 1e30}
every_poison = pytest.mark.parametrize("poison", POISONS)
poison_values = st.sampled_from(sorted(POISONS.values(), key=str))

NORMALIZERS = {
    "softmax": normalizer.softmax(),
    "sink": normalizer.sink(0.5),
    "sigmoid": normalizer.sigmoid(-1.0),
    "relu": normalizer.relu(0.3),
    "sparsemax": normalizer.sparsemax(),
    "entmax": normalizer.entmax(1.3),
    "topk": normalizer.topk(2),
    "hardmax": normalizer.hardmax(),
    "gumbel": normalizer.gumbel(seed=2),
    "kernel": normalizer.kernel(),
}
SCORE_NORMALIZERS = [name for name in NORMALIZERS if name != "kernel"]  # kernel computes its own scores


def make_scores(problem, dtype):
    """Return every score with the tensors that it captures, whose gradients are checked too."""
    head_dim, num_heads = problem.head_dim, problem.num_heads
    square = cases.leaves(problem.normal(head_dim, head_dim, dtype=dtype))
    root = problem.normal(head_dim, head_dim, dtype=dtype, salt=2)
    gram = cases.leaves(root @ root.mT / head_dim)
    sigma = cases.leaves(torch.tensor(1.3, dtype=dtype))
    scale = cases.leaves(torch.tensor(1.7, dtype=dtype))
    hidden = cases.leaves(
        *(problem.normal(*shape, dtype=dtype, salt=3) for shape in [(head_dim, 4), (head_dim, 4), (4,), (4,)])
    )
    slopes = cases.leaves(problem.normal(num_heads, dtype=dtype, salt=4).abs())
    table = cases.leaves(problem.normal(num_heads, problem.n_q + problem.n_k, dtype=dtype, salt=5))
    cap = cases.leaves(torch.tensor(2.0, dtype=dtype))
    return {
        "scaled dot": (score.scaled_dot(), ()),
        "dot": (score.dot(), ()),
        "bilinear": (score.bilinear(*square), square),
        "cosine": (score.cosine(*scale), scale),
        "gaussian": (score.gaussian(*sigma), sigma),
        "mahalanobis": (score.mahalanobis(*gram), gram),
        "additive": (score.additive(*hidden), hidden),
        "alibi": (score.alibi(*slopes), slopes),
        "softcap": (score.softcap(*cap), cap),
        "lookup": (lambda s, b, h, i, j: s * 0.5 + table[0][h, i - j + problem.n_k - 1], table),
        "custom": (score.custom(lambda a, b: (a @ b.mT) / 2), ()),
    }


SCORES = [
    "scaled dot",
    "dot",
    "bilinear",
    "cosine",
    "gaussian",
    "mahalanobis",
    "additive",
    "alibi",
    "softcap",
    "lookup",
    "custom",
]


def output_and_gradients(backend, tensors, captured, weights, **options):
    """Return the output and the gradients of q, k, v and the captured tensors."""
    inputs = cases.leaves(*tensors)
    output = cases.attention(backend, *inputs, **options)
    return output.detach(), cases.gradients(output, (*inputs, *captured), weights)


@pytest.mark.parametrize("name", SCORES)
@given(problem=cases.problems(n_k=st.integers(2, 8), head_dim=st.integers(2, 4)), poison=poison_values)
@cases.examples(10)
def test_poisoned_hidden_keys_have_no_effect_with_any_score(backend, name, problem, poison):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    tested_score, captured = make_scores(problem, dtype)[name]
    hidden = problem.random_mask(problem.batch_size, problem.n_k, salt=9)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )
    poisoned_k, poisoned_v = (x.masked_fill(hidden[:, None, :, None], poison) for x in (k, v))
    options = dict(score=tested_score, mask=lambda b, h, i, j: ~hidden[b, j])

    clean, clean_grads = output_and_gradients(backend, (q, k, v), captured, weights, **options)
    poisoned, poisoned_grads = output_and_gradients(backend, (q, poisoned_k, poisoned_v), captured, weights, **options)

    cases.close(poisoned, clean, backend)
    for grad, expected_grad in zip(poisoned_grads, clean_grads, strict=True):
        cases.close(grad, expected_grad, backend, times=20)  # gradients of sigma and slopes sum over all pairs
    for grad in poisoned_grads[1:3]:
        assert (grad[hidden[:, None].expand(grad.shape[:3])] == 0).all()


@pytest.mark.parametrize("normalizer_name", NORMALIZERS)
@given(problem=cases.problems(n_k=st.integers(2, 8)), poison=poison_values)
@cases.examples(10)
def test_poisoned_hidden_keys_have_no_effect_with_any_normalizer(backend, normalizer_name, problem, poison):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    hidden = problem.random_mask(problem.n_k, salt=9)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )
    poisoned_k, poisoned_v = (x.masked_fill(hidden[:, None], poison) for x in (k, v))
    options = dict(normalizer=NORMALIZERS[normalizer_name], mask=~hidden)

    clean, clean_grads = output_and_gradients(backend, (q, k, v), (), weights, **options)
    poisoned, poisoned_grads = output_and_gradients(backend, (q, poisoned_k, poisoned_v), (), weights, **options)

    cases.equal(poisoned, clean)
    for grad, expected_grad in zip(poisoned_grads, clean_grads, strict=True):
        cases.close(grad, expected_grad, backend, times=5)


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(15)
def test_a_different_finite_hidden_key_changes_no_bit(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    hidden = problem.random_mask(problem.n_k, salt=9)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )
    other_k, other_v = (torch.where(hidden[:, None], 3 * x.flip(-2) + 1, x) for x in (k, v))

    clean, clean_grads = output_and_gradients(backend, (q, k, v), (), weights, mask=~hidden)
    again, other_gradients = output_and_gradients(backend, (q, other_k, other_v), (), weights, mask=~hidden)

    cases.equal(again, clean)
    for grad, expected_grad in zip(other_gradients, clean_grads, strict=True):
        cases.equal(grad, expected_grad)


def check_rows_before_the_poison(backend, poison, problem, data, poisoned_index):
    """Poison one row of k (poisoned_index 1) or v (2); return the clean and the poisoned output from that row on.

    Queries before the row do not see it under a causal mask, so their outputs and gradients must not change.
    """
    dtype = cases.dtype_of(backend)
    tensors = problem.tensors(dtype)
    position = data.draw(st.integers(1, problem.n_k - 1))
    poisoned_tensors = list(tensors)
    poisoned_tensors[poisoned_index] = tensors[poisoned_index].clone()
    poisoned_tensors[poisoned_index][:, :, position] = POISONS[poison]
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )

    clean, clean_grads = output_and_gradients(backend, tensors, (), weights, mask=mask.causal())
    poisoned, poisoned_grads = output_and_gradients(backend, poisoned_tensors, (), weights, mask=mask.causal())

    cases.equal(poisoned[:, :, :position], clean[:, :, :position])
    cases.close(poisoned_grads[0][:, :, :position], clean_grads[0][:, :, :position], backend, times=5)
    return clean[:, :, position:], poisoned[:, :, position:]


@every_poison
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None), data=st.data())
@cases.examples(10)
def test_a_poisoned_value_affects_only_queries_that_attend_to_it(backend, poison, problem, data):
    clean, poisoned = check_rows_before_the_poison(backend, poison, problem, data, poisoned_index=2)
    assert (poisoned != clean).all()


@every_poison
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None), data=st.data())
@cases.examples(10)
def test_a_poisoned_key_affects_only_queries_that_attend_to_it(backend, poison, problem, data):
    check_rows_before_the_poison(backend, poison, problem, data, poisoned_index=1)


@every_poison
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None))
@cases.examples(10)
def test_a_poisoned_document_does_not_affect_other_documents(backend, poison, problem):
    dtype = cases.dtype_of(backend)
    clean = problem.tensors(dtype)
    ids = problem.random_mask(problem.n_k, salt=8).long()
    is_poisoned = ids == 1
    poisoned = tuple(x.masked_fill(is_poisoned[:, None], POISONS[poison]) for x in clean)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )

    output, clean_grads = output_and_gradients(backend, clean, (), weights, mask=mask.document(ids))
    poisoned_output, poisoned_grads = output_and_gradients(backend, poisoned, (), weights, mask=mask.document(ids))

    cases.equal(poisoned_output[:, :, ~is_poisoned], output[:, :, ~is_poisoned])
    for grad, expected_grad in zip(poisoned_grads, clean_grads, strict=True):
        cases.close(grad[:, :, ~is_poisoned], expected_grad[:, :, ~is_poisoned], backend, times=5)


@pytest.mark.parametrize(
    "tested_mask", [mask.causal() & mask.sliding_window(20), mask.chunked(50), mask.strided(40)], ids=str
)
def test_poison_in_one_tile_does_not_affect_other_rows(backend, tested_mask):
    problem = cases.Problem(
        batch_size=1, num_heads=1, num_kv_heads=1, n_q=300, n_k=300, head_dim=3, value_dim=3, seed=6
    )
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = 140
    uniform = cases.attention(
        backend, torch.zeros_like(q), k, torch.eye(300, dtype=q.dtype)[None, None], mask=tested_mask
    )
    unaffected = uniform[0, 0, :, position] == 0
    weights = torch.ones_like(v)
    poisoned_k, poisoned_v = k.clone(), v.clone()
    poisoned_k[:, :, position] = math.nan
    poisoned_v[:, :, position] = math.nan

    clean, clean_grads = output_and_gradients(backend, (q, k, v), (), weights, mask=tested_mask)
    poisoned, poisoned_grads = output_and_gradients(backend, (q, poisoned_k, poisoned_v), (), weights, mask=tested_mask)

    assert 0 < unaffected.sum() < 300
    cases.equal(poisoned[:, :, unaffected], clean[:, :, unaffected])
    assert poisoned[:, :, ~unaffected].isnan().all()
    cases.close(poisoned_grads[0][:, :, unaffected], clean_grads[0][:, :, unaffected], backend, times=5)


@every_poison
@given(problem=cases.problems())
@cases.examples(10)
def test_a_poisoned_bias_of_a_hidden_pair_has_no_effect_and_zero_gradient(backend, poison, problem):
    dtype = cases.dtype_of(backend)
    tensors = problem.tensors(dtype)
    shape = (problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)
    visible = problem.random_mask(*shape, salt=8)
    bias = problem.normal(*shape, dtype=dtype, salt=9)
    (clean,) = cases.leaves(bias)
    (poisoned,) = cases.leaves(bias.masked_fill(~visible, POISONS[poison]))
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )

    output, clean_grads = output_and_gradients(
        backend, tensors, (clean,), weights, score=score.bias(clean), mask=visible
    )
    poisoned_output, poisoned_grads = output_and_gradients(
        backend, tensors, (poisoned,), weights, score=score.bias(poisoned), mask=visible
    )

    cases.equal(poisoned_output, output)
    for grad, expected_grad in zip(poisoned_grads, clean_grads, strict=True):
        cases.close(grad, expected_grad, backend, times=5)
    assert (poisoned_grads[-1][~visible] == 0).all()


@given(problem=cases.problems(n_q=st.integers(2, 8), n_k=None))
@cases.examples(12)
def test_a_modifier_may_be_undefined_at_hidden_pairs(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    (slope,) = cases.leaves(torch.tensor(0.7, dtype=dtype))
    (reference_parameter,) = cases.leaves(slope)
    grad = torch.tensor(1.0, dtype=dtype)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )
    gaps = torch.arange(problem.n_q)[:, None] - torch.arange(problem.n_k)

    def log_distance(s, b, h, i, j):  # undefined on and above the diagonal
        return s - slope * torch.log(grad * (i - j))

    output, grads = output_and_gradients(
        backend, (q, k, v), (slope,), weights, score=log_distance, mask=lambda b, h, i, j: j < i
    )
    inputs = cases.leaves(q, k, v)
    expected = direct.attention(
        *inputs,
        modifiers=[lambda s, where: s - reference_parameter * gaps.clamp(min=1).to(dtype).log()],
        mask=lambda where: where.j < where.i,
    )

    cases.close(output, expected.output, backend)
    for grad, expected_grad in zip(
        grads, cases.gradients(expected.output, (*inputs, reference_parameter), weights), strict=True
    ):
        cases.close(grad, expected_grad, backend, times=20)


@given(problem=cases.problems(n_q=st.integers(4, 12), n_k=None))
@cases.examples(10)
def test_an_out_of_range_lookup_at_a_hidden_pair_has_no_effect(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    (table,) = cases.leaves(problem.normal(5, dtype=dtype, salt=3))
    (reference_parameter,) = cases.leaves(table)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )
    gaps = (torch.arange(problem.n_q)[:, None] - torch.arange(problem.n_k) + 2).clamp(0, 4)

    output, grads = output_and_gradients(
        backend,
        (q, k, v),
        (table,),
        weights,
        score=lambda s, b, h, i, j: s + table[i - j + 2],
        mask=mask.sliding_window(3),
    )
    inputs = cases.leaves(q, k, v)
    expected = direct.attention(
        *inputs, modifiers=[lambda s, where: s + reference_parameter[gaps]], mask=direct.sliding_window(3)
    )

    cases.close(output, expected.output, backend)
    for grad, expected_grad in zip(
        grads, cases.gradients(expected.output, (*inputs, reference_parameter), weights), strict=True
    ):
        cases.close(grad, expected_grad, backend, times=10)


@pytest.mark.parametrize("normalizer_name", SCORE_NORMALIZERS)
@given(problem=cases.problems())
@cases.examples(10)
def test_a_score_of_minus_infinity_hides_the_pair_like_a_mask(backend, normalizer_name, problem):
    dtype = cases.dtype_of(backend)
    tensors = problem.tensors(dtype)
    shape = (problem.batch_size, problem.num_heads, problem.n_q, problem.n_k)
    visible = problem.random_mask(*shape, probability=0.6, salt=8)
    (bias_values,) = cases.leaves(torch.where(visible, 0.0, -math.inf).to(dtype))
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )

    masked, clean_grads = output_and_gradients(
        backend, tensors, (), weights, mask=visible, normalizer=NORMALIZERS[normalizer_name]
    )
    biased, poisoned_grads = output_and_gradients(
        backend,
        tensors,
        (bias_values,),
        weights,
        score=score.bias(bias_values),
        normalizer=NORMALIZERS[normalizer_name],
    )

    cases.close(biased, masked, backend)
    for grad, expected_grad in zip(poisoned_grads[:3], clean_grads, strict=True):
        cases.close(grad, expected_grad, backend, times=5)
    assert (biased[~visible.any(-1)] == 0).all()
    assert (poisoned_grads[0][~visible.any(-1)] == 0).all()
    assert (poisoned_grads[3][~visible] == 0).all()


@given(problem=cases.problems())
@cases.examples(12)
def test_the_lse_excludes_scores_of_minus_infinity(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible = problem.random_mask(problem.n_q, problem.n_k, probability=0.6)
    bias_values = torch.where(visible, 0.0, -math.inf).to(q.dtype)

    result = cases.attention_with_weights(backend, q, k, v, score=score.bias(bias_values))

    cases.close(result.lse, direct.attention(q, k, v, mask=lambda where: visible).lse, backend)


HIDING_RULES = {
    "where": lambda s, hidden, t: torch.where(hidden, -math.inf, s * 1.5),
    "added": lambda s, hidden, t: s * 1.5 + t,
    "subtracted": lambda s, hidden, t: s * 1.5 - (-t),
    "added, then shifted": lambda s, hidden, t: (s + t) + 0.25,
    "added in where": lambda s, hidden, t: torch.where(hidden, s + t, s * 0.5),
}


@pytest.mark.parametrize("rule_name", HIDING_RULES)
@pytest.mark.parametrize("normalizer_name", SCORE_NORMALIZERS)
@given(problem=cases.problems(n_k=st.integers(2, 8)), poison=st.sampled_from([math.nan, math.inf]))
@cases.examples(5)
def test_poisoned_keys_with_scores_of_minus_infinity_have_no_effect(
    backend, normalizer_name, rule_name, problem, poison
):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    hidden = problem.random_mask(problem.n_k, salt=9)
    weights = problem.normal(
        problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype, salt=10
    )
    poisoned_k, poisoned_v = (x.masked_fill(hidden[:, None], poison) for x in (k, v))
    bias_values = torch.where(hidden, -math.inf, 0.5).to(dtype)
    rule = HIDING_RULES[rule_name]
    options = dict(
        score=lambda s, b, h, i, j: rule(s, hidden[j], bias_values[j]), normalizer=NORMALIZERS[normalizer_name]
    )

    clean, clean_grads = output_and_gradients(backend, (q, k, v), (), weights, **options)
    poisoned, poisoned_grads = output_and_gradients(backend, (q, poisoned_k, poisoned_v), (), weights, **options)

    cases.equal(poisoned, clean)
    for grad, expected_grad in zip(poisoned_grads, clean_grads, strict=True):
        cases.close(grad, expected_grad, backend, times=5)


def test_a_dot_product_of_minus_infinity_hides_the_pair(backend):
    dtype = cases.dtype_of(backend)
    q = torch.ones(1, 1, 2, 1, dtype=dtype)
    k = torch.tensor([0.0, -math.inf, 1.0], dtype=dtype).view(1, 1, 3, 1)
    v = torch.tensor([1.0, math.nan, 3.0], dtype=dtype).view(1, 1, 3, 1)
    weights = torch.ones_like(q)

    all_three, clean_grads = output_and_gradients(backend, (q, k, v), (), weights)
    only_two, expected = output_and_gradients(backend, (q, k[:, :, ::2], v[:, :, ::2]), (), weights)

    cases.close(all_three, only_two, backend)
    cases.close(clean_grads[0], expected[0], backend)
    cases.close(clean_grads[1][:, :, ::2], expected[1], backend)
    cases.close(clean_grads[2][:, :, ::2], expected[2], backend)
    assert clean_grads[1][0, 0, 1] == 0
    assert clean_grads[2][0, 0, 1] == 0


def test_only_the_score_after_all_modifiers_hides_a_pair(backend):
    problem = cases.Problem(batch_size=1, num_heads=2, num_kv_heads=2, n_q=4, n_k=5, head_dim=3, value_dim=2, seed=7)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    bias_values = torch.where(problem.random_mask(4, 5), 0.0, -math.inf).to(q.dtype)

    capped = cases.attention(
        backend, q, k, v, score=score.scaled_dot().then(score.bias(bias_values)).then(score.softcap(2.0))
    )
    expected = direct.attention(q, k, v, modifiers=[direct.bias(bias_values), direct.softcap(2.0)])

    cases.close(capped, expected.output, backend)  # softcap turns -inf into -2, which makes the pair visible


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(8)
def test_hidden_nan_does_not_affect_second_derivatives(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    hidden = problem.random_mask(problem.n_k, salt=9)
    poisoned_k, poisoned_v = (x.masked_fill(hidden[:, None], math.nan) for x in (k, v))

    def second(*tensors):
        inputs = cases.leaves(*tensors)
        output = cases.attention(backend, *inputs, mask=~hidden)
        first = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        return cases.gradients(
            torch.cat([(g[..., ~hidden, :] if n else g).flatten() for n, g in enumerate(first)]),
            inputs,
            torch.ones(()),
        )

    for grad, expected_grad in zip(second(q, poisoned_k, poisoned_v), second(q, k, v), strict=True):
        cases.close(
            grad, expected_grad, backend, times=50
        )  # second derivatives of softmax are sums of several products


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(8)
def test_hidden_nan_does_not_affect_forward_derivatives(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    hidden = problem.random_mask(problem.n_k, salt=9)
    poisoned_k, poisoned_v = (x.masked_fill(hidden[:, None], math.nan) for x in (k, v))
    tangents = tuple(problem.normal(*x.shape, dtype=dtype, salt=20 + n) for n, x in enumerate((q, k, v)))
    run = lambda *tensors: cases.attention(backend, *tensors, mask=~hidden)

    _, clean = torch.func.jvp(run, (q, k, v), tangents)
    _, poisoned = torch.func.jvp(run, (q, poisoned_k, poisoned_v), tangents)

    cases.close(poisoned, clean, backend, times=5)
