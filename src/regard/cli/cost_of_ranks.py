"""The part of `regard cost` that is about ranks: attention of a model over 1, 2, 4 ... of them, on paper."""

from dataclasses import dataclass
from typing import Any

from regard.cli.app import aligned
from regard.cli.sizes import Size
from regard.distributed.cost import METHODS, predicted, whole_heads
from regard.errors import SpecError
from regard.plan.report import in_bytes

MOST = 2**20
TITLES = ("method", "pairs", "tokens", "ranks", "computes", "sends", "holds", "takes")


@dataclass(frozen=True)
class Speed:
    """How many FLOPs a rank computes, and how many bytes it sends, in a second."""

    flops: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (self.flops > 0 and self.bandwidth > 0):
            raise SpecError(f"flops and bandwidth must be above 0; got {self.flops:g} and {self.bandwidth:g}.")


def over_ranks(
    size: Size, lengths: list[int], mechanisms: list[str], ranks: int, speed: Speed, training: bool
) -> list[dict[str, Any]]:
    """One row for each method, length and number of ranks: what all layers' attention takes on one of them."""
    if not 1 <= ranks <= MOST:
        raise SpecError(f"ranks must be from 1 to {MOST:,}; got {ranks:,}.")
    unknown = [name for name in mechanisms if name not in ("softmax", "causal")]
    if unknown:
        raise SpecError(f"over ranks costs are those of softmax or causal attention; got {unknown[0]!r}.")
    counts = sorted({*(2**power for power in range(ranks.bit_length())), ranks})
    heads = dict(heads=size.heads, key_heads=size.key_heads)
    width = size.width // size.heads
    rows = []
    for name in mechanisms:
        for n in lengths:
            for method in METHODS:
                for count in counts:
                    if method == "ulysses" and not whole_heads(size.heads, size.key_heads, count):
                        continue
                    one = predicted(method, n, width, ranks=count, causal=name == "causal", training=training, **heads)
                    rows.append(
                        {
                            "method": method,
                            "mechanism": name,
                            "length": n,
                            "ranks": count,
                            "flops": size.layers * one.flops,
                            "sent_bytes": size.layers * one.sent,
                            "held_bytes": one.held,
                            "seconds": size.layers * one.seconds(speed.flops, speed.bandwidth),
                        }
                    )
    return rows


def table_of_ranks(rows: list[dict[str, Any]]) -> str:
    """The rows as a table, and what its columns mean."""
    cells = [
        [
            row["method"],
            "all" if row["mechanism"] == "softmax" else row["mechanism"],
            f"{row['length']:,}",
            f"{row['ranks']:,}",
            f"{row['flops'] / 1e12:.4g} TFLOP",
            in_bytes(row["sent_bytes"]),
            in_bytes(row["held_bytes"]),
            _in_seconds(row["seconds"]),
        ]
        for row in rows
    ]
    legend = "a rank computes and sends so much in all layers, and holds so much in one beyond q, k, v, in float32"
    return "\n".join([aligned(TITLES, cells), "", legend])


def _in_seconds(seconds: float) -> str:
    for least, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
