"""What is hidden cannot influence output or gradients, even NaN or inf; a score of -inf hides too."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, score, weigh

from . import cases, direct

POISONS = {"nan": math.nan, "inf": math.inf, "minus-inf": -math.inf, "huge": 1e30}
every_poison = pytest.mark.parametrize("poison", POISONS)
poisons = st.sampled_from(sorted(POISONS.values(), key=str))

WEIGHS = {
    "softmax": weigh.softmax(),
    "sink": weigh.sink(0.5),
    "sigmoid": weigh.sigmoid(-1.0),
    "relu": weigh.relu(0.3),
    "sparsemax": weigh.sparsemax(),
    "entmax": weigh.entmax(1.3),
    "top": weigh.top(2),
    "argmax": weigh.argmax(),
    "gumbel": weigh.gumbel(seed=2),
    "kernel": weigh.kernel(),
}
OF_SCORES = [name for name in WEIGHS if name != "kernel"]  # that one makes its own


def make_scores(problem, dtype):
    """Every score with the tensors it captures, so that their gradients can be watched as well."""
    width, heads = problem.width, problem.heads
    square = cases.leaves(problem.normal(width, width, dtype=dtype))
    root = problem.normal(width, width, dtype=dtype, salt=2)
    metric = cases.leaves(root @ root.mT / width)
    sigma = cases.leaves(torch.tensor(1.3, dtype=dtype))
    scale = cases.leaves(torch.tensor(1.7, dtype=dtype))
    hidden = cases.leaves(
        *(problem.normal(*shape, dtype=dtype, salt=3) for shape in [(width, 4), (width, 4), (4,), (4,)])
    )
    slopes = cases.leaves(problem.normal(heads, dtype=dtype, salt=4).abs())
    table = cases.leaves(problem.normal(heads, problem.n_q + problem.n_k, dtype=dtype, salt=5))
    cap = cases.leaves(torch.tensor(2.0, dtype=dtype))
    return {
        "scaled dot": (score.scaled_dot(), ()),
        "dot": (score.dot(), ()),
        "multiplicative": (score.multiplicative(*square), square),
        "cosine": (score.cosine(*scale), scale),
        "metric": (score.metric(*sigma), sigma),
        "mahalanobis": (score.mahalanobis(*metric), metric),
        "additive": (score.additive(*hidden), hidden),
        "alibi": (score.alibi(*slopes), slopes),
        "softcap": (score.softcap(*cap), cap),
        "look-up": (lambda s, b, h, i, j: s * 0.5 + table[0][h, i - j + problem.n_k - 1], table),
        "custom": (score.custom(lambda a, b: (a @ b.mT) / 2), ()),
    }


SCORES = [
    "scaled dot",
    "dot",
    "multiplicative",
    "cosine",
    "metric",
    "mahalanobis",
    "additive",
    "alibi",
    "softcap",
    "look-up",
    "custom",
]


def answers(engine, tensors, captured, weights, **options):
    """Output, then the gradients to q, k, v and to what was captured."""
    inputs = cases.leaves(*tensors)
    output = cases.attention(engine, *inputs, **options)
    return output.detach(), cases.gradients(output, (*inputs, *captured), weights)


@pytest.mark.parametrize("name", SCORES)
@given(problem=cases.problems(n_k=st.integers(2, 8), width=st.integers(2, 4)), poison=poisons)
@cases.examples(10)
def test_a_hidden_key_and_its_value_may_hold_anything_whatever_the_score(engine, name, problem, poison):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    chosen, captured = make_scores(problem, dtype)[name]
    hidden = problem.coins(problem.batch, problem.n_k, salt=9)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)
    bad_k, bad_v = (x.masked_fill(hidden[:, None, :, None], poison) for x in (k, v))
    options = dict(score=chosen, mask=lambda b, h, i, j: ~hidden[b, j])

    clean, gradients = answers(engine, (q, k, v), captured, weights, **options)
    spoilt, bad_gradients = answers(engine, (q, bad_k, bad_v), captured, weights, **options)

    cases.close(spoilt, clean, engine)
    for one, other in zip(bad_gradients, gradients, strict=True):
        cases.close(one, other, engine, times=20)  # gradients of sigma and slopes are sums over all pairs
    for found in bad_gradients[1:3]:
        assert (found[hidden[:, None].expand(found.shape[:3])] == 0).all()


@pytest.mark.parametrize("weighing", WEIGHS)
@given(problem=cases.problems(n_k=st.integers(2, 8)), poison=poisons)
@cases.examples(10)
def test_a_hidden_key_and_its_value_may_hold_anything_however_it_is_weighed(engine, weighing, problem, poison):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    hidden = problem.coins(problem.n_k, salt=9)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)
    bad_k, bad_v = (x.masked_fill(hidden[:, None], poison) for x in (k, v))
    options = dict(weigh=WEIGHS[weighing], mask=~hidden)

    clean, gradients = answers(engine, (q, k, v), (), weights, **options)
    spoilt, bad_gradients = answers(engine, (q, bad_k, bad_v), (), weights, **options)

    cases.equal(spoilt, clean)
    for one, other in zip(bad_gradients, gradients, strict=True):
        cases.close(one, other, engine, times=5)


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(15)
def test_another_finite_hidden_key_changes_no_bit(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    hidden = problem.coins(problem.n_k, salt=9)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)
    other_k, other_v = (torch.where(hidden[:, None], 3 * x.flip(-2) + 1, x) for x in (k, v))

    clean, gradients = answers(engine, (q, k, v), (), weights, mask=~hidden)
    again, other_gradients = answers(engine, (q, other_k, other_v), (), weights, mask=~hidden)

    cases.equal(again, clean)
    for one, other in zip(other_gradients, gradients, strict=True):
        cases.equal(one, other)


@every_poison
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None), data=st.data())
@cases.examples(10)
def test_a_value_hidden_from_one_query_and_seen_by_its_neighbour_reaches_only_the_neighbour(
    engine, poison, problem, data
):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    place = data.draw(st.integers(1, problem.n_k - 1))
    bad_v = v.clone()
    bad_v[:, :, place] = POISONS[poison]
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)

    clean, gradients = answers(engine, (q, k, v), (), weights, mask=mask.causal())
    spoilt, bad_gradients = answers(engine, (q, k, bad_v), (), weights, mask=mask.causal())

    cases.equal(spoilt[:, :, :place], clean[:, :, :place])
    cases.close(bad_gradients[0][:, :, :place], gradients[0][:, :, :place], engine, times=5)
    changed = spoilt[:, :, place:] != clean[:, :, place:]
    assert changed.all()


@every_poison
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None), data=st.data())
@cases.examples(10)
def test_a_key_hidden_from_one_query_and_seen_by_its_neighbour_reaches_only_the_neighbour(
    engine, poison, problem, data
):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    place = data.draw(st.integers(1, problem.n_k - 1))
    bad_k = k.clone()
    bad_k[:, :, place] = POISONS[poison]
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)

    clean, gradients = answers(engine, (q, k, v), (), weights, mask=mask.causal())
    spoilt, bad_gradients = answers(engine, (q, bad_k, v), (), weights, mask=mask.causal())

    cases.equal(spoilt[:, :, :place], clean[:, :, :place])
    cases.close(bad_gradients[0][:, :, :place], gradients[0][:, :, :place], engine, times=5)


@every_poison
@given(problem=cases.problems(n_q=st.integers(2, 9), n_k=None))
@cases.examples(10)
def test_one_document_full_of_poison_leaves_outputs_and_all_gradients_of_the_others_alone(engine, poison, problem):
    dtype = cases.dtype_of(engine)
    clean = problem.tensors(dtype)
    ids = problem.coins(problem.n_k, salt=8).long()
    bad = ids == 1
    spoilt = tuple(x.masked_fill(bad[:, None], POISONS[poison]) for x in clean)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)

    output, gradients = answers(engine, clean, (), weights, mask=mask.documents(ids))
    bad_output, bad_gradients = answers(engine, spoilt, (), weights, mask=mask.documents(ids))

    cases.equal(bad_output[:, :, ~bad], output[:, :, ~bad])
    for one, other in zip(bad_gradients, gradients, strict=True):
        cases.close(one[:, :, ~bad], other[:, :, ~bad], engine, times=5)


@pytest.mark.parametrize("chosen", [mask.causal() & mask.window(20), mask.blocks(50), mask.strided(40)], ids=str)
def test_poison_in_one_tile_never_reaches_the_rows_that_do_not_see_it(engine, chosen):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=300, n_k=300, width=3, width_v=3, seed=6)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = 140
    seen = cases.attention(engine, torch.zeros_like(q), k, torch.eye(300, dtype=q.dtype)[None, None], mask=chosen)
    blind = seen[0, 0, :, place] == 0
    weights = torch.ones_like(v)
    bad_k, bad_v = k.clone(), v.clone()
    bad_k[:, :, place] = math.nan
    bad_v[:, :, place] = math.nan

    clean, gradients = answers(engine, (q, k, v), (), weights, mask=chosen)
    spoilt, bad_gradients = answers(engine, (q, bad_k, bad_v), (), weights, mask=chosen)

    assert 0 < blind.sum() < 300
    cases.equal(spoilt[:, :, blind], clean[:, :, blind])
    assert spoilt[:, :, ~blind].isnan().all()
    cases.close(bad_gradients[0][:, :, blind], gradients[0][:, :, blind], engine, times=5)


@every_poison
@given(problem=cases.problems())
@cases.examples(10)
def test_a_bias_at_a_hidden_pair_may_hold_anything_and_gets_gradient_zero(engine, poison, problem):
    dtype = cases.dtype_of(engine)
    tensors = problem.tensors(dtype)
    shape = (problem.batch, problem.heads, problem.n_q, problem.n_k)
    may = problem.coins(*shape, salt=8)
    bias = problem.normal(*shape, dtype=dtype, salt=9)
    (clean,) = cases.leaves(bias)
    (spoilt,) = cases.leaves(bias.masked_fill(~may, POISONS[poison]))
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)

    output, gradients = answers(engine, tensors, (clean,), weights, score=score.bias(clean), mask=may)
    bad_output, bad_gradients = answers(engine, tensors, (spoilt,), weights, score=score.bias(spoilt), mask=may)

    cases.equal(bad_output, output)
    for one, other in zip(bad_gradients, gradients, strict=True):
        cases.close(one, other, engine, times=5)
    assert (bad_gradients[-1][~may] == 0).all()


@given(problem=cases.problems(n_q=st.integers(2, 8), n_k=None))
@cases.examples(12)
def test_a_rule_that_is_undefined_where_the_mask_hides_does_no_harm(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    (slope,) = cases.leaves(torch.tensor(0.7, dtype=dtype))
    (same,) = cases.leaves(slope)
    one = torch.tensor(1.0, dtype=dtype)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)
    gaps = torch.arange(problem.n_q)[:, None] - torch.arange(problem.n_k)

    def forgetting(s, b, h, i, j):  # log of 0 and of negative numbers, on and above the diagonal
        return s - slope * torch.log(one * (i - j))

    ours, found = answers(engine, (q, k, v), (slope,), weights, score=forgetting, mask=lambda b, h, i, j: j < i)
    inputs = cases.leaves(q, k, v)
    dense = direct.attention(
        *inputs,
        rules=[lambda s, where: s - same * gaps.clamp(min=1).to(dtype).log()],
        mask=lambda where: where.j < where.i,
    )

    cases.close(ours, dense.output, engine)
    for one, other in zip(found, cases.gradients(dense.output, (*inputs, same), weights), strict=True):
        cases.close(one, other, engine, times=20)


@given(problem=cases.problems(n_q=st.integers(4, 12), n_k=None))
@cases.examples(10)
def test_a_look_up_beyond_its_table_at_a_hidden_pair_does_no_harm(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    (table,) = cases.leaves(problem.normal(5, dtype=dtype, salt=3))
    (same,) = cases.leaves(table)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)
    gaps = (torch.arange(problem.n_q)[:, None] - torch.arange(problem.n_k) + 2).clamp(0, 4)

    ours, found = answers(
        engine,
        (q, k, v),
        (table,),
        weights,
        score=lambda s, b, h, i, j: s + table[i - j + 2],
        mask=mask.window(3),
    )
    inputs = cases.leaves(q, k, v)
    dense = direct.attention(*inputs, rules=[lambda s, where: s + same[gaps]], mask=direct.window(3))

    cases.close(ours, dense.output, engine)
    for one, other in zip(found, cases.gradients(dense.output, (*inputs, same), weights), strict=True):
        cases.close(one, other, engine, times=10)


@pytest.mark.parametrize("weighing", OF_SCORES)
@given(problem=cases.problems())
@cases.examples(10)
def test_a_score_of_minus_infinity_hides_like_the_mask(engine, weighing, problem):
    dtype = cases.dtype_of(engine)
    tensors = problem.tensors(dtype)
    shape = (problem.batch, problem.heads, problem.n_q, problem.n_k)
    may = problem.coins(*shape, chance=0.6, salt=8)
    (added,) = cases.leaves(torch.where(may, 0.0, -math.inf).to(dtype))
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)

    masked, gradients = answers(engine, tensors, (), weights, mask=may, weigh=WEIGHS[weighing])
    biased, bad_gradients = answers(engine, tensors, (added,), weights, score=score.bias(added), weigh=WEIGHS[weighing])

    cases.close(biased, masked, engine)
    for one, other in zip(bad_gradients[:3], gradients, strict=True):
        cases.close(one, other, engine, times=5)
    assert (biased[~may.any(-1)] == 0).all()
    assert (bad_gradients[0][~may.any(-1)] == 0).all()
    assert (bad_gradients[3][~may] == 0).all()


@given(problem=cases.problems())
@cases.examples(12)
def test_the_lse_does_not_count_scores_of_minus_infinity(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may = problem.coins(problem.n_q, problem.n_k, chance=0.6)
    added = torch.where(may, 0.0, -math.inf).to(q.dtype)

    got = cases.attend(engine, q, k, v, score=score.bias(added))

    cases.close(got.lse, direct.attention(q, k, v, mask=lambda where: may).lse, engine)


HIDING_RULES = {
    "chosen": lambda s, hidden, t: torch.where(hidden, -math.inf, s * 1.5),
    "added": lambda s, hidden, t: s * 1.5 + t,
    "taken away": lambda s, hidden, t: s * 1.5 - (-t),
    "added and then something else": lambda s, hidden, t: (s + t) + 0.25,
    "added where chosen": lambda s, hidden, t: torch.where(hidden, s + t, s * 0.5),
}


@pytest.mark.parametrize("hides", HIDING_RULES)
@pytest.mark.parametrize("weighing", OF_SCORES)
@given(problem=cases.problems(n_k=st.integers(2, 8)), poison=st.sampled_from([math.nan, math.inf]))
@cases.examples(5)
def test_what_a_score_of_minus_infinity_hides_may_hold_anything(engine, weighing, hides, problem, poison):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    hidden = problem.coins(problem.n_k, salt=9)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype, salt=10)
    bad_k, bad_v = (x.masked_fill(hidden[:, None], poison) for x in (k, v))
    added = torch.where(hidden, -math.inf, 0.5).to(dtype)
    rule = HIDING_RULES[hides]
    options = dict(score=lambda s, b, h, i, j: rule(s, hidden[j], added[j]), weigh=WEIGHS[weighing])

    clean, gradients = answers(engine, (q, k, v), (), weights, **options)
    spoilt, bad_gradients = answers(engine, (q, bad_k, bad_v), (), weights, **options)

    cases.equal(spoilt, clean)
    for one, other in zip(bad_gradients, gradients, strict=True):
        cases.close(one, other, engine, times=5)


def test_a_score_that_is_minus_infinity_by_itself_hides_too(engine):
    dtype = cases.dtype_of(engine)
    q = torch.ones(1, 1, 2, 1, dtype=dtype)
    k = torch.tensor([0.0, -math.inf, 1.0], dtype=dtype).view(1, 1, 3, 1)
    v = torch.tensor([1.0, math.nan, 3.0], dtype=dtype).view(1, 1, 3, 1)
    weights = torch.ones_like(q)

    all_three, gradients = answers(engine, (q, k, v), (), weights)
    only_two, expected = answers(engine, (q, k[:, :, ::2], v[:, :, ::2]), (), weights)

    cases.close(all_three, only_two, engine)
    cases.close(gradients[0], expected[0], engine)
    cases.close(gradients[1][:, :, ::2], expected[1], engine)
    cases.close(gradients[2][:, :, ::2], expected[2], engine)
    assert gradients[1][0, 0, 1] == 0
    assert gradients[2][0, 0, 1] == 0


def test_only_the_score_after_all_rules_decides(engine):
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=4, n_k=5, width=3, width_v=2, seed=7)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    added = torch.where(problem.coins(4, 5), 0.0, -math.inf).to(q.dtype)

    capped = cases.attention(engine, q, k, v, score=score.scaled_dot().then(score.bias(added)).then(score.softcap(2.0)))
    expected = direct.attention(q, k, v, rules=[direct.bias(added), direct.softcap(2.0)])

    cases.close(capped, expected.output, engine)  # softcap turns -inf into -2: such a pair is seen


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(8)
def test_what_is_hidden_stays_out_of_second_derivatives(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    hidden = problem.coins(problem.n_k, salt=9)
    bad_k, bad_v = (x.masked_fill(hidden[:, None], math.nan) for x in (k, v))

    def second(*tensors):
        inputs = cases.leaves(*tensors)
        output = cases.attention(engine, *inputs, mask=~hidden)
        first = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        return cases.gradients(
            torch.cat([(g[..., ~hidden, :] if n else g).flatten() for n, g in enumerate(first)]),
            inputs,
            torch.ones(()),
        )

    for one, other in zip(second(q, bad_k, bad_v), second(q, k, v), strict=True):
        cases.close(one, other, engine, times=50)  # second derivatives of a softmax are sums of several products


@given(problem=cases.problems(n_k=st.integers(2, 8)))
@cases.examples(8)
def test_what_is_hidden_stays_out_of_forward_derivatives(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    hidden = problem.coins(problem.n_k, salt=9)
    bad_k, bad_v = (x.masked_fill(hidden[:, None], math.nan) for x in (k, v))
    tangents = tuple(problem.normal(*x.shape, dtype=dtype, salt=20 + n) for n, x in enumerate((q, k, v)))
    run = lambda *tensors: cases.attention(engine, *tensors, mask=~hidden)

    _, clean = torch.func.jvp(run, (q, k, v), tangents)
    _, spoilt = torch.func.jvp(run, (q, bad_k, bad_v), tangents)

    cases.close(spoilt, clean, engine, times=5)
