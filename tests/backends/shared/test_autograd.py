"""Derivatives of every score with every normalizer: first and second order, reverse and forward mode, in float64."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import mask, normalizer, score
from regard.backends.shared import autograd
from regard.backends.tiled import TiledBackend
from regard.plan.tiling import Tiling
from tests.laws import direct
from tests.random_tensors import normal

# torch itself calls torch.jit.script for some forward derivatives
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

BATCH, HEADS, KV_HEADS, N_Q, N_K, HEAD_DIM = 1, 2, 1, 2, 3, 2


def inputs() -> list[Tensor]:
    return [
        normal(BATCH, HEADS, N_Q, HEAD_DIM, seed=1),
        normal(BATCH, KV_HEADS, N_K, HEAD_DIM, seed=2),
        normal(BATCH, KV_HEADS, N_K, HEAD_DIM, seed=3),
    ]


# Learned tensors, and the function that makes an option from them.
Choice = tuple[list[Tensor], Callable[..., Any]]

SCORES: dict[str, Choice] = {
    "dot": ([], score.dot),
    "scaled dot": ([normal(HEADS, seed=11)], score.scaled_dot),
    "bilinear": ([normal(HEAD_DIM, HEAD_DIM, seed=12)], score.bilinear),
    "cosine": ([normal(seed=13)], score.cosine),
    "gaussian": ([normal(HEADS, seed=14).abs() + 0.7], score.gaussian),
    "mahalanobis": ([normal(HEAD_DIM, HEAD_DIM, seed=15)], score.mahalanobis),
    "additive": (
        [normal(HEAD_DIM, 3, seed=16), normal(HEAD_DIM, 3, seed=17), normal(3, seed=18), normal(3, seed=19)],
        score.additive,
    ),
    "custom": (
        [normal(HEAD_DIM, seed=20)],
        lambda w: score.custom(lambda q, k: torch.sin(q * w) @ k.mT),
    ),
}
OPTIONS: dict[str, Choice] = {
    "plain": ([], lambda: None),
    "score modifier": (
        [normal(HEADS, 3, seed=21)],
        lambda table: lambda s, b, h, i, j: s * table[h, (i + j) % 3] + 0.5 * torch.tanh(s),
    ),
}
NORMALIZERS: dict[str, Choice] = {
    "softmax": ([], normalizer.softmax),
    "sink": ([normal(HEADS, seed=22)], normalizer.sink),
    "sigmoid": ([normal(HEADS, seed=23)], normalizer.sigmoid),
    "relu": ([normal(seed=24)], normalizer.relu),
}


def make_function(
    name: str, score_mod: str, normalizer_name: str, backend: str, **options: Any
) -> tuple[Callable[..., Tensor], Tensor]:
    """A call as a function of one vector of all its differentiable inputs, and the vector.

    A single direction changes every input at once, so one comparison checks all of them.
    """
    parts = [SCORES[name], OPTIONS[score_mod], NORMALIZERS[normalizer_name]]
    counts = [len(tensors) for tensors, _ in parts]
    every = [*inputs(), *(t for tensors, _ in parts for t in tensors)]

    def function(flat: Tensor) -> Tensor:
        pieces = flat.split([t.numel() for t in every])
        q, k, v, *rest = (piece.view(t.shape) for piece, t in zip(pieces, every, strict=True))
        choices = [make(*(rest.pop(0) for _ in range(n))) for n, (_, make) in zip(counts, parts, strict=True)]
        selected = choices[0] if choices[1] is None else choices[0].then(choices[1])
        result = regard.attention_with_weights(
            q, k, v, score=selected, normalizer=choices[2], backend=backend, **options
        )
        # the row statistic is an output like any other
        statistic = (
            [] if normalizer_name in ("sigmoid", "relu") else [torch.nan_to_num(result.lse, neginf=0.0).flatten()]
        )
        return torch.cat([result.output.flatten(), *statistic])

    return function, torch.cat([t.flatten() for t in every]).requires_grad_()


SMALL = "tiled in small tiles"


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a backend. With small tiles, even these problems have several tiles and blocks of queries."""
    if request.param != SMALL:
        yield str(request.param)
        return
    monkeypatch.setattr(TiledBackend, "tiling", lambda self, spec: Tiling(1, 2, 4))
    monkeypatch.setattr(autograd, "MAX_PAIRS_PER_BLOCK", 1)
    regard.clear_caches()  # plans are memoized
    yield "tiled"
    monkeypatch.undo()
    regard.clear_caches()


