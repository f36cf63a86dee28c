"""Retention, gates and the delta rule: chunks against the recurrence, written out token by token."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from regard.errors import SpecError
from regard.mechanism.state import delta, gated, retention

GAMMAS = torch.tensor([0.9, 0.5], dtype=torch.float64)


def numbers(n: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(3, 2, n, width, dtype=torch.float64) for width in (4, 4, 5))  # type: ignore[return-value]


def one_by_one(q: Tensor, k: Tensor, v: Tensor, change) -> tuple[Tensor, Tensor]:
    """S_t = change(S_{t-1}, t), o_t = S_t' q_t."""
    state = torch.zeros(*q.shape[:2], 4, 5, dtype=q.dtype)
    outputs = []
    for t in range(q.shape[-2]):
        state = change(state, t)
        outputs.append((q[..., t, :, None] * state).sum(-2))
    return torch.stack(outputs, -2) if outputs else v.new_zeros(v.shape), state


def outer(k: Tensor, v: Tensor, t: int) -> Tensor:
    return k[..., t, :, None] * v[..., t, None, :]


every_size = pytest.mark.parametrize("n, chunk", [(1, 4), (37, 1), (37, 8), (64, 64), (65, 64), (0, 8)])


@every_size
def test_retention_forgets_by_a_number_a_head(n: int, chunk: int) -> None:
    q, k, v = numbers(n)
    gamma = GAMMAS.view(2, 1, 1)

    found = retention(q, k, v, GAMMAS, chunk=chunk)

    for one, other in zip(found, one_by_one(q, k, v, lambda s, t: gamma * s + outer(k, v, t)), strict=True):
        torch.testing.assert_close(one, other)


def test_retention_is_a_sum_of_faded_products() -> None:
    q, k, v = numbers(20)
    steps = torch.arange(20)
    faded = torch.where(steps[:, None] >= steps, 0.8 ** (steps[:, None] - steps).clamp(min=0).double(), 0.0)

    output, _ = retention(q, k, v, 0.8, chunk=6)

    torch.testing.assert_close(output, (q @ k.mT * faded) @ v)


@every_size
def test_gates_forget_each_channel_by_itself(n: int, chunk: int) -> None:
    q, k, v = numbers(n)
    gates = torch.sigmoid(torch.randn_like(k))

    found = gated(q, k, v, gates, chunk=chunk)

    expected = one_by_one(q, k, v, lambda s, t: gates[..., t, :, None] * s + outer(k, v, t))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_gates_that_all_but_close_make_no_number_that_is_not_finite() -> None:
    q, k, v = (x.float() for x in numbers(64))
    gates = torch.full_like(k, 1e-30)

    output, state = gated(q, k, v, gates, chunk=64)

    assert output.isfinite().all() and state.isfinite().all()
    torch.testing.assert_close(output, (q * k).sum(-1, keepdim=True) * v)


@every_size
def test_the_delta_rule_replaces_what_a_key_held(n: int, chunk: int) -> None:
    q, k, v = numbers(n)
    k, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(3, 2, n, dtype=torch.float64)

    def change(state: Tensor, t: int) -> Tensor:
        held = (state * k[..., t, :, None]).sum(-2)
        return state + beta[..., t, None, None] * k[..., t, :, None] * (v[..., t, :] - held)[..., None, :]

    found = delta(q, k, v, beta, chunk=chunk)

    for one, other in zip(found, one_by_one(q, k, v, change), strict=True):
        torch.testing.assert_close(one, other)


@every_size
@pytest.mark.parametrize("width", [1, 4])
def test_the_delta_rule_reads_what_its_gates_left(n: int, chunk: int, width: int) -> None:
    q, k, v = numbers(n)
    k, beta = torch.nn.functional.normalize(k, dim=-1), torch.rand(3, 2, n, dtype=torch.float64)
    gates = torch.sigmoid(torch.randn(3, 2, n, width, dtype=torch.float64))

    def change(state: Tensor, t: int) -> Tensor:
        state = gates[..., t, :, None] * state
        held = (state * k[..., t, :, None]).sum(-2)
        return state + beta[..., t, None, None] * k[..., t, :, None] * (v[..., t, :] - held)[..., None, :]

    found = delta(q, k, v, beta, gates=gates, chunk=chunk)

    for one, other in zip(found, one_by_one(q, k, v, change), strict=True):
        torch.testing.assert_close(one, other)


def test_the_delta_rule_recalls_the_last_value_of_a_key() -> None:
    _, k, v = numbers(12)
    k = torch.nn.functional.normalize(k, dim=-1)
    k[..., 6:, :] = k[..., :6, :]  # the same keys once more, with other values

    output, _ = delta(k, k, v, torch.ones(3, 2, 12, dtype=torch.float64), chunk=5)

    torch.testing.assert_close(output, v)  # each key, asked for at once, gives what was just written


@pytest.mark.parametrize("call", ["retention", "gated", "delta"])
def test_a_state_continues_an_earlier_call(call: str) -> None:
    q, k, v = numbers(30)
    gates, beta = torch.sigmoid(torch.randn_like(k)), torch.rand(3, 2, 30, dtype=torch.float64)

    def run(here: slice, state: Tensor | None) -> tuple[Tensor, Tensor]:
        part = [x[..., here, :] for x in (q, k, v)]
        if call == "retention":
            return retention(*part, GAMMAS, state=state, chunk=4)
        if call == "gated":
            return gated(*part, gates[..., here, :], state=state, chunk=4)
        return delta(*part, beta[..., here], state=state, chunk=4)

    whole, last = run(slice(None), None)
    first, between = run(slice(0, 13), None)
    second, after = run(slice(13, None), between)

    torch.testing.assert_close(torch.cat((first, second), -2), whole)
    torch.testing.assert_close(after, last)


@pytest.mark.parametrize("call", ["retention", "gated", "delta"])
def test_gradients(call: str) -> None:
    q, k, v = (torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    raw = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)

    def run(q: Tensor, k: Tensor, v: Tensor, raw: Tensor) -> Tensor:
        if call == "retention":
            return retention(q, k, v, 0.7, chunk=2)[0] + 0 * raw
        if call == "gated":
            return gated(q, k, v, torch.sigmoid(raw), chunk=2)[0]
        return delta(q, k, v, torch.sigmoid(raw[..., 0]), chunk=2)[0]

    assert gradcheck(run, (q, k, v, raw))


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(4)
    with pytest.raises(SpecError, match=r"above 0 and at most 1; got 1.5"):
        retention(q, k, v, 1.5)
    with pytest.raises(SpecError, match=r"the shape of k, \(3, 2, 4, 4\), or a width of 1; got \(3, 2, 4, 5\)"):
        gated(q, k, v, torch.ones_like(v))
    with pytest.raises(SpecError, match=r"one number a key, \(3, 2, 4\); got \(3, 2\)"):
        delta(q, k, v, torch.ones(3, 2))
    with pytest.raises(SpecError, match="the same shape, and v the same but for its width; got q="):
        retention(q, k[..., :2, :], v, 0.5)
    with pytest.raises(SpecError, match=r"the state must be \(3, 2, 4, 5\); got \(1, 1\)"):
        retention(q, k, v, 0.5, state=torch.ones(1, 1))
    with pytest.raises(SpecError, match="at least 1 key; got 0"):
        delta(q, k, v, torch.ones(3, 2, 4), chunk=0)
