"""Checks for any attention layer: permutation equivariance, causality, independence of batch elements, normalization.

A layer is a module or a function of x (batch, n, embed_dim); if it returns a tuple, the first tensor is checked. Each
check runs on random inputs of several lengths, since some bugs appear only at some lengths, and returns violations.

>>> from regard.nn import BlockConfig, Decoder
>>> check_causality(Decoder(BlockConfig(embed_dim=8, num_heads=2), num_layers=1), 8).holds
True
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import ArgumentError
from regard.tensors.convert import ArrayLike, as_tensor
from regard.theory.check_result import CheckResult, Violation
from regard.weights import AttentionWeights

LayerLike = nn.Module | Callable[[Tensor], Any]

DEFAULT_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)  # around powers of two, typical block sizes
TOLERANCE_IN_EPS = 1000  # sums of about a thousand terms in a different order
BATCH_SIZE = 2
MAX_VIOLATIONS = 1000
MAX_EMBED_DIM, MAX_LENGTH = 2**20, 2**16


def check_equivariance(
    layer: LayerLike,
    embed_dim: int,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    tolerance: float | None = None,
    seed: int = 0,
) -> CheckResult:
    """Check that reordering the inputs only reorders the outputs: f(Px) = P f(x).

    `layer` is a module or a function of x (batch, n, embed_dim); `seed` (default 0) is that of the random inputs. The
    output of a pooling layer, which has no positions, must not change. Layers with position encodings or a causal mask
    do not pass. `lengths` are the sequence lengths to test (default: 14 lengths from 1 to 33). `tolerance` is the
    allowed relative error; None is 1000 times the machine epsilon of the dtype.

    >>> check_equivariance(lambda x: x - x.mean(1, keepdim=True), 4).holds
    True
    >>> result = check_equivariance(lambda x: x.cumsum(1), 4)
    >>> result.holds, result.violations[0].seq_len
    (False, 32)
    """

    def violations(x: Tensor, generator: torch.Generator) -> Iterator[Violation]:
        n = x.shape[1]
        before = _output(layer, x)
        for order in (torch.arange(n).flip(0), torch.arange(n).roll(1), torch.randperm(n, generator=generator)):
            order = order.to(x.device)
            after = _output(layer, x[:, order])
            if before.dim() < x.dim():
                yield Violation((), None, n, _max_relative_error(after, before))
            else:
                for i, error in enumerate(_max_error_by_position(after, before[:, order])):
                    yield Violation(i, int(order[i]), n, error)

    return _run_check(
        "reordering the inputs only reorders the outputs", layer, embed_dim, lengths, tolerance, seed, violations
    )


def check_causality(
    layer: LayerLike,
    embed_dim: int,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    tolerance: float | None = None,
    seed: int = 0,
) -> CheckResult:
    """Check that no output depends on a later input, for every pair of positions.

    `layer`, `embed_dim`, `lengths`, `tolerance` and `seed` are those of `check_equivariance`.

    >>> result = check_causality(lambda x: x + x.roll(-1, 1), 4, lengths=(6,))
    >>> (result.holds, sorted((v.output_index, v.input_index) for v in result.violations))
    (False, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    """

    def violations(x: Tensor, generator: torch.Generator) -> Iterator[Violation]:
        changes = position_influence(layer, x, seed=seed)
        for later in range(x.shape[1]):
            for i in range(later):
                yield Violation(i, later, x.shape[1], float(changes[i, later]))

    return _run_check("no output changes with a later input", layer, embed_dim, lengths, tolerance, seed, violations)


def check_batch_independence(
    layer: LayerLike,
    embed_dim: int,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    tolerance: float | None = None,
    seed: int = 0,
) -> CheckResult:
    """Check that no output depends on another batch element. The indices of violations are batch indices.

    `layer`, `embed_dim`, `lengths`, `tolerance` and `seed` are those of `check_equivariance`.

    >>> check_batch_independence(lambda x: x - x.mean(0), 4).holds
    False
    """

    def violations(x: Tensor, generator: torch.Generator) -> Iterator[Violation]:
        before = _output(layer, x)
        for changed in range(BATCH_SIZE):
            other = x.clone()
            other[changed] = _randn_like(x[changed], generator)
            after = _output(layer, other)
            for other_element in range(BATCH_SIZE):
                if other_element != changed:
                    error = _max_relative_error(after[other_element], before[other_element])
                    yield Violation(other_element, changed, x.shape[1], error)

    return _run_check(
        "no output changes with another batch element", layer, embed_dim, lengths, tolerance, seed, violations
    )


def check_normalized(
    weights: ArrayLike | AttentionWeights, *, mask: Tensor | None = None, tolerance: float | None = None
) -> CheckResult:
    """Check that weights (..., n_q, n_k) are not negative and that every row sums to 1.

    With a boolean `mask` (True for visible pairs) hidden weights must be exactly 0, and a row without visible keys must
    be all 0. `weights` is a tensor, or the weights of `regard.attention_with_weights`.

    >>> print(check_normalized(torch.tensor([[0.5, 0.5], [0.7, 0.4]])))
    does not hold: rows are not negative and sum to 1; error 0.1, tolerance 0.000119
      output (1,), of 2 positions: error 0.1
    """
    a: Tensor = weights.to_dense() if isinstance(weights, AttentionWeights) else as_tensor(weights, "weights")
    if a.dim() < 2 or not a.is_floating_point():
        raise ArgumentError(f"weights must be (..., n_q, n_k) in floats; got {a.dtype} of shape {tuple(a.shape)}.")
    visible = torch.ones_like(a, dtype=torch.bool) if mask is None else _expand_mask(mask, a)
    allowed = _tolerance_for(a.dtype, tolerance)
    sums = (a.double().sum(-1) - visible.any(-1).double()).abs()
    negative = (-a).clamp(min=0).amax(-1) if a.shape[-1] else sums
    hidden = torch.where(visible, 0.0, a.abs()).amax(-1) if a.shape[-1] else sums
    errors = torch.maximum(sums, torch.maximum(negative.double(), hidden.double())).nan_to_num(float("inf"))
    # hidden weights must be exactly 0, not 0 up to rounding
    errors = torch.where((hidden > 0) & (errors <= allowed), 2 * allowed + hidden, errors)
    violations = [
        Violation(tuple(int(n) for n in row), None, a.shape[-1], float(errors[tuple(row)]))
        for row in (errors > allowed).nonzero()[:MAX_VIOLATIONS]
    ]
    worst = float(errors.max()) if errors.numel() else 0.0
    return CheckResult(
        "rows are not negative and sum to 1",
        not violations,
        worst,
        allowed,
        tuple(sorted(violations, key=_descending_error)),
    )


def position_influence(layer: LayerLike, x: Tensor, *, seed: int = 0) -> Tensor:
    """Return the change of each output (rows) when one input (columns) is replaced, relative to the outputs.

    `layer` is that of `check_equivariance`. x is (batch, n, embed_dim); the result is n x n, the largest over batch and
    features.

    >>> position_influence(lambda x: x.cumsum(1), torch.randn(1, 3, 4)) > 0
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    checks.function(layer, "layer", "of x (batch, n, embed_dim)")
    checks.tensor(x, "x", shape=("batch", "n", "embed_dim"), dtype_kind="floats")
    generator = torch.Generator().manual_seed(checks.seed(seed))
    before = _output(layer, x)
    if before.dim() < 3 or before.shape[1] != x.shape[1]:
        raise ArgumentError(f"a layer must return (batch, {x.shape[1]}, ...); got shape {tuple(before.shape)}.")
    columns = []
    for j in range(x.shape[1]):
        other = x.clone()
        other[:, j] = 3 * _randn_like(x[:, j], generator)
        columns.append(torch.tensor(_max_error_by_position(_output(layer, other), before)))
    return torch.stack(columns, -1) if columns else torch.zeros(0, 0)


def _run_check(
    property_name: str,
    layer: LayerLike,
    embed_dim: int,
    lengths: Sequence[int],
    tolerance: float | None,
    seed: int,
    find_violations: Callable[[Tensor, torch.Generator], Iterator[Violation]],
) -> CheckResult:
    _check_arguments(layer, embed_dim, lengths, tolerance, seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = iter(layer.parameters()) if isinstance(layer, nn.Module) else iter(())
    parameter: Tensor = next(parameters, torch.zeros((), dtype=torch.float64))
    allowed = _tolerance_for(parameter.dtype, tolerance)
    worst, violations = 0.0, []
    for n in lengths:
        x = torch.randn(BATCH_SIZE, n, embed_dim, generator=generator, dtype=torch.float64).to(parameter)
        _check_deterministic(layer, x)
        for violation in find_violations(x, generator):
            worst = max(worst, violation.error)
            if not violation.error <= allowed:
                violations.append(violation)
    largest = tuple(sorted(violations, key=_descending_error)[:MAX_VIOLATIONS])
    return CheckResult(property_name, not violations, worst, allowed, largest)


def _expand_mask(mask: Tensor, weights: Tensor) -> Tensor:
    checks.tensor(mask, "mask", dtype_kind="booleans")
    try:
        return mask.expand(weights.shape)
    except RuntimeError:
        raise ArgumentError(
            f"mask must broadcast to the weights, {tuple(weights.shape)}; got {tuple(mask.shape)}."
        ) from None


def _check_arguments(layer: Any, embed_dim: int, lengths: Sequence[int], tolerance: float | None, seed: int) -> None:
    checks.function(layer, "layer", "of x (batch, n, embed_dim)")
    checks.integer(embed_dim, "embed_dim", at_least=1, at_most=MAX_EMBED_DIM)
    checks.seed(seed)
    for n in checks.instance(lengths, "lengths", (list, tuple, range), "a list of integers"):
        checks.integer(n, "lengths", at_least=0, at_most=MAX_LENGTH)
    if tolerance is not None:
        checks.finite_number(tolerance, "tolerance", at_least=0)


def _tolerance_for(dtype: torch.dtype, tolerance: float | None) -> float:
    if tolerance is not None:
        return checks.finite_number(tolerance, "tolerance", at_least=0)
    if torch.finfo(dtype).eps > 1e-6:
        raise ArgumentError(
            f"layers and weights must be in float32 or float64; got {dtype}. Call .double(), or set tolerance=."
        )
    return TOLERANCE_IN_EPS * torch.finfo(dtype).eps


def _check_deterministic(layer: LayerLike, x: Tensor) -> None:
    first, second = _output(layer, x), _output(layer, x)
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ArgumentError(
            "a layer must be deterministic; two calls differ by a relative error of "
            f"{_max_relative_error(first, second):.3g}. Call .eval() to disable dropout."
        )


@torch.no_grad()
def _output(layer: LayerLike, x: Tensor) -> Tensor:
    if isinstance(layer, nn.MultiheadAttention):
        query = x if layer.batch_first else x.transpose(0, 1)
        output: Any = layer(query, query, query, need_weights=False)[0]
        result: Tensor = output if layer.batch_first else output.transpose(0, 1)
        return result
    try:
        output = layer(x)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise ArgumentError(
            f"a layer must be a function of x, {tuple(x.shape)}; calling it failed: {problem}"
        ) from problem
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.shape[:1] != x.shape[:1]:
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ArgumentError(f"a layer must return a tensor with the batch size of x, {x.shape[0]}; got {got}.")
    return output


def _randn_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)


def _max_error_by_position(actual: Tensor, expected: Tensor) -> list[float]:
    """Return the largest difference at each position, relative to the largest output; infinite for NaN."""
    differences = (actual.double() - expected.double()).abs().transpose(0, 1).flatten(1)
    scale = expected.double().abs().max() if expected.numel() else torch.ones(())
    errors = (differences.amax(1) if differences.shape[1] else differences.sum(1)) / scale.clamp(min=1e-30)
    return errors.nan_to_num(float("inf"), float("inf")).tolist()


def _max_relative_error(actual: Tensor, expected: Tensor) -> float:
    return _max_error_by_position(actual.reshape(1, 1, -1), expected.reshape(1, 1, -1))[0]


def _descending_error(violation: Violation) -> float:
    return -violation.error
