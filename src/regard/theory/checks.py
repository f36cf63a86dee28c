"""Checks for anyone's attention layer: does it treat positions alike, keep to the past, keep texts apart, sum to one?

A layer is a module or any function of x (batch, n, width); the first tensor of what it gives back counts. Each check
feeds it random vectors at several lengths, since some bugs show only at some, and says where it went wrong.

>>> from regard.nn import Decoder, Design
>>> check_causality(Decoder(Design(width=8, heads=2), layers=1), 8).holds
True
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import SpecError
from regard.spec.array import as_tensor
from regard.theory.finding import Finding, Place
from regard.weights import Weights

Layer = nn.Module | Callable[[Tensor], Any]

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)  # around powers of two, where blocks end
ROUNDING = 1000  # times the step of the dtype: sums of some thousand terms in another order
BATCH = 2
MOST_PLACES = 1000
MAX_WIDTH, MAX_LENGTH = 2**20, 2**16


def check_equivariance(
    layer: Layer, width: int, *, lengths: Sequence[int] = LENGTHS, within: float | None = None, seed: int = 0
) -> Finding:
    """Whether reordering the inputs only reorders the outputs: f(Px) = P f(x).

    For a layer that pools, whose result has no positions, whether the order changes nothing at all. Layers with
    positions or a causal mask should fail it.

    >>> check_equivariance(lambda x: x - x.mean(1, keepdim=True), 4).holds
    True
    >>> found = check_equivariance(lambda x: x.cumsum(1), 4)
    >>> found.holds, found.places[0].length
    (False, 32)
    """

    def places(x: Tensor, random: torch.Generator) -> Iterator[Place]:
        n = x.shape[1]
        before = _output(layer, x)
        for order in (torch.arange(n).flip(0), torch.arange(n).roll(1), torch.randperm(n, generator=random)):
            order = order.to(x.device)
            after = _output(layer, x[:, order])
            if before.dim() < x.dim():
                yield Place((), None, n, _difference(after, before))
            else:
                for at, error in enumerate(_by_position(after, before[:, order])):
                    yield Place(at, int(order[at]), n, error)

    return _found("reordering the inputs only reorders the outputs", layer, width, lengths, within, seed, places)


def check_causality(
    layer: Layer, width: int, *, lengths: Sequence[int] = LENGTHS, within: float | None = None, seed: int = 0
) -> Finding:
    """Whether no output changes with an input after it, tried for every pair of positions.

    >>> leaking = check_causality(lambda x: x + x.roll(-1, 1), 4, lengths=(6,))
    >>> (leaking.holds, sorted((place.output, place.input) for place in leaking.places))
    (False, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    """

    def places(x: Tensor, random: torch.Generator) -> Iterator[Place]:
        changes = influence(layer, x, seed=seed)
        for later in range(x.shape[1]):
            for at in range(later):
                yield Place(at, later, x.shape[1], float(changes[at, later]))

    return _found("no output changes with a later input", layer, width, lengths, within, seed, places)


def check_independence(
    layer: Layer, width: int, *, lengths: Sequence[int] = LENGTHS, within: float | None = None, seed: int = 0
) -> Finding:
    """Whether no text of a batch changes what comes out for another one; `output` and `input` count texts.

    >>> check_independence(lambda x: x - x.mean(0), 4).holds
    False
    """

    def places(x: Tensor, random: torch.Generator) -> Iterator[Place]:
        before = _output(layer, x)
        for changed in range(BATCH):
            other = x.clone()
            other[changed] = _like(x[changed], random)
            after = _output(layer, other)
            for kept in range(BATCH):
                if kept != changed:
                    yield Place(kept, changed, x.shape[1], _difference(after[kept], before[kept]))

    return _found("texts of a batch do not see each other", layer, width, lengths, within, seed, places)


def check_normalised(weights: Any, *, mask: Tensor | None = None, within: float | None = None) -> Finding:
    """Whether weights (..., n_q, n_k) are not negative and every row sums to 1.

    With a boolean `mask` (True may attend) what it hides must weigh exactly 0, and a row of which it hides everything
    must be 0 throughout. Weights may be a tensor, or those of `regard.attend`.

    >>> print(check_normalised(torch.tensor([[0.5, 0.5], [0.7, 0.4]])))
    does not hold: rows are not negative and sum to 1; off by 0.1, allowed 0.000119
      output (1,), of 2 positions: off by 0.1
    """
    a: Tensor = weights.dense() if isinstance(weights, Weights) else as_tensor(weights, "weights")
    if a.dim() < 2 or not a.is_floating_point():
        raise SpecError(f"weights must be (..., n_q, n_k) in floats; got {a.dtype} of shape {tuple(a.shape)}.")
    seen = torch.ones_like(a, dtype=torch.bool) if mask is None else _mask_of(mask, a)
    allowed = _allowed(a.dtype, within)
    sums = (a.double().sum(-1) - seen.any(-1).double()).abs()
    below = (-a).clamp(min=0).amax(-1) if a.shape[-1] else sums
    hidden = torch.where(seen, 0.0, a.abs()).amax(-1) if a.shape[-1] else sums
    errors = torch.maximum(sums, torch.maximum(below.double(), hidden.double())).nan_to_num(float("inf"))
    # what is hidden must be exactly 0, also where rounding would excuse it
    errors = torch.where((hidden > 0) & (errors <= allowed), 2 * allowed + hidden, errors)
    places = [
        Place(tuple(int(n) for n in row), None, a.shape[-1], float(errors[tuple(row)]))
        for row in (errors > allowed).nonzero()[:MOST_PLACES]
    ]
    worst = float(errors.max()) if errors.numel() else 0.0
    return Finding(
        "rows are not negative and sum to 1", not places, worst, allowed, tuple(sorted(places, key=_by_error))
    )


def influence(layer: Layer, x: Tensor, *, seed: int = 0) -> Tensor:
    """How much each output (rows) changes when one input (columns) is another vector, as a share of the outputs.

    x is (batch, n, width); the result is n x n, the largest over batch and width.

    >>> influence(lambda x: x.cumsum(1), torch.randn(1, 3, 4)) > 0
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    checks.function(layer, "layer", "of x (batch, n, width)")
    checks.tensor(x, "x", shape=("batch", "n", "width"), dtype="floats")
    random = torch.Generator().manual_seed(checks.seed(seed))
    before = _output(layer, x)
    if before.dim() < 3 or before.shape[1] != x.shape[1]:
        raise SpecError(f"a layer must give back (batch, {x.shape[1]}, ...); got shape {tuple(before.shape)}.")
    columns = []
    for place in range(x.shape[1]):
        other = x.clone()
        other[:, place] = 3 * _like(x[:, place], random)
        columns.append(torch.tensor(_by_position(_output(layer, other), before)))
    return torch.stack(columns, -1) if columns else torch.zeros(0, 0)


def _found(
    what: str,
    layer: Layer,
    width: int,
    lengths: Sequence[int],
    within: float | None,
    seed: int,
    places: Callable[[Tensor, torch.Generator], Iterator[Place]],
) -> Finding:
    _check_arguments(layer, width, lengths, within, seed)
    random = torch.Generator().manual_seed(seed)
    parameters = iter(layer.parameters()) if isinstance(layer, nn.Module) else iter(())
    own: Tensor = next(parameters, torch.zeros((), dtype=torch.float64))
    allowed = _allowed(own.dtype, within)
    worst, wrong = 0.0, []
    for n in lengths:
        x = torch.randn(BATCH, n, width, generator=random, dtype=torch.float64).to(own)
        _check_same_twice(layer, x)
        for place in places(x, random):
            worst = max(worst, place.error)
            if not place.error <= allowed:
                wrong.append(place)
    return Finding(what, not wrong, worst, allowed, tuple(sorted(wrong, key=_by_error)[:MOST_PLACES]))


def _mask_of(mask: Tensor, weights: Tensor) -> Tensor:
    checks.tensor(mask, "mask", dtype="booleans")
    try:
        return mask.expand(weights.shape)
    except RuntimeError:
        raise SpecError(
            f"mask must broadcast to the weights, {tuple(weights.shape)}; got {tuple(mask.shape)}."
        ) from None


def _check_arguments(layer: Any, width: int, lengths: Sequence[int], within: float | None, seed: int) -> None:
    checks.function(layer, "layer", "of x (batch, n, width)")
    checks.whole_number(width, "width", at_least=1, at_most=MAX_WIDTH)
    checks.seed(seed)
    for n in checks.instance(lengths, "lengths", (list, tuple, range), "a list of whole numbers"):
        checks.whole_number(n, "lengths", at_least=0, at_most=MAX_LENGTH)
    if within is not None:
        checks.finite_number(within, "within", at_least=0)


def _allowed(dtype: torch.dtype, within: float | None) -> float:
    if within is not None:
        return checks.finite_number(within, "within", at_least=0)
    if torch.finfo(dtype).eps > 1e-6:
        raise SpecError(
            f"what is checked must be in float32 or float64, where rounding is no bug; got {dtype}. Call .double(), or "
            "say what is allowed with within=."
        )
    return ROUNDING * torch.finfo(dtype).eps


def _check_same_twice(layer: Layer, x: Tensor) -> None:
    one, two = _output(layer, x), _output(layer, x)
    if not torch.equal(one.nan_to_num(), two.nan_to_num()):
        raise SpecError(
            f"a layer must give the same answer twice to be checked; got answers {_difference(one, two):.3g} apart. "
            "Call .eval() to switch dropout off."
        )


@torch.no_grad()
def _output(layer: Layer, x: Tensor) -> Tensor:
    if isinstance(layer, nn.MultiheadAttention):
        given = x if layer.batch_first else x.transpose(0, 1)
        found: Any = layer(given, given, given, need_weights=False)[0]
        return found if layer.batch_first else found.transpose(0, 1)  # type: ignore[no-any-return]  # modules are untyped
    try:
        found = layer(x)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise SpecError(f"a layer must be a function of x, {tuple(x.shape)}; calling it failed: {problem}") from problem
    while isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.shape[:1] != x.shape[:1]:
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise SpecError(f"a layer must give back a tensor of {x.shape[0]} texts, as it got; got {got}.")
    return found


def _like(x: Tensor, random: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=random, dtype=torch.float64).to(x)


def _by_position(found: Tensor, expected: Tensor) -> list[float]:
    """The largest difference at each position, as a share of the largest output; endless where a number is none."""
    off = (found.double() - expected.double()).abs().transpose(0, 1).flatten(1)
    size = expected.double().abs().max() if expected.numel() else torch.ones(())
    shares = (off.amax(1) if off.shape[1] else off.sum(1)) / size.clamp(min=1e-30)
    return shares.nan_to_num(float("inf"), float("inf")).tolist()


def _difference(found: Tensor, expected: Tensor) -> float:
    return _by_position(found.reshape(1, 1, -1), expected.reshape(1, 1, -1))[0]


def _by_error(place: Place) -> float:
    return -place.error
