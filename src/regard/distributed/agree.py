"""Before ranks compute together they make sure that they were asked the same."""

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from regard.distributed.peers import Peers
from regard.errors import RankError, RegardError
from regard.spec.formula import FromLengths, FromQueries
from regard.spec.nodes import digest
from regard.spec.spec import Question
from regard.spec.term import Term
from regard.spec.text import text

LONGEST = 2**14  # letters of a description that is sent


def agreed(peers: Peers, read: Callable[[], Question], more: Mapping[str, object]) -> Question:
    """The question that this rank reads, when all ranks read the same one.

    Raises where it is refused, also where another rank's is, and where it differs from another's; says by what. `more`
    has what is not in the question and must be the same as well.
    """
    try:
        asked: Question | RegardError = read()
    except RegardError as refused:  # the others must hear of it, or they would wait
        asked = refused
    described = [f"refused: {asked}"] if isinstance(asked, RegardError) else [*_lines(asked), *_more(more)]
    digest = hashlib.sha256("\n".join(described).encode()).digest()
    words = [int.from_bytes(digest[n : n + 7], "big") for n in (0, 7, 14, 21)]
    if all(each == words for each in peers.every(words)):
        if isinstance(asked, RegardError):
            raise asked
        return asked
    every = _texts(peers, "\n".join(described))
    if isinstance(asked, RegardError):
        raise asked
    raise RankError(f"every rank must ask the same; got {_differences(every)}.")


def _lines(question: Question) -> list[str]:
    spec = question.spec
    names = question.formula.names
    lines = [
        f"batch {spec.batch}",
        f"heads {spec.heads}",
        f"key heads {spec.key_heads}",
        f"width of the product {spec.width}",
        f"width of values {spec.value_width}",
        f"dtype {spec.dtype}",
        f"score {question.score.formula()} times {spec.scale:.17g}",
        f"rule {'none' if spec.rule is None else _spelled(spec.rule, names)}",
        f"mask {_spelled(spec.mask, names)}",
        f"weighing {question.weigh.formula} {spec.normaliser!r} {question.weigh.iterations}",
        f"dropout {spec.dropout:.17g} seed {question.seed}",
        f"start {question.start.tolist() if isinstance(question.start, Tensor) else question.start}",
    ]
    for name, captured in zip(names, question.formula.tensors, strict=False):
        if not isinstance(captured, (FromLengths, FromQueries)):
            lines.append(f"tensor {name} of shape {tuple(captured.shape)} with the sum {_checksum(captured)}")
    return lines


def _spelled(term: Term, names: Sequence[str]) -> str:
    """A formula to read, and a digest that also differs for formulas that are written alike."""
    return f"{text(term, names)} (digest {digest(term)})"


def _more(more: Mapping[str, object]) -> list[str]:
    return [f"{name} {value}" for name, value in more.items()]


def _checksum(tensor: Tensor) -> int:
    """Of the bytes of a tensor: other numbers have another one."""
    kept = tensor.detach().cpu().contiguous()
    whole: Any = kept.reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(whole) if kept.numel() else 0


def _texts(peers: Peers, own: str) -> list[list[str]]:
    """Every rank's description, in lines."""
    letters = own.encode()[:LONGEST]
    lengths = [n for (n,) in peers.every([len(letters)])]
    padded = letters.ljust(max(lengths))
    found = peers.every(list(padded))
    each = (bytes(row[:n]).decode(errors="replace") for row, n in zip(found, lengths, strict=True))
    return [described.split("\n") for described in each]


def _differences(every: Sequence[Sequence[str]]) -> str:
    """The first lines that are not the same on all ranks, and who has which."""
    refused = [f"rank {r} {lines[0]}" for r, lines in enumerate(every) if lines[0].startswith("refused: ")]
    if refused:
        return "; ".join(line.rstrip(".") for line in refused)
    found = []
    for lines in zip_longest(*every, fillvalue="nothing"):
        if len(set(lines)) > 1:
            found.append(", ".join(f"rank {rank}: {line}" for rank, line in enumerate(lines)))
    return "; ".join(found[:3])
