"""Mechanisms beyond softmax, and who else computes them: entmax, POT, performer-pytorch, Hugging Face, eager torch.

Functions of q, k, v. What another library projects itself is left out of it, so that attention alone is compared.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from regard import feature, mask, weigh
from regard.mechanism.linear import linear_attention
from regard.mechanism.longformer import longformer
from regard.spec.feature import Favor

ITERATIONS = 5  # as many as `weigh.sinkhorn` takes by itself
WINDOW, TOKENS = 512, [0, 1]
BLOCK = 64


@cache
def favor() -> Favor:
    made = feature.favor(64, 266)  # as many as performer-pytorch takes by itself
    assert isinstance(made, Favor)
    return made


OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sparsemax": lambda n: dict(weigh=weigh.sparsemax()),
    "entmax": lambda n: dict(weigh=weigh.entmax(1.5)),
    "sinkhorn": lambda n: dict(weigh=weigh.sinkhorn(ITERATIONS)),
    "linear": lambda n: dict(weigh=weigh.kernel(feature.elu()), mask=mask.causal()),
    "favor": lambda n: dict(weigh=weigh.kernel(favor()), mask=mask.causal()),
    "global": lambda n: dict(mask=mask.longformer(WINDOW, TOKENS)),
    "blocks": lambda n: dict(mask=mask.bigbird(BLOCK, random=0), score=counted_twice(n)),
}
OURS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda q, k, v: linear_attention(q, k, v, causal=True),
    "favor": lambda q, k, v: linear_attention(q, k, v, features=favor(), causal=True),
    "global": lambda q, k, v: longformer(q, k, v, q, k, v, window=WINDOW, tokens=TOKENS),
}


@cache
def counted_twice(n: int) -> Any:
    """Hugging Face's BigBird without training takes block 0 where it would draw one, three times more."""
    first, last = BLOCK, n - BLOCK

    def rule(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.where((j < BLOCK) & (i >= first) & (i < last), s + LOG_4, s)

    return rule


LOG_4 = float(torch.tensor(4.0).log())


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


def entmax_package(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import entmax

    return getattr(entmax, name)(_scores(q, k), -1) @ v


def eager_sinkhorn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = _scores(q, k)
    columns = torch.zeros_like(s[..., :1, :])
    for _ in range(ITERATIONS - 1):
        rows = -(s + columns).logsumexp(-1, keepdim=True)
        columns = -(s + rows).logsumexp(-2, keepdim=True)
    return (s + columns).softmax(-1) @ v


def pot_sinkhorn(method: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    import ot

    n = q.shape[-2]
    even = torch.full((n,), 1.0 / n)
    plan = ot.sinkhorn(even, even, -_scores(q, k)[0, 0], 1.0, method, ITERATIONS, 0.0, warn=False)
    return (n * plan @ v[0, 0])[None, None]


def quadratic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(q, k, v, causal=True, method="quadratic")


def performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Without the numbers that it adds to features and sums, which bias them."""
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda, softmax_kernel

    rows = [softmax_kernel(x, projection_matrix=favor().directions, is_query=x is q, eps=0.0) for x in (q, k)]
    return causal_linear_attention_noncuda(*rows, v, eps=0.0)


@cache
def longformer_layer(heads: int, width: int) -> Any:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        attention_window=[WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    return without_projections(LongformerSelfAttention(config, 0).eval())


@cache
def bigbird_layer(heads: int, width: int, n: int) -> Any:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        num_random_blocks=3,
        block_size=BLOCK,
        max_position_embeddings=n,
        attention_probs_dropout_prob=0.0,
    )
    return without_projections(BigBirdBlockSparseAttention(config, 0).eval())


class Copy(nn.Module):
    """A projection that changes nothing; the layer divides queries where they lie, so it gets some of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def without_projections(layer: nn.Module) -> nn.Module:
    """q, k and v are all the layer's input then."""
    for name, _ in list(layer.named_children()):
        if name.startswith(("query", "key", "value")):
            setattr(layer, name, Copy() if name.startswith("query") else nn.Identity())
    return layer


def huggingface_longformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """For q = k = v."""
    batch, heads, n, width = q.shape
    kinds = torch.zeros(batch, n)
    kinds[:, TOKENS] = 10000.0
    (found,) = longformer_layer(heads, width)(
        q.transpose(1, 2).flatten(2),
        attention_mask=kinds,
        is_index_masked=kinds < 0,
        is_index_global_attn=kinds > 0,
        is_global_attn=True,
    )
    return found.unflatten(-1, (heads, width)).transpose(1, 2)


def huggingface_bigbird(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """For q = k = v."""
    from transformers import BigBirdModel

    batch, heads, n, width = q.shape
    blocked, band, of_queries, of_keys = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(batch, n), BLOCK)
    found, _ = bigbird_layer(heads, width, n)(q.transpose(1, 2).flatten(2), band, of_queries, of_keys, blocked, blocked)
    return found.unflatten(-1, (heads, width)).transpose(1, 2)


SELF = ("global", "blocks")  # asked about one tensor, which is q, k and v
PEERS: dict[str, Callable[..., Tensor]] = {
    "entmax's sparsemax": lambda q, k, v: entmax_package("sparsemax", q, k, v),
    "entmax's entmax": lambda q, k, v: entmax_package("entmax15", q, k, v),
    "eager sinkhorn": eager_sinkhorn,
    "POT's log sinkhorn": lambda q, k, v: pot_sinkhorn("sinkhorn_log", q, k, v),
    "POT's sinkhorn": lambda q, k, v: pot_sinkhorn("sinkhorn", q, k, v),
    "quadratic linear": quadratic,
    "performer favor": performer,
    "Hugging Face's global": huggingface_longformer,
    "Hugging Face's blocks": huggingface_bigbird,
}
