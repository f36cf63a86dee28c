"""What is asked: each function takes q, k, v and answers with one library; peers get their masks ready made."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard import mask, score


@dataclass(frozen=True)
class Case:
    """One question asked of both. `peer` and `ours` name functions below; `shape` is (batch, heads, n, width)."""

    name: str
    shape: tuple[int, int, int, int]
    peer: str
    ours: str
    key_heads: int = 0  # as many as heads

    @property
    def key_shape(self) -> tuple[int, int, int, int]:
        batch, heads, n, width = self.shape
        return batch, self.key_heads or heads, n, width


DOCUMENTS = (300, 1800, 700, 1500, 100, 2000, 900, 892)
WINDOW = mask.causal() & mask.window(256)
BIGBIRD, LONGFORMER = mask.bigbird(64), mask.longformer(512, [0, 1])
SLOPES = 2.0 ** -torch.arange(1.0, 9.0)


@cache
def document_ids(n: int) -> Tensor:
    assert sum(DOCUMENTS) == n, "the documents fill this length"
    return torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS))


@cache
def dense(name: str, n: int) -> Tensor:
    """A mask as people give it to torch."""
    masks: dict[str, Callable[[], mask.Mask]] = {
        "causal": mask.causal,
        "window": lambda: WINDOW,
        "documents": lambda: mask.documents(document_ids(n)),
        "bigbird": lambda: BIGBIRD,
        "longformer": lambda: LONGFORMER,
    }
    return masks[name]().dense(n)


@cache
def alibi_bias(n: int) -> Tensor:
    apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    return (-SLOPES[:, None, None] * apart).masked_fill(~dense("causal", n), -torch.inf)


def _masked(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=dense(name, q.shape[-2]))


def _eager_softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / q.shape[-1] ** 0.5
    return (50.0 * torch.tanh(s / 50.0)).softmax(-1) @ v


Answer = Callable[[Tensor, Tensor, Tensor], Tensor]

PEERS: dict[str, Answer] = {
    "sdpa": F.scaled_dot_product_attention,
    "sdpa causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "sdpa causal gqa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    "sdpa bias": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=alibi_bias(q.shape[-2])),
    **{f"sdpa mask {name}": _masked(name) for name in ("causal", "window", "documents", "bigbird", "longformer")},
    "eager softcap": _eager_softcap,
}

OURS: dict[str, Answer] = {
    "full": lambda q, k, v: regard.attention(q, k, v),
    "causal": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal()),
    "tensor": lambda q, k, v: regard.attention(q, k, v, mask=dense("causal", q.shape[-2])),
    "window": lambda q, k, v: regard.attention(q, k, v, mask=WINDOW),
    "documents": lambda q, k, v: regard.attention(q, k, v, mask=mask.documents(document_ids(q.shape[-2]))),
    "bigbird": lambda q, k, v: regard.attention(q, k, v, mask=BIGBIRD),
    "longformer": lambda q, k, v: regard.attention(q, k, v, mask=LONGFORMER),
    "alibi": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal(), score=score.alibi(SLOPES)),
    "softcap": lambda q, k, v: regard.attention(q, k, v, score=score.softcap(50.0)),
    "tiled full": lambda q, k, v: regard.attention(q, k, v, engine="tiled"),
    "tiled causal": lambda q, k, v: regard.attention(q, k, v, mask=mask.causal(), engine="tiled"),
}
FUNCTIONS = PEERS | OURS

CASES = [
    Case("full, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa", "full"),
    Case("causal, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa causal", "causal"),
    Case("full, 8 heads, n 1024", (1, 8, 1024, 64), "sdpa", "full"),
    Case("causal, 8 heads, n 1024", (1, 8, 1024, 64), "sdpa causal", "causal"),
    Case("full, 8 x 8 heads, n 128", (8, 8, 128, 64), "sdpa", "full"),
    Case("causal, 8 x 8 heads, n 128", (8, 8, 128, 64), "sdpa causal", "causal"),
    Case("full, 8 heads, n 4096, width 128", (1, 8, 4096, 128), "sdpa", "full"),
    Case("causal, 8 heads, n 4096, width 128", (1, 8, 4096, 128), "sdpa causal", "causal"),
    Case("causal, 32 heads of 8, n 2048, width 128", (1, 32, 2048, 128), "sdpa causal gqa", "causal", 8),
    Case("causal as a boolean tensor, n 1024", (1, 8, 1024, 64), "sdpa mask causal", "tensor"),
    Case("causal window 256, n 8192", (1, 1, 8192, 64), "sdpa mask window", "window"),
    Case("causal window 256, n 8192", (1, 1, 8192, 64), "sdpa causal", "window"),
    Case("ALiBi causal, n 1024", (1, 8, 1024, 64), "sdpa bias", "alibi"),
    Case("softcap 50, n 1024", (1, 8, 1024, 64), "eager softcap", "softcap"),
    Case("8 documents, n 8192", (1, 1, 8192, 64), "sdpa mask documents", "documents"),
    Case("BigBird, n 8192", (1, 1, 8192, 64), "sdpa mask bigbird", "bigbird"),
    Case("Longformer, n 8192", (1, 1, 8192, 64), "sdpa mask longformer", "longformer"),
    *(Case(f"tiled: full, n {n}", (1, 1, n, 64), "sdpa", "tiled full") for n in (4096, 8192, 16384)),
    *(Case(f"tiled: causal, n {n}", (1, 1, n, 64), "sdpa causal", "tiled causal") for n in (4096, 16384)),
]
QUICK = [
    Case("full, n 2048", (1, 1, 2048, 64), "sdpa", "full"),
    Case("causal, n 2048", (1, 1, 2048, 64), "sdpa causal", "causal"),
    Case("causal window 256, n 2048", (1, 1, 2048, 64), "sdpa mask window", "window"),
    Case("softcap 50, n 1024", (1, 1, 1024, 64), "eager softcap", "softcap"),
]
