"""Scores against their formulas, each written down again for every pair."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from regard import score
from regard.errors import SpecError
from regard.spec.read import read
from regard.spec.score import Score, as_score

# Both sides in float64: some dozen roundings of numbers of size 1 to 100.
CLOSE = dict(rtol=1e-11, atol=1e-11)
BATCH, HEADS, N_Q, N_K, WIDTH = 2, 4, 5, 7, 6


def qk(key_heads: int = HEADS, q_width: int = WIDTH, k_width: int = WIDTH) -> tuple[Tensor, Tensor]:
    q = torch.randn(BATCH, HEADS, N_Q, q_width, dtype=torch.float64)
    k = torch.randn(BATCH, key_heads, N_K, k_width, dtype=torch.float64)
    return q, k


def scores(chosen: Score, q: Tensor, k: Tensor) -> Tensor:
    """The scores an engine would compute from what was prepared."""
    chosen.check(q.shape[-1], k.shape[-1])
    ready = chosen.prepare(q, k)
    k = ready.k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if chosen.kind == "additive":
        (u,) = ready.parameters
        u = u if u.dim() == 1 else u[:, None, None]
        return (torch.tanh(ready.q.unsqueeze(-2) + k.unsqueeze(-3)) * u).sum(-1)
    assert chosen.kind == "dot"
    return ready.q @ k.mT * ready.scale


def pairwise(f: Callable[[Tensor, Tensor, int], Tensor], q: Tensor, k: Tensor) -> Tensor:
    """f of every query and key, one pair after the other; f also gets the number of the query's head."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    result = q.new_empty(*q.shape[:3], k.shape[2])
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in result.shape)).tolist():
        result[b, h, i, j] = f(q[b, h, i], k[b, h, j], h)
    return result


def agrees(chosen: Score, f: Callable[[Tensor, Tensor, int], Tensor], key_heads: int = HEADS, **widths: int) -> None:
    q, k = qk(key_heads, **widths)
    torch.testing.assert_close(scores(chosen, q, k), pairwise(f, q, k), **CLOSE)


by_groups = pytest.mark.parametrize("key_heads", [1, 2, HEADS])


@by_groups
def test_dot_is_the_product(key_heads: int) -> None:
    agrees(score.dot(), lambda q, k, h: q @ k, key_heads)


@by_groups
def test_scaled_dot_divides_by_the_root_of_the_width(key_heads: int) -> None:
    agrees(score.scaled_dot(), lambda q, k, h: q @ k / math.sqrt(WIDTH), key_heads)
    agrees(score.scaled_dot(0.3), lambda q, k, h: q @ k * 0.3, key_heads)
    agrees(score.scaled_dot(torch.tensor(0.3)), lambda q, k, h: q @ k * torch.tensor(0.3).double(), key_heads)


@by_groups
def test_a_scale_may_differ_by_head(key_heads: int) -> None:
    scale = torch.rand(HEADS, dtype=torch.float64)
    agrees(score.scaled_dot(scale), lambda q, k, h: q @ k * scale[h], key_heads)
    agrees(score.cosine(scale), lambda q, k, h: q @ k / q.norm() / k.norm() * scale[h], key_heads)


@by_groups
def test_multiplicative_is_a_product_through_a_matrix(key_heads: int) -> None:
    w = torch.randn(WIDTH, 3, dtype=torch.float64)
    agrees(score.multiplicative(w), lambda q, k, h: q @ w @ k, key_heads, k_width=3)


@by_groups
def test_multiplicative_may_have_a_matrix_a_head(key_heads: int) -> None:
    w = torch.randn(HEADS, WIDTH, 3, dtype=torch.float64)
    agrees(score.multiplicative(w), lambda q, k, h: q @ w[h] @ k, key_heads, k_width=3)


@by_groups
def test_the_width_that_is_planned_with_is_that_of_the_product(key_heads: int) -> None:
    q, k = qk(key_heads, k_width=3)
    for w in (torch.randn(WIDTH, 3), torch.randn(HEADS, WIDTH, 3)):
        assert (
            read(q, k, k, score=score.multiplicative(w)).spec.width
            == (score.multiplicative(w).prepare(q, k).q.shape[-1])
        )
    for chosen in (score.dot(), score.cosine(), score.metric(), score.mahalanobis(torch.eye(WIDTH))):
        q, k = qk(key_heads)
        assert chosen.prepared_width(WIDTH) == chosen.prepare(q, k).q.shape[-1]


