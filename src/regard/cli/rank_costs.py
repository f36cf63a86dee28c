"""`regard cost --max-world-size`: the predicted cost of a model's attention over 1, 2, 4 ... ranks."""

from dataclasses import dataclass
from typing import Any

from regard.cli.app import format_table
from regard.cli.model_sizes import ModelSizes
from regard.distributed.ranks.rank_cost import METHODS, can_split_heads, predict_rank_cost
from regard.errors import ArgumentError
from regard.plan.report import format_bytes, format_seconds

MAX_RANKS = 2**20
RANK_COST_HEADERS = ("method", "mask", "tokens", "ranks", "FLOPs", "sent", "extra memory", "time")


@dataclass(frozen=True)
class RankSpeed:
    """FLOPs that a rank computes per second, and bytes that it sends per second."""

    flops_per_second: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (self.flops_per_second > 0 and self.bandwidth > 0):
            raise ArgumentError(
                f"flops_per_second and bandwidth must be above 0; got {self.flops_per_second:g} and {self.bandwidth:g}."
            )


def rank_cost_rows(
    sizes: ModelSizes, seq_lens: list[int], mechanisms: list[str], max_world_size: int, speed: RankSpeed, training: bool
) -> list[dict[str, Any]]:
    """Return a row for each method, length and number of ranks: the cost of all layers' attention on one rank."""
    if not 1 <= max_world_size <= MAX_RANKS:
        raise ArgumentError(f"max_world_size must be from 1 to {MAX_RANKS:,}; got {max_world_size:,}.")
    unknown = [name for name in mechanisms if name not in ("softmax", "causal")]
    if unknown:
        raise ArgumentError(f"with max_world_size the mechanism must be softmax or causal; got {unknown[0]!r}.")
    world_sizes = sorted({*(2**power for power in range(max_world_size.bit_length())), max_world_size})
    head_dim = sizes.embed_dim // sizes.num_heads
    rows = []
    for name in mechanisms:
        for n in seq_lens:
            for method in METHODS:
                for world_size in world_sizes:
                    if method == "ulysses" and not can_split_heads(sizes.num_heads, sizes.num_kv_heads, world_size):
                        continue
                    rank_cost = predict_rank_cost(
                        method,
                        n,
                        head_dim,
                        num_heads=sizes.num_heads,
                        num_kv_heads=sizes.num_kv_heads,
                        world_size=world_size,
                        causal=name == "causal",
                        training=training,
                    )
                    rows.append(
                        {
                            "method": method,
                            "mechanism": name,
                            "seq_len": n,
                            "world_size": world_size,
                            "flops": sizes.num_layers * rank_cost.flops,
                            "bytes_sent": sizes.num_layers * rank_cost.bytes_sent,
                            "extra_memory": rank_cost.extra_memory,
                            "seconds": sizes.num_layers * rank_cost.seconds(speed.flops_per_second, speed.bandwidth),
                        }
                    )
    return rows


def format_rank_costs(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table with a legend."""
    cells = [
        [
            row["method"],
            "all" if row["mechanism"] == "softmax" else row["mechanism"],
            f"{row['seq_len']:,}",
            f"{row['world_size']:,}",
            f"{row['flops'] / 1e12:.4g} TFLOP",
            format_bytes(row["bytes_sent"]),
            format_bytes(row["extra_memory"]),
            format_seconds(row["seconds"]),
        ]
        for row in rows
    ]
    legend = "per rank: FLOPs, bytes sent and time of all layers; extra memory of one layer beyond q, k, v; float32"
    return "\n".join([format_table(RANK_COST_HEADERS, cells), "", legend])
