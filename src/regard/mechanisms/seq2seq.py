"""Attention of a recurrent decoder over the memory of an encoder, for one decoder step or several at once.

    c_i = sum_j a_ij m_j,   a_i = softmax_j of      u·tanh(W_q h_i + W_k m_j + bias)    `bahdanau`
                                                    h_i·m_j                             `luong_dot`
                                                    h_i·W m_j                           `luong_general`
                                                    v_a·tanh(W_a [h_i; m_j])            `luong_concat`
                                                    (W_a h_i)_j                         `luong_location`

h is (..., steps, hidden_size), the states of the decoder; memory is (..., n, memory_size), the states of the encoder.
`luong_local_monotonic` and `luong_local_predictive` attend to a window of the memory. `lengths` has the number of valid
memory entries of each batch element; None means that all are valid.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention_with_weights
from regard.checks import same_float_dtype
from regard.errors import ArgumentError
from regard.mask import IntSequence, Mask, from_function, padding, sliding_window
from regard.result import AttentionResult
from regard.score import ScoreLike, additive, as_score, bilinear, dot


@dataclass(frozen=True, eq=False)
class ContextVectors:
    """The context vectors `output` (..., steps, memory_size) and the attention `weights` (..., steps, n).

    Weights are computed on first access and are differentiable. `gaussian_mass` is the sum of the weights of a state
    after multiplication by a Gaussian, or None without a Gaussian.
    """

    result: AttentionResult[Tensor]
    gaussian_mass: Tensor | None = None

    @cached_property
    def output(self) -> Tensor:
        return self._scale_rows(self.result.output)

    @cached_property
    def weights(self) -> Tensor:
        return self._scale_rows(self.result.weights[...])

    def _scale_rows(self, rows: Tensor) -> Tensor:
        return rows if self.gaussian_mass is None else rows * self.gaussian_mass.unsqueeze(-1)


@check_types
def bahdanau(
    h: Tensor,
    memory: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    u: Tensor,
    bias: Tensor | None = None,
    *,
    lengths: IntSequence | None = None,
) -> ContextVectors:
    """Compute additive attention with the score u·tanh(W_q h + W_k m + bias) (Bahdanau, Cho and Bengio, 2015).

    w_q is (hidden_size, dim), w_k (memory_size, dim), u and bias (dim,); `bias` defaults to None, no bias.
    h is (..., steps, hidden_size), memory (..., n, memory_size). `lengths` (batch,) are the valid entries of each
    memory; None (default) uses all.

    >>> h, memory = torch.zeros(3, 1, 2), torch.randn(3, 7, 4)
    >>> context = bahdanau(h, memory, torch.ones(2, 5), torch.ones(4, 5), torch.zeros(5), lengths=[7, 2, 1])
    >>> context.weights[:, 0, 0], context.output.shape
    (tensor([0.1429, 0.5000, 1.0000]), torch.Size([3, 1, 4]))
    """
    return ContextVectors(
        attention_with_weights(
            h, memory, memory, score=additive(w_q, w_k, u, bias), mask=_memory_mask(h, memory, lengths)
        )
    )


@check_types
def luong_dot(h: Tensor, memory: Tensor, *, lengths: IntSequence | None = None) -> ContextVectors:
    """Compute attention with the unscaled score h·m (Luong, Pham and Manning, 2015).

    h is (..., steps, hidden_size), memory (..., n, memory_size). `lengths` (batch,) are the valid entries of each
    memory; None (default) uses all.

    >>> luong_dot(torch.zeros(1, 2), torch.eye(2)).output
    tensor([[0.5000, 0.5000]])
    """
    return ContextVectors(attention_with_weights(h, memory, memory, score=dot(), mask=_memory_mask(h, memory, lengths)))


@check_types
def luong_general(h: Tensor, memory: Tensor, w: Tensor, *, lengths: IntSequence | None = None) -> ContextVectors:
    """Compute attention with the score h·W m; w is (hidden_size, memory_size).

    h is (..., steps, hidden_size), memory (..., n, memory_size). `lengths` (batch,) are the valid entries of each
    memory; None (default) uses all.

    >>> luong_general(torch.zeros(1, 3), torch.eye(2), torch.ones(3, 2)).output
    tensor([[0.5000, 0.5000]])
    """
    return ContextVectors(
        attention_with_weights(h, memory, memory, score=bilinear(w), mask=_memory_mask(h, memory, lengths))
    )


@check_types
def luong_concat(
    h: Tensor, memory: Tensor, w_a: Tensor, v_a: Tensor, *, lengths: IntSequence | None = None
) -> ContextVectors:
    """Compute attention with the score v_a·tanh(W_a [h; m]): `bahdanau` with one concatenated matrix.

    w_a is (hidden_size + memory_size, dim), v_a (dim,). See `bahdanau` for h, memory and `lengths`.

    >>> luong_concat(torch.zeros(1, 3), torch.eye(2), torch.ones(5, 4), torch.ones(4)).output
    tensor([[0.5000, 0.5000]])
    """
    visible, hidden_size = _memory_mask(h, memory, lengths), h.shape[-1]
    rows = hidden_size + memory.shape[-1]
    if w_a.dim() != 2 or w_a.shape[0] != rows:
        raise ArgumentError(f"w_a must be (hidden_size + memory_size, dim) = ({rows}, dim); got {tuple(w_a.shape)}.")
    score = additive(w_a[:hidden_size], w_a[hidden_size:], v_a)
    return ContextVectors(attention_with_weights(h, memory, memory, score=score, mask=visible))


@check_types
def luong_location(h: Tensor, memory: Tensor, w_a: Tensor, *, lengths: IntSequence | None = None) -> ContextVectors:
    """Compute attention with the score (W_a h)_j, which depends on the decoder state alone.

    w_a is (hidden_size, max_len). A memory of n < max_len entries uses the first n scores.
    See `bahdanau` for h, memory and `lengths`.

    >>> luong_location(torch.zeros(1, 3), torch.eye(2), torch.ones(3, 9)).output
    tensor([[0.5000, 0.5000]])
    """
    same_float_dtype({"h": h, "w_a": w_a})
    visible, n = _memory_mask(h, memory, lengths), memory.shape[-2]
    if w_a.dim() != 2 or w_a.shape[0] != h.shape[-1] or w_a.shape[1] < n:
        shape = f"({h.shape[-1]}, at least {n})"
        raise ArgumentError(f"w_a must be (hidden_size, max_len) = {shape}; got {tuple(w_a.shape)}.")
    # q and k of zeros, so that the bias is the whole score
    zero_q, zero_k = (x.new_zeros((*x.shape[:-1], 1)) for x in (h, memory))
    return ContextVectors(attention_with_weights(zero_q, zero_k, memory, score=h @ w_a[:, :n], mask=visible))


@check_types
def luong_local_monotonic(
    h: Tensor,
    memory: Tensor,
    *,
    radius: int,
    query_offset: int | Tensor = 0,
    score: ScoreLike | None = None,
    lengths: IntSequence | None = None,
) -> ContextVectors:
    """Compute local attention: decoder step t attends to the memory entries from t - radius to t + radius.

    `query_offset` is the step of the first state: a number, or one per batch element. `score` is one of `regard.score`;
    None is the dot product. The output is 0 for a step whose window lies beyond the end of the memory.
    See `bahdanau` for h, memory and `lengths`.

    >>> luong_local_monotonic(torch.zeros(3, 4), torch.eye(4), radius=0).weights.argmax(-1)
    tensor([0, 1, 2])
    """
    if not isinstance(radius, int) or radius < 0:
        raise ArgumentError(f"radius must be an integer of at least 0; got {radius!r}.")
    is_valid, window = _memory_mask(h, memory, lengths), sliding_window(radius + 1)
    score = dot() if score is None else score
    visible = window if is_valid is None else window & is_valid
    return ContextVectors(
        attention_with_weights(h, memory, memory, score=score, mask=visible, query_offset=query_offset)
    )


@check_types
def luong_local_predictive(
    h: Tensor,
    memory: Tensor,
    w_p: Tensor,
    v_p: Tensor,
    *,
    radius: float,
    score: ScoreLike | None = None,
    lengths: IntSequence | None = None,
) -> ContextVectors:
    """Compute local attention around a predicted position p = S sigmoid(v_p·tanh(W_p h)); S is the memory length.

    Weights are softmax(score) over the entries with |j - p| <= radius, times exp(-(j - p)² / 2σ²) with σ = radius / 2.
    They are not normalized again and sum to less than 1. w_p is (hidden_size, dim), v_p (dim,); gradients reach both
    through the Gaussian. `score` is one of `regard.score`; None is the dot product. See `bahdanau` for `lengths`.

    >>> h, memory, w_p, v_p = torch.zeros(1, 4), torch.zeros(4, 4), torch.ones(4, 3), torch.ones(3)
    >>> context = luong_local_predictive(h, memory, w_p, v_p, radius=1)
    >>> context.weights  # p = 2, and σ = 1/2
    tensor([[0.0000, 0.0451, 0.3333, 0.0451]])
    """
    is_valid = _memory_mask(h, memory, lengths)
    if not radius > 0:
        raise ArgumentError(f"radius must be greater than 0; got {radius}.")
    memory_length = memory.shape[-2] if lengths is None else torch.as_tensor(lengths, device=h.device).reshape(-1, 1, 1)
    p, sigma = _predict_position(h, w_p, v_p) * memory_length, radius / 2.0
    visible = from_function(lambda b, h, i, j: abs(j - p[b, h, i]) <= radius)
    visible = visible if is_valid is None else visible & is_valid
    plain = as_score(dot() if score is None else score)
    faded = plain.then(lambda s, b, h, i, j: s - (j - p[b, h, i]) * (j - p[b, h, i]) / (2.0 * sigma * sigma))
    # only the lse of this call is used, so one column of values is enough
    plain_lse = attention_with_weights(h, memory, memory[..., :1], score=plain, mask=visible).lse
    result = attention_with_weights(h, memory, memory, score=faded, mask=visible)
    # softmax(s) G = softmax(s + log G) exp(lse(s + log G) - lse(s))
    is_empty = plain_lse == -torch.inf
    log_mass = torch.where(is_empty, 0.0, result.lse) - torch.where(is_empty, 0.0, plain_lse)
    return ContextVectors(result, log_mass.exp().to(h.dtype))


def _predict_position(h: Tensor, w_p: Tensor, v_p: Tensor) -> Tensor:
    """Return the predicted position of each state, from 0 (start of the memory) to 1 (end): (batch, heads, steps)."""
    same_float_dtype({"h": h, "w_p": w_p, "v_p": v_p})
    if w_p.dim() != 2 or w_p.shape[0] != h.shape[-1] or v_p.shape != w_p.shape[1:]:
        required = f"w_p must be (hidden_size, dim) = ({h.shape[-1]}, dim) and v_p (dim,)"
        raise ArgumentError(f"{required}; got w_p={tuple(w_p.shape)}, v_p={tuple(v_p.shape)}.")
    position = torch.sigmoid(torch.tanh(h @ w_p) @ v_p)
    return position.reshape(-1, h.shape[-3] if h.dim() >= 4 else 1, h.shape[-2])


@check_types
def attentional_hidden_state(context: Tensor, h: Tensor, w_c: Tensor) -> Tensor:
    """Return Luong's attentional hidden state, tanh(W_c [c; h]); w_c is (memory_size + hidden_size, output_size).

    >>> attentional_hidden_state(torch.ones(1, 2), torch.ones(1, 3), torch.zeros(5, 4)).shape
    torch.Size([1, 4])
    """
    same_float_dtype({"context": context, "h": h, "w_c": w_c}, min_dims=1)
    if context.shape[:-1] != h.shape[:-1]:
        shapes = f"context={tuple(context.shape)}, h={tuple(h.shape)}"
        raise ArgumentError(f"context and h must have the same shape except for the last dimension; got {shapes}.")
    rows = context.shape[-1] + h.shape[-1]
    if w_c.dim() != 2 or w_c.shape[0] != rows:
        raise ArgumentError(
            f"w_c must be (memory_size + hidden_size, output_size) = ({rows}, output_size); got {tuple(w_c.shape)}."
        )
    return torch.tanh(torch.cat((context, h), -1) @ w_c)


def _memory_mask(h: Tensor, memory: Tensor, lengths: IntSequence | None) -> Mask | None:
    """Check h, memory and lengths; return the mask of valid memory entries, None if all are valid."""
    if h.dim() < 2 or h.dim() != memory.dim() or h.shape[:-2] != memory.shape[:-2]:
        shapes = f"h={tuple(h.shape)}, memory={tuple(memory.shape)}"
        raise ArgumentError(f"h and memory must have the same shape except for the last two dimensions; got {shapes}.")
    if lengths is None:
        return None
    values = torch.as_tensor(lengths)
    batch, n = int(torch.Size(h.shape[: -3 if h.dim() >= 4 else -2]).numel()), memory.shape[-2]
    if values.dim() != 1 or len(values) != batch:
        raise ArgumentError(f"lengths must have one number for each of {batch} batch elements; got {values.tolist()}.")
    if bool(((values < 0) | (values > n)).any()):
        raise ArgumentError(f"lengths must be from 0 to the memory length {n}; got {values.tolist()}.")
    return padding(lengths)
