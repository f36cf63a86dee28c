"""What is asked: cases, and functions of q, k, v that answer with torch or regard; torch gets its masks ready made.

Of a whole model they are functions of tokens.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from benchmarks import additive, mechanisms, models
from benchmarks.compiled import ByHand
from regard import mask, measure, score
from regard.spec.rule import Rule

Shape = tuple[int, int, int, int]
Answer = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """One question asked of both. `peer` and `ours` name functions below; `shape` is (batch, heads, n, width), in a
    model of one layer's queries."""

    name: str
    shape: Shape
    peer: str
    ours: str
    key_heads: int = 0  # as many as heads
    others: bool = False  # whether other libraries are asked as well
    n_k: int = 0  # as many keys as queries
    dtype: str = "float32"
    gradients: bool = True
    calls: int = 1  # in one turn

    @property
    def key_shape(self) -> Shape:
        batch, heads, n, width = self.shape
        return batch, self.key_heads or heads, self.n_k or n, width

    @property
    def pairs(self) -> int:
        """Of one head."""
        return self.shape[2] * self.key_shape[2]


def inputs(shape: Shape, key_shape: Shape, dtype: str = "float32") -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(0)
    sizes = (shape, key_shape, key_shape)
    return tuple(torch.randn(size, generator=source).to(getattr(torch, dtype)) for size in sizes)


def given(question: str, shape: Shape, key_shape: Shape, dtype: str) -> tuple[Tensor, ...]:
    """What a question is about: the tokens of a model, or else q, k, v, in some cases all the same."""
    if question in models.RUNS:
        return (models.prompts(question, shape[0], shape[2]),)
    if question in mechanisms.SELF:
        return inputs(shape, key_shape, dtype)[:1] * 3
    return inputs(shape, key_shape, dtype)


DOCUMENTS = (300, 1800, 700, 1500, 100, 2000, 900, 892)
WINDOW = mask.causal() & mask.window(256)
BIGBIRD, LONGFORMER = mask.bigbird(64), mask.longformer(512, [0, 1])
SLOPES = 2.0 ** -torch.arange(1.0, 9.0)
CAP = 50.0
BUCKETS = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))  # a number for each of T5's buckets and head


@cache
def document_ids(n: int) -> Tensor:
    """The documents of 8192 tokens, or the same ones shortened or stretched."""
    ids = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS))
    return ids[torch.arange(n) * len(ids) // n]


@cache
def dense_bias(n: int) -> Tensor:
    return torch.randn(8, n, n, generator=torch.Generator().manual_seed(2))


@cache
def by_distance(n: int) -> Tensor:
    """A number for each head and distance; that of 0 stands at n."""
    return torch.randn(8, 2 * n, generator=torch.Generator().manual_seed(3))


@cache
def table_rule(n: int) -> Rule:
    table = by_distance(n)
    return score.rule(lambda s, b, h, i, j: s + table[h, i - j + n])


@cache
def t5_rule() -> Rule:
    return score.relative(BUCKETS, bidirectional=False)


# What regard is told, given the length.
OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "full": lambda n: dict(),
    "causal": lambda n: dict(mask=mask.causal()),
    "tensor": lambda n: dict(mask=dense_mask("causal", n)),
    "window": lambda n: dict(mask=WINDOW),
    "documents": lambda n: dict(mask=mask.documents(document_ids(n))),
    "bigbird": lambda n: dict(mask=BIGBIRD),
    "longformer": lambda n: dict(mask=LONGFORMER),
    "alibi": lambda n: dict(mask=mask.causal(), score=score.alibi(SLOPES)),
    "softcap": lambda n: dict(score=score.softcap(CAP)),
    "bias": lambda n: dict(mask=mask.causal(), score=score.bias(dense_bias(n))),
    "table": lambda n: dict(mask=mask.causal(), score=table_rule(n)),
    "t5": lambda n: dict(mask=mask.causal(), score=t5_rule()),
    "additive": lambda n: dict(score=score.additive(additive.W_Q, additive.W_K, additive.U)),
    "tiled full": lambda n: dict(engine="tiled"),
    "tiled causal": lambda n: dict(mask=mask.causal(), engine="tiled"),
    **mechanisms.OPTIONS,
}


