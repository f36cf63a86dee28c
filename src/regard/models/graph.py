"""A graph attention network that classifies nodes by their features and the features of their neighbors.

    h_i = ELU(‖_heads sum_j α_ij W x_j + bias)        heads concatenated
    y_i = mean_heads sum_j α_ij W h_j + bias          heads averaged: one logit per class

j runs over i and the nodes with an edge to i. The weights α are those of `regard.mechanisms.graph`: GAT (Veličković et
al., 2018) or GATv2 (Brody et al., 2022). With two layers, a node depends on nodes up to two edges away.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, elu

from regard import checks
from regard.argument_types import check_types
from regard.mechanisms.graph import gat, gatv2
from regard.nn.input_checks import check_layer_dtype

ATTENTION_KINDS = ("gat", "gatv2")
HEAD_COMBINATIONS = ("concatenate", "average")


class GraphAttentionNetwork(nn.Module):
    """A graph attention network with two layers: maps features to logits (nodes, num_classes).

    The inputs are x (nodes, in_features) and edge_index (2, num_edges). An edge goes from `edge_index[0]` to
    `edge_index[1]`; an undirected edge is listed in both directions. `head_dim` is the head dimension of the first
    layer, and `num_heads` are the numbers of heads of the two layers. `kind` is "gat" or "gatv2". `dropout` applies to
    the input of each layer.

    >>> model = GraphAttentionNetwork(in_features=5, num_classes=3, head_dim=4, num_heads=(2, 1))
    >>> edge_index = torch.tensor([[0, 1], [1, 2]])
    >>> model(torch.randn(4, 5), edge_index).shape
    torch.Size([4, 3])
    >>> model.attention_weights(torch.randn(4, 5), edge_index)[1][0] > 0  # second layer: node 2 attends to 1 and itself
    tensor([[ True, False, False, False],
            [ True,  True, False, False],
            [False,  True,  True, False],
            [False, False, False,  True]])
    """

    @check_types
    def __init__(
        self,
        *,
        in_features: int,
        num_classes: int,
        head_dim: int,
        num_heads: tuple[int, int],
        kind: str = "gat",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.first = GraphAttentionLayer(
            in_features, head_dim, num_heads=num_heads[0], kind=kind, head_combination="concatenate"
        )
        self.second = GraphAttentionLayer(
            num_heads[0] * head_dim, num_classes, num_heads=num_heads[1], kind=kind, head_combination="average"
        )
        self.dropout = checks.probability(dropout, "dropout", below_one=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (nodes, num_classes) for x (nodes, in_features) and `edge_index` (2, num_edges)."""
        checks.tensor(x, "x", shape=("nodes", self.first.in_features), dtype_kind="floats")
        output: Tensor = self.second(self._second_layer_input(x, edge_index), edge_index)
        return output

    def attention_weights(self, x: Tensor, edge_index: Tensor) -> list[Tensor]:
        """Return the weights (heads, nodes, nodes) of both layers; row i holds the weights of node i."""
        checks.tensor(x, "x", shape=("nodes", self.first.in_features), dtype_kind="floats")
        return [
            self.first.attention_weights(self._dropout(x), edge_index),
            self.second.attention_weights(self._second_layer_input(x, edge_index), edge_index),
        ]

    def _second_layer_input(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self._dropout(elu(self.first(self._dropout(x), edge_index)))

    def _dropout(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class GraphAttentionLayer(nn.Module):
    """A graph attention layer from x (nodes, in_features) to (nodes, num_heads · head_dim).

    `kind` is "gat" or "gatv2"; see `regard.mechanisms.gat` and `gatv2`. With `head_combination="average"` instead of
    "concatenate" the output is (nodes, head_dim).

    >>> layer = GraphAttentionLayer(5, 4, num_heads=2)
    >>> layer(torch.randn(3, 5), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        in_features: int,
        head_dim: int,
        *,
        num_heads: int,
        kind: str = "gat",
        head_combination: str = "concatenate",
    ) -> None:
        super().__init__()
        self.kind = checks.choice(kind, "kind", ATTENTION_KINDS)
        self.head_combination = checks.choice(head_combination, "head_combination", HEAD_COMBINATIONS)
        for name, size in (("in_features", in_features), ("head_dim", head_dim), ("num_heads", num_heads)):
            checks.size(size, name)
        checks.parameter_size("w", num_heads, in_features, head_dim)
        self.in_features = in_features
        matrix, vector = (num_heads, in_features, head_dim), (num_heads, head_dim)
        if kind == "gat":
            self.w = _glorot_parameter(*matrix)
            self.a_source, self.a_target = _glorot_parameter(*vector), _glorot_parameter(*vector)
        else:
            self.w_source, self.w_target = _glorot_parameter(*matrix), _glorot_parameter(*matrix)
            self.a = _glorot_parameter(*vector)
        self.bias = nn.Parameter(torch.zeros(num_heads * head_dim if head_combination == "concatenate" else head_dim))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self._check_features(x)
        if self.kind == "gat":
            heads = gat(x, edge_index, self.w, self.a_source, self.a_target)
        else:
            heads = gatv2(x, edge_index, self.w_source, self.w_target, self.a)
        return (heads.flatten(1) if self.head_combination == "concatenate" else heads.mean(1)) + self.bias

    def _check_features(self, x: Tensor) -> None:
        checks.tensor(x, "x", shape=("nodes", self.in_features), dtype_kind="floats")
        check_layer_dtype(x, "x", self.bias)

    def attention_weights(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the weights (heads, nodes, nodes); row i holds the weights of node i and sums to 1."""
        # One-hot features that do not change the scores are appended: their outputs are the weights.
        self._check_features(x)
        nodes = len(x)
        extended = torch.cat((x, torch.eye(nodes, dtype=x.dtype, device=x.device)), 1)
        if self.kind == "gat":
            output = gat(
                extended,
                edge_index,
                _append_identity(self.w, nodes),
                *(_append_zeros(a, nodes) for a in (self.a_source, self.a_target)),
            )
        else:
            w_source, w_target = _append_identity(self.w_source, nodes), _append_identity(self.w_target, nodes)
            output = gatv2(extended, edge_index, w_source, w_target, _append_zeros(self.a, nodes))
        return output[..., -nodes:].transpose(0, 1)


def _glorot_parameter(*shape: int) -> nn.Parameter:
    """Return a Glorot-initialized parameter: a matrix per head, or (num_heads, head_dim) initialized as one matrix."""
    parameter = torch.empty(*shape)
    for matrix in parameter if len(shape) == 3 else (parameter,):
        nn.init.xavier_uniform_(matrix)
    return nn.Parameter(parameter)


def _append_identity(w: Tensor, nodes: int) -> Tensor:
    """Return w (heads, features, head_dim) with an identity matrix appended as a diagonal block."""
    heads, features, head_dim = w.shape
    identity = torch.eye(nodes, dtype=w.dtype, device=w.device).expand(heads, -1, -1)
    upper = torch.cat((w, w.new_zeros(heads, features, nodes)), 2)
    lower = torch.cat((w.new_zeros(heads, nodes, head_dim), identity), 2)
    return torch.cat((upper, lower), 1)


def _append_zeros(a: Tensor, nodes: int) -> Tensor:
    return torch.cat((a, a.new_zeros(len(a), nodes)), 1)
