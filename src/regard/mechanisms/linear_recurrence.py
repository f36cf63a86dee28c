"""Linear recurrences with a decaying state: retention, gated linear attention (GLA) and the delta rule.

    retention   S_t = γ S_{t-1} + k_t v_tᵀ                          γ a number per head        (Sun et al., 2023)
    gla         S_t = diag(g_t) S_{t-1} + k_t v_tᵀ                  g_t in (0, 1]              (Yang et al., 2023)
    delta_rule  S_t = S_{t-1} + β_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ       β_t a number per token     (Schlag et al., 2021)

The output is o_t = S_tᵀ q_t; weights are not normalized. The gated delta rule replaces S_{t-1} by diag(g_t) S_{t-1}
(Yang et al., 2024). q, k and v are (..., n, head_dim). Every function returns the outputs and the final state
(..., head_dim, value_dim), which is the `initial_state` of the next call; None is zeros. Keys are processed in chunks
of `chunk_size` by matrix products; a chunk size of 1 is the recurrence.

In a chunk with the initial state S, let A_t be the product of its gates up to t, and u_t the update of token t: v_t, or
for the delta rule the solution of a triangular system. Then

    o_t = (A_t q_t)ᵀ S + sum_{s <= t} (A_t/A_s q_t)·k_s u_sᵀ        S' = A_n S + sum_s (A_n/A_s k_s) u_sᵀ
    u_t = β_t (v_t - (A_t k_t)ᵀ S - sum_{s < t} (A_t/A_s k_t)·k_s u_s)
"""

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import same_float_dtype
from regard.errors import ArgumentError


@check_types
def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: float | Tensor, *, initial_state: Tensor | None = None, chunk_size: int = 64
) -> tuple[Tensor, Tensor]:
    """Compute o_t = sum_{s <= t} γ^(t-s) (q_t·k_s) v_s; return the outputs and the final state.

    q and k are (..., n, head_dim), v (..., n, value_dim). `decay` is γ in (0, 1]: a number, or a tensor that broadcasts
    to the dimensions before n, such as one number per head.
    `initial_state` is (..., head_dim, value_dim), None (default) is zeros. `chunk_size` (default 64) changes only the
    speed.

    >>> x = torch.ones(1, 3, 1)
    >>> retention(x, x, x, 0.5)[0].flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    same_float_dtype({"q": q}, min_dims=2)
    gamma = torch.as_tensor(decay, dtype=q.dtype, device=q.device)
    leading = tuple(q.shape[:-2])
    sizes = zip(reversed(gamma.shape), reversed(leading), strict=False)
    if gamma.dim() > len(leading) or any(size not in (1, full_size) for size, full_size in sizes):
        raise ArgumentError(f"decay must be one number, or broadcast to {leading}; got shape {tuple(gamma.shape)}.")
    if not bool(((gamma > 0.0) & (gamma <= 1.0)).all()):
        raise ArgumentError(f"decay must be above 0 and at most 1; got {gamma.tolist()}.")
    gates = gamma.reshape(*gamma.shape, 1, 1).expand(*q.shape[:-1], 1)
    return _scan_chunks(q, k, v, gates, None, initial_state, chunk_size)


@check_types
def gla(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, *, initial_state: Tensor | None = None, chunk_size: int = 16
) -> tuple[Tensor, Tensor]:
    """Compute gated linear attention; return the outputs and the final state.

    q and k are (..., n, head_dim), v (..., n, value_dim). `gates` in (0, 1] multiply the state before each token:
    (..., n, head_dim) for one gate per channel of the keys, (..., n, 1) for one gate per token.
    `initial_state` is (..., head_dim, value_dim), None (default) is zeros. `chunk_size` (default 16) changes only the
    speed.

    >>> x = torch.ones(1, 3, 1)
    >>> gla(x, x, x, torch.tensor([1.0, 0.5, 0.1]).view(1, 3, 1))[0].flatten().tolist()
    [1.0, 1.5, 1.149999976158142]
    """
    return _scan_chunks(q, k, v, gates, None, initial_state, chunk_size)


@check_types
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    gates: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """Compute the delta rule; return the outputs and the final state.

    Each token moves the value stored for its key toward v_t by the fraction β_t; `beta` is (..., n). With keys of norm
    1 and β = 1 the stored value is replaced. q and k are (..., n, head_dim), v (..., n, value_dim). `gates` are those
    of `gla`; None (default) is no decay.
    `initial_state` is (..., head_dim, value_dim), None (default) is zeros. `chunk_size` (default 64) changes only the
    speed.

    >>> x = torch.ones(1, 3, 1)
    >>> delta_rule(x, x, torch.tensor([5.0, 7.0, 9.0]).view(1, 3, 1), torch.ones(1, 3))[0].flatten().tolist()
    [5.0, 7.0, 9.0]
    """
    if beta.shape != k.shape[:-1]:
        raise ArgumentError(f"beta must have one number per key, {tuple(k.shape[:-1])}; got {tuple(beta.shape)}.")
    return _scan_chunks(q, k, v, gates, beta.unsqueeze(-1), initial_state, chunk_size)


def _scan_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Process the chunks in order, each from the final state of the previous one."""
    state = _check_and_init_state(q, k, v, gates, initial_state, chunk_size)
    same_float_dtype({"q": q, "beta": beta})
    log_gates = None if gates is None else gates.log()
    outputs = [v.new_zeros((*v.shape[:-2], 0, v.shape[-1]))]
    for first in range(0, q.shape[-2], chunk_size):
        rows = slice(first, first + chunk_size)
        options = (None if x is None else x[..., rows, :] for x in (log_gates, beta))
        output, state = _chunk_step(q[..., rows, :], k[..., rows, :], v[..., rows, :], state, *options)
        outputs.append(output)
    return torch.cat(outputs, -2), state