def ours(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return regard.attention(q, k, v, **OPTIONS[name](q.shape[-2]))


def reference(name: str, *asked: Tensor) -> Tensor:
    """The right answer; to a model, its beginning."""
    if name in models.RUNS:
        return models.right_beginning(name, *asked)
    q, k, v = asked
    if name == "measure":
        return measures_written_out(q, k)
    options = {**OPTIONS[name](q.shape[-2]), "engine": "reference"}
    if name == "additive":  # all pairs have hidden numbers each: more than fit
        return torch.cat([regard.attention(part, k, v, **options) for part in q.split(64, -2)], -2)
    return regard.attention(q, k, v, **options)


MAP = 512  # rows and columns of the map


def measured(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """Measures of the weights of a call that was made before: each number in a row of its own."""
    weights = regard.attend(q, k, v).weights

    def pass_over_tiles() -> Tensor:
        found = weights.measure(measure.entropy, measure.received, measure.pool(MAP, MAP))
        return _in_rows(found.entropy, found.received, found.pool.mean, found.pool.max)

    return pass_over_tiles


def measures_written_out(q: Tensor, k: Tensor) -> Tensor:
    w = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).softmax(-1)
    cells = w.unflatten(-1, (MAP, -1)).unflatten(-3, (MAP, -1))  # (..., row, query in it, column, key in it)
    return _in_rows(-(w * w.log()).sum(-1), w.sum(-2), cells.mean((-3, -1)), cells.amax((-3, -1)))


def _in_rows(*numbers: Tensor) -> Tensor:
    return torch.cat([x.flatten() for x in numbers]).unsqueeze(-1)


@cache
def dense_mask(name: str, n: int) -> Tensor:
    """A mask as people give it to torch: (n, n), True where a query may look."""
    seen = mask.causal() if name == "causal" else OPTIONS[name](n)["mask"]
    return seen.dense(n)[0, 0]


@cache
def added(name: str, n: int) -> Tensor:
    """What a rule adds to the scores under a causal mask: (1, heads, n, n), -inf where a query may not look.

    With three dimensions torch would take a path that is four times slower, and not say so.
    """
    apart = torch.arange(n)[:, None] - torch.arange(n)
    values = {
        "alibi": lambda: -SLOPES[:, None, None] * apart.abs(),
        "bias": lambda: dense_bias(n),
        "table": lambda: by_distance(n)[:, apart + n],
        "t5": lambda: t5_by_distance(n)[:, apart + n],
    }
    return values[name]().masked_fill(apart < 0, -torch.inf)[None]


@cache
def t5_by_distance(n: int) -> Tensor:
    """T5's bias as people keep it for a length: (heads, 2n), that of distance 0 at n."""
    distance = (torch.arange(2 * n) - n).clamp(min=0)
    far = 16 + (torch.log(distance.clamp(min=1) / 16) / torch.log(torch.tensor(128 / 16)) * 16).long()
    return BUCKETS[torch.where(distance < 16, distance, far.clamp(max=31))].T.contiguous()


def sdpa_masked(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(name, q.shape[-2]))


def sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def sdpa_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def eager_softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / q.shape[-1] ** 0.5
    return (CAP * torch.tanh(s / CAP)).softmax(-1) @ v


PEERS: dict[str, Answer] = {
    "sdpa": F.scaled_dot_product_attention,
    "sdpa gqa": sdpa_grouped,
    "sdpa causal": sdpa_causal,
    "sdpa causal gqa": sdpa_causal,
    "sdpa bias": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=added("alibi", q.shape[-2])),
    **{
        f"sdpa mask {name}": partial(sdpa_masked, name)
        for name in ("causal", "window", "documents", "bigbird", "longformer")
    },
    "eager softcap": eager_softcap,
    "eager additive": additive.eager,
    "eager chunked additive": additive.chunked,
    **{f"sdpa {name}": run for name, run in models.RUNS.items()},
    **mechanisms.PEERS,
}
ANSWERED = {  # by peers whose name does not say it
    "sdpa": "full",
    "sdpa gqa": "full",
    "sdpa causal": "causal",
    "sdpa causal gqa": "causal",
    "sdpa bias": "alibi",
}
TWINS = {f"twin {name}": name for name in ("causal", "alibi", "softcap", "window")}
OURS: dict[str, Answer] = {
    **{name: partial(ours, name) for name in OPTIONS},
    "measure": lambda q, k, v: measured(q, k, v)(),
    **models.RUNS,
    **mechanisms.OURS,
}
FUNCTIONS = PEERS | OURS | {twin: OURS[name] for twin, name in TWINS.items()}


