"""The weights of every mechanism of the catalog for the same 32 queries and 32 keys, which the gallery shows.

Each matrix comes from a call of the mechanism. Mechanisms without a matrix of weights are applied to the identity as
values: their output is linear in the values, so the output is the matrix.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from regard import feature_map, mask, normalizer, score
from regard.argument_types import check_types
from regard.attention import attention_with_weights
from regard.errors import ArgumentError
from regard.mechanisms.axial import axial_attention
from regard.mechanisms.block_sparse import block_sparse_attention
from regard.mechanisms.clustered import cluster_queries, clustered_attention
from regard.mechanisms.graph import gat, gatv2
from regard.mechanisms.learned_metric import metric_attention
from regard.mechanisms.linear import linear_attention
from regard.mechanisms.linear_recurrence import delta_rule, gla, retention
from regard.mechanisms.linformer import efficient_attention, linformer_attention
from regard.mechanisms.longformer import longformer_attention
from regard.mechanisms.longnet import longnet_attention
from regard.mechanisms.nystrom import nystrom_attention
from regard.mechanisms.reformer import lsh_attention
from regard.mechanisms.routing import routing_attention
from regard.mechanisms.seq2seq import bahdanau, luong_general, luong_local_monotonic, luong_local_predictive

NUM_TOKENS, HEAD_DIM = 32, 16
TOPICS = (0,) * 5 + (1,) * 4 + (0,) * 3 + (2,) * 6 + (1,) * 5 + (3,) * 5 + (0,) * 4  # of the 32 tokens
NOISE = 0.7  # per component; those of a topic have variance 1

COLOR_LEVELS = 127  # of each sign

Matrix = Callable[["GalleryInput"], Tensor]


class GalleryInput:
    """The queries, keys and values of the gallery, and the parameters that a mechanism draws.

    If `causal` is True, mechanisms run in their causal form.
    """

    def __init__(self, *, causal: bool = False, parameter_seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(0)
        topics, q, k = (
            torch.randn(rows, HEAD_DIM, generator=generator, dtype=torch.float64)
            for rows in (max(TOPICS) + 1, NUM_TOKENS, NUM_TOKENS)
        )
        content = topics[torch.tensor(TOPICS)]
        self.q, self.k = ((content + NOISE * x)[None, None] for x in (q, k))
        self.identity = torch.eye(NUM_TOKENS, dtype=torch.float64)[None, None]
        self.causal = causal
        self._parameters = torch.Generator().manual_seed(parameter_seed)

    def parameter(self, *shape: int) -> Tensor:
        """Return a parameter of a mechanism: standard normal numbers."""
        return torch.randn(*shape, generator=self._parameters, dtype=torch.float64)

    def mask(self, pattern: mask.Mask | None = None) -> mask.Mask | None:
        """Return the pattern, limited to earlier keys if the call is causal."""
        if not self.causal:
            return pattern
        return mask.causal() if pattern is None else pattern & mask.causal()

    def nodes(self) -> Tensor:
        """Return tokens with values: the keys, followed by the rows of the identity."""
        return torch.cat([self.k, self.identity], -1)[0, 0]


def _attention(pattern: mask.Mask | None = None, **options: Any) -> Matrix:
    def matrix(x: GalleryInput) -> Tensor:
        return _weights(x, x.mask(pattern), **options)

    return matrix


def _learned(options: Callable[[GalleryInput], dict[str, Any]]) -> Matrix:
    def matrix(x: GalleryInput) -> Tensor:
        return _weights(x, x.mask(), **options(x))

    return matrix


def _weights(x: GalleryInput, pattern: mask.Mask | None, q: Any = None, k: Any = None, **options: Any) -> Tensor:
    q, k = x.q if q is None else q, x.k if k is None else k
    weights: Tensor = attention_with_weights(q, k, x.identity, mask=pattern, **options).weights[...]
    return weights


def _call_with_causal(function: Callable[..., Tensor], **options: Any) -> Matrix:
    return lambda x: function(x.q, x.k, x.identity, causal=x.causal, **options)


def _call(function: Callable[..., Tensor], **options: Any) -> Matrix:
    return lambda x: function(x.q, x.k, x.identity, **options)


def _rotary(x: GalleryInput) -> Tensor:
    q, k = score.rotary(x.q, x.k)
    return _weights(x, x.mask(), q=q, k=k)


def _metric(x: GalleryInput, learned: bool = False) -> Tensor:
    """Return the weights of metric attention; its projections select the keys and the identity from the tokens."""
    w_q, w_v = torch.eye(HEAD_DIM + NUM_TOKENS, dtype=torch.float64).split([HEAD_DIM, NUM_TOKENS], dim=1)
    options = {"matrix": _learned_metric(x)} if learned else {"sigma": 2.0}
    return metric_attention(x.nodes(), w_q, w_v, mask=x.mask(), **options)


def _additive(x: GalleryInput) -> score.Score:
    w_q, w_k = x.parameter(2, HEAD_DIM, 8) / 8
    return score.additive(w_q, w_k, 2 * x.parameter(8))


def _learned_metric(x: GalleryInput) -> Tensor:
    factor = x.parameter(HEAD_DIM, HEAD_DIM) / (HEAD_DIM / 2)
    return factor @ factor.T


def _axial(x: GalleryInput) -> Tensor:
    q, k, v = (tensor.unflatten(-2, (4, 8)) for tensor in (x.q, x.k, x.identity))
    return axial_attention(q, k, v, axis=0, mask=x.mask()).flatten(-3, -2)


def _longformer(x: GalleryInput) -> Tensor:
    return longformer_attention(x.q, x.k, x.identity, x.k, x.q, x.identity, attention_window=8, global_tokens=[0, 16])


def _reformer(x: GalleryInput) -> Tensor:
    return lsh_attention(x.k, x.identity, num_hashes=2, num_buckets=4, chunk_size=4, causal=x.causal)


def _routing(x: GalleryInput) -> Tensor:
    return routing_attention(x.q, x.k, x.identity, x.parameter(1, 4, HEAD_DIM), cluster_size=8, causal=x.causal)


def _clustered(x: GalleryInput, topk: int | None = None) -> Tensor:
    return clustered_attention(x.q, x.k, x.identity, cluster_queries(x.q, num_clusters=5), topk=topk)


def _delta_rule(x: GalleryInput) -> Tensor:
    strength = torch.sigmoid(x.k @ x.parameter(HEAD_DIM))
    return delta_rule(*_unit_qk(x), x.identity, strength)[0]


def _gla(x: GalleryInput) -> Tensor:
    gates = torch.sigmoid(x.k @ x.parameter(HEAD_DIM, HEAD_DIM) / 4 + 2)
    return gla(*_unit_qk(x), x.identity, gates)[0]


def _retention(x: GalleryInput) -> Tensor:
    return retention(*_unit_qk(x), x.identity, 0.9)[0]


def _unit_qk(x: GalleryInput) -> tuple[Tensor, Tensor]:
    return normalize(x.q, dim=-1), normalize(x.k, dim=-1)


def _linformer(x: GalleryInput) -> Tensor:
    """Return the matrix for a projection to the means of four neighbors, plus a small random part."""
    means = x.identity[0, 0].unflatten(0, (8, 4)).mean(1)
    return linformer_attention(x.q, x.k, x.identity, means + x.parameter(*means.shape) / 20)


def _bahdanau(x: GalleryInput) -> Tensor:
    w_q, w_k = x.parameter(2, HEAD_DIM, 8) / 8
    return bahdanau(x.q[0], x.k[0], w_q, w_k, 2 * x.parameter(8)).weights


def _luong_general(x: GalleryInput) -> Tensor:
    return luong_general(x.q[0], x.k[0], x.parameter(HEAD_DIM, HEAD_DIM) / HEAD_DIM).weights


def _luong_monotonic(x: GalleryInput) -> Tensor:
    return luong_local_monotonic(x.q[0] / 4, x.k[0], radius=4).weights


def _luong_predictive(x: GalleryInput) -> Tensor:
    w_p, v_p = x.parameter(HEAD_DIM, 8) / 4, x.parameter(8)
    return luong_local_predictive(x.q[0] / 4, x.k[0], w_p, v_p, radius=6).weights


def _edges() -> Tensor:
    """Return a graph of 32 nodes in a ring; each node also receives from the first node of its topic."""
    nodes = torch.arange(NUM_TOKENS)
    first = torch.tensor([TOPICS.index(topic) for topic in TOPICS])
    pairs = (nodes, nodes.roll(1)), (nodes.roll(1), nodes), (first, nodes)
    edges: Tensor = torch.cat([torch.stack(pair) for pair in pairs], 1).unique(dim=1)
    return edges


def _gat(x: GalleryInput) -> Tensor:
    w = torch.eye(HEAD_DIM + NUM_TOKENS, dtype=torch.float64)[None]
    vectors = (torch.nn.functional.pad(x.parameter(1, HEAD_DIM), (0, NUM_TOKENS)) for _ in range(2))
    return gat(x.nodes(), _edges(), w, *vectors)[..., HEAD_DIM:]


def _gatv2(x: GalleryInput) -> Tensor:
    w = torch.eye(HEAD_DIM + NUM_TOKENS, dtype=torch.float64)[None]
    vector = torch.nn.functional.pad(x.parameter(1, HEAD_DIM), (0, NUM_TOKENS))
    return gatv2(x.nodes(), _edges(), w, w, vector)[..., HEAD_DIM:]


_DOCUMENTS = torch.tensor([0] * 12 + [1] * 6 + [2] * 14)

MATRICES: dict[str, Matrix] = {
    "scaled dot product": _attention(),
    "dot product": _attention(score=score.dot()),
    "bilinear": _learned(lambda x: {"score": score.bilinear(x.parameter(HEAD_DIM, HEAD_DIM) / HEAD_DIM)}),
    "additive": _learned(lambda x: {"score": _additive(x)}),
    "cosine": _learned(lambda x: {"score": score.cosine(5.0 + x.parameter(1)[0].abs())}),
    "Gaussian": _attention(score=score.gaussian(2.0)),
    "Mahalanobis": _learned(lambda x: {"score": score.mahalanobis(_learned_metric(x))}),
    "metric attention": _metric,
    "Mahalanobis metric attention": partial(_metric, learned=True),
    "rotary embedding (RoPE)": _rotary,
    "ALiBi": _attention(score=score.alibi(torch.tensor([0.25], dtype=torch.float64))),
    "T5 relative bias": _learned(lambda x: {"score": score.t5_bias(2 * x.parameter(32, 1))}),
    "Shaw's relative positions": _learned(lambda x: {"score": score.shaw_keys(x.parameter(2 * 8 + 1, HEAD_DIM))}),
    "softcap": _attention(score=score.softcap(2.0)),
    "causal": _attention(mask.causal()),
    "document": _attention(mask.document(_DOCUMENTS)),
    "sliding window": _attention(mask.causal() & mask.sliding_window(8)),
    "dilated window": _attention(mask.dilated(4, 3)),
    "chunked local": _attention(mask.causal() & mask.chunked(8, look_back=1)),
    "strided (Sparse Transformer)": _attention(mask.strided(6)),
    "fixed (Sparse Transformer)": _attention(mask.fixed(6, num_summary_keys=1)),
    "global tokens": _attention(mask.sliding_window(3) | mask.global_tokens([0, 16])),
    "prefix language model": lambda x: _weights(x, mask.causal() | mask.prefix(12)),
    "BigBird": _attention(mask.bigbird(4, num_random_blocks=1, seed=1)),
    "random blocks": _attention(mask.random_blocks(4, 2, seed=1)),
    "Longformer": _longformer,
    "block-sparse by scores": _call_with_causal(block_sparse_attention, block_size=4, topk=2),
    "LongNet": _call_with_causal(longnet_attention, segment_lengths=[8, 16, 32], dilations=[1, 2, 4]),
    "axial": _axial,
    "softmax": _attention(normalizer=normalizer.softmax()),
    "sink (softmax1)": _learned(lambda x: {"normalizer": normalizer.sink(3.0 + x.parameter(1))}),
    "sigmoid": _attention(normalizer=normalizer.sigmoid(-3.5)),
    "ReLU": _attention(normalizer=normalizer.relu()),
    "sparsemax": _attention(normalizer=normalizer.sparsemax()),
    "entmax": _learned(lambda x: {"normalizer": normalizer.entmax(1.5 + 0.1 * torch.tanh(x.parameter(1)))}),
    "top k": _attention(normalizer=normalizer.topk(4)),
    "hardmax": _attention(normalizer=normalizer.hardmax()),
    "Gumbel": _attention(normalizer=normalizer.gumbel(1.0, seed=1)),
    "Sinkhorn": _attention(normalizer=normalizer.sinkhorn(50)),
    "linear attention": _call(linear_attention, causal=True),
    "FAVOR+ (Performer)": _call_with_causal(linear_attention, feature_map=feature_map.favor(HEAD_DIM, 64)),
    "cosFormer": _call_with_causal(linear_attention, feature_map=feature_map.cosformer(NUM_TOKENS)),
    "retention (RetNet)": _retention,
    "gated linear attention": _gla,
    "delta rule (DeltaNet)": _delta_rule,
    "efficient attention": _call(efficient_attention),
    "Linformer": _linformer,
    "Nyström attention": _call(nystrom_attention, num_landmarks=8),
    "Reformer (LSH attention)": _reformer,
    "Routing Transformer": _routing,
    "clustered attention": _clustered,
    "improved clustered attention": partial(_clustered, topk=6),
    "Bahdanau": _bahdanau,
    "Luong, global": _luong_general,
    "Luong, local-m": _luong_monotonic,
    "Luong, local-p": _luong_predictive,
    "graph attention (GAT)": _gat,
    "GATv2": _gatv2,
}


@check_types
def weight_matrix(name: str) -> Tensor:
    """Return the weights of a mechanism of the catalog on the input of the gallery, (32, 32) in float64.

    >>> weight_matrix("softmax").shape
    torch.Size([32, 32])
    """
    if name not in MATRICES:
        raise ArgumentError(f"name must be a mechanism of the catalog; got {name!r}. Use a name of catalog().")
    with torch.no_grad():
        return MATRICES[name](GalleryInput()).reshape(NUM_TOKENS, NUM_TOKENS)


def color_levels(weights: Tensor) -> np.ndarray:
    """Return the color of each weight: 0 for exactly 0, 1 to 127 for positive and 128 to 254 for negative weights.

    A level is proportional to the square root of the magnitude, which is cut off at 1.
    """
    values = weights.numpy()
    level = 1 + np.rint(np.sqrt(np.minimum(np.abs(values), 1.0)) * (COLOR_LEVELS - 1))
    return np.where(values == 0, 0, np.where(values > 0, level, COLOR_LEVELS + level)).astype(np.uint8)