every_backend = pytest.mark.parametrize("backend", [*regard.available_backends(), SMALL], indirect=True)
in_small_tiles = pytest.mark.parametrize("backend", [SMALL], indirect=True)
without_tiles = pytest.mark.parametrize("backend", ["reference"], indirect=True)
every_score = pytest.mark.parametrize("name", SCORES)
every_score_mod = pytest.mark.parametrize("score_mod", OPTIONS)
every_normalizer = pytest.mark.parametrize("normalizer_name", NORMALIZERS)

# Derivatives are compared along random directions; differences of 1e-6 leave about ten digits of a float64.
FAST = dict(fast_mode=True, eps=1e-6, atol=1e-6, rtol=1e-5, check_undefined_grad=False)


@every_backend
@every_normalizer
@every_score_mod
@every_score
def test_gradients_agree_with_finite_differences(backend, name, score_mod, normalizer_name):
    function, x = make_function(name, score_mod, normalizer_name, backend, mask=mask.causal())

    assert gradcheck(function, x, **FAST)


@in_small_tiles
@every_normalizer
@every_score_mod
@every_score
def test_second_derivatives_agree_with_finite_differences(backend, name, score_mod, normalizer_name):
    function, x = make_function(name, score_mod, normalizer_name, backend, mask=mask.causal())

    assert gradgradcheck(function, x, **FAST)


@without_tiles
@every_normalizer
@every_score
def test_second_derivatives_are_right_after_any_backend(backend, name, normalizer_name):
    function, x = make_function(name, "score modifier", normalizer_name, backend, mask=mask.causal())

    assert gradgradcheck(function, x, **FAST)


@in_small_tiles
@every_normalizer
@every_score_mod
@every_score
def test_forward_mode_derivatives_agree_with_finite_differences(backend, name, score_mod, normalizer_name):
    function, x = make_function(name, score_mod, normalizer_name, backend, mask=mask.causal())

    assert gradcheck(function, x, check_forward_ad=True, check_backward_ad=False, **FAST)


@in_small_tiles
@every_normalizer
@every_score
def test_forward_over_reverse_derivatives_agree_with_finite_differences(backend, name, normalizer_name):
    function, x = make_function(name, "score modifier", normalizer_name, backend, mask=mask.causal())

    assert gradgradcheck(function, x, check_fwd_over_rev=True, check_rev_over_rev=False, **FAST)


