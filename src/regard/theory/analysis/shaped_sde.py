"""The covariance of tokens under shaped attention: drift and diffusion by formula, random layers, and trajectories."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import score
from regard.attention import attention_with_weights
from regard.theory.experiment import ProgressCallback

KEY_DIM = 16
MAX_VARIANCE = 4.0  # trajectories stop here: the drift is cubic, and the equation can explode


@dataclass(frozen=True)
class ShapedNet:
    """The parameters of a net: `gamma_sq` is γ², the variance share of the attention branch; `temperature` is τ₀."""

    embed_dim: int
    gamma_sq: float
    temperature: float

    @property
    def tau(self) -> float:
        return self.temperature * math.sqrt(self.embed_dim * KEY_DIM)


def drift(net: ShapedNet, v: Tensor) -> Tensor:
    """Return the drift b for covariances (..., m, m)."""
    variances, mean = v.diagonal(dim1=-2, dim2=-1), v.mean(-1)
    e = variances - 2 * mean + 2 * mean.mean(-1, keepdim=True) - variances.mean(-1, keepdim=True)
    return drift_from_terms(net, v, center(v), e)


def drift_from_terms(net: ShapedNet, v: Tensor, c: Tensor, e: Tensor) -> Tensor:
    variances = v.diagonal(dim1=-2, dim2=-1)
    means = (v @ e.unsqueeze(-1)).squeeze(-1) / v.shape[-1]
    outer = variances.unsqueeze(-1) * means.unsqueeze(-2)
    return net.gamma_sq / net.temperature**2 * (v * (v * c).mean((-2, -1), keepdim=True) + (outer + outer.mT) / 2)


def center(v: Tensor) -> Tensor:
    mean = v.mean(-1, keepdim=True)
    return v - mean - mean.mT + mean.mean(-2, keepdim=True)


def diffusion(net: ShapedNet, v: Tensor) -> Tensor:
    """Return the diffusion Σ, (m, m, m, m)."""
    g, inner = net.gamma_sq, v @ center(v) @ v / len(v) ** 2

    def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("ad,bw->abdw", a, b) + torch.einsum("aw,bd->abdw", a, b)

    cross = symmetric_product(v, inner) + symmetric_product(inner, v)
    return g * (2 - g) * symmetric_product(v, v) + g**2 / net.temperature**2 * cross


def sample_attention(
    net: ShapedNet, root: Tensor, is_shaped: bool, generator: torch.Generator, antithetic: bool = False
) -> Tensor:
    """Return random matrices A for a batch of tokens with covariance root root'.

    Weights are normal, so the directions of the tokens do not matter: X W_Q / √n is root times a normal matrix with one
    row per token. With `antithetic` every sample is repeated with the sign of Y flipped, which cancels odd terms in Y.
    """
    q, k = (root @ randn(*root.shape[:-1], KEY_DIM, generator=generator) for _ in range(2))
    if antithetic:
        q, k = torch.cat([q, -q]), torch.cat([k, k])
    scale = 1 / net.tau if is_shaped else 1 / math.sqrt(KEY_DIM)
    weights: Tensor = attention_with_weights(q, k, k[..., :1], score=score.scaled_dot(scale)).weights.to_dense()
    if not is_shaped:
        return weights
    m = weights.shape[-1]
    return torch.eye(m, dtype=weights.dtype) + weights - 1 / m


def sample_layer(net: ShapedNet, v: Tensor, is_shaped: bool, generator: torch.Generator) -> Tensor:
    """Return V' after one random layer, for a batch of V, (samples, m, m).

    Coordinates are rotated such that X = √n (root, 0). Only the first m rows of W_V matter, and only the first m
    columns of the branch output correlate with X.
    """
    root = matrix_root(v)
    m, n = v.shape[-1], net.embed_dim
    branch = sample_attention(net, root, is_shaped, generator) @ root @ randn(len(v), m, n, generator=generator)
    cross = root @ branch[..., :m].mT
    skip_share, branch_share = 1 - net.gamma_sq, net.gamma_sq
    noise = math.sqrt(skip_share * branch_share / n) * (cross + cross.mT)
    return skip_share * v + noise + branch_share / n * branch @ branch.mT


def matrix_root(v: Tensor) -> Tensor:
    """Return a matrix with root root' = v, also for singular v."""
    values, vectors = torch.linalg.eigh(v)
    root: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return root


def randn(*size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


def simulate_layers(
    net: ShapedNet, v: Tensor, is_shaped: bool, num_layers: int, generator: torch.Generator, progress: ProgressCallback
) -> Tensor:
    """Return V before and after each layer, in a batch of nets: (num_layers + 1, nets, m, m)."""
    covariances = [v]
    for layer in range(num_layers):
        proposed = sample_layer(net, covariances[-1], is_shaped, generator)
        covariances.append(freeze_large_variances(covariances[-1], proposed) if is_shaped else proposed)
        progress((layer + 1) / num_layers)
    return torch.stack(covariances)


def freeze_large_variances(current: Tensor, proposed: Tensor) -> Tensor:
    is_large = current.diagonal(dim1=-2, dim2=-1).amax(-1) > MAX_VARIANCE
    return torch.where(is_large[:, None, None], current, proposed)


def simulate_sde(
    net: ShapedNet, v: Tensor, num_steps: int, generator: torch.Generator, progress: ProgressCallback
) -> Tensor:
    """Return V along dV = b dt + Σ^½ dB, with one Euler step per layer: (num_steps + 1, nets, m, m).

    With normal G and V = R Rᵀ, the noise is the sum of R G Rᵀ and R G Sᵀ, S Sᵀ = V c V / m², plus the transposes.
    """
    covariances, root, g, dt = [v], matrix_root(v), net.gamma_sq, 1 / net.embed_dim
    for step in range(num_steps):
        current = covariances[-1]
        inner = current @ (root - root.mean(-2, keepdim=True)) / current.shape[-1]
        first = root @ randn(*current.shape, generator=generator) @ root.mT
        second = root @ randn(*current.shape, generator=generator) @ inner.mT
        noise = math.sqrt(g * (2 - g) / 2) * first + g / net.temperature * second
        proposed = current + dt * drift(net, current) + math.sqrt(dt) * (noise + noise.mT)
        # a step may leave the set of covariance matrices slightly
        root = matrix_root(freeze_large_variances(current, proposed))
        covariances.append(root @ root.mT)
        progress((step + 1) / num_steps)
    return torch.stack(covariances)


def mean_correlation(v: Tensor) -> Tensor:
    """Return the mean correlation over pairs of tokens."""
    std = v.diagonal(dim1=-2, dim2=-1).sqrt()
    m = v.shape[-1]
    rows, columns = torch.triu_indices(m, m, 1)
    return (v / std.unsqueeze(-1) / std.unsqueeze(-2))[..., rows, columns].mean(-1)
