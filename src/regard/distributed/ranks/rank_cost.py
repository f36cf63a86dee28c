"""Predicted cost of attention over ranks: FLOPs, bytes sent and extra memory of the most loaded rank.

For n tokens on P ranks, with H query heads and G key heads of dimension d, in one layer. The keys and values of a rank
are K = 2 (n/P) G d elements, its queries Q = (n/P) H d, and an output is as large as the queries.

                  sent forward            sent backward          held beyond q, k, v: forward; with backward
    ring          (P - 1) K               2 (P - 1) K            2 Q + 2 K; 4 Q + 8 K
    all_gather    (P - 1) K               (P - 1) K              2 Q + P K; 3 Q + (3 P + 1) K
    ulysses       (P - 1)/P (2 Q + K)     the same               5 Q + 2 K; 8 Q + 5 K

One rank sends nothing and holds Q, or 2 Q + K with backward. Two ranks in a ring hold 2 Q + K, or 2 Q + 5 K with
backward, since no further keys arrive during computation. If Ulysses has fewer key heads than ranks, the keys are
repeated for each rank. The ring overlaps communication with computation, so the longer of the two counts. The other
methods communicate first.
"""

from dataclasses import dataclass

from regard import checks
from regard.errors import ArgumentError

METHODS = ("ring", "all_gather", "ulysses")
FORWARD_FLOPS_PER_PAIR_DIM = 4  # two matrix products
BACKWARD_FLOPS_PER_PAIR_DIM = 10  # five matrix products, with the scores recomputed


@dataclass(frozen=True)
class RankCost:
    """Cost of one attention layer on one rank: FLOPs, bytes sent, and bytes held beyond q, k and v."""

    method: str
    world_size: int
    flops: int
    bytes_sent: int
    extra_memory: int

    def seconds(self, flops_per_second: float, bandwidth: float) -> float:
        """Return the time at this compute rate (FLOPs per second) and network bandwidth (bytes per second)."""
        checks.finite_number(flops_per_second, "flops_per_second", above=0)
        checks.finite_number(bandwidth, "bandwidth", above=0)
        computing, sending = self.flops / flops_per_second, self.bytes_sent / bandwidth
        return max(computing, sending) if self.method == "ring" else computing + sending


def predict_rank_cost(
    method: str,
    seq_len: int,
    head_dim: int,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    world_size: int,
    causal: bool = False,
    training: bool = False,
    bytes_per_element: int = 4,
) -> RankCost:
    """Predict the cost of one attention layer per rank, for a layout that balances the work.

    Args:
        method: "ring", "all_gather" or "ulysses".
        seq_len: number of tokens of the whole sequence.
        head_dim: dimension of a head.
        num_heads: number of query heads.
        num_kv_heads: number of key heads; None, the default, means `num_heads`.
        world_size: number of ranks.
        causal: count only the pairs of a causal mask.
        training: include the backward pass.
        bytes_per_element: size of an element of q, k and v; default 4 (float32).

    >>> predict_rank_cost("ring", 1_000_000, 128, num_heads=32, num_kv_heads=8, world_size=16).bytes_sent / 1e9
    7.68
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    _check(method, seq_len, head_dim, num_heads, num_kv_heads, world_size)
    checks.flag(causal, "causal")
    checks.flag(training, "training")
    checks.size(bytes_per_element, "bytes_per_element")
    pairs = seq_len * (seq_len + 1) // 2 if causal else seq_len * seq_len
    local_len = -(-seq_len // world_size)
    repeated_kv_heads = max(num_kv_heads, world_size) if method == "ulysses" else num_kv_heads
    q, kv = local_len * num_heads * head_dim, 2 * local_len * repeated_kv_heads * head_dim
    sent_forward, sent_backward = _elements_sent(method, q, kv, world_size)
    flops_per_pair_dim = FORWARD_FLOPS_PER_PAIR_DIM + (BACKWARD_FLOPS_PER_PAIR_DIM if training else 0)
    return RankCost(
        method,
        world_size,
        flops=-(-pairs // world_size) * num_heads * head_dim * flops_per_pair_dim,
        bytes_sent=bytes_per_element * (sent_forward + (sent_backward if training else 0)),
        extra_memory=bytes_per_element * _extra_elements(method, q, kv, world_size, training),
    )


def can_split_heads(num_heads: int, num_kv_heads: int, world_size: int) -> bool:
    """Return whether Ulysses can give each rank equally many query heads and the key heads that they use."""
    return num_heads % world_size == 0 and (num_kv_heads % world_size == 0 or world_size % num_kv_heads == 0)


def _elements_sent(method: str, q: int, kv: int, world_size: int) -> tuple[int, int]:
    """Return the number of elements sent in the forward and in the backward pass."""
    if method == "ring":
        return (world_size - 1) * kv, 2 * (world_size - 1) * kv
    if method == "all_gather":
        return (world_size - 1) * kv, (world_size - 1) * kv
    return (world_size - 1) * (2 * q + kv) // world_size, (world_size - 1) * (2 * q + kv) // world_size


def _extra_elements(method: str, q: int, kv: int, world_size: int, training: bool) -> int:
    """Return the peak number of elements held beyond q, k and v."""
    if world_size == 1:
        return 2 * q + kv if training else q
    if method == "ring" and world_size == 2:
        return 2 * q + 5 * kv if training else 2 * q + kv
    if method == "ring":
        return 4 * q + 8 * kv if training else 2 * q + 2 * kv
    if method == "all_gather":
        return 3 * q + (3 * world_size + 1) * kv if training else 2 * q + world_size * kv
    return 8 * q + 5 * kv if training else 5 * q + 2 * kv


def _check(method: str, seq_len: int, head_dim: int, num_heads: int, num_kv_heads: int, world_size: int) -> None:
    checks.choice(method, "method", METHODS)
    for name, value in (
        ("seq_len", seq_len),
        ("head_dim", head_dim),
        ("num_heads", num_heads),
        ("num_kv_heads", num_kv_heads),
        ("world_size", world_size),
    ):
        checks.positive_int(value, name)
    if method == "ulysses" and not can_split_heads(num_heads, num_kv_heads, world_size):
        raise ArgumentError(
            "ulysses needs a world_size that divides num_heads and that divides num_kv_heads or is a multiple of it; "
            f"got world_size={world_size}, num_heads={num_heads} and num_kv_heads={num_kv_heads}."
        )
