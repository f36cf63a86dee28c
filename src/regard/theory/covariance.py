"""The covariance of tokens under attention: its drift and diffusion as formulas, layers that are drawn, and paths."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import attend
from regard.spec import score
from regard.theory.experiment import Progress

KEY_WIDTH = 16
LARGEST = 4.0  # a net is stopped where a variance passes it: the drift is of third order, and the equation can explode


@dataclass(frozen=True)
class Net:
    """`branch` is γ², the share that comes through attention; `temperature` is τ₀."""

    width: int
    branch: float
    temperature: float

    @property
    def tau(self) -> float:
        return self.temperature * math.sqrt(self.width * KEY_WIDTH)


def drift_of(net: Net, v: Tensor) -> Tensor:
    """b, for covariances (..., m, m)."""
    own, mean = v.diagonal(dim1=-2, dim2=-1), v.mean(-1)
    e = own - 2 * mean + 2 * mean.mean(-1, keepdim=True) - own.mean(-1, keepdim=True)
    return drift_by(net, v, centred(v), e)


def drift_by(net: Net, v: Tensor, c: Tensor, e: Tensor) -> Tensor:
    own = v.diagonal(dim1=-2, dim2=-1)
    along = (v @ e.unsqueeze(-1)).squeeze(-1) / v.shape[-1]
    both = own.unsqueeze(-1) * along.unsqueeze(-2)
    return net.branch / net.temperature**2 * (v * (v * c).mean((-2, -1), keepdim=True) + (both + both.mT) / 2)


def centred(v: Tensor) -> Tensor:
    mean = v.mean(-1, keepdim=True)
    return v - mean - mean.mT + mean.mean(-2, keepdim=True)


def diffusion_of(net: Net, v: Tensor) -> Tensor:
    """Σ, (m, m, m, m)."""
    g, inner = net.branch, v @ centred(v) @ v / len(v) ** 2

    def four(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("ad,bw->abdw", a, b) + torch.einsum("aw,bd->abdw", a, b)

    return g * (2 - g) * four(v, v) + g**2 / net.temperature**2 * (four(v, inner) + four(inner, v))


def drawn_attention(net: Net, root: Tensor, shape: bool, random: torch.Generator, twice: bool = False) -> Tensor:
    """A for tokens whose covariance is root root', a batch of them. Weights are normal, so that the directions in which
    the tokens lie do not matter: X W_Q / √n is root times a normal matrix of as many rows as there are tokens.

    With `twice` each draw is there a second time with the sign of Y turned, which takes what is odd in Y out of means.
    """
    q, k = (root @ normal(*root.shape[:-1], KEY_WIDTH, random=random) for _ in range(2))
    if twice:
        q, k = torch.cat([q, -q]), torch.cat([k, k])
    scale = 1 / net.tau if shape else 1 / math.sqrt(KEY_WIDTH)
    weights: Tensor = attend(q, k, k[..., :1], score=score.scaled_dot(scale)).weights.dense()
    if not shape:
        return weights
    m = weights.shape[-1]
    return torch.eye(m, dtype=weights.dtype) + weights - 1 / m


def drawn_layer(net: Net, v: Tensor, shape: bool, random: torch.Generator) -> Tensor:
    """V' for a batch of V, (samples, m, m). Coordinates are turned so that X = √n (root, 0): of W_V its first m rows
    count, and of what it gives the first m columns meet X."""
    root = root_of(v)
    m, n = v.shape[-1], net.width
    mixed = drawn_attention(net, root, shape, random) @ root @ normal(len(v), m, n, random=random)
    met = root @ mixed[..., :m].mT
    keep, add = 1 - net.branch, net.branch
    return keep * v + math.sqrt(keep * add / n) * (met + met.mT) + add / n * mixed @ mixed.mT


def root_of(v: Tensor) -> Tensor:
    """root root' = v, also where v has no inverse."""
    values, vectors = torch.linalg.eigh(v)
    root: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return root


def normal(*size: int, random: torch.Generator) -> Tensor:
    return torch.randn(size, generator=random, dtype=torch.float64)


def chains_of(net: Net, v: Tensor, shape: bool, layers: int, random: torch.Generator, told: Progress) -> Tensor:
    """V after each of so many layers, in a batch of nets: (layers + 1, nets, m, m)."""
    places = [v]
    for layer in range(layers):
        then = drawn_layer(net, places[-1], shape, random)
        places.append(stopped(places[-1], then) if shape else then)
        told((layer + 1) / layers)
    return torch.stack(places)


def stopped(now: Tensor, then: Tensor) -> Tensor:
    large = now.diagonal(dim1=-2, dim2=-1).amax(-1) > LARGEST
    return torch.where(large[:, None, None], now, then)


def paths_of(net: Net, v: Tensor, steps: int, random: torch.Generator, told: Progress) -> Tensor:
    """The same by dV = b dt + Σ^½ dB, a step for each layer. With normal G and V = R R', the noise is a sum of R G R'
    and of R G S', S S' = V c V / m², each with its transposed."""
    places, root, g, dt = [v], root_of(v), net.branch, 1 / net.width
    for step in range(steps):
        now = places[-1]
        inner = now @ (root - root.mean(-2, keepdim=True)) / now.shape[-1]
        first = root @ normal(*now.shape, random=random) @ root.mT
        second = root @ normal(*now.shape, random=random) @ inner.mT
        noise = math.sqrt(g * (2 - g) / 2) * first + g / net.temperature * second
        then = stopped(now, now + dt * drift_of(net, now) + math.sqrt(dt) * (noise + noise.mT))
        root = root_of(then)  # a step may lead a little beyond what a covariance can be
        places.append(root @ root.mT)
        told((step + 1) / steps)
    return torch.stack(places)


def correlation_of(v: Tensor) -> Tensor:
    """The mean over pairs of tokens."""
    own = v.diagonal(dim1=-2, dim2=-1).sqrt()
    m = v.shape[-1]
    rows, columns = torch.triu_indices(m, m, 1)
    return (v / own.unsqueeze(-1) / own.unsqueeze(-2))[..., rows, columns].mean(-1)
