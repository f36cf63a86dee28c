"""Mechanisms other than softmax, in regard and in entmax, POT, performer-pytorch, Hugging Face and eager torch.

All are functions of q, k, v. Projections of layers of other libraries are removed, so that only attention is measured.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from regard import feature_map, mask, normalizer
from regard.feature_map import FavorFeatureMap
from regard.mechanisms.linear import linear_attention
from regard.mechanisms.longformer import longformer_attention

ITERATIONS = 5  # the default of `normalizer.sinkhorn`
WINDOW, GLOBAL_TOKENS = 512, [0, 1]
BLOCK_SIZE = 64


@cache
def favor_features() -> FavorFeatureMap:
    features = feature_map.favor(64, 266)  # the default number of performer-pytorch
    assert isinstance(features, FavorFeatureMap)
    return features


MECHANISM_OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "sparsemax": lambda n: dict(normalizer=normalizer.sparsemax()),
    "entmax": lambda n: dict(normalizer=normalizer.entmax(1.5)),
    "sinkhorn": lambda n: dict(normalizer=normalizer.sinkhorn(ITERATIONS)),
    "linear": lambda n: dict(normalizer=normalizer.kernel(feature_map.elu()), mask=mask.causal()),
    "favor": lambda n: dict(normalizer=normalizer.kernel(favor_features()), mask=mask.causal()),
    "global": lambda n: dict(mask=mask.longformer(WINDOW, GLOBAL_TOKENS)),
    "blocks": lambda n: dict(mask=mask.bigbird(BLOCK_SIZE, num_random_blocks=0), score=repeated_first_block(n)),
}
REGARD_MECHANISMS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda q, k, v: linear_attention(q, k, v, causal=True),
    "favor": lambda q, k, v: linear_attention(q, k, v, feature_map=favor_features(), causal=True),
    "global": lambda q, k, v: longformer_attention(
        q, k, v, q, k, v, attention_window=WINDOW, global_tokens=GLOBAL_TOKENS
    ),
}


@cache
def repeated_first_block(n: int) -> Any:
    """Return the modifier of Hugging Face's BigBird in eval mode: its 3 random blocks repeat block 0."""
    first, last = BLOCK_SIZE, n - BLOCK_SIZE

    def modifier(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.where((j < BLOCK_SIZE) & (i >= first) & (i < last), s + LOG_4, s)

    return modifier


LOG_4 = float(torch.tensor(4.0).log())


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


def entmax_attention(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
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
    uniform = torch.full((n,), 1.0 / n)
    plan = ot.sinkhorn(uniform, uniform, -_scores(q, k)[0, 0], 1.0, method, ITERATIONS, 0.0, warn=False)
    return (n * plan @ v[0, 0])[None, None]


def quadratic_linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(q, k, v, causal=True, method="quadratic")


def performer_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run performer-pytorch without the epsilons that it adds to features and sums."""
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda, softmax_kernel

    rows = [softmax_kernel(x, projection_matrix=favor_features().directions, is_query=x is q, eps=0.0) for x in (q, k)]
    return causal_linear_attention_noncuda(*rows, v, eps=0.0)


@cache
def longformer_layer(num_heads: int, head_dim: int) -> Any:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=num_heads * head_dim,
        num_attention_heads=num_heads,
        attention_window=[WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    return without_projections(LongformerSelfAttention(config, 0).eval())


@cache
def bigbird_layer(num_heads: int, head_dim: int, n: int) -> Any:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=num_heads * head_dim,
        num_attention_heads=num_heads,
        num_random_blocks=3,
        block_size=BLOCK_SIZE,
        max_position_embeddings=n,
        attention_probs_dropout_prob=0.0,
    )
    return without_projections(BigBirdBlockSparseAttention(config, 0).eval())


class CopyProjection(nn.Module):
    """An identity projection that returns a copy, since the layer scales queries in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def without_projections(layer: nn.Module) -> nn.Module:
    """Replace the projections of a layer by identities, so that q, k and v are its input."""
    for name, _ in list(layer.named_children()):
        if name.startswith(("query", "key", "value")):
            setattr(layer, name, CopyProjection() if name.startswith("query") else nn.Identity())
    return layer


def huggingface_longformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run the layer of Hugging Face, for q = k = v."""
    batch, heads, n, head_dim = q.shape
    attention_mask = torch.zeros(batch, n)
    attention_mask[:, GLOBAL_TOKENS] = 10000.0
    (output,) = longformer_layer(heads, head_dim)(
        q.transpose(1, 2).flatten(2),
        attention_mask=attention_mask,
        is_index_masked=attention_mask < 0,
        is_index_global_attn=attention_mask > 0,
        is_global_attn=True,
    )
    return output.unflatten(-1, (heads, head_dim)).transpose(1, 2)


def huggingface_bigbird(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run the layer of Hugging Face, for q = k = v."""
    from transformers import BigBirdModel

    batch, heads, n, head_dim = q.shape
    block_mask, band_mask, query_mask, key_mask = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(batch, n), BLOCK_SIZE
    )
    output, _ = bigbird_layer(heads, head_dim, n)(
        q.transpose(1, 2).flatten(2), band_mask, query_mask, key_mask, block_mask, block_mask
    )
    return output.unflatten(-1, (heads, head_dim)).transpose(1, 2)


SELF_ATTENTION_CALLS = ("global", "blocks")  # one tensor is q, k and v
MECHANISM_BASELINES: dict[str, Callable[..., Tensor]] = {
    "entmax's sparsemax": lambda q, k, v: entmax_attention("sparsemax", q, k, v),
    "entmax's entmax": lambda q, k, v: entmax_attention("entmax15", q, k, v),
    "eager sinkhorn": eager_sinkhorn,
    "POT's log sinkhorn": lambda q, k, v: pot_sinkhorn("sinkhorn_log", q, k, v),
    "POT's sinkhorn": lambda q, k, v: pot_sinkhorn("sinkhorn", q, k, v),
    "quadratic linear": quadratic_linear,
    "performer favor": performer_attention,
    "Hugging Face's global": huggingface_longformer,
    "Hugging Face's blocks": huggingface_bigbird,
}
