"""Valid calls of the functions in `regard.mechanism`."""

from importlib import import_module
from typing import Any

import torch

from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given

Q, K, V = qkv()
MEMORY, STATES = numbers(1, 6, 4), numbers(1, 2, 4, seed=5)
NODES, EDGES, SEEN = numbers(3, 4), torch.tensor([[0, 1], [2, 2]]), torch.ones(3, 3, dtype=torch.bool)
MATRIX, VECTOR = numbers(2, 4, 5), numbers(2, 5)


def named(module: str, name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def function() -> Any:
        return getattr(import_module(f"regard.mechanism.{module}"), name)

    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"regard.mechanism.{module}.{name}", function, arguments)


CALLS = [
    named("axial", "axial_attention", *(numbers(1, 2, 3, 4, 8, seed=n) for n in range(3)), axis=0),
    named("axial", "axial", *(numbers(1, 2, 3, 4, 8, seed=n) for n in range(3))),
    named("block_sparse", "block_sparse", Q, K, V, block=2, keep=1),
    named("block_sparse", "block_choice", Q, K, block=2, keep=1),
    named("catalogue", "markdown", import_module("regard").mechanisms()),
    named("clustered", "clustered", Q, K, V, torch.tensor([0, 0, 1, 1, 2, 2]).expand(1, 2, 6), top=3),
    named("clustered", "grouped", Q, clusters=2),
    named("graph", "gat", NODES, EDGES, MATRIX, VECTOR, VECTOR),
    named("graph", "gat_dense", NODES, SEEN, MATRIX, VECTOR, VECTOR),
    named("graph", "gatv2", NODES, EDGES, MATRIX, MATRIX, VECTOR),
    named("graph", "gatv2_dense", NODES, SEEN, MATRIX, MATRIX, VECTOR),
    named("graph", "adjacency_of", EDGES, 3),
    named("linear", "linear_attention", Q, K, V),
    named("linear", "linear_step", Q[:, :, :1], K[:, :, :1], V[:, :, :1]),
    named("linformer", "linformer", Q, K, V, numbers(3, 6)),
    named("linformer", "efficient_attention", Q, K, V),
    named("longformer", "longformer", Q, K, V, Q, K, V, window=2, tokens=[0, 3]),
    named("longnet", "longnet", Q, K, V, segments=[2, 4], dilations=[1, 2]),
    named("metric", "metric_attention", numbers(6, 4), numbers(4, 3), numbers(4, 3), sigma=1.0),
    named("nystrom", "nystrom", Q, K, V, landmarks=2),
    named("nystrom", "pseudo_inverse", torch.eye(3)),
    named("recurrent", "bahdanau", STATES, MEMORY, numbers(4, 5), numbers(4, 5), numbers(5), lengths=[4]),
    named("recurrent", "luong_dot", STATES, MEMORY),
    named("recurrent", "luong_general", STATES, MEMORY, numbers(4, 4)),
    named("recurrent", "luong_concat", STATES, MEMORY, numbers(8, 5), numbers(5)),
    named("recurrent", "luong_location", STATES, MEMORY, numbers(4, 9)),
    named("recurrent", "local_monotonic", STATES, MEMORY, reach=1),
    named("recurrent", "local_predictive", STATES, MEMORY, numbers(4, 3), numbers(3), reach=1),
    named("recurrent", "attentional", numbers(1, 2, 3), STATES, numbers(7, 5)),
    named("reformer", "lsh_attention", Q, V, buckets=2, chunk=2),
    named("reformer", "lsh_hashes", Q, buckets=2),
    named("routing", "routing", Q, K, V, numbers(2, 3, 8), window=2),
    named("routing", "moved", numbers(2, 3, 8), Q, K),
    named("state", "retention", Q, K, V, 0.5),
    named("state", "gated", Q, K, V, torch.full((1, 2, 6, 8), 0.5)),
    named("state", "delta", Q, K, V, torch.full((1, 2, 6), 0.5)),
]

LEFT_OUT = {
    "regard.mechanism.catalogue.Catalogue": "a result, made by mechanisms",
    "regard.mechanism.catalogue.mechanisms": "in the table as regard.mechanisms",
    "regard.mechanism.compare.compare": "in the table as regard.compare",
    "regard.mechanism.catalogue.Mechanism": "an entry of the catalog",
    "regard.mechanism.compare.Comparison": "a result, made by compare",
    "regard.mechanism.compare.Side": "a result, made by compare",
    "regard.mechanism.heads.by_head": "shared by mechanisms, which check their arguments first",
    "regard.mechanism.heads.heads_of": "shared by mechanisms, which check their arguments first",
    "regard.mechanism.heads.sharing": "shared by mechanisms, which check their arguments first",
    "regard.mechanism.linear.LinearState": "a result, made by linear_step",
    "regard.mechanism.recurrent.Context": "a result, made by the functions of the module",
    "regard.mechanism.routing.gathered": "shared with clustered, which checks its arguments first",
}
