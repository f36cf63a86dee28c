"""Points that move as attention tells them to: velocities on the sphere, steps, and groups of what is near.

Velocities look at directions alone. Inside of a step points are a little off the sphere, and a velocity that pulled
them back would force steps to be short even where nothing else happens.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard.attention import attend, attention
from regard.spec import score

Field = Callable[[Tensor], Tensor]

NEAR = 0.99  # tokens on the sphere whose product is above this are of one group


def softmax_velocity(beta: float | Tensor) -> Field:
    """P⊥ sum_j a_ij x_j for tokens (..., n, d) on the sphere, with the weights of scores β x_i·x_j."""

    def velocity(x: Tensor) -> Tensor:
        x = normalize(x, dim=-1)
        return tangent(x, attention(x, x, x, score=score.scaled_dot(beta)))

    return velocity


def raw_velocity(beta: float) -> Field:
    """The same without the sum that softmax divides by, which is exp(lse), and over n instead."""

    def velocity(x: Tensor) -> Tensor:
        x = normalize(x, dim=-1)
        seen = attend(x, x, x, score=score.scaled_dot(beta))
        return tangent(x, seen.output * seen.lse.exp().unsqueeze(-1) / x.shape[-2])

    return velocity


def tangent(x: Tensor, y: Tensor) -> Tensor:
    """The part of y that does not leave the sphere at x."""
    return y - (x * y).sum(-1, keepdim=True) * x


def stepped(x: Tensor, velocity: Field, step: float) -> Tensor:
    """A step of Runge and Kutta's fourth order.

    >>> stepped(torch.ones(()), lambda x: -x, 0.1), torch.exp(torch.tensor(-0.1))
    (tensor(0.9048), tensor(0.9048))
    """
    a = velocity(x)
    b = velocity(x + step / 2 * a)
    c = velocity(x + step / 2 * b)
    d = velocity(x + step * c)
    return x + step / 6 * (a + 2 * b + 2 * c + d)


def walk_on_sphere(x: Tensor, velocity: Field, times: Tensor, steps: int) -> Tensor:
    """Where tokens are at these times, of which the first is the start, with so many steps from one to the next."""
    places = [x]
    for length in times.diff().tolist():
        for _ in range(steps):
            x = normalize(stepped(x, velocity, length / steps), dim=-1)
        places.append(x)
    return torch.stack(places)


def groups_of(x: Tensor) -> Tensor:
    """The number of the group of each token (n, d): a group is what is near, and what is near to that.

    >>> groups_of(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.999, 0.04]])).tolist()
    [0, 1, 0]
    """
    reach = (x @ x.mT > NEAR).double()
    for _ in range(max(1, len(x) - 1).bit_length()):
        reach = (reach @ reach > 0).double()
    numbers: Tensor = torch.unique(reach.argmax(-1), return_inverse=True)[1]
    return numbers


def energy(x: Tensor, beta: float) -> Tensor:
    """sum_ij exp(β x_i·x_j) / 2βn², from the row sums that attention keeps."""
    lse: Tensor = attend(x, x, x, score=score.scaled_dot(beta)).lse
    return lse.exp().sum() / (2 * beta * len(x) ** 2)
