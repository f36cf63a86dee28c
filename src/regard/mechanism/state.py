"""Attention by a state that forgets: retention, gated linear attention and the delta rule. No weights are divided.

    retention   S_t = γ S_{t-1} + k_t v_t'                          γ a number a head          (Sun and others, 2023)
    gated       S_t = diag(g_t) S_{t-1} + k_t v_t'                  g_t in (0, 1]              (Yang and others, 2023)
    delta       S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}' k_t)'       β_t a number a token       (Schlag and others, 2021)

and o_t = S_t' q_t. The delta rule may have gates; then diag(g_t) S_{t-1} takes the place of S_{t-1} (Yang and others,
2024). All take (..., n, width). `chunk` keys go together as products of matrices; a chunk of 1 is the recurrence.
`state` continues an earlier call, and comes back for the next.

In a chunk that begins with the state S, let A_t be the product of its gates up to t, and u_t what t writes: v_t, or for
the delta rule the solution of a triangle of equations, since what t reads was written before it in the chunk. Then

    o_t = (A_t q_t)' S + sum_{s <= t} (A_t/A_s q_t)·k_s u_s'        S' = A_n S + sum_s (A_n/A_s k_s) u_s'
    u_t = β_t (v_t - (A_t k_t)' S - sum_{s < t} (A_t/A_s k_t)·k_s u_s)
"""

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import same_floats
from regard.errors import SpecError


@check_types
def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: float | Tensor, *, state: Tensor | None = None, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """o_t = sum_s γ^(t-s) (q_t·k_s) v_s, and the state after. `decay` is γ, or one a head.

    >>> one = torch.ones(1, 3, 1)
    >>> retention(one, one, one, 0.5)[0].flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    same_floats({"q": q}, least_dims=2)
    gamma = torch.as_tensor(decay, dtype=q.dtype, device=q.device)
    leading = tuple(q.shape[:-2])
    sizes = zip(reversed(gamma.shape), reversed(leading), strict=False)
    if gamma.dim() > len(leading) or any(size not in (1, whole) for size, whole in sizes):
        raise SpecError(f"decay must be one number, or broadcast to {leading}; got shape {tuple(gamma.shape)}.")
    if not bool(((gamma > 0.0) & (gamma <= 1.0)).all()):
        raise SpecError(f"decay must be above 0 and at most 1; got {gamma.tolist()}.")
    gates = gamma.reshape(*gamma.shape, 1, 1).expand(*q.shape[:-1], 1)
    return _walk(q, k, v, gates, None, state, chunk)


@check_types
def gated(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, *, state: Tensor | None = None, chunk: int = 16
) -> tuple[Tensor, Tensor]:
    """Each channel of the state forgets by a gate of its own, (..., n, width of k) in (0, 1]; and the state after.

    Gates (..., n, 1) are those of all channels.

    >>> one = torch.ones(1, 3, 1)
    >>> gated(one, one, one, torch.tensor([1.0, 0.5, 0.1]).view(1, 3, 1))[0].flatten().tolist()
    [1.0, 1.5, 1.149999976158142]
    """
    return _walk(q, k, v, gates, None, state, chunk)


@check_types
def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    gates: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """What the state holds for a key is replaced by its value, by the share β (..., n); and the state after.

    Keys of length 1 and β of 1 replace all of it. `gates` forget as in `gated`.

    >>> one = torch.ones(1, 3, 1)
    >>> delta(one, one, torch.tensor([5.0, 7.0, 9.0]).view(1, 3, 1), torch.ones(1, 3))[0].flatten().tolist()
    [5.0, 7.0, 9.0]
    """
    if beta.shape != k.shape[:-1]:
        raise SpecError(f"beta must have one number a key, {tuple(k.shape[:-1])}; got {tuple(beta.shape)}.")
    return _walk(q, k, v, gates, beta.unsqueeze(-1), state, chunk)


def _walk(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, beta: Tensor | None, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor]:
    """Chunk after chunk, each from the state that the one before it left."""
    state = _checked(q, k, v, gates, state, chunk)
    same_floats({"q": q, "beta": beta})
    logs = None if gates is None else gates.log()
    outputs = [v.new_zeros((*v.shape[:-2], 0, v.shape[-1]))]
    for first in range(0, q.shape[-2], chunk):
        here = slice(first, first + chunk)
        some = (None if x is None else x[..., here, :] for x in (logs, beta))
        output, state = _step(q[..., here, :], k[..., here, :], v[..., here, :], state, *some)
        outputs.append(output)
    return torch.cat(outputs, -2), state


def _step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, logs: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    lost = None if logs is None else logs.cumsum(-2)  # log A_t
    kept = None if lost is None else lost.exp()
    written = v
    if beta is not None:
        reads = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device) + beta * _products(k, k, lost).tril(-1)
        written = torch.linalg.solve_triangular(reads, beta * (v - _faded(k, kept) @ state), upper=False)
    output = _faded(q, kept) @ state + _products(q, k, lost).tril() @ written
    if lost is None:
        return output, state + k.mT @ written
    whole = lost[..., -1:, :]
    return output, whole.mT.exp() * state + (k * (whole - lost).exp()).mT @ written


def _faded(rows: Tensor, kept: Tensor | None) -> Tensor:
    return rows if kept is None else rows * kept


def _products(q: Tensor, k: Tensor, lost: Tensor | None) -> Tensor:
    """(A_t/A_s q_t)·k_s, for s up to t. Differences are taken before they are raised: no factor is above 1."""
    if lost is None:
        return q @ k.mT
    order = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if lost.shape[-1] == 1:
        return q @ k.mT * torch.where(order, lost - lost.mT, -torch.inf).exp()
    apart = torch.where(order.unsqueeze(-1), lost.unsqueeze(-2) - lost.unsqueeze(-3), -torch.inf)
    return torch.einsum("...ic,...jc,...ijc->...ij", q, k, apart.exp())


def _checked(q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, state: Tensor | None, chunk: int) -> Tensor:
    """The state to begin with, where everything fits."""
    same_floats({"q": q, "k": k, "v": v}, least_dims=2)
    if q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise SpecError(f"q and k must have the same shape, and v the same but for its width; got {shapes}.")
    if gates is not None and gates.shape not in (k.shape, (*k.shape[:-1], 1)):
        raise SpecError(f"gates must have the shape of k, {tuple(k.shape)}, or a width of 1; got {tuple(gates.shape)}.")
    if chunk < 1:
        raise SpecError(f"a chunk must hold at least 1 key; got {chunk}.")
    shape = (*q.shape[:-2], k.shape[-1], v.shape[-1])
    if state is not None and state.shape != shape:
        raise SpecError(f"the state must be {shape}; got {tuple(state.shape)}.")
    same_floats({"q": q, "gates": gates, "state": state})
    return q.new_zeros(shape) if state is None else state
