"""Weighings with a level, on any engine that knows softmax: find the level, and ask the engine for what is left.

The gradient of entmax. With L(x, tau) the lse of the changed scores, tau is where L = 0, so a change of x moves it by
-L_x / L_tau. An answer c·o that depends on x and tau has the gradient c·o_x - (c·o_tau / L_tau) L_x: the one that the
engine gives for c and, as the gradient of the lse, -c·o_tau / L_tau. That number is c·(o - o'), with o' the answer for
the weights (z - tau)^(p - 1). A gradient d of tau itself adds -d / L_tau, and L_tau = -p sum (z - tau)^(p - 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.engine.dense import parameter_of, positions_of
from regard.engine.gradient import Engine, Saved, run
from regard.engine.parts import Matrix
from regard.engine.walk import Walk, place
from regard.plan.blocks import Tiles
from regard.spec.hiding import visible
from regard.spec.normaliser import Softmax
from regard.spec.spec import Inputs, Spec
from regard.spec.term import Term, lookup, substitute, variable
from regard.spec.threshold import Argmax, Entmax, Thresholded

NUMBERS = 2**20  # of scores at a time

Find = Callable[[Spec, Inputs, Tiles], Tensor]
Asked = tuple[Spec, Inputs]


def forward(engine: Engine, spec: Spec, inputs: Inputs, tiles: Tiles, find: Find) -> tuple[Tensor, Tensor]:
    """Output and level."""
    level = find(spec, inputs, tiles)
    output, _ = engine.forward(*lowered(spec, inputs, level), tiles)
    return output, level


def backward(
    engine: Engine, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]
) -> list[Tensor]:
    """The gradients of those of `inputs.every()` that are needed."""
    asked = lowered(spec, inputs, saved.statistic)
    before = 3 + len(inputs.tensors)
    wants = [*needs[:before], False, *needs[before:]]  # the level is a constant here
    if isinstance(spec.normaliser, Entmax):
        tau = saved.statistic
        other, slope = engine.forward(*_changed(spec, inputs, tau, spec.normaliser.beside), tiles)
        assert slope is not None
        # the weights sum to 1
        lse = torch.where(tau == torch.inf, -torch.inf, torch.zeros_like(tau))
        moved = replace(moving(spec, inputs, saved, other, slope), statistic=lse)
        return engine.backward(*asked, tiles, moved, wants)
    unmoved = replace(saved, d_statistic=torch.zeros_like(saved.d_statistic))
    if isinstance(spec.normaliser, Argmax):
        return _straight_through(engine, spec, inputs, tiles, unmoved, needs, wants)
    _, known = engine.forward(*asked, tiles)
    assert known is not None
    return engine.backward(*asked, tiles, replace(unmoved, statistic=known), wants)


def lowered(spec: Spec, inputs: Inputs, level: Tensor) -> Asked:
    """The same question as one of softmax, given the level of each row."""
    assert isinstance(spec.normaliser, Thresholded)
    return _changed(spec, inputs, level, spec.normaliser.lowered)


def matrix_of(engine: Engine, spec: Spec, inputs: Inputs, tiles: Tiles, statistic: Tensor | None) -> Matrix:
    """What any weight follows from: for a weighing with a level, the lowered question and its lse, computed now."""
    if not isinstance(spec.normaliser, Thresholded):
        return Matrix(spec, inputs, statistic)
    assert statistic is not None
    if not isinstance(spec.normaliser, Entmax):
        statistic = _rounded_up(statistic, spec.precision)
    with torch.set_grad_enabled(statistic.requires_grad):
        asked, there = lowered(spec, inputs, statistic)
        some = replace(there, v=there.v[..., :1])
        _, lse = run(engine, replace(asked, value_width=some.v.shape[-1]), tiles, some)
    return Matrix(asked, there, lse)


def _rounded_up(level: Tensor, dtype: torch.dtype) -> Tensor:
    """A level between two scores of that dtype, in that dtype: rounded down it could be the lower score."""
    rounded = level.to(dtype)
    return torch.where(rounded < level, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded)


def _changed(spec: Spec, inputs: Inputs, level: Tensor, change: Callable[[Term], Term]) -> Asked:
    slot = len(inputs.tensors)
    rule = change(lookup(slot, (variable("b"), variable("h"), variable("i")), "float"))
    if spec.rule is not None:
        rule = substitute(rule, {variable("s"): spec.rule})
    seen = visible(spec.mask, spec.rule, inputs.tensors)  # what the old rule hides, the new one hides in its own way
    captured = (*spec.tensors, (tuple(level.shape), level.dtype))
    asked = replace(spec, rule=rule, mask=seen, normaliser=Softmax(), tensors=captured)
    return asked, replace(inputs, tensors=(*inputs.tensors, level))


def moving(spec: Spec, inputs: Inputs, saved: Saved, other: Tensor, slope: Tensor) -> Saved:
    """What reaches entmax's answer and its lse, given o' and the logarithm of the sum of its weights."""
    tau, power = saved.statistic, power_of(spec, inputs)
    assert power is not None
    d_lse = (saved.d_output.to(tau.dtype) * (saved.output - other).to(tau.dtype)).sum(-1)
    d_lse = d_lse + saved.d_statistic * torch.exp(-slope) / power
    return replace(saved, d_statistic=torch.where(tau == torch.inf, 0.0, d_lse))


def power_of(spec: Spec, inputs: Inputs) -> Tensor | None:
    """Entmax's exponent, to broadcast over (batch, heads, n_q)."""
    everywhere = positions_of(spec, inputs, range(1), range(spec.heads), range(1), range(1))
    found = parameter_of(spec, inputs, everywhere, spec.precision)
    return None if found is None else found.detach().reshape(1, -1, 1)


