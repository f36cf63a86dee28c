"""Bahdanau's and Luong's attention of decoder states over an encoder's memory, against explicit computations."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import ArgumentError
from regard.mechanisms.seq2seq import (
    ContextVectors,
    attentional_hidden_state,
    bahdanau,
    luong_concat,
    luong_dot,
    luong_general,
    luong_local_monotonic,
    luong_local_predictive,
    luong_location,
)
from regard.score import additive, bilinear

HIDDEN_SIZE, DIM, MAX_LEN = 4, 5, 11
LENGTHS = [7, 1, 4]


def randn64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def parameters() -> dict[str, Tensor]:
    """Return parameters for a memory with the hidden size of the states, so that every kind accepts them."""
    shapes = {
        "w_q": (HIDDEN_SIZE, DIM),
        "w_k": (HIDDEN_SIZE, DIM),
        "w": (HIDDEN_SIZE, HIDDEN_SIZE),
        "w_l": (HIDDEN_SIZE, MAX_LEN),
    }
    return {name: randn64(*shape) for name, shape in shapes.items()} | {"u": randn64(DIM), "bias": randn64(DIM)}


Call = Callable[..., ContextVectors]
KINDS: dict[str, tuple[Call, Callable[[Tensor, Tensor, int, dict[str, Tensor]], Tensor]]] = {
    "bahdanau": (
        lambda h, m, p, **o: bahdanau(h, m, p["w_q"], p["w_k"], p["u"], p["bias"], **o),
        lambda h, m, j, p: p["u"] @ torch.tanh(p["w_q"].T @ h + p["w_k"].T @ m + p["bias"]),
    ),
    "dot": (lambda h, m, p, **o: luong_dot(h, m, **o), lambda h, m, j, p: h @ m),
    "general": (lambda h, m, p, **o: luong_general(h, m, p["w"], **o), lambda h, m, j, p: h @ p["w"] @ m),
    "concat": (
        lambda h, m, p, **o: luong_concat(h, m, torch.cat((p["w_q"], p["w_k"])), p["u"], **o),
        lambda h, m, j, p: p["u"] @ torch.tanh(torch.cat((p["w_q"], p["w_k"])).T @ torch.cat((h, m))),
    ),
    "location": (lambda h, m, p, **o: luong_location(h, m, p["w_l"], **o), lambda h, m, j, p: (p["w_l"].T @ h)[j]),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def reference(h: Tensor, memory: Tensor, score: Callable[[Tensor, Tensor, int], Tensor], visible) -> Tensor:
    """Return the weights (batch, steps, n) of 3-D h and memory, score by score; `visible` is a function (b, t, j)."""
    weights = torch.zeros(*h.shape[:2], memory.shape[1], dtype=h.dtype)
    for b in range(h.shape[0]):
        for t in range(h.shape[1]):
            positions = [j for j in range(memory.shape[1]) if visible(b, t, j)]
            if positions:
                scores = torch.stack([score(h[b, t], memory[b, j], j) for j in positions])
                weights[b, t, positions] = torch.exp(scores) / torch.exp(scores).sum()
    return weights


@every_kind
@pytest.mark.parametrize("steps, n", [(3, 7), (1, 7), (9, 7)])
def test_every_kind_matches_its_formula(kind: str, steps: int, n: int) -> None:
    h, memory, p = randn64(3, steps, HIDDEN_SIZE), randn64(3, n, HIDDEN_SIZE), parameters()
    call, score = KINDS[kind]

    context = call(h, memory, p, lengths=LENGTHS)

    expected = reference(h, memory, lambda h, m, j: score(h, m, j, p), lambda b, t, j: j < LENGTHS[b])
    torch.testing.assert_close(context.weights, expected)
    torch.testing.assert_close(context.output, expected @ memory)


@every_kind
def test_single_steps_equal_all_steps_at_once(kind: str) -> None:
    h, memory, p = randn64(2, 5, HIDDEN_SIZE), randn64(2, 6, HIDDEN_SIZE), parameters()
    call, _ = KINDS[kind]

    steps = [call(h[:, t : t + 1], memory, p, lengths=[6, 2]).output for t in range(5)]

    torch.testing.assert_close(torch.cat(steps, 1), call(h, memory, p, lengths=[6, 2]).output)


@every_kind
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_leading_dimensions(kind: str, leading: tuple[int, ...]) -> None:
    h, memory, p = randn64(*leading, 2, HIDDEN_SIZE), randn64(*leading, 6, HIDDEN_SIZE), parameters()
    call, score = KINDS[kind]
    lengths = [4] if not leading else [4, 6]

    context = call(h, memory, p, lengths=lengths)

    flat = [x.reshape(-1, *x.shape[-2:]) for x in (h, memory)]
    memory_lengths = torch.tensor(lengths).repeat_interleave(3 if leading else 1)  # the second dimension is the heads
    expected = reference(*flat, lambda h, m, j: score(h, m, j, p), lambda b, t, j: j < memory_lengths[b])
    torch.testing.assert_close(context.weights, expected.reshape(*leading, 2, 6))
    assert context.output.shape == (*leading, 2, HIDDEN_SIZE)


@every_kind
def test_gradients(kind: str) -> None:
    h, memory, p = randn64(2, 2, HIDDEN_SIZE), randn64(2, 3, HIDDEN_SIZE), parameters()
    call, _ = KINDS[kind]
    names = list(p)
    inputs = [x.requires_grad_() for x in (h, memory, *p.values())]

    def output_and_weights(h: Tensor, memory: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        context = call(h, memory, dict(zip(names, values, strict=True)), lengths=[3, 2])
        return context.output, context.weights

    assert gradcheck(output_and_weights, inputs)


def test_bahdanau_equals_luong_concat() -> None:
    h, memory, p = randn64(2, 3, HIDDEN_SIZE), randn64(2, 6, HIDDEN_SIZE), parameters()

    two_matrices = bahdanau(h, memory, p["w_q"], p["w_k"], p["u"])
    one_matrix = luong_concat(h, memory, torch.cat((p["w_q"], p["w_k"])), p["u"])

    torch.testing.assert_close(two_matrices.output, one_matrix.output)


def test_dot_and_general_are_unscaled_sdpa() -> None:
    h, memory, w = randn64(2, 3, 3), randn64(2, 6, 5), randn64(3, 5)

    general = luong_general(h, memory, w).output
    dot = luong_dot(h @ w, memory).output

    torch.testing.assert_close(general, scaled_dot_product_attention(h, memory @ w.T, memory, scale=1.0))
    torch.testing.assert_close(dot, general)


def test_location_weights_do_not_depend_on_the_memory() -> None:
    h, w_a = randn64(2, 3, HIDDEN_SIZE), randn64(HIDDEN_SIZE, MAX_LEN)

    weights, other_weights = (luong_location(h, randn64(2, 6, 3), w_a).weights for _ in range(2))

    assert torch.equal(weights, other_weights)
    torch.testing.assert_close(weights, torch.softmax((h @ w_a)[..., :6], -1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("radius", [0, 1, 3])
@pytest.mark.parametrize("query_offset", [0, 4])
def test_monotonic_window_moves_with_the_step(radius: int, query_offset: int) -> None:
    h, memory = randn64(3, 6, HIDDEN_SIZE), randn64(3, 7, HIDDEN_SIZE)

    context = luong_local_monotonic(h, memory, radius=radius, query_offset=query_offset, lengths=LENGTHS)

    expected = reference(
        h, memory, lambda h, m, j: h @ m, lambda b, t, j: abs(j - (query_offset + t)) <= radius and j < LENGTHS[b]
    )
    torch.testing.assert_close(context.weights, expected)
    torch.testing.assert_close(context.output, expected @ memory)
    assert (context.output[1, -1] == 0).all()  # the window lies beyond a memory of length 1


def test_query_offset_may_differ_per_batch_element() -> None:
    h, memory = randn64(2, 1, HIDDEN_SIZE), randn64(2, 7, HIDDEN_SIZE)

    context = luong_local_monotonic(h, memory, radius=1, query_offset=torch.tensor([2, 5]))

    assert context.weights[0, 0].nonzero().flatten().tolist() == [1, 2, 3]
    assert context.weights[1, 0].nonzero().flatten().tolist() == [4, 5, 6]


def test_a_wide_window_is_global_attention() -> None:
    h, memory, p = randn64(2, 3, HIDDEN_SIZE), randn64(2, 6, HIDDEN_SIZE), parameters()
    score = additive(p["w_q"], p["w_k"], p["u"], p["bias"])

    expected = bahdanau(h, memory, p["w_q"], p["w_k"], p["u"], p["bias"]).output

    torch.testing.assert_close(luong_local_monotonic(h, memory, radius=6, score=score).output, expected)
    output = luong_local_predictive(h, memory, p["w_q"], p["u"], radius=1e7, score=score).output
    torch.testing.assert_close(
        output, expected, rtol=1e-11, atol=1e-11
    )  # the Gaussian is below 1 by (6 / 5e6)² / 2 = 7e-13


def predicted(h: Tensor, w_p: Tensor, v_p: Tensor, length: int) -> float:
    return length * float(torch.sigmoid(v_p @ torch.tanh(w_p.T @ h)))


@pytest.mark.parametrize("radius", [1, 2.5, 20])
@pytest.mark.parametrize("general", [False, True])
def test_predictive_is_windowed_softmax_times_a_gaussian(radius: float, general: bool) -> None:
    h, memory, w_p, v_p = (
        randn64(3, 5, HIDDEN_SIZE),
        randn64(3, 7, HIDDEN_SIZE),
        randn64(HIDDEN_SIZE, DIM),
        randn64(DIM),
    )
    w = randn64(HIDDEN_SIZE, HIDDEN_SIZE) if general else torch.eye(HIDDEN_SIZE, dtype=torch.float64)
    score = bilinear(w) if general else None

    context = luong_local_predictive(h, memory, w_p, v_p, radius=radius, score=score, lengths=LENGTHS)

    p = [[predicted(h[b, t], w_p, v_p, LENGTHS[b]) for t in range(5)] for b in range(3)]
    expected = reference(
        h, memory, lambda h, m, j: h @ w @ m, lambda b, t, j: abs(j - p[b][t]) <= radius and j < LENGTHS[b]
    )
    steps = torch.arange(7, dtype=torch.float64)
    expected = expected * torch.exp(-2.0 * ((steps - torch.tensor(p, dtype=torch.float64)[..., None]) / radius) ** 2)
    torch.testing.assert_close(context.weights, expected)
    torch.testing.assert_close(context.output, expected @ memory)


def test_predictive_treats_heads_independently() -> None:
    h, memory, w_p, v_p = (
        randn64(2, 3, 5, HIDDEN_SIZE),
        randn64(2, 3, 7, HIDDEN_SIZE),
        randn64(HIDDEN_SIZE, DIM),
        randn64(DIM),
    )

    context = luong_local_predictive(h, memory, w_p, v_p, radius=2, lengths=[7, 4])

    for head in range(3):
        single_head = luong_local_predictive(h[:, head], memory[:, head], w_p, v_p, radius=2, lengths=[7, 4])
        torch.testing.assert_close(context.weights[:, head], single_head.weights)
        torch.testing.assert_close(context.output[:, head], single_head.output)


def test_predictive_weights_are_not_renormalized() -> None:
    h, memory, w_p, v_p = (
        randn64(3, 5, HIDDEN_SIZE),
        randn64(3, 7, HIDDEN_SIZE),
        randn64(HIDDEN_SIZE, DIM),
        randn64(DIM),
    )

    total = luong_local_predictive(h, memory, w_p, v_p, radius=2).weights.sum(-1)

    assert (total < 1).all()
    assert (total > math.exp(-2)).all()  # the smallest value of a Gaussian with σ = radius / 2 within the window


def test_gradients_reach_the_predicted_position() -> None:
    h, memory, w_p, v_p = randn64(2, 2, 3), randn64(2, 5, 3), randn64(3, 4), randn64(4)
    inputs = [x.requires_grad_() for x in (h, memory, w_p, v_p)]

    def output_and_weights(*x: Tensor) -> tuple[Tensor, Tensor]:
        context = luong_local_predictive(*x, radius=2, lengths=[5, 3])
        return context.output, context.weights

    assert gradcheck(output_and_weights, inputs)
    assert torch.autograd.grad(output_and_weights(*inputs)[0].sum(), v_p)[0].abs().min() > 0


def test_an_empty_memory_gives_zero_output_and_gradient() -> None:
    inputs = [x.requires_grad_() for x in (randn64(1, 2, 3), randn64(1, 4, 3), randn64(3, 2), randn64(2))]

    output = luong_local_predictive(*inputs, radius=2, lengths=[0]).output

    assert (output == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(output.sum(), inputs))


def test_float32_is_close_to_float64() -> None:
    h, memory, w_p, v_p = randn64(2, 9, 8), randn64(2, 300, 8), randn64(8, 4), randn64(4)

    context = luong_local_predictive(*(x.float() for x in (h, memory, w_p, v_p)), radius=20)

    exact = luong_local_predictive(h, memory, w_p, v_p, radius=20)
    # p is near 300 and σ is 10: a rounding error of p, 2e-5, changes a weight by up to 2e-5 · 20/10², relatively
    torch.testing.assert_close(context.output, exact.output.float(), rtol=1e-4, atol=1e-4)


def test_attentional_hidden_state_matches_its_formula() -> None:
    context, h, w_c = randn64(2, 3, 4), randn64(2, 3, 5), randn64(9, 6)

    output = attentional_hidden_state(context, h, w_c)

    expected = [[torch.tanh(w_c.T @ torch.cat((context[b, t], h[b, t]))) for t in range(3)] for b in range(2)]
    torch.testing.assert_close(output, torch.stack([torch.stack(row) for row in expected]))
    assert gradcheck(attentional_hidden_state, [x.requires_grad_() for x in (context, h, w_c)])


def test_invalid_arguments_raise() -> None:
    h, memory, p = randn64(3, 2, HIDDEN_SIZE), randn64(3, 7, HIDDEN_SIZE), parameters()
    with pytest.raises(
        ArgumentError, match=r"except for the last two dimensions; got h=\(3, 2, 4\), memory=\(2, 7, 4\)"
    ):
        luong_dot(h, memory[:2])
    with pytest.raises(ArgumentError, match=r"except for the last two dimensions; got h=\(2, 4\), memory=\(3, 7, 4\)"):
        luong_dot(h[0], memory)
    with pytest.raises(ArgumentError, match=r"one number for each of 3 batch elements; got \[7, 7\]"):
        luong_dot(h, memory, lengths=[7, 7])
    with pytest.raises(ArgumentError, match=r"from 0 to the memory length 7; got \[7, 8, 1\]"):
        luong_dot(h, memory, lengths=[7, 8, 1])
    with pytest.raises(
        ArgumentError, match=r"= \(4, 5\), w_k \(head_dim of k, hidden_dim\) = \(4, 5\).*; got w_q=\(3, 5\)"
    ):
        bahdanau(h, memory, p["w_q"][:3], p["w_k"], p["u"])
    with pytest.raises(ArgumentError, match=r"= \(8, dim\); got \(4, 5\)"):
        luong_concat(h, memory, p["w_q"], p["u"])
    with pytest.raises(ArgumentError, match=r"\(hidden_size, max_len\) = \(4, at least 7\); got \(4, 6\)"):
        luong_location(h, memory, p["w_l"][:, :6])
    with pytest.raises(ArgumentError, match="an integer of at least 0; got -1"):
        luong_local_monotonic(h, memory, radius=-1)
    with pytest.raises(ArgumentError, match="greater than 0; got 0"):
        luong_local_predictive(h, memory, p["w_q"], p["u"], radius=0)
    with pytest.raises(ArgumentError, match=r"= \(4, dim\) and v_p \(dim,\); got w_p=\(4, 5\), v_p=\(3,\)"):
        luong_local_predictive(h, memory, p["w_q"], p["u"][:3], radius=1)
    with pytest.raises(ArgumentError, match=r"= \(8, output_size\); got \(5, 4\)"):
        attentional_hidden_state(h, h, randn64(5, 4))