def _chunk_step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, log_gates: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    log_decay = None if log_gates is None else log_gates.cumsum(-2)  # log A_t
    decay = None if log_decay is None else log_decay.exp()
    updates = v
    if beta is not None:
        identity = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device)
        system = identity + beta * _gated_products(k, k, log_decay).tril(-1)
        updates = torch.linalg.solve_triangular(system, beta * (v - _decay_rows(k, decay) @ state), upper=False)
    output = _decay_rows(q, decay) @ state + _gated_products(q, k, log_decay).tril() @ updates
    if log_decay is None:
        return output, state + k.mT @ updates
    total = log_decay[..., -1:, :]
    return output, total.mT.exp() * state + (k * (total - log_decay).exp()).mT @ updates


def _decay_rows(rows: Tensor, cumulative_gates: Tensor | None) -> Tensor:
    return rows if cumulative_gates is None else rows * cumulative_gates


def _gated_products(q: Tensor, k: Tensor, cumulative_log_gates: Tensor | None) -> Tensor:
    """Return (A_t/A_s q_t)·k_s for s <= t, from differences of logarithms: no factor is above 1."""
    if cumulative_log_gates is None:
        return q @ k.mT
    order = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if cumulative_log_gates.shape[-1] == 1:
        return q @ k.mT * torch.where(order, cumulative_log_gates - cumulative_log_gates.mT, -torch.inf).exp()
    log_ratios = torch.where(
        order.unsqueeze(-1), cumulative_log_gates.unsqueeze(-2) - cumulative_log_gates.unsqueeze(-3), -torch.inf
    )
    return torch.einsum("...ic,...jc,...ijc->...ij", q, k, log_ratios.exp())


def _check_and_init_state(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor | None, initial_state: Tensor | None, chunk_size: int
) -> Tensor:
    """Check the arguments and return the initial state."""
    same_float_dtype({"q": q, "k": k, "v": v}, min_dims=2)
    if q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        shapes = f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"
        raise ArgumentError(
            f"q and k must have the same shape, and v the same shape except for the last dimension; got {shapes}."
        )
    if gates is not None and gates.shape not in (k.shape, (*k.shape[:-1], 1)):
        raise ArgumentError(
            f"gates must have the shape of k, {tuple(k.shape)}, or a last dimension of 1; got {tuple(gates.shape)}."
        )
    if chunk_size < 1:
        raise ArgumentError(f"chunk_size must be at least 1; got {chunk_size}.")
    shape = (*q.shape[:-2], k.shape[-1], v.shape[-1])
    if initial_state is not None and initial_state.shape != shape:
        raise ArgumentError(f"initial_state must have shape {shape}; got {tuple(initial_state.shape)}.")
    same_float_dtype({"q": q, "gates": gates, "initial_state": initial_state})
    return q.new_zeros(shape) if initial_state is None else initial_state