def _straight_through(
    engine: Engine,
    spec: Spec,
    inputs: Inputs,
    tiles: Tiles,
    saved: Saved,
    needs: Sequence[bool],
    wants: Sequence[bool],
) -> list[Tensor]:
    """Values are differentiated through the hard weights, all else through softmax's."""
    found: list[Any] = []
    if needs[2]:
        asked = lowered(spec, inputs, saved.statistic)
        _, lse = engine.forward(*asked, tiles)
        assert lse is not None
        only = [n == 2 for n in range(len(wants))]
        found = engine.backward(*asked, tiles, replace(saved, statistic=lse), only)
    others = [needed and n != 2 for n, needed in enumerate(needs)]
    if not any(others):
        return found
    soft = replace(spec, normaliser=Softmax())
    output, lse = engine.forward(soft, inputs, tiles)
    assert lse is not None
    rest = iter(engine.backward(soft, inputs, tiles, replace(saved, output=output, statistic=lse), others))
    return [found[0] if n == 2 else next(rest) for n, needed in enumerate(needs) if needed]


def levels(spec: Spec, inputs: Inputs, tiles: Tiles) -> Tensor:
    """The level of every row, (batch, heads, n_q), some rows at a time with all the keys that they see.

    In the tiles of the forward pass where they fit: a product of other rows may round differently.
    """
    normaliser = spec.normaliser
    assert isinstance(normaliser, Thresholded)
    rows = max(1, min(tiles.queries, NUMBERS // max(1, spec.n_k * spec.group)))
    walk = Walk(spec, inputs, Tiles(rows, tiles.keys, NUMBERS, tiles.row))
    found = torch.empty((spec.batch, spec.heads, spec.n_q), dtype=spec.precision, device=inputs.q.device)
    for strip in walk.strips():
        q, k = walk.queries_of(strip), walk.keys_of(walk.k, strip)
        parts = [walk.tile(strip, j, full, q, k[:, j.start : j.stop]).scores.clone() for j, full in strip.keys]
        whole = torch.cat(parts, -1) if parts else q.new_empty((*q.shape[:2], 0))
        scores = whole.view(len(strip.b), len(strip.h), len(strip.i), whole.shape[-1])
        parameter = parameter_of(spec, inputs, walk.positions_of(strip, range(1)), spec.precision)
        place(found, strip).copy_(normaliser.level(scores, parameter).squeeze(-1))
    return found