def test_multiplicative_is_dot_with_keys_moved_by_the_matrix() -> None:
    q, k = qk()
    w = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(scores(score.multiplicative(w), q, k), scores(score.dot(), q, k @ w.T), **CLOSE)


@by_groups
def test_cosine_is_the_angle_whatever_the_lengths(key_heads: int) -> None:
    agrees(score.cosine(7.0), lambda q, k, h: 7 * torch.cosine_similarity(q, k, dim=0), key_heads)
    q, k = qk(key_heads)
    one, other = scores(score.cosine(7.0), q, k), scores(score.cosine(7.0), q * 100, k * 0.01)
    torch.testing.assert_close(one, other, **CLOSE)
    assert one.abs().max() <= 7.0


def test_a_vector_of_length_zero_has_cosine_zero_with_everything() -> None:
    q, k = qk()
    q[0, 0, 0] = 0
    assert (scores(score.cosine(), q, k)[0, 0, 0] == 0).all()


@by_groups
def test_metric_is_minus_half_the_squared_distance_over_sigma_squared(key_heads: int) -> None:
    agrees(score.metric(0.7), lambda q, k, h: -((q - k) ** 2).sum() / (2 * 0.7**2), key_heads)
    sigma = torch.rand(HEADS, dtype=torch.float64) + 0.5
    agrees(score.metric(sigma), lambda q, k, h: -((q - k) ** 2).sum() / (2 * sigma[h] ** 2), key_heads)
    one = torch.tensor(1.3, dtype=torch.float64)
    agrees(score.metric(one), lambda q, k, h: -((q - k) ** 2).sum() / (2 * one**2), key_heads)


def test_metric_weights_are_those_of_the_product_less_half_the_key() -> None:
    q, k = qk()
    sigma = 0.8
    found = scores(score.metric(sigma), q, k).softmax(-1)
    expected = ((q @ k.mT - (k**2).sum(-1).unsqueeze(-2) / 2) / sigma**2).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_metric_with_keys_of_one_length_and_the_right_sigma_is_scaled_dot() -> None:
    q, k = qk()
    k = k / k.norm(dim=-1, keepdim=True)
    found = scores(score.metric(WIDTH**0.25), q, k).softmax(-1)
    torch.testing.assert_close(found, scores(score.scaled_dot(), q, k).softmax(-1), rtol=1e-11, atol=1e-14)


def test_metric_does_not_cancel_in_float32_when_all_stand_far_from_zero() -> None:
    """At an offset of 100 sigma the squares are 10,000 times the distances; float32 has seven digits."""
    sigma = 1.0
    q, k = qk()
    far_q, far_k = q.float() + 100 * sigma, k.float() + 100 * sigma
    expected = pairwise(lambda x, y, h: -((x - y) ** 2).sum() / (2 * sigma**2), far_q.double(), far_k.double())
    found = scores(score.metric(sigma), far_q, far_k).double()
    # the scores go to 20; float32 rounds those at 1e-6, and the vectors themselves are taken as they are
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)
    naive = (far_q @ far_k.mT - (far_q**2).sum(-1, keepdim=True) / 2 - (far_k**2).sum(-1).unsqueeze(-2) / 2).double()
    assert (naive - expected).abs().max() > 100 * (found - expected).abs().max()


def test_one_wild_key_does_not_spoil_the_distances_of_the_others() -> None:
    q, k = qk()
    expected = scores(score.metric(1.0), q, k)
    for wild in (torch.nan, torch.inf, 1e12):
        spoiled = k.clone()
        spoiled[:, :, 3] = wild
        found = scores(score.metric(1.0), q, spoiled)
        others = [j for j in range(N_K) if j != 3]
        torch.testing.assert_close(found[..., others], expected[..., others], **CLOSE)


@by_groups
def test_mahalanobis_is_the_distance_through_a_matrix(key_heads: int) -> None:
    factor = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    m = factor @ factor.T
    agrees(score.mahalanobis(m), lambda q, k, h: -(q - k) @ m @ (q - k) / 2, key_heads)


def test_mahalanobis_is_metric_after_moving_both_through_the_factor() -> None:
    q, k = qk()
    factor = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    found = scores(score.mahalanobis(factor @ factor.T), q, k)
    torch.testing.assert_close(found, scores(score.metric(1.0), q @ factor, k @ factor), **CLOSE)


