"""The arguments of one attention call, as the caller passed them."""

from typing import Any, NamedTuple


class AttentionCall(NamedTuple):
    """The arguments of `regard.attention`, not yet checked.

    Each public function builds one and passes it on to hooks, graph lowering, the fast path and the parser.
    """

    q: Any
    k: Any
    v: Any
    score: Any = None
    mask: Any = None
    normalizer: Any = None
    value: Any = None
    dropout: float = 0.0
    seed: int | None = None
    query_offset: Any = None
    backend: str | None = None
