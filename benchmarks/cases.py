"""Benchmark cases, and the functions of q, k, v (or of tokens, for models) that compute them with torch or regard.

Masks and biases for torch are computed before a measurement.
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
from benchmarks.baselines import eager_additive, mechanisms, models
from benchmarks.harness.handwritten_kernels import HandwrittenKernels
from regard import mask, measure, score
from regard.expr.score_modifier import ScoreModifier

Shape = tuple[int, int, int, int]
AttentionFn = Callable[..., Tensor]


@dataclass(frozen=True)
class BenchmarkCase:
    """A comparison of the function `baseline` with the function `call_name` of regard.

    `shape` is the shape (batch, heads, n, head_dim) of q; for a model, of the queries of one layer.
    """

    name: str
    shape: Shape
    baseline: str
    call_name: str
    num_kv_heads: int = 0  # 0: as many as query heads
    has_library_baselines: bool = False  # whether other libraries are measured as well
    n_k: int = 0  # 0: as many keys as queries
    dtype: str = "float32"
    has_backward: bool = True
    calls_per_round: int = 1

    @property
    def key_shape(self) -> Shape:
        batch, heads, n, head_dim = self.shape
        return batch, self.num_kv_heads or heads, self.n_k or n, head_dim

    @property
    def pairs(self) -> int:
        """The number of query-key pairs of one head."""
        return self.shape[2] * self.key_shape[2]


def random_qkv(shape: Shape, key_shape: Shape, dtype: str = "float32") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    sizes = (shape, key_shape, key_shape)
    return tuple(torch.randn(size, generator=generator).to(getattr(torch, dtype)) for size in sizes)


def case_inputs(call_name: str, shape: Shape, key_shape: Shape, dtype: str) -> tuple[Tensor, ...]:
    """Return the inputs of a call: tokens for a model, else q, k, v, which are equal for some mechanisms."""
    if call_name in models.MODEL_RUNS:
        return (models.prompts(call_name, shape[0], shape[2]),)
    if call_name in mechanisms.SELF_ATTENTION_CALLS:
        return random_qkv(shape, key_shape, dtype)[:1] * 3
    return random_qkv(shape, key_shape, dtype)


DOCUMENT_LENGTHS = (300, 1800, 700, 1500, 100, 2000, 900, 892)
WINDOW_256 = mask.causal() & mask.sliding_window(256)
BIGBIRD, LONGFORMER = mask.bigbird(64), mask.longformer(512, [0, 1])
SLOPES = 2.0 ** -torch.arange(1.0, 9.0)
SOFTCAP = 50.0
T5_BUCKETS = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))  # (buckets, heads)


@cache
def document_ids(n: int) -> Tensor:
    """Return the document of each token; the lengths are those of DOCUMENT_LENGTHS, scaled to n tokens."""
    ids = torch.repeat_interleave(torch.arange(len(DOCUMENT_LENGTHS)), torch.tensor(DOCUMENT_LENGTHS))
    return ids[torch.arange(n) * len(ids) // n]


@cache
def dense_bias(n: int) -> Tensor:
    return torch.randn(8, n, n, generator=torch.Generator().manual_seed(2))


@cache
def distance_bias(n: int) -> Tensor:
    """Return a bias for each head and distance, (8, 2n), with distance 0 at index n."""
    return torch.randn(8, 2 * n, generator=torch.Generator().manual_seed(3))


@cache
def distance_bias_modifier(n: int) -> ScoreModifier:
    table = distance_bias(n)
    return score.modifier(lambda s, b, h, i, j: s + table[h, i - j + n])


@cache
def t5_bias_modifier() -> ScoreModifier:
    return score.t5_bias(T5_BUCKETS, bidirectional=False)


# The options of regard.attention, by sequence length.
CALL_OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "full": lambda n: dict(),
    "causal": lambda n: dict(mask=mask.causal()),
    "tensor": lambda n: dict(mask=dense_mask("causal", n)),
    "window": lambda n: dict(mask=WINDOW_256),
    "documents": lambda n: dict(mask=mask.document(document_ids(n))),
    "bigbird": lambda n: dict(mask=BIGBIRD),
    "longformer": lambda n: dict(mask=LONGFORMER),
    "alibi": lambda n: dict(mask=mask.causal(), score=score.alibi(SLOPES)),
    "softcap": lambda n: dict(score=score.softcap(SOFTCAP)),
    "bias": lambda n: dict(mask=mask.causal(), score=score.bias(dense_bias(n))),
    "table": lambda n: dict(mask=mask.causal(), score=distance_bias_modifier(n)),
    "t5": lambda n: dict(mask=mask.causal(), score=t5_bias_modifier()),
    "additive": lambda n: dict(score=score.additive(eager_additive.W_Q, eager_additive.W_K, eager_additive.U)),
    "tiled full": lambda n: dict(backend="tiled"),
    "tiled causal": lambda n: dict(mask=mask.causal(), backend="tiled"),
    **mechanisms.MECHANISM_OPTIONS,
}


def regard_attention(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return regard.attention(q, k, v, **CALL_OPTIONS[name](q.shape[-2]))


def reference_output(name: str, *inputs: Tensor) -> Tensor:
    """Return the output of the reference backend; for a model, the first part of its output."""
    if name in models.MODEL_RUNS:
        return models.reference_prefix(name, *inputs)
    q, k, v = inputs
    if name == "measure":
        return reference_measures(q, k)
    options = {**CALL_OPTIONS[name](q.shape[-2]), "backend": "reference"}
    if name == "additive":  # all pairs at once would not fit in memory
        return torch.cat([regard.attention(part, k, v, **options) for part in q.split(64, -2)], -2)
    return regard.attention(q, k, v, **options)


MAP_SIZE = 512  # rows and columns of the pooled map


def prepare_measures(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
    """Return a function that measures the weights of a call, one number per row; the call itself runs first."""
    weights = regard.attention_with_weights(q, k, v).weights

    def pass_over_tiles() -> Tensor:
        result = weights.measure(measure.entropy, measure.column_mass, measure.pooled_map(MAP_SIZE, MAP_SIZE))
        return _as_rows(result.entropy, result.column_mass, result.pooled_map.mean, result.pooled_map.max)

    return pass_over_tiles


def reference_measures(q: Tensor, k: Tensor) -> Tensor:
    w = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).softmax(-1)
    cells = w.unflatten(-1, (MAP_SIZE, -1)).unflatten(
        -3, (MAP_SIZE, -1)
    )  # (..., row, query of the row, column, key of the column)
    return _as_rows(-(w * w.log()).sum(-1), w.sum(-2), cells.mean((-3, -1)), cells.amax((-3, -1)))


def _as_rows(*numbers: Tensor) -> Tensor:
    return torch.cat([x.flatten() for x in numbers]).unsqueeze(-1)


@cache
def dense_mask(name: str, n: int) -> Tensor:
    """Return a boolean mask for torch, (n, n), True where a query may attend."""
    visible = mask.causal() if name == "causal" else CALL_OPTIONS[name](n)["mask"]
    return visible.to_dense(n)[0, 0]


@cache
def dense_score_bias(name: str, n: int) -> Tensor:
    """Return a score modifier with a causal mask as a bias for torch, (1, heads, n, n), -inf at masked pairs.

    With three dimensions torch uses a path that is four times slower.
    """
    distance = torch.arange(n)[:, None] - torch.arange(n)
    values = {
        "alibi": lambda: -SLOPES[:, None, None] * distance.abs(),
        "bias": lambda: dense_bias(n),
        "table": lambda: distance_bias(n)[:, distance + n],
        "t5": lambda: t5_distance_bias(n)[:, distance + n],
    }
    return values[name]().masked_fill(distance < 0, -torch.inf)[None]


@cache
def t5_distance_bias(n: int) -> Tensor:
    """Return the T5 bias of each head and distance, (heads, 2n), with distance 0 at index n."""
    distance = (torch.arange(2 * n) - n).clamp(min=0)
    far = 16 + (torch.log(distance.clamp(min=1) / 16) / torch.log(torch.tensor(128 / 16)) * 16).long()
    return T5_BUCKETS[torch.where(distance < 16, distance, far.clamp(max=31))].T.contiguous()


def sdpa_masked(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(name, q.shape[-2]))


def sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def sdpa_grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def eager_softcap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT / q.shape[-1] ** 0.5
    return (SOFTCAP * torch.tanh(s / SOFTCAP)).softmax(-1) @ v


BASELINES: dict[str, AttentionFn] = {
    "sdpa": F.scaled_dot_product_attention,
    "sdpa gqa": sdpa_grouped,
    "sdpa causal": sdpa_causal,
    "sdpa causal gqa": sdpa_causal,
    "sdpa bias": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=dense_score_bias("alibi", q.shape[-2])
    ),
    **{
        f"sdpa mask {name}": partial(sdpa_masked, name)
        for name in ("causal", "window", "documents", "bigbird", "longformer")
    },
    "eager softcap": eager_softcap,
    "eager additive": eager_additive.eager_additive,
    "eager chunked additive": eager_additive.chunked_additive,
    **{f"sdpa {name}": run for name, run in models.MODEL_RUNS.items()},
    **mechanisms.MECHANISM_BASELINES,
}
CALL_OF_BASELINE = {  # baselines whose last word is not a name of REGARD_CALLS
    "sdpa": "full",
    "sdpa gqa": "full",
    "sdpa causal": "causal",
    "sdpa causal gqa": "causal",
    "sdpa bias": "alibi",
}
HANDWRITTEN = {f"handwritten {name}": name for name in ("causal", "alibi", "softcap", "window")}
REGARD_CALLS: dict[str, AttentionFn] = {
    **{name: partial(regard_attention, name) for name in CALL_OPTIONS},
    "measure": lambda q, k, v: prepare_measures(q, k, v)(),
    **models.MODEL_RUNS,
    **mechanisms.REGARD_MECHANISMS,
}
FUNCTIONS = BASELINES | REGARD_CALLS | {handwritten: REGARD_CALLS[name] for handwritten, name in HANDWRITTEN.items()}


def bind_inputs(function: str, inputs: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """Return the function with its inputs bound; for measures, the attention call runs first."""
    return prepare_measures(*inputs) if function == "measure" else partial(FUNCTIONS[function], *inputs)


def call_name_of(function: str) -> str:
    """Return the name in `REGARD_CALLS` of the call that a function computes; a baseline may compute another one."""
    return CALL_OF_BASELINE.get(function) or function.split()[-1]


def execution_context(function: str) -> AbstractContextManager[None]:
    """Return the context in which a function and its gradient run.

    It replaces the kernels of regard by handwritten ones, or the attention of torch in a model by regard.
    """
    if function in models.MODEL_CONTEXTS:
        return models.MODEL_CONTEXTS[function]()
    return HandwrittenKernels(HANDWRITTEN[function], 256, SOFTCAP, SLOPES) if function in HANDWRITTEN else nullcontext()


def decode_case(name: str, shape: Shape, n_k: int, num_kv_heads: int = 0) -> BenchmarkCase:
    """Return a case of few queries over many keys."""
    baseline = "sdpa gqa" if num_kv_heads else "sdpa"
    return BenchmarkCase(name, shape, baseline, "full", num_kv_heads, n_k=n_k, has_backward=False)


BENCHMARK_CASES = [
    BenchmarkCase("full, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa", "full", has_library_baselines=True),
    BenchmarkCase("causal, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa causal", "causal", has_library_baselines=True),
    BenchmarkCase("full, 8 heads, n 1024", (1, 8, 1024, 64), "sdpa", "full", has_library_baselines=True),
    BenchmarkCase("causal, 8 heads, n 1024", (1, 8, 1024, 64), "sdpa causal", "causal", has_library_baselines=True),
    BenchmarkCase("full, 8 x 8 heads, n 128", (8, 8, 128, 64), "sdpa", "full", has_library_baselines=True),
    BenchmarkCase("causal, 8 x 8 heads, n 128", (8, 8, 128, 64), "sdpa causal", "causal", has_library_baselines=True),
    BenchmarkCase("full, 8 heads, n 4096, head dim 128", (1, 8, 4096, 128), "sdpa", "full", has_library_baselines=True),
    BenchmarkCase(
        "causal, 8 heads, n 4096, head dim 128", (1, 8, 4096, 128), "sdpa causal", "causal", has_library_baselines=True
    ),
    BenchmarkCase(
        "causal, 32 heads on 8, n 2048, head dim 128",
        (1, 32, 2048, 128),
        "sdpa causal gqa",
        "causal",
        8,
        has_library_baselines=True,
    ),
    BenchmarkCase(
        "causal as a boolean tensor, n 1024", (1, 8, 1024, 64), "sdpa mask causal", "tensor", has_library_baselines=True
    ),
    BenchmarkCase(
        "causal window 256, n 8192", (1, 1, 8192, 64), "sdpa mask window", "window", has_library_baselines=True
    ),
    BenchmarkCase("causal window 256, n 8192", (1, 1, 8192, 64), "sdpa causal", "window"),
    BenchmarkCase("ALiBi causal, n 1024", (1, 8, 1024, 64), "sdpa bias", "alibi", has_library_baselines=True),
    BenchmarkCase("softcap 50, n 1024", (1, 8, 1024, 64), "eager softcap", "softcap", has_library_baselines=True),
    BenchmarkCase(
        "8 documents, n 8192", (1, 1, 8192, 64), "sdpa mask documents", "documents", has_library_baselines=True
    ),
    BenchmarkCase("BigBird, n 8192", (1, 1, 8192, 64), "sdpa mask bigbird", "bigbird", has_library_baselines=True),
    BenchmarkCase(
        "Longformer, n 8192", (1, 1, 8192, 64), "sdpa mask longformer", "longformer", has_library_baselines=True
    ),
    BenchmarkCase("causal, dense bias, n 1024", (1, 8, 1024, 64), "causal", "bias", has_library_baselines=True),
    BenchmarkCase("causal, bias by distance, n 1024", (1, 8, 1024, 64), "causal", "table", has_library_baselines=True),
    BenchmarkCase("causal, T5 bias, n 1024", (1, 8, 1024, 64), "causal", "t5", has_library_baselines=True),
    BenchmarkCase("causal, 8 heads, n 1024", (1, 8, 1024, 64), "handwritten causal", "causal"),
    BenchmarkCase("ALiBi causal, n 1024", (1, 8, 1024, 64), "handwritten alibi", "alibi"),
    BenchmarkCase("softcap 50, n 1024", (1, 8, 1024, 64), "handwritten softcap", "softcap"),
    BenchmarkCase("causal window 256, n 8192", (1, 1, 8192, 64), "handwritten window", "window"),
    *(BenchmarkCase(f"tiled: full, n {n}", (1, 1, n, 64), "sdpa", "tiled full") for n in (4096, 8192, 16384)),
    *(BenchmarkCase(f"tiled: causal, n {n}", (1, 1, n, 64), "sdpa causal", "tiled causal") for n in (4096, 16384)),
    BenchmarkCase("bfloat16: full, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa", "full", dtype="bfloat16"),
    BenchmarkCase("bfloat16: causal, 8 heads, n 4096", (1, 8, 4096, 64), "sdpa causal", "causal", dtype="bfloat16"),
    BenchmarkCase("additive, n 1024", (1, 1, 1024, 64), "eager additive", "additive"),
    BenchmarkCase("additive, n 4096", (1, 1, 4096, 64), "eager chunked additive", "additive"),
    decode_case("decode, 8 heads, 65536 keys", (1, 8, 1, 64), 65536),
    decode_case("decode, 8 heads on 1, 65536 keys", (1, 8, 1, 64), 65536, 1),
    decode_case("decode, 32 heads on 8, head dim 128, 16384 keys", (1, 32, 1, 128), 16384, 8),
    decode_case("decode, 4 queries, 32 heads on 8, head dim 128, 16384 keys", (1, 32, 4, 128), 16384, 8),
    decode_case("decode, 16 queries, 8 heads, 16384 keys", (1, 8, 16, 64), 16384),
    BenchmarkCase("tiny call, 8 heads, n 16", (1, 8, 16, 64), "sdpa", "full", has_backward=False, calls_per_round=1000),
    BenchmarkCase("measure entropy, column mass, map, n 8192", (1, 1, 8192, 64), "full", "measure", has_backward=False),
    BenchmarkCase(
        "encoder as MiniLM, batch 32, n 128", (32, 12, 128, 32), "sdpa encoder", "encoder", has_backward=False
    ),
    BenchmarkCase(
        "encoder as MiniLM, batch 32, n 512", (32, 12, 512, 32), "sdpa encoder", "encoder", has_backward=False
    ),
    BenchmarkCase(
        "decoder as GPT-2, 64 tokens after 2048", (1, 12, 2048, 64), "sdpa decoder", "decoder", has_backward=False
    ),
    BenchmarkCase(
        "MiniLM in transformers, batch 32, n 256", (32, 12, 256, 32), "sdpa minilm", "minilm", has_backward=False
    ),
    BenchmarkCase(
        "training step of the language model", (8, 8, 512, 32), "sdpa training", "training", has_backward=False
    ),
]
MECHANISM_CASES = [
    *(
        BenchmarkCase(f"{name}, {heads_label}, n {n}", (1, heads, n, 64), f"entmax's {call_name}", call_name)
        for name, call_name in (("sparsemax", "sparsemax"), ("entmax 1.5", "entmax"))
        for heads, heads_label, n in ((8, "8 heads", 1024), (1, "one head", 4096))
    ),
    *(
        BenchmarkCase("Sinkhorn, 5 iterations, n 4096", (1, 1, 4096, 64), baseline, "sinkhorn", has_backward=False)
        for baseline in ("POT's log sinkhorn", "POT's sinkhorn", "eager sinkhorn")
    ),
    *(
        BenchmarkCase(
            f"linear attention, causal, 8 heads, n {n}", (1, 8, n, 64), "quadratic linear", "linear", has_backward=False
        )
        for n in (1024, 4096)
    ),
    BenchmarkCase("FAVOR+, causal, 8 heads, n 4096", (1, 8, 4096, 64), "performer favor", "favor", has_backward=False),
    *(
        BenchmarkCase(
            f"{name}, 12 heads, n 4096", (1, 12, 4096, 64), f"Hugging Face's {call_name}", call_name, has_backward=False
        )
        for name, call_name in (("Longformer with global tokens", "global"), ("BigBird", "blocks"))
    ),
]
QUICK_CASES = [
    BenchmarkCase("full, n 2048", (1, 1, 2048, 64), "sdpa", "full", has_library_baselines=True),
    BenchmarkCase("causal, n 2048", (1, 1, 2048, 64), "sdpa causal", "causal", has_library_baselines=True),
    BenchmarkCase(
        "causal window 256, n 2048", (1, 1, 2048, 64), "sdpa mask window", "window", has_library_baselines=True
    ),
    BenchmarkCase("softcap 50, n 1024", (1, 1, 1024, 64), "eager softcap", "softcap", has_library_baselines=True),
    BenchmarkCase("causal window 256, n 2048", (1, 1, 2048, 64), "handwritten window", "window"),
    decode_case("decode, 8 heads on 1, 16384 keys", (1, 8, 1, 64), 16384, 1),
    BenchmarkCase("additive, n 256", (1, 1, 256, 64), "eager additive", "additive"),
]
