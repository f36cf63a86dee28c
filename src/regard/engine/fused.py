"""The engine for other devices: the question lowered to torch's FlexAttention, which makes a kernel of it.

The mask and the rule become functions of one pair, the mask's cover the blocks that are visited. On the CPU torch has
no such kernel with gradients; there, asked for by name, the same functions run in torch's definition of the call.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as definition
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from regard.engine.gradient import Engine, Saved
from regard.plan.blocks import Tiles, blocks
from regard.spec.bounds import Array
from regard.spec.closure import Closures, MaskFunction, ScoreFunction, may_leave, rounding_that_decides
from regard.spec.derivative import derivatives
from regard.spec.finite import all_finite, wild_rows
from regard.spec.hiding import visible
from regard.spec.normaliser import Softmax
from regard.spec.regions import Cover
from regard.spec.spec import Inputs, Spec
from regard.spec.term import TRUE, Term, variable, walk

DEVICES = ("cpu", "cuda", "xpu")  # where torch gives the lse and gradients
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NARROWEST = 16  # rows of a product in the kernels
SIDE = 128  # of a block

Lowered = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Kernel = Callable[[ScoreFunction, BlockMask | None, float, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Fused:
    """Softmax attention as one of torch's kernels. What only the data tells to be beyond it goes to `otherwise`."""

    name = "fused"
    variant = ""
    exact: torch.dtype | None = None

    def __init__(self, otherwise: Engine) -> None:
        self.otherwise = otherwise

    def linear_memory(self, spec: Spec) -> bool:
        return spec.device != "cpu"

    def objections(self, spec: Spec) -> tuple[str, ...]:
        found = []
        if spec.device not in DEVICES:
            found.append(f"the tensors are on {spec.device}, and it knows {', '.join(DEVICES)}")
        if spec.dtype not in DTYPES or spec.precision != torch.float32:
            found.append("the scores are computed in float64, and it knows float32")
        if spec.score != "dot":
            found.append(f"the score is {spec.score}, and it knows products")
        if not isinstance(spec.normaliser, Softmax):
            found.append(f"the weighing is {spec.normaliser.name}, and it knows softmax")
        if spec.rule is not None and variable("s") not in derivatives(spec.rule):
            found.append("the rule has no slope in the score, and FlexAttention wants one")
        if spec.dropout:
            found.append("weights are dropped, and it keeps all")
        if 0 in (*spec.lengths, spec.value_width):
            found.append("nothing is to be computed, and its kernels compute something")
        return (*found, *_objections_of_kernels(spec)) if spec.device != "cpu" else tuple(found)

    def tiles(self, spec: Spec) -> Tiles:
        return Tiles(SIDE, SIDE, SIDE * SIDE)

    def forward(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> tuple[Tensor, Tensor | None]:
        lowered = _lowered(spec, inputs, tiles)
        if lowered is None:
            return self._otherwise(spec, inputs)
        output, lse = lowered(inputs.q, inputs.k, inputs.v)
        if not all_finite(output):
            exposed = self._exposed(spec, inputs)
            calm, careful = lowered(*_tamed(inputs, exposed)), self._otherwise(spec, inputs)
            exposed = exposed | wild_rows(calm[0]).squeeze(-1)  # numbers may overflow
            output, lse = (_chosen(exposed, *pair) for pair in zip(careful, calm, strict=True))
        return output, lse

    def backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        others = self.otherwise.tiles(spec)
        if any(needs[3:]):
            # torch adds up the gradients of captured tensors in any order: not the same bits from run to run. And its
            # lse counts in powers of two, so it is rounded twice: weights made from that would not be exact enough
            output, lse = self._otherwise(spec, inputs)
            return self.otherwise.backward(spec, inputs, others, replace(saved, output=output, statistic=lse), needs)
        lowered = _lowered(spec, inputs, tiles)
        if lowered is None:
            return self.otherwise.backward(spec, inputs, others, saved, needs)
        found = _pulled_back(lowered, (inputs.q, inputs.k, inputs.v), saved, needs)
        if all_finite(*found):
            return found
        exposed = self._exposed(spec, inputs) | (wild_rows(saved.output) | wild_rows(saved.d_output)).squeeze(-1)
        calm = _pulled_back(lowered, _tamed(inputs, exposed), _only(~exposed, saved), needs)
        if not all_finite(*calm):  # as where a rule is infinitely steep
            return self.otherwise.backward(spec, inputs, others, saved, needs)
        careful = self.otherwise.backward(spec, inputs, others, _only(exposed, saved), needs)
        return [one + other for one, other in zip(calm, careful, strict=True)]

    def _otherwise(self, spec: Spec, inputs: Inputs) -> tuple[Tensor, Tensor]:
        output, lse = self.otherwise.forward(spec, inputs, self.otherwise.tiles(spec))
        assert lse is not None
        return output, lse

    def _exposed(self, spec: Spec, inputs: Inputs) -> Tensor:
        """Which queries see what is not finite, or are not finite themselves.

        A kernel multiplies what is hidden by 0, and 0 times NaN is NaN. So these rows go to `otherwise`, and the others
        are computed as if zeros stood there: to the bit what they would be without it.
        """
        marks = (wild_rows(inputs.k) | wild_rows(inputs.v)).to(inputs.v.dtype)
        q, k = (torch.zeros_like(x) for x in (inputs.q, inputs.k))
        anyone = replace(spec, rule=None, mask=visible(spec.mask, spec.rule, inputs.tensors), value_width=1)
        sees, _ = self._otherwise(anyone, replace(inputs, q=q, k=k, v=marks))
        return ((sees > 0.0) | wild_rows(inputs.q)).squeeze(-1)


def _tamed(inputs: Inputs, exposed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with zeros for exposed queries and for what is not finite."""
    k, v = (torch.where(wild_rows(x), 0.0, x) for x in (inputs.k, inputs.v))
    return torch.where(exposed.unsqueeze(-1), 0.0, inputs.q), k, v


def _chosen(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows.unsqueeze(-1) if one.dim() > rows.dim() else rows, one, other)


def _only(rows: Tensor, saved: Saved) -> Saved:
    """The gradients that reach these rows."""
    parts = (_chosen(rows, x, torch.zeros_like(x)) for x in (saved.d_output, saved.d_statistic))
    return Saved(saved.output, saved.statistic, *parts)


def _pulled_back(lowered: Lowered, x: Sequence[Tensor], saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
    """The gradients of those of q, k and v that are needed, by autograd."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in x]
        wanted = [leaf for leaf, needed in zip(leaves, needs, strict=False) if needed]
        return list(torch.autograd.grad(lowered(*leaves), wanted, (saved.d_output, saved.d_statistic)))


def _objections_of_kernels(spec: Spec) -> list[str]:
    found = []
    narrow = min(spec.width, spec.value_width)
    if narrow < NARROWEST:
        found.append(f"a row is {narrow} wide, and its kernels know {NARROWEST} and more")
    terms = [t for t in (spec.mask, spec.rule) if t is not None]
    op = next(rounding_that_decides(terms), None)
    if op is not None:
        found.append(f"what decides must be the same number everywhere, and its {op} of floats is its own")
    powers = (node for t in terms for node in walk(t) if node.op == "pow" and node.kind == "int")
    if any(node.args[1].op != "constant" for node in powers):
        found.append("a whole number is raised to a power that differs by pair, and its kernels know fixed powers")
    return found


def _lowered(spec: Spec, inputs: Inputs, tiles: Tiles) -> Lowered | None:
    """The question as a function of q, k and v; None where a look-up might leave its tensor, which no kernel says."""
    condition = visible(spec.mask, spec.rule, inputs.tensors)
    rule = variable("s") if spec.rule is None else spec.rule
    if may_leave((condition, rule), inputs.tensors, spec.lengths, inputs.start):
        return None
    device = inputs.q.device
    closures = Closures(inputs.tensors, spec.lengths, inputs.start, device)
    changed = closures.score(rule, spec.precision)
    seen = None
    if device.type == "cpu" or condition is not TRUE:  # a kernel without a mask needs no list of blocks
        found = blocks(spec, inputs.tensors, inputs.start, tiles)
        seen = block_mask(found, closures.mask(condition), (spec.n_q, spec.n_k), device)
    kernel = _defined if device.type == "cpu" else _kernel(_kind(spec, condition))

    def lowered(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        output, lse = kernel(changed, seen, spec.scale, q, k.to(q.dtype), v.to(q.dtype))
        return output.to(spec.dtype), lse

    return lowered


def _defined(
    changed: ScoreFunction, seen: BlockMask | None, scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """What the kernels compute, as torch defines it. Its public call refuses gradients on the CPU; this does not."""
    assert seen is not None
    output, lse, *_ = definition(q, k, v, changed, seen.as_tuple(), scale, {})
    return output, lse * math.log(2.0)  # it counts in powers of two


@lru_cache(maxsize=256)
def _kernel(kind: Spec) -> Kernel:
    return compiled(_called, f"fused {hash(kind)}")


def _called(
    changed: ScoreFunction, seen: BlockMask | None, scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    shared = q.shape[1] != k.shape[1]
    output, more = flex_attention(q, k, v, changed, seen, scale, enable_gqa=shared, return_aux=AuxRequest(lse=True))
    assert more.lse is not None
    return output, more.lse


def compiled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A copy of a function, compiled for one kind of call.

    torch keeps a few kernels for a function. Beyond that it would run the function as it stands, with every pair in
    memory: so each kind has a copy of its own, and with `fullgraph` torch refuses instead. Under one name a number
    that differs from kind to kind would count as a variable, which no kernel takes.
    """
    code = function.__code__.replace(co_name=name)
    return torch.compile(FunctionType(code, function.__globals__), fullgraph=True)


def _kind(spec: Spec, condition: Term) -> Spec:
    """The spec without what one kernel takes as it comes: lengths, but for the shortest, and captured tensors."""
    return replace(
        spec,
        mask=condition,
        batch=min(spec.batch, 2),
        n_q=min(spec.n_q, 2) if spec.n_q < SIDE else SIDE,
        n_k=min(spec.n_k, 2),
        start=None,
        tensors=(),
    )


def block_mask(found: Cover, mask_function: MaskFunction, lengths: tuple[int, int], device: torch.device) -> BlockMask:
    """A cover as FlexAttention takes it: which blocks are partial and which are full, row by row."""
    lists = [_listed(found, sure, device) for sure in (False, True)]
    return BlockMask.from_kv_blocks(
        *lists[0], *lists[1], BLOCK_SIZE=found.tile, mask_mod=mask_function, seq_lengths=lengths
    )


def _listed(found: Cover, full: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many such blocks a row has, and their columns first in a list as long as the row."""
    tiles = found.tiles()
    b, h, row, column = (x[tiles.full == full] for x in tiles[:4])
    rows = (found.batch, found.heads, found.grid[0])
    lists: Array = np.ravel_multi_index((b, h, row), rows)
    counts = np.bincount(lists, minlength=math.prod(rows))
    places = np.arange(len(lists)) - (np.cumsum(counts) - counts)[lists]  # tiles come in the order of their rows
    columns = np.zeros((len(counts), found.grid[1]), np.int32)
    columns[lists, places] = column
    numbers = torch.from_numpy(counts.astype(np.int32)).view(rows)
    return numbers.to(device), torch.from_numpy(columns).view(*rows, -1).to(device)
