"""Attention by a state that forgets: retention, gated linear attention and the delta rule. No weights are divided.

    retention   S_t = γ S_{t-1} + k_t v_t'                          γ a number a head          (Sun and others, 2023)
    gated       S_t = diag(g_t) S_{t-1} + k_t v_t'                  g_t in (0, 1], a channel   (Yang and others, 2023)
    delta       S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}' k_t)'       β_t a number a token       (Schlag and others, 2021)

and o_t = S_t' q_t. All take (..., n, width). `chunk` keys go together as products of matrices; a chunk of 1 is the
recurrence itself. `state` continues an earlier call, and comes back for the next.
"""

import torch
from torch import Tensor

from regard.errors import SpecError


def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: float | Tensor, *, state: Tensor | None = None, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """o_t = sum_s γ^(t-s) (q_t·k_s) v_s, and the state after. `decay` is γ, or one a head."""
    _check(q, k, v, chunk)
    gamma = torch.as_tensor(decay, dtype=q.dtype, device=q.device)
    if not bool(((gamma > 0.0) & (gamma <= 1.0)).all()):
        raise SpecError(f"decay must be above 0 and at most 1; got {gamma.tolist()}.")
    gamma = gamma.reshape(*gamma.shape, 1, 1)
    steps = torch.arange(chunk, device=q.device, dtype=q.dtype)
    distance = steps[:, None] - steps
    inside = torch.where(distance >= 0, gamma ** distance.clamp(min=0), 0.0)
    since = gamma ** (steps[:, None] + 1.0)  # what a state before the chunk has lost at each row

    def step(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        n = q.shape[-2]
        output = (q @ k.mT * inside[..., :n, :n]) @ v + (q * since[..., :n, :]) @ state
        left = gamma ** (n - 1.0 - steps[:n, None])
        return output, gamma**n * state + (k * left).mT @ v

    return _walk(step, (q, k, v), state, chunk)


def gated(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, *, state: Tensor | None = None, chunk: int = 16
) -> tuple[Tensor, Tensor]:
    """Each channel of the state forgets by a gate of its own, (..., n, width of k) in (0, 1]; and the state after."""
    _check(q, k, v, chunk)
    if gates.shape != k.shape:
        raise SpecError(f"gates must have the shape of k, {tuple(k.shape)}; got {tuple(gates.shape)}.")
    logs = gates.log()

    def step(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        lost = logs.cumsum(-2)  # since the chunk began
        n = q.shape[-2]
        order = torch.ones(n, n, dtype=torch.bool, device=q.device).tril().unsqueeze(-1)
        # never above 1: differences are taken before they are raised
        kept = torch.where(order, lost.unsqueeze(-2) - lost.unsqueeze(-3), -torch.inf).exp()
        inside = torch.einsum("...ic,...jc,...ijc->...ij", q, k, kept)
        output = inside @ v + (q * lost.exp()) @ state
        whole = lost[..., -1:, :]
        return output, whole.mT.exp() * state + (k * (whole - lost).exp()).mT @ v

    return _walk(step, (q, k, v, logs), state, chunk)


def delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, state: Tensor | None = None, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """What the state holds for a key is replaced by its value, by the share β (..., n); and the state after.

    Keys of length 1 and β of 1 replace all of it.
    """
    _check(q, k, v, chunk)
    if beta.shape != k.shape[:-1]:
        raise SpecError(f"beta must have one number a key, {tuple(k.shape[:-1])}; got {tuple(beta.shape)}.")

    def step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        n = q.shape[-2]
        # what each key writes depends on what those before it in the chunk have written: a triangle of equations
        mixed = torch.eye(n, dtype=q.dtype, device=q.device) + (beta * (k @ k.mT)).tril(-1)
        written = torch.linalg.solve_triangular(mixed, beta * (v - k @ state), upper=False)
        output = q @ state + (q @ k.mT).tril() @ written
        return output, state + k.mT @ written

    return _walk(step, (q, k, v, beta.unsqueeze(-1)), state, chunk)


def _check(q: Tensor, k: Tensor, v: Tensor, chunk: int) -> None:
    if q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise SpecError(f"q and k must have the same shape, and v the same but for its width; got {shapes}.")
    if chunk < 1:
        raise SpecError(f"a chunk must hold at least 1 key; got {chunk}.")


def _walk(step: object, tensors: tuple[Tensor, ...], state: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Chunk after chunk, each from the state that the one before it left."""
    q, k, v = tensors[:3]
    shape = (*q.shape[:-2], k.shape[-1], v.shape[-1])
    if state is None:
        state = q.new_zeros(shape)
    elif state.shape != shape:
        raise SpecError(f"the state must be {shape}; got {tuple(state.shape)}.")
    outputs = [v.new_zeros((*v.shape[:-2], 0, v.shape[-1]))]
    for first in range(0, q.shape[-2], chunk):
        here = (x[..., first : first + chunk, :] for x in tensors)
        output, state = step(*here, state)  # type: ignore[operator]  # one of the functions above
        outputs.append(output)
    assert state is not None
    return torch.cat(outputs, -2), state
