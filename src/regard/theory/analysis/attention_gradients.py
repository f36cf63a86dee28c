"""The backward pass of attention in closed form: from the gradient G of the output to the gradients of q, k and v.

dV = AᵀG      E = GVᵀ      dS from the normalizer      then through the score to q and k

softmax, sink      dS = A ∘ (E - D),  D_i = Σ_j A_ij E_ij
entmax(α)          dS = r ∘ (E - <r, E> / Σ r),  r = A^(2-α) where A > 0, else 0;  sparsemax is α = 2
sigmoid            dS = A ∘ (1 - A) ∘ E
relu / n           dS = 1[A > 0] ∘ E / n
q·k s              dQ = s dS K,  dK = s dSᵀQ
c tanh(q·k s / c)  as before, dS times 1 - tanh²
-|q - k|² / 2σ²    dq_i = Σ_j dS_ij (k_j - q_i) / σ²,  dk_j = Σ_i dS_ij (q_i - k_j) / σ²
u'tanh(Wq + Uk)    dh_ij = dS_ij u ∘ (1 - tanh²),  dq_i = Σ_j dh_ij W,  dk_j = Σ_i dh_ij U
"""

import math

import torch
from torch import Tensor


def softmax_score_grad(a: Tensor, e: Tensor) -> Tensor:
    """Return dS of softmax; also of a sink, since the sink has the value 0."""
    return a * (e - (a * e).sum(-1, keepdim=True))


def entmax_score_grad(a: Tensor, e: Tensor, alpha: float) -> Tensor:
    """Return dS of entmax and, with alpha = 2, of sparsemax."""
    r = torch.where(a > 0, a.clamp(min=1e-300) ** (2 - alpha), 0.0)
    return r * (e - (r * e).sum(-1, keepdim=True) / r.sum(-1, keepdim=True))


def sigmoid_score_grad(a: Tensor, e: Tensor) -> Tensor:
    return a * (1 - a) * e


def relu_score_grad(a: Tensor, e: Tensor) -> Tensor:
    return torch.where(a > 0, e, 0.0) / a.shape[-1]


def dot_qk_grads(ds: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return dQ and dK of scores q·k / √d."""
    scale = 1 / math.sqrt(q.shape[-1])
    return scale * ds @ k, scale * ds.mT @ q


def softcap_qk_grads(ds: Tensor, q: Tensor, k: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Return dQ and dK of c tanh(q·k / √d / c)."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return dot_qk_grads(ds * (1 - torch.tanh(s / cap).square()), q, k)


def gaussian_qk_grads(ds: Tensor, q: Tensor, k: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """Return dQ and dK of -|q - k|² / 2σ²."""
    differences = k[None, :, :] - q[:, None, :]
    terms = ds[..., None] * differences / sigma**2
    return terms.sum(1), -terms.sum(0)


def additive_qk_grads(ds: Tensor, q: Tensor, k: Tensor, w_q: Tensor, w_k: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return dQ and dK of u'tanh(qW + kU), with W and U as (head_dim, hidden_dim)."""
    hidden = torch.tanh((q @ w_q)[:, None, :] + (k @ w_k)[None, :, :])
    dh = ds[..., None] * u * (1 - hidden.square())
    return dh.sum(1) @ w_q.mT, dh.sum(0) @ w_k.mT


def reversed_attention(a: Tensor, g: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return R = scale A ∘ (GVᵀ - D), the gradient of q·k: dQ = RK and dK = RᵀQ (Katz and Wolf, 2024)."""
    return scale * softmax_score_grad(a, g @ v.mT)
