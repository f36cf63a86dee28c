"""Valid calls of the functions in `regard.mechanisms`."""

from importlib import import_module
from typing import Any

import torch

from regard.mechanisms import catalog
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args

Q, K, V = qkv()
MEMORY, STATES = numbers(1, 6, 4), numbers(1, 2, 4, seed=5)
NODES, EDGES, ADJACENCY = numbers(3, 4), torch.tensor([[0, 1], [2, 2]]), torch.ones(3, 3, dtype=torch.bool)
MATRIX, VECTOR = numbers(2, 4, 5), numbers(2, 5)


def valid_call(module: str, name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def function() -> Any:
        return getattr(import_module(f"regard.mechanisms.{module}"), name)

    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"regard.mechanisms.{module}.{name}", function, arguments)


CALLS = [
    valid_call("axial", "axial_attention", *(numbers(1, 2, 3, 4, 8, seed=n) for n in range(3)), axis=0),
    valid_call("axial", "axial_attention_sum", *(numbers(1, 2, 3, 4, 8, seed=n) for n in range(3))),
    valid_call("block_sparse", "block_sparse_attention", Q, K, V, block_size=2, topk=1),
    valid_call("block_sparse", "topk_block_mask", Q, K, block_size=2, topk=1),
    valid_call("clustered", "clustered_attention", Q, K, V, torch.tensor([0, 0, 1, 1, 2, 2]).expand(1, 2, 6), topk=3),
    valid_call("clustered", "cluster_queries", Q, num_clusters=2),
    valid_call("graph", "gat", NODES, EDGES, MATRIX, VECTOR, VECTOR),
    valid_call("graph", "gat_dense", NODES, ADJACENCY, MATRIX, VECTOR, VECTOR),
    valid_call("graph", "gatv2", NODES, EDGES, MATRIX, MATRIX, VECTOR),
    valid_call("graph", "gatv2_dense", NODES, ADJACENCY, MATRIX, MATRIX, VECTOR),
    valid_call("graph", "to_dense_adjacency", EDGES, 3),
    valid_call("linear", "linear_attention", Q, K, V),
    valid_call("linear", "linear_attention_step", Q[:, :, :1], K[:, :, :1], V[:, :, :1]),
    valid_call("linformer", "linformer_attention", Q, K, V, numbers(3, 6)),
    valid_call("linformer", "efficient_attention", Q, K, V),
    valid_call("longformer", "longformer_attention", Q, K, V, Q, K, V, attention_window=2, global_tokens=[0, 3]),
    valid_call("longnet", "longnet_attention", Q, K, V, segment_lengths=[2, 4], dilations=[1, 2]),
    valid_call("learned_metric", "metric_attention", numbers(6, 4), numbers(4, 3), numbers(4, 3), sigma=1.0),
    valid_call("nystrom", "nystrom_attention", Q, K, V, num_landmarks=2),
    valid_call("nystrom", "pseudo_inverse", torch.eye(3)),
    valid_call("registry", "catalog"),
    valid_call("gallery_page", "to_markdown", catalog()),
    valid_call("weight_matrices", "weight_matrix", "softmax"),
    valid_call("seq2seq", "bahdanau", STATES, MEMORY, numbers(4, 5), numbers(4, 5), numbers(5), lengths=[4]),
    valid_call("seq2seq", "luong_dot", STATES, MEMORY),
    valid_call("seq2seq", "luong_general", STATES, MEMORY, numbers(4, 4)),
    valid_call("seq2seq", "luong_concat", STATES, MEMORY, numbers(8, 5), numbers(5)),
    valid_call("seq2seq", "luong_location", STATES, MEMORY, numbers(4, 9)),
    valid_call("seq2seq", "luong_local_monotonic", STATES, MEMORY, radius=1),
    valid_call("seq2seq", "luong_local_predictive", STATES, MEMORY, numbers(4, 3), numbers(3), radius=1),
    valid_call("seq2seq", "attentional_hidden_state", numbers(1, 2, 3), STATES, numbers(7, 5)),
    valid_call("reformer", "lsh_attention", Q, V, num_buckets=2, chunk_size=2),
    valid_call("reformer", "lsh_bucket_ids", Q, num_buckets=2),
    valid_call("routing", "routing_attention", Q, K, V, numbers(2, 3, 8), cluster_size=2),
    valid_call("routing", "update_centroids", numbers(2, 3, 8), Q, K),
    valid_call("linear_recurrence", "retention", Q, K, V, 0.5),
    valid_call("linear_recurrence", "gla", Q, K, V, torch.full((1, 2, 6, 8), 0.5)),
    valid_call("linear_recurrence", "delta_rule", Q, K, V, torch.full((1, 2, 6), 0.5)),
]

LEFT_OUT = {
    "regard.mechanisms.registry.Catalog": "returned by catalog",
    **dict.fromkeys(
        (f"regard.mechanisms.gallery_page.{name}" for name in ("anchor", "exactness", "paper", "witness")),
        "formats a part of a card",
    ),
    "regard.mechanisms.weight_matrices.GalleryInput": "the input of the pictures of the gallery",
    "regard.mechanisms.weight_matrices.color_levels": "colors of the pictures of the gallery",
    "regard.mechanisms.comparison.compare": "in the table as regard.compare",
    "regard.mechanisms.comparison.AttentionComparison": "returned by compare",
    "regard.mechanisms.comparison.RunStats": "a part of the result of compare",
    **{
        f"regard.mechanisms.head_layout.{name}": "used by mechanisms, which check their arguments first"
        for name in ("as_4d", "gather_rows", "num_heads", "num_key_value_groups")
    },
    "regard.mechanisms.linear.LinearAttentionState": "returned by linear_attention_step",
    "regard.mechanisms.seq2seq.ContextVectors": "returned by the functions of the module",
}
