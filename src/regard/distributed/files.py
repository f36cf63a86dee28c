"""Attention over files: queries, keys and values that do not fit into memory, and an output that need not either.

Queries go in blocks, and each block meets the keys that the mask leaves it, a part at a time. While a part is computed
a thread reads the next one. Parts are put together by (output, lse), or added up where each pair weighs for itself.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_signature
from regard.distributed.ahead import read_ahead
from regard.distributed.answered import Pair, answered, completed, joined
from regard.distributed.reading import Source, source
from regard.distributed.schedule import Step, steps
from regard.distributed.stored import mapped
from regard.distributed.written import Rows, Target, given, target, writing
from regard.errors import SpecError
from regard.spec.formula import FromLengths
from regard.spec.place import Places
from regard.spec.precision import without_autocast
from regard.spec.read import read
from regard.spec.spec import Question
from regard.weights import byte_count

Progress = Callable[[float], object]


def attention_from_files(
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    *,
    score: Any = None,
    mask: Any = None,
    weigh: Any = None,
    value: Any = None,
    dropout: float = 0.0,
    seed: int | None = None,
    start: Any = None,
    engine: str | None = None,
    budget: str | float = "1GB",
    progress: Progress | None = None,
) -> Tensor:
    """`regard.attention` of queries, keys and values in files, with memory for no more than `budget` bytes of them.

    q, k, v: paths of .npy files ("k.npy"), of safetensors files and a tensor in them ("qkv.safetensors:k"), or tensors
    and arrays, also memory-mapped ones. Shapes, `score`, `mask`, `weigh`, `dropout`, `seed`, `start` and `engine` are
    those of `regard.attention`. `value` is called with some rows of v at a time, so it must treat each for itself.

    out: the path of a new file, .npy or .safetensors ("o.safetensors:name"; the name is "o" if left out), which appears
    when it is complete; or a tensor or array to write into; None keeps the output in memory. The result is the output
    as a tensor, memory-mapped where it is in a file.

    Keys that no query of a block may see are neither read nor computed. Softmax, sinks, sigmoid and ReLU take keys a
    part at a time. What must know a whole row (entmax, the k largest) works while the keys that a few queries see fit
    into the budget; Sinkhorn does not. There are no gradients. `progress` is told the share that is done, up to 1.

    >>> import tempfile, numpy as np
    >>> place = Path(tempfile.mkdtemp())
    >>> for name in "qkv":
    ...     np.save(place / f"{name}.npy", np.random.default_rng(0).standard_normal((4, 300, 8), np.float32))
    >>> from regard import mask
    >>> o = attention_from_files(*(place / f"{name}.npy" for name in "qkv"), place / "o.npy", mask=mask.causal())
    >>> o.shape, np.load(place / "o.npy").shape
    (torch.Size([4, 300, 8]), (4, 300, 8))
    """
    if progress is not None:
        check_signature(progress, "progress", "share")
    sources = [source(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    _check_shapes(sources, score)
    where = target(out) if isinstance(out, (str, Path)) else None
    lengths = sources[0].shape[-2], sources[1].shape[-2]
    ask = partial(read, score=score, mask=mask, weigh=weigh, value=value, dropout=dropout, start=start, whole=lengths)
    question = _checked(_probed(ask, sources, seed))
    todo = steps(question, engine, byte_count(budget))
    shape = (*question.leading, question.spec.n_q, question.spec.value_width)
    into = given(out, shape, question.spec.dtype) if where is None else None
    call = _Call(partial(ask, seed=question.seed), sources, question, engine)
    with torch.no_grad(), without_autocast("cpu"), _opened(where, into, shape, question.spec.dtype) as rows:
        for done, here, block in call.blocks(todo):
            if block is not None:
                rows.put(here.queries, block)
            _give_back()
            if progress is not None:
                progress(done)
    return mapped(_named(where)) if where is not None else rows.tensor


def _give_back() -> None:
    """Hands memory that is free back to the system. What lies in pieces between others would add up over the steps."""
    if _trim is not None:
        _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's


def _check_shapes(sources: list[Source], score: Any) -> None:
    """Refuses rows that do not go together, before any is read."""
    shapes = [x.shape_alone() for x in sources]
    with without_autocast("cpu"):
        read(
            *(torch.empty((1, 1), dtype=x.dtype) for x in shapes)
        )  # autocast is asked about these, and not about shapes
        read(*shapes, score=score)


def _opened(where: Target | None, into: Rows | None, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return nullcontext(into) if where is None else writing(where, shape, dtype)


def _named(where: Target) -> str:
    return str(where.path) if where.path.suffix == ".npy" else f"{where.path}:{where.name}"


def _probed(ask: Callable[..., Question], sources: list[Source], seed: int | None) -> Question:
    """The question, read with the first rows alone; what depends on lengths is made now, once for all steps."""
    question = ask(*(x.rows(range(min(1, x.shape[-2]))) for x in sources), seed=seed)
    inputs = question.inputs()
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs.every()):
        raise SpecError(
            "attention over files has no gradients; got tensors that require them. Call it under torch.no_grad(), or "
            "give tensors that are detached."
        )
    tensors = tuple(
        made if isinstance(t, FromLengths) else t
        for t, made in zip(question.formula.tensors, inputs.tensors, strict=True)
    )
    return replace(question, formula=replace(question.formula, tensors=tensors))


def _checked(question: Question) -> Question:
    if question.weigh.iterations > 1:
        raise SpecError(
            f"attention over files must be able to go row by row; got {question.weigh.formula}, which normalises whole "
            "columns as well. Use weigh.softmax(), or regard.attention with everything in memory."
        )
    if question.relative_values is not None and isinstance(question.start, Tensor):
        raise SpecError(
            "values that depend on the distance must have one start over files; got one a batch element. Ask for one "
            "batch element at a time."
        )
    return question


@dataclass(frozen=True, eq=False)
class _Call:
    """One call: how its rows are read, and the question they are a part of."""

    ask: Callable[..., Question]
    sources: list[Source]
    question: Question
    engine: str | None

    def blocks(self, todo: list[Step]) -> Iterator[tuple[float, Step, Tensor | None]]:
        """The share that is done after each step, the step, and the output of its queries where it is complete."""
        total, done = sum(step.pairs for step in todo), 0
        so_far: Pair | None = None
        for step, rows in read_ahead(self.sources, todo):
            if step.keys:
                so_far = joined(so_far, self._answer(step, rows))
            done += step.pairs
            yield done / max(total, 1), step, self._finished(so_far, step) if step.is_last else None
            so_far = None if step.is_last else so_far

    def _answer(self, step: Step, rows: list[Tensor]) -> Pair:
        question = replace(self.ask(*rows), formula=self.question.formula)
        queries, keys = (Places(x.start, len(x)) for x in (step.queries, step.keys))
        return answered(question, queries, keys, self.engine)

    def _finished(self, found: Pair | None, step: Step) -> Tensor:
        """The output of a block of queries, as the caller shaped it; zeros where they see nothing."""
        spec = self.question.spec
        rows = spec.batch, spec.heads, len(step.queries), spec.value_width
        output = torch.zeros(rows, dtype=spec.dtype) if found is None else completed(self.question, found)
        return output.reshape(*self.question.leading, *output.shape[2:])