def ready(function: str, asked: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """Answers once, when called; what is measured is computed before."""
    return measured(*asked) if function == "measure" else partial(FUNCTIONS[function], *asked)


def answered(function: str) -> str:
    """The question that a function answers, as a name of `OURS`: in some cases peer and regard differ in it."""
    return ANSWERED.get(function) or function.split()[-1]


def around(function: str) -> AbstractContextManager[None]:
    """What must hold while a function and its gradient run: a twin's kernels stand in for the library's, and regard
    stands in for torch in a model."""
    if function in models.AROUND:
        return models.AROUND[function]()
    return ByHand(TWINS[function], 256, CAP, SLOPES) if function in TWINS else nullcontext()


def decode(name: str, shape: Shape, n_k: int, key_heads: int = 0) -> Case:
    """Few queries over many keys."""
    peer = "sdpa gqa" if key_heads else "sdpa"
    return Case(name, shape, peer, "full", key_heads, n_k=n_k, gradients=False)


CASES = [
    Case("full, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa", "full", others=True),
    Case("causal, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa causal", "causal", others=True),
    Case("full, 8 heads, n 1024", (1, 8, 1024, 64), "sdpa", "full", others=True),
    Case("causal, 8 heads, n 1024", (1, 8, 1024, 64), "sdpa causal", "causal", others=True),
    Case("full, 8 x 8 heads, n 128", (8, 8, 128, 64), "sdpa", "full", others=True),
    Case("causal, 8 x 8 heads, n 128", (8, 8, 128, 64), "sdpa causal", "causal", others=True),
    Case("full, 8 heads, n 4096, width 128", (1, 8, 4096, 128), "sdpa", "full", others=True),
    Case("causal, 8 heads, n 4096, width 128", (1, 8, 4096, 128), "sdpa causal", "causal", others=True),
    Case("causal, 32 heads of 8, n 2048, width 128", (1, 32, 2048, 128), "sdpa causal gqa", "causal", 8, others=True),
    Case("causal as a boolean tensor, n 1024", (1, 8, 1024, 64), "sdpa mask causal", "tensor", others=True),
    Case("causal window 256, n 8192", (1, 1, 8192, 64), "sdpa mask window", "window", others=True),
    Case("causal window 256, n 8192", (1, 1, 8192, 64), "sdpa causal", "window"),
    Case("ALiBi causal, n 1024", (1, 8, 1024, 64), "sdpa bias", "alibi", others=True),
    Case("softcap 50, n 1024", (1, 8, 1024, 64), "eager softcap", "softcap", others=True),
    Case("8 documents, n 8192", (1, 1, 8192, 64), "sdpa mask documents", "documents", others=True),
    Case("BigBird, n 8192", (1, 1, 8192, 64), "sdpa mask bigbird", "bigbird", others=True),
    Case("Longformer, n 8192", (1, 1, 8192, 64), "sdpa mask longformer", "longformer", others=True),
    Case("causal, dense bias, n 1024", (1, 8, 1024, 64), "causal", "bias", others=True),
    Case("causal, bias by distance, n 1024", (1, 8, 1024, 64), "causal", "table", others=True),
    Case("causal, T5 bias, n 1024", (1, 8, 1024, 64), "causal", "t5", others=True),
    Case("causal, 8 heads, n 1024", (1, 8, 1024, 64), "twin causal", "causal"),
    Case("ALiBi causal, n 1024", (1, 8, 1024, 64), "twin alibi", "alibi"),
    Case("softcap 50, n 1024", (1, 8, 1024, 64), "twin softcap", "softcap"),
    Case("causal window 256, n 8192", (1, 1, 8192, 64), "twin window", "window"),
    *(Case(f"tiled: full, n {n}", (1, 1, n, 64), "sdpa", "tiled full") for n in (4096, 8192, 16384)),
    *(Case(f"tiled: causal, n {n}", (1, 1, n, 64), "sdpa causal", "tiled causal") for n in (4096, 16384)),
    Case("bfloat16: full, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa", "full", dtype="bfloat16"),
    Case("bfloat16: causal, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa causal", "causal", dtype="bfloat16"),
    Case("additive, n 1024", (1, 1, 1024, 64), "eager additive", "additive"),
    Case("additive, n 4096", (1, 1, 4096, 64), "eager chunked additive", "additive"),
    decode("decode, 8 heads, 65536 keys", (1, 8, 1, 64), 65536),
    decode("decode, 8 heads on 1 of keys, 65536 keys", (1, 8, 1, 64), 65536, 1),
    decode("decode, 32 heads on 8, width 128, 16384 keys", (1, 32, 1, 128), 16384, 8),
    decode("decode, 4 queries, 32 heads on 8, width 128, 16384 keys", (1, 32, 4, 128), 16384, 8),
    decode("decode, 16 queries, 8 heads, 16384 keys", (1, 8, 16, 64), 16384),
    Case("tiny call, 8 heads, n 16", (1, 8, 16, 64), "sdpa", "full", gradients=False, calls=1000),
    Case("measure entropy, received, map, n 8192", (1, 1, 8192, 64), "full", "measure", gradients=False),
    Case("encoder as MiniLM, batch 32, n 128", (32, 12, 128, 32), "sdpa encoder", "encoder", gradients=False),
    Case("encoder as MiniLM, batch 32, n 512", (32, 12, 512, 32), "sdpa encoder", "encoder", gradients=False),
    Case("decoder as GPT-2, 64 tokens after 2048", (1, 12, 2048, 64), "sdpa decoder", "decoder", gradients=False),
    Case("MiniLM in transformers, batch 32, n 256", (32, 12, 256, 32), "sdpa minilm", "minilm", gradients=False),
    Case("a step of the language model's training", (8, 8, 512, 32), "sdpa training", "training", gradients=False),
]
OTHER_MECHANISMS = [
    *(
        Case(f"{name}, {in_words}, n {n}", (1, heads, n, 64), f"entmax's {what}", what)
        for name, what in (("sparsemax", "sparsemax"), ("entmax 1.5", "entmax"))
        for heads, in_words, n in ((8, "8 heads", 1024), (1, "one head", 4096))
    ),
    *(
        Case("Sinkhorn, 5 iterations, n 4096", (1, 1, 4096, 64), peer, "sinkhorn", gradients=False)
        for peer in ("POT's log sinkhorn", "POT's sinkhorn", "eager sinkhorn")
    ),
    *(
        Case(f"linear attention, causal, 8 heads, n {n}", (1, 8, n, 64), "quadratic linear", "linear", gradients=False)
        for n in (1024, 4096)
    ),
    Case("FAVOR+, causal, 8 heads, n 4096", (1, 8, 4096, 64), "performer favor", "favor", gradients=False),
    *(
        Case(f"{name}, 12 heads, n 4096", (1, 12, 4096, 64), f"Hugging Face's {what}", what, gradients=False)
        for name, what in (("Longformer with global tokens", "global"), ("BigBird", "blocks"))
    ),
]
QUICK = [
    Case("full, n 2048", (1, 1, 2048, 64), "sdpa", "full", others=True),
    Case("causal, n 2048", (1, 1, 2048, 64), "sdpa causal", "causal", others=True),
    Case("causal window 256, n 2048", (1, 1, 2048, 64), "sdpa mask window", "window", others=True),
    Case("softcap 50, n 1024", (1, 1, 1024, 64), "eager softcap", "softcap", others=True),
    Case("causal window 256, n 2048", (1, 1, 2048, 64), "twin window", "window"),
    decode("decode, 8 heads on 1 of keys, 16384 keys", (1, 8, 1, 64), 16384, 1),
    Case("additive, n 256", (1, 1, 256, 64), "eager additive", "additive"),
]
