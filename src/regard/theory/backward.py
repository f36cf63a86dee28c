"""The backward pass of attention, written out: from the gradient G in the output to those in q, k and v.

dV = A'G      E = GV'      dS by the normaliser      then through the score to q and k

softmax, sink      dS = A ∘ (E - D),  D_i = Σ_j A_ij E_ij
entmax(α)          dS = r ∘ (E - <r, E> / Σ r),  r = A^(2-α) where A > 0, else 0;  sparsemax is α = 2
sigmoid            dS = A ∘ (1 - A) ∘ E
relu / n           dS = 1[A > 0] ∘ E / n
q·k s              dQ = s dS K,  dK = s dS'Q
c tanh(q·k s / c)  as before, dS times 1 - tanh²
-|q - k|² / 2σ²    dq_i = Σ_j dS_ij (k_j - q_i) / σ²,  dk_j = Σ_i dS_ij (q_i - k_j) / σ²
u'tanh(Wq + Uk)    dh_ij = dS_ij u ∘ (1 - tanh²),  dq_i = Σ_j dh_ij W,  dk_j = Σ_i dh_ij U
"""

import math

import torch
from torch import Tensor


def softmax_scores(a: Tensor, e: Tensor) -> Tensor:
    """dS of softmax; of a sink too, since its own key has the value 0."""
    return a * (e - (a * e).sum(-1, keepdim=True))


def entmax_scores(a: Tensor, e: Tensor, alpha: float) -> Tensor:
    """dS of entmax and, with alpha = 2, of sparsemax."""
    r = torch.where(a > 0, a.clamp(min=1e-300) ** (2 - alpha), 0.0)
    return r * (e - (r * e).sum(-1, keepdim=True) / r.sum(-1, keepdim=True))


def sigmoid_scores(a: Tensor, e: Tensor) -> Tensor:
    return a * (1 - a) * e


def relu_scores(a: Tensor, e: Tensor) -> Tensor:
    return torch.where(a > 0, e, 0.0) / a.shape[-1]


def dot(ds: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """dQ and dK of scores q·k / √d."""
    scale = 1 / math.sqrt(q.shape[-1])
    return scale * ds @ k, scale * ds.mT @ q


def softcapped(ds: Tensor, q: Tensor, k: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """dQ and dK of c tanh(q·k / √d / c)."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return dot(ds * (1 - torch.tanh(s / cap).square()), q, k)


def gaussian(ds: Tensor, q: Tensor, k: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """dQ and dK of -|q - k|² / 2σ²."""
    apart = k[None, :, :] - q[:, None, :]
    pull = ds[..., None] * apart / sigma**2
    return pull.sum(1), -pull.sum(0)


def additive(ds: Tensor, q: Tensor, k: Tensor, w: Tensor, other: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """dQ and dK of u'tanh(qW + kU), with W and U as (width, hidden)."""
    hidden = torch.tanh((q @ w)[:, None, :] + (k @ other)[None, :, :])
    dh = ds[..., None] * u * (1 - hidden.square())
    return dh.sum(1) @ w.mT, dh.sum(0) @ other.mT


def reversed_attention(a: Tensor, g: Tensor, v: Tensor, scale: float) -> Tensor:
    """R = scale A ∘ (GV' - D): the gradient in q·k, a map as attention's; dQ = RK and dK = R'Q (Katz and Wolf)."""
    return scale * softmax_scores(a, g @ v.mT)
