"""Published attention mechanisms; `catalog()` lists them with formula, paper, complexity and an example."""

from regard.catalog_entry import Mechanism
from regard.mechanisms.axial import axial_attention, axial_attention_sum
from regard.mechanisms.block_sparse import block_sparse_attention, topk_block_mask
from regard.mechanisms.clustered import cluster_queries, clustered_attention
from regard.mechanisms.graph import gat, gat_dense, gatv2, gatv2_dense, to_dense_adjacency
from regard.mechanisms.learned_metric import metric_attention
from regard.mechanisms.linear import LinearAttentionState, linear_attention, linear_attention_step
from regard.mechanisms.linear_recurrence import delta_rule, gla, retention
from regard.mechanisms.linformer import efficient_attention, linformer_attention
from regard.mechanisms.longformer import longformer_attention
from regard.mechanisms.longnet import longnet_attention
from regard.mechanisms.nystrom import nystrom_attention
from regard.mechanisms.reformer import lsh_attention, lsh_bucket_ids
from regard.mechanisms.registry import Catalog, catalog
from regard.mechanisms.routing import routing_attention, update_centroids
from regard.mechanisms.seq2seq import (
    ContextVectors,
    attentional_hidden_state,
    bahdanau,
    luong_concat,
    luong_dot,
    luong_general,
    luong_local_monotonic,
    luong_local_predictive,
    luong_location,
)

__all__ = [
    "Catalog",
    "ContextVectors",
    "LinearAttentionState",
    "Mechanism",
    "attentional_hidden_state",
    "axial_attention",
    "axial_attention_sum",
    "bahdanau",
    "block_sparse_attention",
    "catalog",
    "cluster_queries",
    "clustered_attention",
    "delta_rule",
    "efficient_attention",
    "gat",
    "gat_dense",
    "gatv2",
    "gatv2_dense",
    "gla",
    "linear_attention",
    "linear_attention_step",
    "linformer_attention",
    "longformer_attention",
    "longnet_attention",
    "lsh_attention",
    "lsh_bucket_ids",
    "luong_concat",
    "luong_dot",
    "luong_general",
    "luong_local_monotonic",
    "luong_local_predictive",
    "luong_location",
    "metric_attention",
    "nystrom_attention",
    "retention",
    "routing_attention",
    "to_dense_adjacency",
    "topk_block_mask",
    "update_centroids",
]


def __dir__() -> list[str]:
    return sorted(__all__)
