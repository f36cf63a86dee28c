"""Tokens as points that move by attention: velocities on the sphere, Runge-Kutta steps, and clusters.

Velocities depend on directions only. Within a step, points are slightly off the sphere, and a velocity with a radial
part would force short steps even where tokens hardly move.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard import score
from regard.attention import attention, attention_with_weights

VectorField = Callable[[Tensor], Tensor]

SAME_CLUSTER_COSINE = 0.99  # tokens on the sphere with a larger inner product share a cluster


def softmax_velocity(beta: float | Tensor) -> VectorField:
    """Return the velocity P⊥ sum_j a_ij x_j of tokens (..., n, d) on the sphere, with scores β x_i·x_j."""

    def velocity(x: Tensor) -> Tensor:
        x = normalize(x, dim=-1)
        return project_to_tangent(x, attention(x, x, x, score=score.scaled_dot(beta)))

    return velocity


def unnormalized_velocity(beta: float) -> VectorField:
    """Return the velocity with weights exp(β x_i·x_j) / n, which are the softmax weights times exp(lse) / n."""

    def velocity(x: Tensor) -> Tensor:
        x = normalize(x, dim=-1)
        result = attention_with_weights(x, x, x, score=score.scaled_dot(beta))
        return project_to_tangent(x, result.output * result.lse.exp().unsqueeze(-1) / x.shape[-2])

    return velocity


def project_to_tangent(x: Tensor, y: Tensor) -> Tensor:
    """Return the component of y that is tangent to the sphere at x."""
    return y - (x * y).sum(-1, keepdim=True) * x


def rk4_step(x: Tensor, velocity: VectorField, step: float) -> Tensor:
    """Return x after one Runge-Kutta step of fourth order.

    >>> rk4_step(torch.ones(()), lambda x: -x, 0.1), torch.exp(torch.tensor(-0.1))
    (tensor(0.9048), tensor(0.9048))
    """
    a = velocity(x)
    b = velocity(x + step / 2 * a)
    c = velocity(x + step / 2 * b)
    d = velocity(x + step * c)
    return x + step / 6 * (a + 2 * b + 2 * c + d)


def integrate_on_sphere(x: Tensor, velocity: VectorField, times: Tensor, steps_per_interval: int) -> Tensor:
    """Return the positions of the tokens at `times`, from x at times[0], with `steps_per_interval` steps between."""
    positions = [x]
    for interval in times.diff().tolist():
        for _ in range(steps_per_interval):
            x = normalize(rk4_step(x, velocity, interval / steps_per_interval), dim=-1)
        positions.append(x)
    return torch.stack(positions)


def cluster_labels(x: Tensor) -> Tensor:
    """Return the cluster label of each token (n, d); clusters are connected components of near tokens.

    >>> cluster_labels(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.999, 0.04]])).tolist()
    [0, 1, 0]
    """
    connected = (x @ x.mT > SAME_CLUSTER_COSINE).double()
    for _ in range(max(1, len(x) - 1).bit_length()):
        connected = (connected @ connected > 0).double()
    labels: Tensor = torch.unique(connected.argmax(-1), return_inverse=True)[1]
    return labels


def interaction_energy(x: Tensor, beta: float) -> Tensor:
    """Return sum_ij exp(β x_i·x_j) / 2βn², from the lse of attention."""
    lse: Tensor = attention_with_weights(x, x, x, score=score.scaled_dot(beta)).lse
    return lse.exp().sum() / (2 * beta * len(x) ** 2)