@every_backend
@pytest.mark.parametrize("normalizer_name", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", ["dot", "gaussian", "additive", "custom"])
def test_every_entry_of_the_jacobian_is_right(backend, name, normalizer_name):
    function, x = make_function(name, "score modifier", normalizer_name, backend, mask=mask.causal())

    # undefined gradients count as zeros
    assert gradcheck(function, x, check_undefined_grad=True)


@in_small_tiles
@every_normalizer
@pytest.mark.parametrize("name", ["dot", "additive", "custom"])
def test_fully_masked_rows_have_zero_derivatives_of_every_order(backend, name, normalizer_name):
    function, x = make_function(
        name, "score modifier", normalizer_name, backend, mask=lambda b, h, i, j: (i != 1) & (j != 1)
    )

    assert gradcheck(function, x, check_forward_ad=True, **FAST)
    assert gradgradcheck(function, x, **FAST)
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    for result in (first, second):
        of_q = result[: HEADS * N_Q * HEAD_DIM].view(HEADS, N_Q, HEAD_DIM)
        assert torch.equal(of_q[:, 1], torch.zeros(HEADS, HEAD_DIM, dtype=torch.float64))
        assert bool((of_q[:, 0] != 0).any())


@in_small_tiles
@every_normalizer
@pytest.mark.parametrize("name", ["dot", "additive", "custom"])
def test_derivatives_with_dropout_are_right(backend, name, normalizer_name):
    function, x = make_function(name, "score modifier", normalizer_name, backend, dropout=0.4, seed=3)

    assert gradcheck(function, x, check_forward_ad=True, **FAST)
    assert gradgradcheck(function, x, **FAST)


@every_backend
def test_derivatives_of_a_learned_bias_with_minus_infinity_are_right(backend):
    hides = torch.zeros(N_Q, N_K, dtype=torch.float64).masked_fill(~mask.causal().to_dense(N_Q, N_K)[0, 0], -math.inf)

    def function(q: Tensor, k: Tensor, v: Tensor, extra: Tensor) -> Tensor:
        return regard.attention(q, k, v, score=score.bias(extra + hides), backend=backend)

    leaves = [x.requires_grad_() for x in (*inputs(), normal(N_Q, N_K, seed=25))]
    assert gradcheck(function, leaves, check_forward_ad=True, **FAST)
    assert gradgradcheck(function, leaves, **FAST)


@in_small_tiles
@pytest.mark.parametrize("kind", ["relative keys", "relative values", "t5 bias", "alibi", "softcap"])
def test_derivatives_of_distance_based_scores_are_right(backend, kind):
    tensors, options = {
        "relative keys": ([normal(3, HEAD_DIM, seed=26)], lambda t: dict(score=score.shaw_keys(t))),
        "relative values": ([normal(3, HEAD_DIM, seed=26)], lambda t: dict(value=score.shaw_values(t))),
        "t5 bias": ([normal(6, HEADS, seed=27)], lambda t: dict(score=score.t5_bias(t, max_distance=4))),
        "alibi": ([normal(HEADS, seed=28)], lambda t: dict(score=score.alibi(t))),
        "softcap": ([normal(seed=29).abs() + 0.5], lambda t: dict(score=score.softcap(t))),
    }[kind]

    def function(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        return regard.attention(q, k, v, mask=mask.causal(), backend=backend, **options(*learned))

    leaves = [x.requires_grad_() for x in (*inputs(), *tensors)]
    assert gradcheck(function, leaves, **FAST)
    assert gradgradcheck(function, leaves, **FAST)


def test_forward_mode_derivatives_of_relative_values_are_right():
    def function(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return regard.attention(q, k, v, mask=mask.causal(), value=score.shaw_values(table))

    leaves = [x.requires_grad_() for x in (*inputs(), normal(3, HEAD_DIM, seed=26))]
    assert gradcheck(function, leaves, check_forward_ad=True, check_backward_ad=False, **FAST)


@every_backend
def test_derivatives_of_a_value_function_are_right(backend):
    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return regard.attention(q, k, v, value=lambda v: torch.sin(v @ w), backend=backend)

    leaves = [x.requires_grad_() for x in (*inputs(), normal(HEAD_DIM, 3, seed=30))]
    assert gradcheck(function, leaves, check_forward_ad=True, **FAST)
    assert gradgradcheck(function, leaves, **FAST)


@in_small_tiles
@pytest.mark.parametrize("normalizer_name", ["softmax", "sigmoid"])
@pytest.mark.parametrize("name", ["scaled dot", "additive", "custom"])
def test_third_derivatives_agree_with_the_dense_formula(backend, name, normalizer_name):
    tensors, _ = SCORES[name]
    theirs = {
        "scaled dot": lambda c: direct.scaled_dot(c.view(-1, 1, 1)),
        "additive": direct.additive,
        "custom": lambda w: lambda q, k: torch.sin(q * w) @ k.mT,
    }[name]
    shift = normal(HEADS, seed=23)

    def ours(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        weighs = normalizer.softmax() if normalizer_name == "softmax" else normalizer.sigmoid(shift)
        return regard.attention(
            q, k, v, score=SCORES[name][1](*learned), normalizer=weighs, mask=mask.causal(), backend=backend
        )

    def dense(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        weighs = direct.softmax() if normalizer_name == "softmax" else direct.sigmoid(shift.view(-1, 1, 1))
        return direct.attention(q, k, v, score=theirs(*learned), normalizer=weighs, mask=direct.causal()).output

    results = []
    for function in (ours, dense):
        leaves = [x.clone().requires_grad_() for x in (*inputs(), *tensors)]
        result = function(*leaves)
        for order in range(3):
            result = (result * normal(*result.shape, seed=40 + order)).sum()
            parts = torch.autograd.grad(result, leaves, create_graph=True)
            result = torch.cat([p.flatten() for p in parts])
        results.append(result)

    # three derivatives of sums of about ten terms: rounding errors grow to about 1e-13 of the largest
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@every_backend
@pytest.mark.parametrize("score_mod", OPTIONS)
@pytest.mark.parametrize("name", SCORES)
def test_gradient_can_be_part_of_a_loss(backend, name, score_mod):
    dense = {
        "dot": direct.dot,
        "scaled dot": lambda c: direct.scaled_dot(c.view(-1, 1, 1)),
        "bilinear": direct.bilinear,
        "cosine": direct.cosine,
        "gaussian": lambda sigma: direct.gaussian(sigma.view(-1, 1, 1)),
        "mahalanobis": lambda m: direct.mahalanobis((m + m.mT) / 2),
        "additive": direct.additive,
        "custom": lambda w: lambda q, k: torch.sin(q * w) @ k.mT,
    }[name]
    (of_score, make), (of_rule, make_rule) = SCORES[name], OPTIONS[score_mod]
    results = []
    for is_ours in (True, False):
        leaves = [x.clone().requires_grad_() for x in (*inputs(), *of_score, *of_rule)]
        q, k, v, *rest = leaves
        learned, table = rest[: len(of_score)], rest[len(of_score) :]
        if is_ours:
            selected = make(*learned) if score_mod == "plain" else make(*learned).then(make_rule(*table))
            output = regard.attention(q, k, v, score=selected, mask=mask.causal(), backend=backend)
        else:
            changes = [_with_table(*table)] if table else []
            output = direct.attention(q, k, v, score=dense(*learned), modifiers=changes, mask=direct.causal()).output
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-10)


def _with_table(table: Tensor) -> direct.Modifier:
    return lambda s, where: s * table[where.h, (where.i + where.j) % 3] + 0.5 * torch.tanh(s)


@every_backend
def test_only_required_gradients_are_computed(backend):
    q, k, v = inputs()
    k.requires_grad_()

    (result,) = torch.autograd.grad(regard.attention(q, k, v, backend=backend).sum(), k)

    assert result.shape == k.shape
    assert not regard.attention(q, k.detach(), v, backend=backend).requires_grad


@every_backend
def test_tensor_captured_twice_gets_the_sum_of_its_gradients(backend):
    def function(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        score_mod = score.bilinear(table).then(lambda s, b, h, i, j: s + table[i % 2, j % 2])
        return regard.attention(q, k, v @ table, score=score_mod, normalizer=normalizer.sink(table[0]), backend=backend)

    leaves = [x.requires_grad_() for x in (*inputs(), normal(HEAD_DIM, HEAD_DIM, seed=31))]
    assert gradcheck(function, leaves, **FAST)
    assert gradgradcheck(function, leaves, **FAST)


@every_backend
def test_custom_score_can_use_a_module(backend):
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(2 * HEAD_DIM, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()

    def pairwise(q: Tensor, k: Tensor) -> Tensor:
        pairs = torch.broadcast_tensors(q.unsqueeze(-2), k.unsqueeze(-3))
        return network(torch.cat(pairs, dim=-1)).squeeze(-1)

    results = []
    for call in (
        lambda q, k, v: regard.attention(q, k, v, score=score.custom(pairwise), backend=backend),
        lambda q, k, v: direct.attention(q, k, v, score=pairwise).output,
    ):
        leaves = [*(x.requires_grad_() for x in inputs()), *network.parameters()]
        output = call(*leaves[:3])
        results.append(torch.autograd.grad(output, leaves, normal(*output.shape, seed=5), allow_unused=True))
    for result, expected in zip(*results, strict=True):
        if expected is None:
            assert result is None or float(result.abs().max()) == 0.0
        else:
            torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-12)


@every_backend
def test_gradients_have_the_dtype_of_their_inputs(backend):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        leaves = [x.to(dtype).requires_grad_() for x in inputs()]
        table = normal(HEADS, 3, seed=21).to(torch.float32).requires_grad_()

        output = regard.attention(*leaves, score=lambda s, b, h, i, j, t=table: s + t[h, (i + j) % 3], backend=backend)
        result = torch.autograd.grad(output.float().sum(), [*leaves, table])

        assert [g.dtype for g in result] == [dtype, dtype, dtype, torch.float32]


@every_backend
def test_backward_twice_through_a_retained_graph_gives_the_same_bits(backend):
    leaves = [x.requires_grad_() for x in inputs()]
    output = regard.attention(*leaves, mask=mask.causal(), backend=backend)
    d_output = normal(*output.shape, seed=5)

    one, other = (torch.autograd.grad(output, leaves, d_output, retain_graph=True) for _ in range(2))

    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@every_backend
def test_input_changed_in_place_before_backward_raises_error(backend):
    q, k, v = (x.requires_grad_() for x in inputs())
    moved = q * 1.0
    output = regard.attention(moved, k, v, backend=backend)

    moved.mul_(2.0)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
