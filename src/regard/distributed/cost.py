"""What attention over ranks costs, on paper: FLOPs, bytes sent and bytes held by the rank that has the most of them.

For n tokens on P ranks, H heads of queries and G of keys, of width d, one layer. Keys and values of a rank are
K = 2 (n/P) G d numbers, its queries Q = (n/P) H d, and an output is as large as the queries.

              sent forward            sent backward          held beyond q, k, v: forward; with backward
    ring      (P - 1) K               2 (P - 1) K            2 Q + 2 K; 4 Q + 8 K
    gather    (P - 1) K               (P - 1) K              2 Q + P K; 3 Q + (3 P + 1) K
    ulysses   (P - 1)/P (2 Q + K)     the same               5 Q + 2 K; 8 Q + 5 K

On one rank nothing is sent, and Q is held, or 2 Q + K with backward. On two a ring holds less, 2 Q + K; 2 Q + 5 K: no
keys come while others are at work. Backward, gradients go home and come back as well. Where ulysses has fewer key heads
than ranks, their keys are there once a rank. A ring computes while it sends: the longer of the two counts. The others
send first.
"""

from dataclasses import dataclass

from regard import checks
from regard.errors import SpecError

METHODS = ("ring", "gather", "ulysses")
FORWARD, BACKWARD = 4, 10  # FLOPs of a pair for each feature: two products, and five with the scores once more


@dataclass(frozen=True)
class Predicted:
    """One layer's attention on one of several ranks."""

    method: str
    ranks: int
    flops: int
    sent: int
    held: int

    def seconds(self, flops: float, bandwidth: float) -> float:
        """How long it takes at so many FLOPs and so many bytes a second."""
        checks.finite_number(flops, "flops", above=0)
        checks.finite_number(bandwidth, "bandwidth", above=0)
        computing, sending = self.flops / flops, self.sent / bandwidth
        return max(computing, sending) if self.method == "ring" else computing + sending


def predicted(
    method: str,
    n: int,
    width: int,
    *,
    heads: int,
    key_heads: int | None = None,
    ranks: int,
    causal: bool = False,
    training: bool = False,
    bytes_each: int = 4,
) -> Predicted:
    """The cost of a method, for a layout in which every rank has as much to do.

    >>> predicted("ring", 1_000_000, 128, heads=32, key_heads=8, ranks=16).sent / 1e9
    7.68
    """
    key_heads = heads if key_heads is None else key_heads
    _check(method, n, width, heads, key_heads, ranks)
    checks.flag(causal, "causal")
    checks.flag(training, "training")
    checks.size(bytes_each, "bytes_each")
    pairs = n * (n + 1) // 2 if causal else n * n
    rows = -(-n // ranks)
    whole = max(key_heads, ranks) if method == "ulysses" else key_heads
    q, k = rows * heads * width, 2 * rows * whole * width
    sent, backward = _sent(method, q, k, ranks)
    flops = -(-pairs // ranks) * heads * width * (FORWARD + (BACKWARD if training else 0))
    held = _held(method, q, k, ranks, training)
    return Predicted(method, ranks, flops, bytes_each * (sent + (backward if training else 0)), bytes_each * held)


def whole_heads(heads: int, key_heads: int, ranks: int) -> bool:
    """Whether ulysses can give each rank as many heads, and the keys that these look at."""
    return heads % ranks == 0 and (key_heads % ranks == 0 or ranks % key_heads == 0)


def _sent(method: str, q: int, k: int, ranks: int) -> tuple[int, int]:
    """Numbers sent forward and backward."""
    if method == "ring":
        return (ranks - 1) * k, 2 * (ranks - 1) * k
    if method == "gather":
        return (ranks - 1) * k, (ranks - 1) * k
    return (ranks - 1) * (2 * q + k) // ranks, (ranks - 1) * (2 * q + k) // ranks


def _held(method: str, q: int, k: int, ranks: int, training: bool) -> int:
    """Numbers held at once, beyond queries, keys and values."""
    if ranks == 1:
        return 2 * q + k if training else q
    if method == "ring" and ranks == 2:
        return 2 * q + 5 * k if training else 2 * q + k
    if method == "ring":
        return 4 * q + 8 * k if training else 2 * q + 2 * k
    if method == "gather":
        return 3 * q + (3 * ranks + 1) * k if training else 2 * q + ranks * k
    return 8 * q + 5 * k if training else 5 * q + 2 * k


def _check(method: str, n: int, width: int, heads: int, key_heads: int, ranks: int) -> None:
    checks.choice(method, "method", METHODS)
    for name, number in (("n", n), ("width", width), ("heads", heads), ("key_heads", key_heads), ("ranks", ranks)):
        checks.positive_int(number, name)
    if method == "ulysses" and not whole_heads(heads, key_heads, ranks):
        raise SpecError(
            "ulysses gives each rank as many heads, so ranks must divide heads, and key heads or the other way round; "
            f"got {ranks} ranks, {heads} heads, {key_heads} key heads."
        )
