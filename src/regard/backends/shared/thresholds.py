"""Normalizers with a threshold, on any backend that supports softmax: find the thresholds, then run softmax.

The gradient of entmax: with L(x, tau) the lse of the modified scores, tau is where L = 0, so a change of x moves tau by
-L_x / L_tau. A gradient c·o that depends on x and tau is c·o_x - (c·o_tau / L_tau) L_x. A softmax backend computes it
from the gradients c of the output and -c·o_tau / L_tau of the lse. The latter is c·(o - o'), with o' the output for the
weights (z - tau)^(p - 1). A gradient d of tau itself adds -d / L_tau, with L_tau = -p sum (z - tau)^(p - 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.backends.protocol import Backend, SavedForBackward
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.shared.dense import make_positions, normalizer_parameter
from regard.backends.shared.tile_iterator import TileIterator, strip_view
from regard.backends.shared.weight_tiles import WeightInputs
from regard.call.spec import BackendInputs, CallSpec
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import Expr, lookup, substitute, variable
from regard.normalizers.streaming import Softmax
from regard.normalizers.threshold import Entmax, Hardmax, ThresholdNormalizer
from regard.plan.tiling import Tiling

MAX_SCORES_PER_PASS = 2**20

SoftmaxCall = tuple[CallSpec, BackendInputs]


def forward(backend: Backend, spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """The output and the threshold of each row."""
    threshold = find_thresholds(spec, inputs, tiling)
    output, _ = backend.forward(*reduce_to_softmax(spec, inputs, threshold), tiling)
    return output, threshold


def backward(
    backend: Backend,
    spec: CallSpec,
    inputs: BackendInputs,
    tiling: Tiling,
    saved: SavedForBackward,
    needs_input_grad: Sequence[bool],
) -> list[Tensor]:
    """The gradients of those of `inputs.all_tensors()` that need one."""
    softmax_call = reduce_to_softmax(spec, inputs, saved.statistic)
    slot = 3 + len(inputs.tensors)
    softmax_needs_grad = [*needs_input_grad[:slot], False, *needs_input_grad[slot:]]  # the threshold is a constant here
    if isinstance(spec.normalizer, Entmax):
        tau = saved.statistic
        slope_call = _with_score_mod(spec, inputs, tau, spec.normalizer.slope_score_mod)
        slope_output, log_slope_sum = backend.forward(*slope_call, tiling)
        assert log_slope_sum is not None
        lse = torch.where(tau == torch.inf, -torch.inf, torch.zeros_like(tau))  # the weights sum to 1
        saved = replace(entmax_gradients(spec, inputs, saved, slope_output, log_slope_sum), statistic=lse)
        return backend.backward(*softmax_call, tiling, saved, softmax_needs_grad)
    saved = replace(saved, d_statistic=torch.zeros_like(saved.d_statistic))
    if isinstance(spec.normalizer, Hardmax):
        return _straight_through(backend, spec, inputs, tiling, saved, needs_input_grad, softmax_needs_grad)
    _, softmax_lse = backend.forward(*softmax_call, tiling)
    assert softmax_lse is not None
    return backend.backward(*softmax_call, tiling, replace(saved, statistic=softmax_lse), softmax_needs_grad)


def reduce_to_softmax(spec: CallSpec, inputs: BackendInputs, threshold: Tensor) -> SoftmaxCall:
    """The call with softmax as its normalizer, given the threshold of each row."""
    assert isinstance(spec.normalizer, ThresholdNormalizer)
    return _with_score_mod(spec, inputs, threshold, spec.normalizer.softmax_score_mod)


def weight_inputs(
    backend: Backend, spec: CallSpec, inputs: BackendInputs, tiling: Tiling, statistic: Tensor | None
) -> WeightInputs:
    """The inputs that all weights follow from. A thresholded call is reduced to softmax, and its lse is computed."""
    if not isinstance(spec.normalizer, ThresholdNormalizer):
        return WeightInputs(spec, inputs, statistic)
    assert statistic is not None
    if not isinstance(spec.normalizer, Entmax):
        statistic = _round_up(statistic, spec.score_dtype)
    with torch.set_grad_enabled(statistic.requires_grad):
        softmax_spec, softmax_inputs = reduce_to_softmax(spec, inputs, statistic)
        narrow = replace(softmax_inputs, v=softmax_inputs.v[..., :1])  # the lse does not depend on the values
        narrow_spec = replace(softmax_spec, value_dim=narrow.v.shape[-1])
        lse = differentiable_forward(backend, narrow_spec, tiling, narrow).statistic
    return WeightInputs(softmax_spec, softmax_inputs, lse)


def _round_up(threshold: Tensor, dtype: torch.dtype) -> Tensor:
    """A threshold between two scores of that dtype, in that dtype: rounded down, it could equal the lower score."""
    rounded = threshold.to(dtype)
    return torch.where(rounded < threshold, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded)


def _with_score_mod(
    spec: CallSpec, inputs: BackendInputs, threshold: Tensor, make_score_mod: Callable[[Expr], Expr]
) -> SoftmaxCall:
    slot = len(inputs.tensors)
    score_mod = make_score_mod(lookup(slot, (variable("b"), variable("h"), variable("i")), "float"))
    if spec.score_mod is not None:
        score_mod = substitute(score_mod, {variable("s"): spec.score_mod})
    # also hide the pairs that the original score modifier hides
    mask = effective_mask(spec.mask, spec.score_mod, inputs.tensors)
    captured_specs = (*spec.captured_specs, (tuple(threshold.shape), threshold.dtype))
    softmax_spec = replace(spec, score_mod=score_mod, mask=mask, normalizer=Softmax(), captured_specs=captured_specs)
    return softmax_spec, replace(inputs, tensors=(*inputs.tensors, threshold))


def entmax_gradients(
    spec: CallSpec, inputs: BackendInputs, saved: SavedForBackward, slope_output: Tensor, log_slope_sum: Tensor
) -> SavedForBackward:
    """The gradients of the output and of the lse, given o' and the logarithm of the sum of its weights."""
    tau, exponent = saved.statistic, entmax_exponent(spec, inputs)
    assert exponent is not None
    d_lse = (saved.d_output.to(tau.dtype) * (saved.output - slope_output).to(tau.dtype)).sum(-1)
    d_lse = d_lse + saved.d_statistic * torch.exp(-log_slope_sum) / exponent
    return replace(saved, d_statistic=torch.where(tau == torch.inf, 0.0, d_lse))


