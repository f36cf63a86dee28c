"""The compiled engine: C++ kernels that keep scores in the nearest cache, with masks and rules as small programs.

Only this file knows the compiled module. It packs a question into numbers and addresses; `native/problem.h` says how.
"""

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from regard.engine import threshold
from regard.engine.address import address
from regard.engine.gradient import Engine, Saved, with_exact_output
from regard.engine.parts import Part, Wanted
from regard.engine.prepare import Prepared, prepared
from regard.engine.threshold import moving, power_of
from regard.plan.blocks import Strip, Tiles
from regard.spec.hiding import GLANCE, visible
from regard.spec.normaliser import Softmax
from regard.spec.program import Untold, program
from regard.spec.read import LIGHT
from regard.spec.spec import Inputs, Spec
from regard.spec.storage import check_captured, check_storage, last_byte
from regard.spec.term import TRUE, Term, slot_of, variable, walk
from regard.spec.threshold import Argmax, Entmax, Thresholded, Top

PANELS_TOGETHER = 8  # in native/forward.h
LEVELED, SLOPES, RECEIVED = (Entmax, Top, Argmax), 3, 4  # as Leveled::Kind counts them
GROUPS = 32  # of rows, whose sums are taken apart; the same for any number of threads
KINDS = (torch.float32, torch.bfloat16, torch.float16)  # in native/problem.h, in this order
MAX_LENGTH = 2**31 - 1024  # queries or keys, in native/problem.h: positions have 32 bits

core: ModuleType | None
try:
    from regard import _core as core
except ImportError:  # not built: see reason_without_core
    core = None


@dataclass(frozen=True)
class Build:
    """One build of the kernels: its number, the instruction set's name, and how many queries and keys go together."""

    number: int
    name: str
    panel: int  # queries side by side, in up to three vectors
    lanes: int  # queries in a vector
    chunk: int  # keys


def reason_without_core() -> str:
    """Why there is no compiled core: what the build wrote beside the package, if it ran and failed."""
    notice = Path(__file__).parents[1] / "core_not_built.txt"
    if notice.exists():
        return f"the compiled core is missing: {notice.read_text(encoding='utf8').strip()}"
    return "the compiled core is missing: regard was installed without building it"


def builds() -> tuple[Build, ...]:
    """The builds that this processor can run, the best first; none where the core was not built."""
    return () if core is None else tuple(Build(*entry) for entry in core.builds())


