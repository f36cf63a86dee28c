"""Attention of a recurrent decoder over an encoder's memory, a step at a time or all steps at once.

    c_i = sum_j a_ij m_j,   a_i = softmax_j of      u·tanh(W_q h_i + W_k m_j + bias)    `bahdanau`
                                                    h_i·m_j                             `luong_dot`
                                                    h_i·W m_j                           `luong_general`
                                                    v_a·tanh(W_a [h_i; m_j])            `luong_concat`
                                                    (W_a h_i)_j                         `luong_location`

h is (..., steps, width), the decoder's states; memory (..., n, memory width), what the encoder kept. `local_monotonic`
and `local_predictive` look at a window of it. `lengths` says how many entries of each batch element's memory count.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attend
from regard.checks import same_floats
from regard.errors import SpecError
from regard.result import Attended
from regard.spec.mask import Mask, Numbers, padding, where, window
from regard.spec.score import additive, as_score, dot, multiplicative


@dataclass(frozen=True, eq=False)
class Context:
    """What each state took from the memory: `output` (..., steps, memory width) and `weights` (..., steps, n).

    Weights are computed when they are asked for, and differentiable. `share` is the part of a state's attention that
    is left after a Gaussian, if there was one.
    """

    attended: Attended
    share: Tensor | None = None

    @cached_property
    def output(self) -> Tensor:
        return self._left(self.attended.output)

    @cached_property
    def weights(self) -> Tensor:
        return self._left(self.attended.weights[...])

    def _left(self, rows: Tensor) -> Tensor:
        return rows if self.share is None else rows * self.share.unsqueeze(-1)


@check_types
def bahdanau(
    h: Tensor,
    memory: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    u: Tensor,
    bias: Tensor | None = None,
    *,
    lengths: Numbers | None = None,
) -> Context:
    """Additive attention, u·tanh(W_q h + W_k m + bias) (Bahdanau, Cho and Bengio, 2015).

    w_q is (width, hidden), w_k (memory width, hidden), u and bias (hidden,).

    >>> h, memory = torch.zeros(3, 1, 2), torch.randn(3, 7, 4)
    >>> found = bahdanau(h, memory, torch.ones(2, 5), torch.ones(4, 5), torch.zeros(5), lengths=[7, 2, 1])
    >>> found.weights[:, 0, 0], found.output.shape
    (tensor([0.1429, 0.5000, 1.0000]), torch.Size([3, 1, 4]))
    """
    return Context(attend(h, memory, memory, score=additive(w_q, w_k, u, bias), mask=_counting(h, memory, lengths)))


@check_types
def luong_dot(h: Tensor, memory: Tensor, *, lengths: Numbers | None = None) -> Context:
    """h·m, not scaled (Luong, Pham and Manning, 2015).

    >>> luong_dot(torch.zeros(1, 2), torch.eye(2)).output
    tensor([[0.5000, 0.5000]])
    """
    return Context(attend(h, memory, memory, score=dot(), mask=_counting(h, memory, lengths)))


@check_types
def luong_general(h: Tensor, memory: Tensor, w: Tensor, *, lengths: Numbers | None = None) -> Context:
    """h·W m, with w (width, memory width): the two may be of different widths.

    >>> luong_general(torch.zeros(1, 3), torch.eye(2), torch.ones(3, 2)).output
    tensor([[0.5000, 0.5000]])
    """
    return Context(attend(h, memory, memory, score=multiplicative(w), mask=_counting(h, memory, lengths)))


@check_types
def luong_concat(h: Tensor, memory: Tensor, w_a: Tensor, v_a: Tensor, *, lengths: Numbers | None = None) -> Context:
    """v_a·tanh(W_a [h; m]), with w_a (width + memory width, hidden): `bahdanau` with its two matrices as one.

    >>> luong_concat(torch.zeros(1, 3), torch.eye(2), torch.ones(5, 4), torch.ones(4)).output
    tensor([[0.5000, 0.5000]])
    """
    seen, width = _counting(h, memory, lengths), h.shape[-1]
    rows = width + memory.shape[-1]
    if w_a.dim() != 2 or w_a.shape[0] != rows:
        raise SpecError(f"w_a must be (width of h + width of memory, hidden) = ({rows}, ...); got {tuple(w_a.shape)}.")
    return Context(attend(h, memory, memory, score=additive(w_a[:width], w_a[width:], v_a), mask=seen))


@check_types
def luong_location(h: Tensor, memory: Tensor, w_a: Tensor, *, lengths: Numbers | None = None) -> Context:
    """(W_a h)_j: where to look is said by the state alone. w_a is (width, longest memory).

    Of a shorter memory only the first n scores are used, and its weights add up to 1 all the same.

    >>> luong_location(torch.zeros(1, 3), torch.eye(2), torch.ones(3, 9)).output
    tensor([[0.5000, 0.5000]])
    """
    same_floats({"h": h, "w_a": w_a})
    seen, n = _counting(h, memory, lengths), memory.shape[-2]
    if w_a.dim() != 2 or w_a.shape[0] != h.shape[-1] or w_a.shape[1] < n:
        wanted = f"({h.shape[-1]}, at least {n})"
        raise SpecError(f"w_a must be (width of h, longest memory) = {wanted}; got {tuple(w_a.shape)}.")
    # rows of zeros: nothing is compared, and what is added to the score is all of it
    no_q, no_k = (x.new_zeros((*x.shape[:-1], 1)) for x in (h, memory))
    return Context(attend(no_q, no_k, memory, score=h @ w_a[:, :n], mask=seen))


@check_types
def local_monotonic(
    h: Tensor, memory: Tensor, *, reach: int, at: int | Tensor = 0, score: Any = None, lengths: Numbers | None = None
) -> Context:
    """Step t sees the memory's entries from t - reach to t + reach, as if both ran equally fast.

    `at` is the step of the first state, or one a batch element; `score` one of `regard.score`, None the dot product.
    A state that has walked off the memory's end gets 0.

    >>> local_monotonic(torch.zeros(3, 4), torch.eye(4), reach=0).weights.argmax(-1)
    tensor([0, 1, 2])
    """
    if not isinstance(reach, int) or reach < 0:
        raise SpecError(f"reach must be a whole number of at least 0; got {reach!r}.")
    seen, near = _counting(h, memory, lengths), window(reach + 1)
    asked = dot() if score is None else score
    return Context(attend(h, memory, memory, score=asked, mask=near if seen is None else near & seen, start=at))


@check_types
def local_predictive(
    h: Tensor,
    memory: Tensor,
    w_p: Tensor,
    v_p: Tensor,
    *,
    reach: float,
    score: Any = None,
    lengths: Numbers | None = None,
) -> Context:
    """Each state says where to look, p = S·sigmoid(v_p·tanh(W_p h)), with S the memory's length.

    Weights are softmax(score) over the entries with |j - p| <= reach, times exp(-(j - p)² / 2σ²) with σ = reach / 2.
    They are not divided again, so they add up to less than 1. w_p is (width, hidden), v_p (hidden,); gradients reach
    both by way of the Gaussian. `score` is one of `regard.score`, None the dot product.

    >>> found = local_predictive(torch.zeros(1, 4), torch.zeros(4, 4), torch.ones(4, 3), torch.ones(3), reach=1)
    >>> found.weights  # p = 2, and σ = 1/2
    tensor([[0.0000, 0.0451, 0.3333, 0.0451]])
    """
    counting = _counting(h, memory, lengths)
    if not reach > 0:
        raise SpecError(f"reach must be greater than 0; got {reach}.")
    each = memory.shape[-2] if lengths is None else torch.as_tensor(lengths, device=h.device).reshape(-1, 1, 1)
    p, sigma = _place(h, w_p, v_p) * each, reach / 2.0
    seen = where(lambda b, h, i, j: abs(j - p[b, h, i]) <= reach)
    seen = seen if counting is None else seen & counting
    plain = as_score(dot() if score is None else score)
    near = plain.then(lambda s, b, h, i, j: s - (j - p[b, h, i]) * (j - p[b, h, i]) / (2.0 * sigma * sigma))
    whole = attend(h, memory, memory[..., :1], score=plain, mask=seen)  # for its lse: one column is enough
    faded = attend(h, memory, memory, score=near, mask=seen)
    # softmax(s) G = softmax(s + log G) exp(lse(s + log G) - lse(s))
    blind = whole.lse == -torch.inf
    lost = torch.where(blind, 0.0, faded.lse) - torch.where(blind, 0.0, whole.lse)
    return Context(faded, lost.exp().to(h.dtype))


def _place(h: Tensor, w_p: Tensor, v_p: Tensor) -> Tensor:
    """Where in the memory each state looks, from 0 for its begin to 1 for its end: (batch, heads, steps)."""
    same_floats({"h": h, "w_p": w_p, "v_p": v_p})
    if w_p.dim() != 2 or w_p.shape[0] != h.shape[-1] or v_p.shape != w_p.shape[1:]:
        wanted = f"w_p must be (width of h, hidden) = ({h.shape[-1]}, hidden) and v_p (hidden,)"
        raise SpecError(f"{wanted}; got w_p={tuple(w_p.shape)}, v_p={tuple(v_p.shape)}.")
    place = torch.sigmoid(torch.tanh(h @ w_p) @ v_p)
    return place.reshape(-1, h.shape[-3] if h.dim() >= 4 else 1, h.shape[-2])


@check_types
def attentional(context: Tensor, h: Tensor, w_c: Tensor) -> Tensor:
    """Luong's attentional state, tanh(W_c [c; h]), with w_c (memory width + width, new width).

    >>> attentional(torch.ones(1, 2), torch.ones(1, 3), torch.zeros(5, 4)).shape
    torch.Size([1, 4])
    """
    same_floats({"context": context, "h": h, "w_c": w_c}, least_dims=1)
    if context.shape[:-1] != h.shape[:-1]:
        shapes = f"context={tuple(context.shape)}, h={tuple(h.shape)}"
        raise SpecError(f"context and h must have the same dimensions but for the last; got {shapes}.")
    rows = context.shape[-1] + h.shape[-1]
    if w_c.dim() != 2 or w_c.shape[0] != rows:
        raise SpecError(f"w_c must be (width of context + width of h, ...) = ({rows}, ...); got {tuple(w_c.shape)}.")
    return torch.tanh(torch.cat((context, h), -1) @ w_c)


def _counting(h: Tensor, memory: Tensor, lengths: Numbers | None) -> Mask | None:
    """The memory's entries that count, when h, memory and lengths go together."""
    if h.dim() < 2 or h.dim() != memory.dim() or h.shape[:-2] != memory.shape[:-2]:
        shapes = f"h={tuple(h.shape)}, memory={tuple(memory.shape)}"
        raise SpecError(f"h and memory must have the same dimensions but for the last two; got {shapes}.")
    if lengths is None:
        return None
    each = torch.as_tensor(lengths)
    batch, n = int(torch.Size(h.shape[: -3 if h.dim() >= 4 else -2]).numel()), memory.shape[-2]
    if each.dim() != 1 or len(each) != batch:
        raise SpecError(f"lengths must have one number for each of {batch} batch elements; got {each.tolist()}.")
    if bool(((each < 0) | (each > n)).any()):
        raise SpecError(f"lengths must be from 0 to the memory's length, {n}; got {each.tolist()}.")
    return padding(lengths)
