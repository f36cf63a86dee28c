"""Check that all ranks make the same call before any of them computes."""

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from regard.call.spec import ParsedCall
from regard.distributed.ranks.communicator import Communicator
from regard.errors import RankError, RegardError
from regard.expr.closed_expr import TensorFromQueries, TensorFromShape
from regard.expr.ir import Expr
from regard.expr.node_list import digest
from regard.expr.printing import to_text

MAX_DESCRIPTION_BYTES = 2**14  # of the description of a call that a rank sends
ERROR_PREFIX = "error: "


def check_consistent_call(
    comm: Communicator, parse: Callable[[], ParsedCall], extra: Mapping[str, object]
) -> ParsedCall:
    """Return the call that `parse` returns, if it is the same on all ranks.

    If `parse` raises on some rank, or the calls differ, every rank raises. The error names the difference. `extra`
    holds further values that must be the same on all ranks.
    """
    try:
        parsed: ParsedCall | RegardError = parse()
    except RegardError as error:  # raised below, after the other ranks have received it: otherwise they would wait
        parsed = error
    description = (
        [f"{ERROR_PREFIX}{parsed}"]
        if isinstance(parsed, RegardError)
        else [*_describe_call(parsed), *_describe_extra(extra)]
    )
    sha256 = hashlib.sha256("\n".join(description).encode()).digest()
    words = [int.from_bytes(sha256[start : start + 7], "big") for start in (0, 7, 14, 21)]
    if all(rank_words == words for rank_words in comm.all_gather_ints(words)):
        if isinstance(parsed, RegardError):
            raise parsed
        return parsed
    descriptions = _gather_descriptions(comm, "\n".join(description))
    if isinstance(parsed, RegardError):
        raise parsed
    raise RankError(f"every rank must make the same call; got {_differences(descriptions)}.")


def _describe_call(call: ParsedCall) -> list[str]:
    spec = call.spec
    names = call.closed_expr.tensor_names
    lines = [
        f"batch_size {spec.batch_size}",
        f"num_heads {spec.num_heads}",
        f"num_kv_heads {spec.num_kv_heads}",
        f"head_dim {spec.head_dim}",
        f"value_dim {spec.value_dim}",
        f"dtype {spec.dtype}",
        f"score {call.score.formula()} times {spec.scale:.17g}",
        f"score_mod {'none' if spec.score_mod is None else _describe_expr(spec.score_mod, names)}",
        f"mask {_describe_expr(spec.mask, names)}",
        f"normalizer {call.normalizer.formula} {spec.normalizer!r} {call.normalizer.iterations}",
        f"dropout {spec.dropout:.17g} seed {call.seed}",
        f"query_offset {call.query_offset.tolist() if isinstance(call.query_offset, Tensor) else call.query_offset}",
    ]
    for name, captured in zip(names, call.closed_expr.tensors, strict=False):
        if not isinstance(captured, (TensorFromShape, TensorFromQueries)):
            lines.append(f"tensor {name} of shape {tuple(captured.shape)} with checksum {_checksum(captured)}")
    return lines


def _describe_expr(expr: Expr, names: Sequence[str]) -> str:
    """Return a formula as text with a digest, which tells apart formulas that print alike."""
    return f"{to_text(expr, names)} (digest {digest(expr)})"


def _describe_extra(extra: Mapping[str, object]) -> list[str]:
    return [f"{name} {value}" for name, value in extra.items()]


def _checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of the bytes of a tensor."""
    contiguous = tensor.detach().cpu().contiguous()
    data: Any = contiguous.reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(data) if contiguous.numel() else 0


def _gather_descriptions(comm: Communicator, description: str) -> list[list[str]]:
    """Return the lines of every rank's description, indexed by rank."""
    encoded = description.encode()[:MAX_DESCRIPTION_BYTES]
    lengths = [length for (length,) in comm.all_gather_ints([len(encoded)])]
    gathered = comm.all_gather_ints(list(encoded.ljust(max(lengths))))
    texts = (bytes(row[:length]).decode(errors="replace") for row, length in zip(gathered, lengths, strict=True))
    return [text.split("\n") for text in texts]


def _differences(descriptions: Sequence[Sequence[str]]) -> str:
    """Return the errors of the ranks that raised, or else the first three lines that differ, with their ranks."""
    errors = [f"rank {rank} {lines[0]}" for rank, lines in enumerate(descriptions) if lines[0].startswith(ERROR_PREFIX)]
    if errors:
        return "; ".join(line.rstrip(".") for line in errors)
    differences = []
    for lines in zip_longest(*descriptions, fillvalue="nothing"):
        if len(set(lines)) > 1:
            differences.append(", ".join(f"rank {rank}: {line}" for rank, line in enumerate(lines)))
    return "; ".join(differences[:3])