class Native:
    """Softmax attention on the CPU, in float32. What only the data tells to be beyond it goes to `otherwise`."""

    name = "native"
    exact: torch.dtype | None = None

    def __init__(self, otherwise: Engine, build: Build | None = None) -> None:
        self.otherwise = otherwise
        self.build = build or next(iter(builds()), None)
        self.variant = self.build.name if self.build else ""

    def linear_memory(self, spec: Spec) -> bool:
        return True

    def objections(self, spec: Spec) -> tuple[str, ...]:
        found = []
        if self.build is None:
            return (reason_without_core(),)
        if spec.device != "cpu":
            found.append(f"the tensors are on {spec.device}, and it runs on the CPU")
        if spec.precision != torch.float32:
            found.append(f"the scores are computed in {spec.precision}, and it knows float32".replace("torch.", ""))
        if spec.score not in ("dot", "additive"):
            found.append(f"the score is {spec.score}, and it knows products and additive scores")
        if not isinstance(spec.normaliser, (Softmax, Thresholded)):
            found.append(f"the weighing is {spec.normaliser.name}, and it knows softmax and what has a level")
        if max(spec.n_q, spec.n_k) > MAX_LENGTH:
            found.append(f"n_q is {spec.n_q} and n_k is {spec.n_k}, and it supports at most {MAX_LENGTH} of either")
        refusal = _refusal(spec.mask, spec.rule)
        if refusal is not None:
            found.append(refusal)
        return tuple(found)

    def tiles(self, spec: Spec) -> Tiles:
        build = self.build
        assert build is not None, "without a build it objects"
        return Tiles(build.lanes, build.chunk, 2**16, sharing=PANELS_TOGETHER * build.panel // build.lanes)

    def forward(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> tuple[Tensor, Tensor | None]:
        glance = _adds_a_large_tensor(spec, inputs)
        try:
            if isinstance(spec.normaliser, Thresholded):
                return self._leveled(spec, inputs, tiles, LEVELED.index(type(spec.normaliser)))
            output, lse = self._forward(spec, inputs, tiles, glance)
            if glance and bool(lse.sum().isnan()):  # perhaps of a score that the tensor should have hidden
                return self._forward(spec, inputs, tiles, glance=False)
        except Untold:
            return self.otherwise.forward(spec, inputs, self.otherwise.tiles(spec))
        return output, lse

    def _forward(self, spec: Spec, inputs: Inputs, tiles: Tiles, glance: bool) -> tuple[Tensor, Tensor]:
        problem, kept = _problem(spec, inputs, self._ready(spec, inputs, tiles, glance))
        output = torch.empty((spec.batch, spec.heads, spec.n_q, spec.value_width), dtype=_kind(spec, inputs))
        lse = torch.empty((spec.batch, spec.heads, spec.n_q), dtype=torch.float32)
        problem.output, problem.lse = address(output), address(lse)
        self._run("forward", problem, kept)
        return output.to(spec.dtype), lse

    def _leveled(
        self, spec: Spec, inputs: Inputs, tiles: Tiles, kind: int, levels: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Output and levels; with `SLOPES`, for given levels, the output and the logarithm of its weights' sum."""
        assert self.build is not None and core is not None
        spec = _scaled(spec)
        problem, kept = _problem(spec, inputs, self._ready(spec, inputs, tiles, glance=False))
        output = torch.empty((spec.batch, spec.heads, spec.n_q, spec.value_width), dtype=_kind(spec, inputs))
        found = torch.empty((spec.batch, spec.heads, spec.n_q), dtype=torch.float32)
        problem.output, problem.lse = address(output), address(found)
        count = spec.normaliser.k if isinstance(spec.normaliser, Top) else 1
        given = [None if x is None else x.contiguous() for x in (_powers(spec, inputs), levels)]
        how = struct.pack("5q", kind, count, *(0 if x is None else address(x) for x in given), 0)
        core.leveled(self.build.number, bytes(problem), how)
        del kept  # it lived as long as the kernel ran
        return output.to(spec.dtype), found

    def received(self, spec: Spec, inputs: Inputs) -> tuple[Tensor, Tensor] | None:
        """The lse of each row (batch, heads, n_q) and what each key receives of weight (batch, heads, n_k), in float64.

        None where the data show that the kernels cannot tell.
        """
        assert self.build is not None and core is not None and isinstance(spec.normaliser, Softmax)
        try:
            ready = self._ready(spec, inputs, self.tiles(spec), glance=False)
        except Untold:
            return None
        problem, kept = _problem(spec, inputs, ready)
        lse = torch.empty((spec.batch, spec.heads, spec.n_q), dtype=torch.float32)
        parts = torch.empty((spec.batch, spec.heads, GROUPS, spec.n_k), dtype=torch.float32)
        problem.lse = address(lse)
        core.leveled(self.build.number, bytes(problem), struct.pack("5q", RECEIVED, GROUPS, 0, 0, address(parts)))
        del kept
        total = torch.zeros((spec.batch, spec.heads, spec.n_k), dtype=torch.float64)
        for part in parts.unbind(2):  # one after the other: the same bits in any run
            total += part
        return lse, total

    def backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        saved = with_exact_output(self, spec, inputs, tiles, saved)
        if not isinstance(spec.normaliser, Thresholded):
            return self._backward(spec, inputs, tiles, saved, needs)
        power = spec.normaliser.parameter
        if power is None or any(needs[3 + slot] for slot in power.reads):
            return threshold.backward(self, spec, inputs, tiles, saved, needs)
        try:
            other, slope = self._leveled(spec, inputs, tiles, SLOPES, saved.statistic)
        except Untold:
            return self.otherwise.backward(spec, inputs, self.otherwise.tiles(spec), saved, needs)
        return self._backward(_scaled(spec), inputs, tiles, moving(spec, inputs, saved, other, slope), needs)

    def _backward(self, spec: Spec, inputs: Inputs, tiles: Tiles, saved: Saved, needs: Sequence[bool]) -> list[Tensor]:
        every = inputs.every()
        wanted = [n for n, needed in enumerate(needs) if needed]
        captured = [n for n in wanted if 3 <= n < 3 + len(inputs.tensors)]
        glance = _adds_a_large_tensor(spec, inputs) and _scores_are_finite(spec, inputs)
        try:
            ready = self._ready(spec, inputs, tiles, glance, tuple(n - 3 for n in captured))
        except Untold:
            return self.otherwise.backward(spec, inputs, self.otherwise.tiles(spec), saved, needs)
        sums = {n: torch.empty(every[n].shape, dtype=torch.float32) for n in range(3)}
        sums |= {n: torch.zeros(every[n].shape, dtype=torch.float32) for n in captured}
        problem, kept = _problem(spec, inputs, ready, [sums[n] for n in captured])
        kind = _kind(spec, inputs)
        given = [x.contiguous() for x in (saved.output.to(kind), saved.statistic, saved.d_statistic)]
        d_output = _rows_together(saved.d_output.to(kind))
        problem.output, problem.lse, problem.d_lse = (address(x) for x in given)
        problem.d_output = Rows.of(d_output)
        problem.d_q, problem.d_k, problem.d_v = (address(sums[n]) for n in range(3))
        powers = _powers(spec, inputs)
        problem.powers = 0 if powers is None else address(powers)
        if spec.score == "additive":
            d_u = torch.zeros((spec.heads, spec.width), dtype=torch.float64)
            problem.d_u = address(d_u)
            sums[len(every) - 1] = d_u
        self._run("backward", problem, (kept, given, d_output, powers))
        return [sums[n].sum_to_size(every[n].shape).to(every[n].dtype) for n in wanted]

    def _ready(
        self, spec: Spec, inputs: Inputs, tiles: Tiles, glance: bool, captured: tuple[int, ...] = ()
    ) -> Prepared | None:
        """The mask and the rule as the kernels take them; None where there is neither."""
        for x in (inputs.q, inputs.k, inputs.v):  # a tensor without data is refused before any work
            address(x)
        check_captured(inputs.tensors)
        condition = visible(spec.mask, spec.rule, inputs.tensors, glance)
        if (condition is TRUE and spec.rule is None) or 0 in spec.lengths:  # nobody's positions have no bounds
            return None
        assert self.build is not None
        vectors = self.build.panel // self.build.lanes
        tensors = [_in_floats(t) for t in inputs.tensors]
        return prepared(condition, spec.rule, tensors, spec.lengths, inputs.start, tiles, vectors, captured)

    def parts(self, spec: Spec, inputs: Inputs, tiles: Tiles, lse: Tensor) -> "PartsByKernels | None":
        """Who computes parts of the matrix of weights, given the answer's lse; None where the kernels cannot."""
        assert self.build is not None
        try:
            return PartsByKernels(self.build, spec, inputs, self._ready(spec, inputs, tiles, glance=False), lse)
        except Untold:
            return None

    def repeated(self, spec: Spec, inputs: Inputs, tiles: Tiles) -> "Repeated | None":
        """How to ask the same again of other q, k and v; None where that takes more than their addresses."""
        if self.build is None or spec.dropout or 0 in spec.lengths:
            return None
        if sum(t.nbytes for t in inputs.tensors) > LIGHT:
            return None
        if (spec.batch, spec.heads, spec.n_q, spec.width) != tuple(inputs.q.shape):
            return None
        # what is captured now is looked up then, also if somebody changes it in between
        inputs = replace(inputs, tensors=tuple(t.detach().clone() for t in inputs.tensors))
        try:
            return Repeated(self.build, spec, inputs, self._ready(spec, inputs, tiles, glance=False))
        except Untold:
            return None

    def _run(self, kernel: str, problem: "Problem", kept: object) -> None:
        """`kept` lives as long as the kernel runs: the problem holds addresses."""
        assert core is not None and self.build is not None
        getattr(core, kernel)(self.build.number, bytes(problem))


class Repeated:
    """A call on plain tensors, ready to run again on others like them."""

    def __init__(self, build: Build, spec: Spec, inputs: Inputs, ready: Prepared | None) -> None:
        problem, (_, *self.kept) = _problem(spec, inputs, ready)  # all but the tensors must live on
        self.build, self.problem, self.dtype = build.number, bytes(problem), spec.dtype
        self.shape = (spec.batch, spec.heads, spec.n_q, spec.value_width)
        self.itemsize = spec.dtype.itemsize
        # the layout of the last call, and the bytes that its tensors need
        self.layout: tuple[object, tuple[int, ...]] = (None, ())

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """The output, or None where the kernels cannot read these tensors as they are.

        The shapes are right, except that the number of keys may differ where nothing depends on positions.
        """
        assert core is not None
        n_k, strides = k.shape[2], (q.stride(), k.stride(), v.stride())
        if not (q.dtype == k.dtype == v.dtype == self.dtype and q.is_cpu and k.is_cpu and v.is_cpu):
            return None
        if not (strides[0][3] == strides[1][3] == strides[2][3] == 1 and 0 < n_k == v.shape[2] <= MAX_LENGTH):
            return None
        if not self._are_stored((q, k, v), (n_k, *strides)):
            return None
        output, lse = q.new_empty(self.shape), q.new_empty(self.shape[:3], dtype=torch.float32)
        problem = bytearray(self.problem)
        _NUMBER.pack_into(problem, Problem.n_k.offset, n_k)
        _NUMBER.pack_into(problem, Problem.threads.offset, torch.get_num_threads())
        for rows, x, stride in zip(_ROWS_AT, (q, k, v), strides, strict=True):
            if not (place := x.data_ptr()):  # a zero tensor, which has no memory
                return None
            _ROWS.pack_into(problem, rows, place, *stride[:3])
        _PAIR.pack_into(problem, Problem.output.offset, output.data_ptr(), lse.data_ptr())
        core.forward(self.build, bytes(problem))
        return output

    def _are_stored(self, tensors: tuple[Tensor, Tensor, Tensor], layout: tuple[object, ...]) -> bool:
        """Whether each storage holds the last element of its tensor, as `address` checks it, in half a microsecond."""
        (q, k, v), size = tensors, self.itemsize
        known, needs = self.layout
        if known != layout:
            needs = tuple(last_byte(x.shape, x.stride(), 0, size) for x in tensors)
            self.layout = (layout, needs)
        return (
            q.untyped_storage().nbytes() - q.storage_offset() * size >= needs[0]
            and k.untyped_storage().nbytes() - k.storage_offset() * size >= needs[1]
            and v.untyped_storage().nbytes() - v.storage_offset() * size >= needs[2]
        )


class PartsByKernels:
    """Parts of the matrix of weights."""

    def __init__(self, build: Build, spec: Spec, inputs: Inputs, ready: Prepared | None, lse: Tensor) -> None:
        self.build, self.spec, self.lse = build, spec, lse.detach().contiguous()
        self.space = torch.empty(0)
        problem, self.kept = _problem(spec, inputs, ready)
        problem.lse = address(self.lse)
        self.problem = bytes(problem)

    def tiles(self, wanted: Wanted) -> Tiles:
        """Where no pair is written, a part may be far larger than what fits into memory nearby."""
        queries = PANELS_TOGETHER * self.build.panel
        return Tiles(queries, 256, 2**18, row=512) if wanted.pairs else Tiles(queries, 256, 2**26, row=2**13)

    def part(self, strip: Strip, keys: range, full: bool, wanted: Wanted) -> Part:
        assert core is not None
        ranges = (strip.b, strip.h, strip.i, keys)
        b, h, i, j = map(len, ranges)
        cell = wanted.cell
        cells = (keys.stop - 1) // cell - keys.start // cell + 1 if cell else 0
        shapes = {
            "scores": (b, h, i, j) if wanted.pairs else (),
            "weights": (b, h, i, j) if wanted.pairs else (),
            "entropy": (b, h, i) if wanted.entropy else (),
            "sums": (b, h, i, cells) if cell else (),
            "tops": (b, h, i, cells) if cell else (),
            "received": (b, h, -(-i // self.build.panel), j) if wanted.received else (),
            "largest": (b, h, i) if wanted.largest else (),
            "at": (b, h, i) if wanted.largest else (),
        }
        made = self._made({name: shape for name, shape in shapes.items() if shape})
        place = {name: address(made[name]) if name in made else 0 for name in shapes}
        edges = [edge for r in ranges for edge in (r.start, r.stop)]
        pairs, others = ("scores", "weights", "entropy"), ("sums", "tops", "received", "largest", "at")
        packed = struct.pack("18q", *edges, not full, *(place[n] for n in pairs), cell, *(place[n] for n in others))
        core.weights(self.build.number, self.problem, packed)
        return Part(
            made.get("scores"),
            made.get("weights"),
            made.get("entropy"),
            received=made["received"].sum(2, dtype=torch.float64) if wanted.received else None,
            largest=(made["largest"], made["at"].view(torch.int32)) if wanted.largest else None,
            cell=cell,
            cells=(made["sums"], made["tops"]) if cell else None,
        )

    def _made(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Places for numbers of 32 bits, the same memory each time: fresh memory would take as long as its numbers."""
        sizes = [math.prod(shape) for shape in shapes.values()]
        if self.space.numel() < sum(sizes):
            self.space = torch.empty(sum(sizes))
        pieces = self.space[: sum(sizes)].split(sizes)
        return {name: x.view(shape) for (name, shape), x in zip(shapes.items(), pieces, strict=True)}


def _powers(spec: Spec, inputs: Inputs) -> Tensor | None:
    """Entmax's exponent, one a head."""
    found = power_of(spec, inputs)
    return None if found is None else found.expand(1, spec.heads, 1).contiguous()


def _scaled(spec: Spec) -> Spec:
    """The same without a rule, where all that does is to multiply the score by a number."""
    rule = spec.rule
    if rule is None or spec.score != "dot" or rule.op != "mul" or rule.args[0] is not variable("s"):
        return spec
    factor = rule.args[1].value
    return replace(spec, scale=spec.scale * factor, rule=None) if isinstance(factor, float) else spec


def _adds_a_large_tensor(spec: Spec, inputs: Inputs) -> bool:
    rule = spec.rule
    if rule is None or rule.op != "add" or rule.args[0] is not variable("s") or rule.args[1].op != "lookup":
        return False
    return inputs.tensors[slot_of(rule.args[1])].numel() > GLANCE


def _scores_are_finite(spec: Spec, inputs: Inputs) -> bool:
    """No product is larger than that of the norms, and no tanh larger than 1."""
    if spec.score == "additive":
        return bool(inputs.parameters[0].isfinite().all())
    norms = (torch.linalg.vector_norm(x.detach()) for x in (inputs.q, inputs.k))
    return math.prod(float(x) for x in norms) * abs(spec.scale) < 1e38


def _in_floats(x: Tensor) -> Tensor:
    """A captured tensor of half precision in floats, unless it is large."""
    return x.float() if x.dtype in KINDS[1:] and x.numel() <= GLANCE else x


def _rows_together(x: Tensor) -> Tensor:
    """The same numbers as the kernels read them: the last dimension contiguous, nothing yet to be negated, and memory
    behind every element."""
    x = check_storage(x, "an input").resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


class Rows(ctypes.Structure):
    """A tensor of rows: where it begins, and its strides by batch element, head and row."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("at", "batch", "head", "row"))

    @classmethod
    def of(cls, x: Tensor) -> "Rows":
        return cls(address(x), *x.stride()[:3])


class Problem(ctypes.Structure):
    """The same fields in the same order as in native/problem.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "key_heads", "n_q", "n_k", "width", "value_width")),
        ("threads", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("kind", ctypes.c_int64),
        *((name, Rows) for name in ("q", "k", "v")),
        *((name, ctypes.c_int64) for name in ("cover_batch", "cover_heads", "panels", "starts", "runs", "program")),
        *((name, ctypes.c_int64) for name in ("seed", "dropped")),
        ("kept_factor", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("output", "lse")),
        ("d_output", Rows),
        *((name, ctypes.c_int64) for name in ("d_lse", "d_q", "d_k", "d_v", "u", "d_u", "powers")),
        *((name, ctypes.c_int64) for name in ("first_head", "first_query", "step_query", "first_key", "step_key")),
    )


_NUMBER, _PAIR, _ROWS = struct.Struct("q"), struct.Struct("2q"), struct.Struct("4q")
_ROWS_AT = (Problem.q.offset, Problem.k.offset, Problem.v.offset)


def _problem(
    spec: Spec, inputs: Inputs, ready: Prepared | None, sums: Sequence[Tensor] = ()
) -> tuple[Problem, tuple[object, ...]]:
    """A question as the kernels take it, all but its answer, and what must live while they run, q, k and v first."""
    kind = _kind(spec, inputs)
    tensors = [_rows_together(x.detach().to(kind)) for x in (inputs.q, inputs.k, inputs.v)]
    shape = (spec.batch, spec.heads, spec.key_heads, spec.n_q, spec.n_k, spec.width, spec.value_width)
    program, kept = ready.packed([_in_floats(t) for t in inputs.tensors], sums) if ready else (0, None)
    runs = ready.runs if ready else (1, 1, 0, 0, 0)
    seed = (inputs.seed + 2**63) % 2**64 - 2**63  # the same 64 bits, signed
    dropped, factor = min(round(spec.dropout * 2**32), 2**32 - 1), 1.0 / (1.0 - spec.dropout)
    rows = (Rows.of(x) for x in tensors)
    numbers = (torch.get_num_threads(), spec.scale, KINDS.index(kind))
    problem = Problem(*shape, *numbers, *rows, *runs, program, seed, dropped, factor)
    problem.first_head, problem.first_query, problem.step_query, problem.first_key, problem.step_key = inputs.origin
    u = None
    if spec.score == "additive":
        u = inputs.parameters[0].detach().float().expand(spec.heads, spec.width).contiguous()
        problem.u = address(u)
    return problem, (tensors, kept, ready, u)


def _kind(spec: Spec, inputs: Inputs) -> torch.dtype:
    """What the kernels read and write: half precision, unless a score has prepared q and k in more."""
    return spec.dtype if inputs.q.dtype == inputs.k.dtype == inputs.v.dtype == spec.dtype else torch.float32


@lru_cache(maxsize=512)
def _refusal(mask: Term, rule: Term | None) -> str | None:
    """Why there is no program for this mask and rule with tensors of any size; None if there is one."""
    if mask is TRUE and rule is None:
        return None
    looked = [node for t in (mask, rule) if t is not None for node in walk(t) if node.op == "lookup"]
    ranks = [0] * (1 + max((slot_of(node) for node in looked), default=-1))
    for node in looked:
        ranks[slot_of(node)] = len(node.args)
    ones = tuple((1,) * rank for rank in ranks)
    try:
        program(mask, rule, ones, ones, tuple(range(len(ranks))))
    except Untold as reason:
        return str(reason)
    return None