def test_only_the_symmetric_part_of_the_matrix_counts() -> None:
    q, k = qk()
    m = torch.randn(WIDTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(
        scores(score.mahalanobis(m), q, k), scores(score.mahalanobis((m + m.T) / 2), q, k), **CLOSE
    )


@by_groups
def test_additive_is_tanh_of_the_sum(key_heads: int) -> None:
    w_q, w_k = torch.randn(WIDTH, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    u, b = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    agrees(score.additive(w_q, w_k, u), lambda q, k, h: u @ torch.tanh(q @ w_q + k @ w_k), key_heads, k_width=3)
    agrees(score.additive(w_q, w_k, u, b), lambda q, k, h: u @ torch.tanh(q @ w_q + k @ w_k + b), key_heads, k_width=3)


def test_additive_is_the_form_that_concatenates_q_and_k() -> None:
    w = torch.randn(8, 2 * WIDTH, dtype=torch.float64)
    u = torch.randn(8, dtype=torch.float64)
    chosen = score.additive(w[:, :WIDTH].T, w[:, WIDTH:].T, u)
    agrees(chosen, lambda q, k, h: u @ torch.tanh(w @ torch.cat([q, k])))


def test_additive_may_have_weights_a_head() -> None:
    w_q, w_k = (torch.randn(HEADS, WIDTH, 8, dtype=torch.float64) for _ in range(2))
    u = torch.randn(HEADS, 8, dtype=torch.float64)
    agrees(score.additive(w_q, w_k, u), lambda q, k, h: u[h] @ torch.tanh(q @ w_q[h] + k @ w_k[h]))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


PER_HEAD: dict[str, tuple[tuple[Tensor, ...], Callable[..., Score], Callable[..., Tensor]]] = {
    "additive": (
        (normal(HEADS, WIDTH, 8), normal(HEADS, WIDTH, 9)[..., :8], normal(HEADS, 8)),
        lambda w_q, w_k, u: score.additive(w_q, w_k, u),
        lambda q, k, w_q, w_k, u: u @ torch.tanh(q @ w_q + k @ w_k),
    ),
    "mahalanobis": (
        (normal(HEADS, WIDTH, WIDTH) @ normal(HEADS, WIDTH, WIDTH).mT,),
        lambda m: score.mahalanobis(m),
        lambda q, k, m: -(q - k) @ m @ (q - k) / 2,
    ),
    "multiplicative": (
        (normal(HEADS, WIDTH, WIDTH),),
        lambda w: score.multiplicative(w),
        lambda q, k, w: q @ w @ k,
    ),
    "metric": (
        (normal(HEADS).abs() + 0.5,),
        lambda sigma: score.metric(sigma),
        lambda q, k, sigma: -((q - k) ** 2).sum() / (2 * sigma**2),
    ),
}


@by_groups
@pytest.mark.parametrize("engine", regard.engines())
@pytest.mark.parametrize("name", PER_HEAD)
def test_parameters_a_head_go_with_keys_that_heads_share(name: str, engine: str, key_heads: int) -> None:
    parameters, make, f = PER_HEAD[name]
    q, k = qk(key_heads)
    expected = pairwise(lambda q, k, h: f(q, k, *(x[h] for x in parameters)), q, k).logsumexp(-1)
    found = regard.attend(q, k, k, score=make(*parameters), engine=engine).lse
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_custom_score_is_its_function_of_whole_tiles() -> None:
    q, k = qk()
    found = score.custom(lambda q, k: -torch.cdist(q, k, p=1))
    found.check(3, 9)  # any widths
    ready = found.prepare(q, k)
    assert torch.equal(ready.q, q) and torch.equal(ready.k, k) and ready.parameters == ()


def test_a_custom_score_finds_the_tensors_its_function_uses() -> None:
    w = torch.randn(WIDTH, WIDTH, requires_grad=True)
    scale = torch.tensor(2.0, requires_grad=True)
    unused = torch.randn(3, requires_grad=True)

    def function(q: Tensor, k: Tensor) -> Tensor:
        assert unused is not None
        return (q @ w * scale) @ k.mT + w.sum() * 0

    ready = score.custom(function).prepare(torch.randn(1, 2, 4, WIDTH), torch.randn(1, 2, 5, WIDTH))
    assert {id(x) for x in ready.parameters} == {id(w), id(scale)}


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_prepared_in_float32_and_distances_in_float64(dtype: torch.dtype) -> None:
    q, k = (x.to(dtype) for x in qk())
    w = torch.randn(WIDTH, 8)
    for chosen in (
        score.cosine(2.0),
        score.multiplicative(torch.randn(WIDTH, WIDTH)),
        score.additive(w, w, torch.randn(8)),
        score.scaled_dot(torch.tensor(0.5)),
    ):
        ready = chosen.prepare(q, k)
        assert ready.q.dtype == ready.k.dtype == torch.float32
    for chosen in (score.metric(1.0), score.mahalanobis(torch.eye(WIDTH))):  # small differences of large squares
        ready = chosen.prepare(q, k)
        assert ready.q.dtype == ready.k.dtype == chosen.precision == torch.float64
    exact = scores(score.metric(1.0), q.double(), k.double())
    # float32 of half precision numbers: their own rounding is not ours
    torch.testing.assert_close(scores(score.metric(1.0), q, k).double(), exact, rtol=1e-5, atol=1e-5)


def test_gradients_reach_what_a_score_holds() -> None:
    q, k = qk()
    w = torch.randn(WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(HEADS, dtype=torch.float64, requires_grad=True)
    for chosen, held in (
        (score.multiplicative(w), w),
        (score.mahalanobis(w), w),
        (score.metric(sigma), sigma),
        (score.cosine(scale), scale),
        (score.scaled_dot(scale), scale),
    ):
        (gradient,) = torch.autograd.grad(scores(chosen, q, k).sin().sum(), held)
        assert gradient.shape == held.shape and gradient.abs().sum() > 0


def test_the_distance_is_differentiable_in_q_and_k() -> None:
    q, k = (x[:1, :1, :2, :3].clone().requires_grad_() for x in qk())
    assert torch.autograd.gradcheck(lambda q, k: scores(score.metric(0.7), q, k), (q, k))


def test_a_rule_alone_means_scaled_dot_then_the_rule() -> None:
    found = as_score(lambda s, b, h, i, j: s * 2)
    assert isinstance(found, type(score.scaled_dot())) and found.rule is not None
    assert as_score(None).rule is None and as_score(None).formula() == "q·k / √d"
    given = score.dot()
    assert as_score(given) is given
    assert as_score(torch.zeros(3, 3)).rule is not None


def test_rules_are_applied_in_the_order_they_are_given() -> None:
    chosen = score.dot().then(lambda s, b, h, i, j: s + 1).then(lambda s, b, h, i, j: s * 2)
    q, k = qk()
    found = regard.attend(q, k, k, score=chosen, engine="reference").lse
    torch.testing.assert_close(found, ((q @ k.mT + 1) * 2).logsumexp(-1), **CLOSE)


def test_then_leaves_the_score_it_is_called_on_alone() -> None:
    plain = score.metric(0.5)
    changed = plain.then(score.softcap(5.0))
    assert plain.rule is None and changed.rule is not None and type(changed) is type(plain)
    assert changed.sigma == 0.5  # type: ignore[attr-defined]


def test_a_score_is_written_as_its_formula() -> None:
    w = torch.zeros(2, 2)
    assert [s.formula() for s in (score.dot(), score.scaled_dot(), score.scaled_dot(0.5))] == [
        "q·k",
        "q·k / √d",
        "q·k · 0.5",
    ]
    assert score.scaled_dot(torch.ones(2)).formula() == "q·k · scale"
    assert score.cosine(3.0).formula() == "cos(q, k) · 3" and score.multiplicative(w).formula() == "q·W·k"
    assert score.metric().formula() == "-|q - k|² / 2σ²" and score.mahalanobis(w).formula() == "-(q - k)'M(q - k) / 2"
    assert score.additive(w, w, w[0]).formula() == "u·tanh(W_q q + W_k k)"
    assert score.additive(w, w, w[0], w[0]).formula() == "u·tanh(W_q q + W_k k + bias)"

    def near(q: Tensor, k: Tensor) -> Tensor:
        return -torch.cdist(q, k)

    assert score.custom(near).formula() == "near(q, k)"


@pytest.mark.parametrize("engine", regard.engines())
def test_relative_values_are_added_by_distance(engine: str) -> None:
    q, k = qk()
    v = torch.randn(BATCH, HEADS, N_K, 3, dtype=torch.float64)
    table = torch.randn(5, 3, dtype=torch.float64)
    found = regard.attention(q, k, v, value=score.shaw_values(table), engine=engine)
    weights = (q @ k.mT / math.sqrt(WIDTH)).softmax(-1)
    p, j = torch.arange(N_K - N_Q, N_K).view(-1, 1), torch.arange(N_K)
    moved = v.unsqueeze(2) + table[(j - p).clamp(-2, 2) + 2]
    torch.testing.assert_close(found, (weights.unsqueeze(-1) * moved).sum(-2), **CLOSE)


def test_relative_values_that_reach_nowhere_shift_every_output_alike() -> None:
    q, k = qk()
    table = torch.randn(1, WIDTH, dtype=torch.float64)
    plain = regard.attention(q, k, k)
    torch.testing.assert_close(regard.attention(q, k, k, value=score.shaw_values(table)), plain + table[0], **CLOSE)


W = torch.zeros(3, 4)
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "widths": (
        lambda: score.dot().check(8, 6),
        r"q and k must have the same width; got q=8, k=6\. For unequal widths use score\.multiplicative\.",
    ),
    "cosine widths": (lambda: score.cosine().check(8, 6), r"got q=8, k=6"),
    "multiplicative": (
        lambda: score.multiplicative(W).check(4, 3),
        r"w must end in \(width of q, width of k\) = \(4, 3\); got shape \(3, 4\)\.",
    ),
    "metric": (lambda: score.metric().check(4, 3), r"a distance must compare vectors of one width; got q=4, k=3\."),
    "mahalanobis": (
        lambda: score.mahalanobis(W).check(4, 4),
        r"a distance must compare vectors of one width; got q=4, k=4, m=\(3, 4\)\.",
    ),
    "sigma": (lambda: score.metric(0.0), r"sigma must be greater than 0; got 0\.0\."),
    "negative sigma": (lambda: score.metric(-2.0), r"sigma must be greater than 0; got -2\.0\."),
    "sigma that is no number": (lambda: score.metric(math.nan), r"sigma must be a finite number or .*; got nan\."),
    "additive": (
        lambda: score.additive(W, W, torch.zeros(5)).check(3, 7),
        r"= \(3, 5\), w_k \(width of k, hidden\) = \(7, 5\) and u .* got w_q=\(3, 4\), w_k=\(3, 4\), u=\(5,\)\.",
    ),
    "custom": (
        lambda: score.custom(lambda q, k: q @ q.mT).prepare(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 6, 5)),
        r"where \(2, 3, 2, 3\) was due it gave \(2, 3, 2, 2\)\.",
    ),
    "custom by head": (
        lambda: score.custom(lambda q, k: (q @ k.mT) * torch.arange(1.0, 4.0).view(3, 1, 1)).prepare(
            torch.ones(2, 3, 4, 5), torch.ones(2, 3, 6, 5)
        ),
        r"called with that head alone, .* for q \(2, 3, 2, 5\) the last head alone gave \(1, 3, 2, 3\)",
    ),
    "custom by batch element": (
        lambda: score.custom(lambda q, k: (q @ k.mT) * q.shape[0]).prepare(
            torch.ones(2, 3, 4, 5), torch.ones(2, 3, 6, 5)
        ),
        r"the last head alone gave \(1, 1, 2, 3\) or other numbers\.",
    ),
    "a rule that is none": (lambda: as_score("dot"), r"a rule must be a function \(s, b, h, i, j\) .*; got str\."),
    "then a number": (lambda: score.dot().then(3), r"a rule must be a function .*; got int\."),
    "shaw values width": (
        lambda: score.shaw_values(W).check(7),
        r"shaw_values needs a table as wide as v; got table=4, v=7\.",
    ),
    "shaw values table": (
        lambda: score.shaw_values(torch.zeros(4, 3)),
        r"a relative table must be \(2 reach \+ 1, width\) in floats; got a tensor of shape \(4, 3\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_score_that_cannot_be_meant_is_refused_with_its_numbers(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        make()


WRONG_HEADS: dict[str, Callable[[], Score]] = {
    "scaled dot": lambda: score.scaled_dot(torch.ones(3)),
    "cosine": lambda: score.cosine(torch.ones(3)),
    "metric": lambda: score.metric(torch.ones(3)),
    "multiplicative": lambda: score.multiplicative(torch.ones(3, 4, 4)),
    "mahalanobis": lambda: score.mahalanobis(torch.ones(3, 4, 4)),
    "additive": lambda: score.additive(torch.ones(3, 4, 5), torch.ones(3, 4, 5), torch.ones(3, 5)),
}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", WRONG_HEADS)
def test_parameters_for_another_number_of_heads_are_refused_before_any_work(name: str, heads: int) -> None:
    """With a single head they would broadcast, and the answer would have heads that nobody asked for."""
    q = torch.randn(1, heads, 5, 4)
    with pytest.raises(SpecError, match="head"):
        regard.attention(q, q, q, score=WRONG_HEADS[name]())
