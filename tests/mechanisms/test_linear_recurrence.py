"""Retention, gated linear attention and the delta rule: chunks against the recurrence, token by token."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from regard.errors import ArgumentError
from regard.mechanisms.linear_recurrence import delta_rule, gla, retention

GAMMAS = torch.tensor([0.9, 0.5], dtype=torch.float64)


def random_inputs(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(3, 2, n, width, dtype=torch.float64) for width in (4, 4, 5))  # type: ignore[return-value]


def recurrence(q: Tensor, k: Tensor, v: Tensor, update) -> tuple[Tensor, Tensor]:
    """Compute S_t = update(S_{t-1}, t) and o_t = S_t' q_t."""
    state = torch.zeros(*q.shape[:2], 4, 5, dtype=q.dtype)
    outputs = []
    for t in range(q.shape[-2]):
        state = update(state, t)
        outputs.append((q[..., t, :, None] * state).sum(-2))
    return torch.stack(outputs, -2) if outputs else v.new_zeros(v.shape), state


def outer(k: Tensor, v: Tensor, t: int) -> Tensor:
    return k[..., t, :, None] * v[..., t, None, :]


every_size = pytest.mark.parametrize("n, chunk_size", [(1, 4), (37, 1), (37, 8), (64, 64), (65, 64), (0, 8)])


@every_size
def test_retention_matches_the_recurrence(n: int, chunk_size: int) -> None:
    q, k, v = random_inputs(n)
    gamma = GAMMAS.view(2, 1, 1)

    results = retention(q, k, v, GAMMAS, chunk_size=chunk_size)

    for actual, desired in zip(results, recurrence(q, k, v, lambda s, t: gamma * s + outer(k, v, t)), strict=True):
        torch.testing.assert_close(actual, desired)


def test_retention_matches_its_parallel_form() -> None:
    q, k, v = random_inputs(20)
    steps = torch.arange(20)
    decay = torch.where(steps[:, None] >= steps, 0.8 ** (steps[:, None] - steps).clamp(min=0).double(), 0.0)

    output, _ = retention(q, k, v, 0.8, chunk_size=6)

    torch.testing.assert_close(output, (q @ k.mT * decay) @ v)


@every_size
def test_gla_matches_the_recurrence(n: int, chunk_size: int) -> None:
    q, k, v = random_inputs(n)
    gates = torch.sigmoid(torch.randn_like(k))

    results = gla(q, k, v, gates, chunk_size=chunk_size)

    expected = recurrence(q, k, v, lambda s, t: gates[..., t, :, None] * s + outer(k, v, t))
    for actual, desired in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, desired)


def test_gates_near_zero_stay_finite() -> None:
    q, k, v = (x.float() for x in random_inputs(64))
    gates = torch.full_like(k, 1e-30)

    output, state = gla(q, k, v, gates, chunk_size=64)

    assert output.isfinite().all() and state.isfinite().all()
    torch.testing.assert_close(output, (q * k).sum(-1, keepdim=True) * v)


@every_size
def test_delta_rule_matches_the_recurrence(n: int, chunk_size: int) -> None:
    q, k, v = random_inputs(n)
    k, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(3, 2, n, dtype=torch.float64)

    def update(state: Tensor, t: int) -> Tensor:
        stored = (state * k[..., t, :, None]).sum(-2)
        return state + beta[..., t, None, None] * k[..., t, :, None] * (v[..., t, :] - stored)[..., None, :]

    results = delta_rule(q, k, v, beta, chunk_size=chunk_size)

    for actual, desired in zip(results, recurrence(q, k, v, update), strict=True):
        torch.testing.assert_close(actual, desired)


@every_size
@pytest.mark.parametrize("width", [1, 4])
def test_gated_delta_rule_matches_the_recurrence(n: int, chunk_size: int, width: int) -> None:
    q, k, v = random_inputs(n)
    k, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(3, 2, n, dtype=torch.float64)
    gates = torch.sigmoid(torch.randn(3, 2, n, width, dtype=torch.float64))

    def update(state: Tensor, t: int) -> Tensor:
        state = gates[..., t, :, None] * state
        stored = (state * k[..., t, :, None]).sum(-2)
        return state + beta[..., t, None, None] * k[..., t, :, None] * (v[..., t, :] - stored)[..., None, :]

    results = delta_rule(q, k, v, beta, gates=gates, chunk_size=chunk_size)

    for actual, desired in zip(results, recurrence(q, k, v, update), strict=True):
        torch.testing.assert_close(actual, desired)


def test_delta_rule_recalls_the_last_value_of_a_key() -> None:
    _, k, v = random_inputs(12)
    k = torch.nn.functional.normalize(k, dim=-1)
    k[..., 6:, :] = k[..., :6, :]  # repeated keys with different values

    output, _ = delta_rule(k, k, v, torch.ones(3, 2, 12, dtype=torch.float64), chunk_size=5)

    torch.testing.assert_close(output, v)  # reading a key right after writing returns its value


@pytest.mark.parametrize("call", ["retention", "gated", "delta"])
def test_initial_state_continues_an_earlier_call(call: str) -> None:
    q, k, v = random_inputs(30)
    gates, beta = torch.sigmoid(torch.randn_like(k)), torch.rand(3, 2, 30, dtype=torch.float64)

    def run(rows: slice, state: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = [x[..., rows, :] for x in (q, k, v)]
        if call == "retention":
            return retention(*inputs, GAMMAS, initial_state=state, chunk_size=4)
        if call == "gated":
            return gla(*inputs, gates[..., rows, :], initial_state=state, chunk_size=4)
        return delta_rule(*inputs, beta[..., rows], initial_state=state, chunk_size=4)

    outputs, final_state = run(slice(None), None)
    first, state_13 = run(slice(0, 13), None)
    second, continued_state = run(slice(13, None), state_13)

    torch.testing.assert_close(torch.cat((first, second), -2), outputs)
    torch.testing.assert_close(continued_state, final_state)


@pytest.mark.parametrize("call", ["retention", "gated", "delta"])
def test_gradients(call: str) -> None:
    q, k, v = (torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    raw = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, raw: Tensor) -> Tensor:
        if call == "retention":
            return retention(q, k, v, 0.7, chunk_size=2)[0] + 0 * raw
        if call == "gated":
            return gla(q, k, v, torch.sigmoid(raw), chunk_size=2)[0]
        return delta_rule(q, k, v, torch.sigmoid(raw[..., 0]), chunk_size=2)[0]

    assert gradcheck(run, (q, k, v, raw))


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs(4)
    with pytest.raises(ArgumentError, match=r"above 0 and at most 1; got 1.5"):
        retention(q, k, v, 1.5)
    with pytest.raises(
        ArgumentError, match=r"the shape of k, \(3, 2, 4, 4\), or a last dimension of 1; got \(3, 2, 4, 5\)"
    ):
        gla(q, k, v, torch.ones_like(v))
    with pytest.raises(ArgumentError, match=r"one number per key, \(3, 2, 4\); got \(3, 2\)"):
        delta_rule(q, k, v, torch.ones(3, 2))
    with pytest.raises(
        ArgumentError, match="the same shape, and v the same shape except for the last dimension; got q="
    ):
        retention(q, k[..., :2, :], v, 0.5)
    with pytest.raises(ArgumentError, match=r"initial_state must have shape \(3, 2, 4, 5\); got \(1, 1\)"):
        retention(q, k, v, 0.5, initial_state=torch.ones(1, 1))
    with pytest.raises(ArgumentError, match="chunk_size must be at least 1; got 0"):
        delta_rule(q, k, v, torch.ones(3, 2, 4), chunk_size=0)
