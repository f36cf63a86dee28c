"""A decoder's states over an encoder's memory: Bahdanau's and Luong's, written out state by state."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import SpecError
from regard.mechanism.recurrent import (
    Context,
    attentional,
    bahdanau,
    local_monotonic,
    local_predictive,
    luong_concat,
    luong_dot,
    luong_general,
    luong_location,
)
from regard.spec.score import additive, multiplicative

WIDTH, HIDDEN, LONGEST = 4, 5, 11
LENGTHS = [7, 1, 4]


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def parameters() -> dict[str, Tensor]:
    """Memory is as wide as the states, so that every kind takes the same."""
    shapes = {"w_q": (WIDTH, HIDDEN), "w_k": (WIDTH, HIDDEN), "w": (WIDTH, WIDTH), "w_l": (WIDTH, LONGEST)}
    return {name: numbers(*shape) for name, shape in shapes.items()} | {"u": numbers(HIDDEN), "bias": numbers(HIDDEN)}


Call = Callable[..., Context]
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


def written_out(h: Tensor, memory: Tensor, score: Callable[[Tensor, Tensor, int], Tensor], seen) -> Tensor:
    """The weights (batch, steps, n) of 3-D h and memory, one score after another; `seen` is a function (b, t, j)."""
    weights = torch.zeros(*h.shape[:2], memory.shape[1], dtype=h.dtype)
    for b in range(h.shape[0]):
        for t in range(h.shape[1]):
            places = [j for j in range(memory.shape[1]) if seen(b, t, j)]
            if places:
                scores = torch.stack([score(h[b, t], memory[b, j], j) for j in places])
                weights[b, t, places] = torch.exp(scores) / torch.exp(scores).sum()
    return weights


@every_kind
@pytest.mark.parametrize("steps, n", [(3, 7), (1, 7), (9, 7)])
def test_every_kind_weighs_as_its_formula_says(kind: str, steps: int, n: int) -> None:
    h, memory, p = numbers(3, steps, WIDTH), numbers(3, n, WIDTH), parameters()
    call, score = KINDS[kind]

    found = call(h, memory, p, lengths=LENGTHS)

    expected = written_out(h, memory, lambda h, m, j: score(h, m, j, p), lambda b, t, j: j < LENGTHS[b])
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.output, expected @ memory)


@every_kind
def test_a_step_at_a_time_is_all_steps_at_once(kind: str) -> None:
    h, memory, p = numbers(2, 5, WIDTH), numbers(2, 6, WIDTH), parameters()
    call, _ = KINDS[kind]

    steps = [call(h[:, t : t + 1], memory, p, lengths=[6, 2]).output for t in range(5)]

    torch.testing.assert_close(torch.cat(steps, 1), call(h, memory, p, lengths=[6, 2]).output)


@every_kind
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_other_dimensions_come_along(kind: str, leading: tuple[int, ...]) -> None:
    h, memory, p = numbers(*leading, 2, WIDTH), numbers(*leading, 6, WIDTH), parameters()
    call, score = KINDS[kind]
    lengths = [4] if not leading else [4, 6]

    found = call(h, memory, p, lengths=lengths)

    flat = [x.reshape(-1, *x.shape[-2:]) for x in (h, memory)]
    each = torch.tensor(lengths).repeat_interleave(3 if leading else 1)  # the second dimension is heads
    expected = written_out(*flat, lambda h, m, j: score(h, m, j, p), lambda b, t, j: j < each[b])
    torch.testing.assert_close(found.weights, expected.reshape(*leading, 2, 6))
    assert found.output.shape == (*leading, 2, WIDTH)


@every_kind
def test_gradients(kind: str) -> None:
    h, memory, p = numbers(2, 2, WIDTH), numbers(2, 3, WIDTH), parameters()
    call, _ = KINDS[kind]
    names = list(p)
    inputs = [x.requires_grad_() for x in (h, memory, *p.values())]

    def both(h: Tensor, memory: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        found = call(h, memory, dict(zip(names, values, strict=True)), lengths=[3, 2])
        return found.output, found.weights

    assert gradcheck(both, inputs)


def test_additive_is_the_form_with_one_matrix() -> None:
    h, memory, p = numbers(2, 3, WIDTH), numbers(2, 6, WIDTH), parameters()

    apart = bahdanau(h, memory, p["w_q"], p["w_k"], p["u"])
    as_one = luong_concat(h, memory, torch.cat((p["w_q"], p["w_k"])), p["u"])

    torch.testing.assert_close(apart.output, as_one.output)


def test_dot_and_general_are_torchs_attention_without_scale() -> None:
    h, memory, w = numbers(2, 3, 3), numbers(2, 6, 5), numbers(3, 5)

    general = luong_general(h, memory, w).output
    dot = luong_dot(h @ w, memory).output

    torch.testing.assert_close(general, scaled_dot_product_attention(h, memory @ w.T, memory, scale=1.0))
    torch.testing.assert_close(dot, general)


def test_location_looks_at_no_entry_of_the_memory() -> None:
    h, w_a = numbers(2, 3, WIDTH), numbers(WIDTH, LONGEST)

    one, other = (luong_location(h, numbers(2, 6, 3), w_a).weights for _ in range(2))

    assert torch.equal(one, other)
    torch.testing.assert_close(one, torch.softmax((h @ w_a)[..., :6], -1))
    torch.testing.assert_close(one.sum(-1), torch.ones(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("reach", [0, 1, 3])
@pytest.mark.parametrize("at", [0, 4])
def test_monotonic_sees_a_window_that_walks_with_the_steps(reach: int, at: int) -> None:
    h, memory = numbers(3, 6, WIDTH), numbers(3, 7, WIDTH)

    found = local_monotonic(h, memory, reach=reach, at=at, lengths=LENGTHS)

    expected = written_out(
        h, memory, lambda h, m, j: h @ m, lambda b, t, j: abs(j - (at + t)) <= reach and j < LENGTHS[b]
    )
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.output, expected @ memory)
    assert (found.output[1, -1] == 0).all()  # walked off a memory of 1


def test_each_batch_element_may_be_at_another_step() -> None:
    h, memory = numbers(2, 1, WIDTH), numbers(2, 7, WIDTH)

    found = local_monotonic(h, memory, reach=1, at=torch.tensor([2, 5]))

    assert found.weights[0, 0].nonzero().flatten().tolist() == [1, 2, 3]
    assert found.weights[1, 0].nonzero().flatten().tolist() == [4, 5, 6]


def test_a_wide_window_is_global_attention() -> None:
    h, memory, p = numbers(2, 3, WIDTH), numbers(2, 6, WIDTH), parameters()
    score = additive(p["w_q"], p["w_k"], p["u"], p["bias"])

    whole = bahdanau(h, memory, p["w_q"], p["w_k"], p["u"], p["bias"]).output

    torch.testing.assert_close(local_monotonic(h, memory, reach=6, score=score).output, whole)
    wide = local_predictive(h, memory, p["w_q"], p["u"], reach=1e7, score=score).output
    torch.testing.assert_close(wide, whole, rtol=1e-11, atol=1e-11)  # the Gaussian lacks (6 / 5e6)² / 2 = 7e-13 of 1


def predicted(h: Tensor, w_p: Tensor, v_p: Tensor, length: int) -> float:
    return length * float(torch.sigmoid(v_p @ torch.tanh(w_p.T @ h)))


@pytest.mark.parametrize("reach", [1, 2.5, 20])
@pytest.mark.parametrize("general", [False, True])
def test_predictive_is_softmax_in_the_window_times_a_gaussian(reach: float, general: bool) -> None:
    h, memory, w_p, v_p = numbers(3, 5, WIDTH), numbers(3, 7, WIDTH), numbers(WIDTH, HIDDEN), numbers(HIDDEN)
    w = numbers(WIDTH, WIDTH) if general else torch.eye(WIDTH, dtype=torch.float64)
    score = multiplicative(w) if general else None

    found = local_predictive(h, memory, w_p, v_p, reach=reach, score=score, lengths=LENGTHS)

    p = [[predicted(h[b, t], w_p, v_p, LENGTHS[b]) for t in range(5)] for b in range(3)]
    expected = written_out(
        h, memory, lambda h, m, j: h @ w @ m, lambda b, t, j: abs(j - p[b][t]) <= reach and j < LENGTHS[b]
    )
    steps = torch.arange(7, dtype=torch.float64)
    expected = expected * torch.exp(-2.0 * ((steps - torch.tensor(p, dtype=torch.float64)[..., None]) / reach) ** 2)
    torch.testing.assert_close(found.weights, expected)
    torch.testing.assert_close(found.output, expected @ memory)


def test_predictive_takes_heads_for_heads() -> None:
    h, memory, w_p, v_p = numbers(2, 3, 5, WIDTH), numbers(2, 3, 7, WIDTH), numbers(WIDTH, HIDDEN), numbers(HIDDEN)

    found = local_predictive(h, memory, w_p, v_p, reach=2, lengths=[7, 4])

    for head in range(3):
        alone = local_predictive(h[:, head], memory[:, head], w_p, v_p, reach=2, lengths=[7, 4])
        torch.testing.assert_close(found.weights[:, head], alone.weights)
        torch.testing.assert_close(found.output[:, head], alone.output)


def test_what_a_gaussian_takes_is_not_given_back() -> None:
    h, memory, w_p, v_p = numbers(3, 5, WIDTH), numbers(3, 7, WIDTH), numbers(WIDTH, HIDDEN), numbers(HIDDEN)

    total = local_predictive(h, memory, w_p, v_p, reach=2).weights.sum(-1)

    assert (total < 1).all()
    assert (total > math.exp(-2)).all()  # the least that a Gaussian of σ = reach / 2 leaves of a window


def test_gradients_reach_the_prediction_by_way_of_the_gaussian() -> None:
    h, memory, w_p, v_p = numbers(2, 2, 3), numbers(2, 5, 3), numbers(3, 4), numbers(4)
    inputs = [x.requires_grad_() for x in (h, memory, w_p, v_p)]

    def both(*x: Tensor) -> tuple[Tensor, Tensor]:
        found = local_predictive(*x, reach=2, lengths=[5, 3])
        return found.output, found.weights

    assert gradcheck(both, inputs)
    assert torch.autograd.grad(both(*inputs)[0].sum(), v_p)[0].abs().min() > 0


def test_a_memory_of_no_length_gives_zero_and_no_gradient() -> None:
    inputs = [x.requires_grad_() for x in (numbers(1, 2, 3), numbers(1, 4, 3), numbers(3, 2), numbers(2))]

    found = local_predictive(*inputs, reach=2, lengths=[0]).output

    assert (found == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(found.sum(), inputs))


def test_single_precision_is_near() -> None:
    h, memory, w_p, v_p = numbers(2, 9, 8), numbers(2, 300, 8), numbers(8, 4), numbers(4)

    found = local_predictive(*(x.float() for x in (h, memory, w_p, v_p)), reach=20)

    exact = local_predictive(h, memory, w_p, v_p, reach=20)
    # p is near 300 and σ is 10: a rounding of p, 2e-5, moves a weight by as much as 2e-5 · 20/10², relatively
    torch.testing.assert_close(found.output, exact.output.float(), rtol=1e-4, atol=1e-4)


def test_the_attentional_state_mixes_context_and_state() -> None:
    context, h, w_c = numbers(2, 3, 4), numbers(2, 3, 5), numbers(9, 6)

    found = attentional(context, h, w_c)

    expected = [[torch.tanh(w_c.T @ torch.cat((context[b, t], h[b, t]))) for t in range(3)] for b in range(2)]
    torch.testing.assert_close(found, torch.stack([torch.stack(row) for row in expected]))
    assert gradcheck(attentional, [x.requires_grad_() for x in (context, h, w_c)])


def test_what_is_wrong_is_said() -> None:
    h, memory, p = numbers(3, 2, WIDTH), numbers(3, 7, WIDTH), parameters()
    with pytest.raises(SpecError, match=r"but for the last two; got h=\(3, 2, 4\), memory=\(2, 7, 4\)"):
        luong_dot(h, memory[:2])
    with pytest.raises(SpecError, match=r"but for the last two; got h=\(2, 4\), memory=\(3, 7, 4\)"):
        luong_dot(h[0], memory)
    with pytest.raises(SpecError, match=r"one number for each of 3 batch elements; got \[7, 7\]"):
        luong_dot(h, memory, lengths=[7, 7])
    with pytest.raises(SpecError, match=r"from 0 to the memory's length, 7; got \[7, 8, 1\]"):
        luong_dot(h, memory, lengths=[7, 8, 1])
    with pytest.raises(SpecError, match=r"= \(4, 5\), w_k \(width of k, hidden\) = \(4, 5\).*; got w_q=\(3, 5\)"):
        bahdanau(h, memory, p["w_q"][:3], p["w_k"], p["u"])
    with pytest.raises(SpecError, match=r"= \(8, ...\); got \(4, 5\)"):
        luong_concat(h, memory, p["w_q"], p["u"])
    with pytest.raises(SpecError, match=r"= \(4, at least 7\); got \(4, 6\)"):
        luong_location(h, memory, p["w_l"][:, :6])
    with pytest.raises(SpecError, match="whole number of at least 0; got -1"):
        local_monotonic(h, memory, reach=-1)
    with pytest.raises(SpecError, match="greater than 0; got 0"):
        local_predictive(h, memory, p["w_q"], p["u"], reach=0)
    with pytest.raises(SpecError, match=r"= \(4, hidden\) and v_p \(hidden,\); got w_p=\(4, 5\), v_p=\(3,\)"):
        local_predictive(h, memory, p["w_q"], p["u"][:3], reach=1)
    with pytest.raises(SpecError, match=r"= \(8, ...\); got \(5, 4\)"):
        attentional(h, h, numbers(5, 4))