def entmax_exponent(spec: CallSpec, inputs: BackendInputs) -> Tensor | None:
    """The exponent of entmax, to broadcast over (batch, heads, n_q); None for another normalizer."""
    positions = make_positions(spec, inputs, range(1), range(spec.num_heads), range(1), range(1))
    exponent = normalizer_parameter(spec, inputs, positions, spec.score_dtype)
    return None if exponent is None else exponent.detach().reshape(1, -1, 1)


def _straight_through(
    backend: Backend,
    spec: CallSpec,
    inputs: BackendInputs,
    tiling: Tiling,
    saved: SavedForBackward,
    needs_input_grad: Sequence[bool],
    softmax_needs_grad: Sequence[bool],
) -> list[Tensor]:
    """The gradient of v with the hard weights, and all other gradients with those of softmax."""
    d_v: list[Tensor] = []
    if needs_input_grad[2]:
        hard_call = reduce_to_softmax(spec, inputs, saved.statistic)
        _, lse = backend.forward(*hard_call, tiling)
        assert lse is not None
        only_v = [n == 2 for n in range(len(softmax_needs_grad))]
        d_v = backend.backward(*hard_call, tiling, replace(saved, statistic=lse), only_v)
    others = [needed and n != 2 for n, needed in enumerate(needs_input_grad)]
    if not any(others):
        return d_v
    soft_spec = replace(spec, normalizer=Softmax())
    output, lse = backend.forward(soft_spec, inputs, tiling)
    assert lse is not None
    soft_saved = replace(saved, output=output, statistic=lse)
    gradients = iter(backend.backward(soft_spec, inputs, tiling, soft_saved, others))
    return [d_v[0] if n == 2 else next(gradients) for n, needed in enumerate(needs_input_grad) if needed]


def find_thresholds(spec: CallSpec, inputs: BackendInputs, tiling: Tiling) -> Tensor:
    """The threshold of every row, (batch, heads, n_q), from some rows at a time with all keys that they attend to.

    The tiles are those of the forward pass if they fit, since the product of other rows may round differently.
    """
    normalizer = spec.normalizer
    assert isinstance(normalizer, ThresholdNormalizer)
    rows = max(1, min(tiling.tile_queries, MAX_SCORES_PER_PASS // max(1, spec.n_k * spec.queries_per_kv_head)))
    tiles = TileIterator(spec, inputs, Tiling(rows, tiling.tile_keys, MAX_SCORES_PER_PASS, tiling.max_row_keys))
    shape = (spec.batch_size, spec.num_heads, spec.n_q)
    thresholds = torch.empty(shape, dtype=spec.score_dtype, device=inputs.q.device)
    for strip in tiles.strips():
        q, k = tiles.scaled_queries(strip), tiles.key_rows(tiles.k, strip)
        parts = [tiles.score_tile(strip, j, full, q, k[:, j.start : j.stop]).scores.clone() for j, full in strip.keys]
        row_scores = torch.cat(parts, -1) if parts else q.new_empty((*q.shape[:2], 0))
        scores = row_scores.view(len(strip.b), len(strip.h), len(strip.i), row_scores.shape[-1])
        parameter = normalizer_parameter(spec, inputs, tiles.positions(strip, range(1)), spec.score_dtype)
        strip_view(thresholds, strip).copy_(normalizer.threshold(scores, parameter).squeeze(-1))
    return thresholds
