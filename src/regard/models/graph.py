"""A graph attention network: what a node is, told from itself and from the nodes around it.

    h_i = ELU(‖_heads sum_j α_ij W x_j + bias)        heads side by side
    y_i = mean_heads sum_j α_ij W h_j + bias          heads averaged: one number for each class

j runs over the nodes that have an edge to i, and i itself. α is that of `regard.mechanism.graph`: GAT (Veličković and
others, 2018) or GATv2 (Brody, Alon and Yahav, 2022). After two layers a node knows of those two edges away.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, elu

from regard import checks
from regard.argument_types import check_types
from regard.errors import SpecError
from regard.mechanism.graph import gat, gatv2
from regard.nn.inputs import same_dtype

KINDS = ("gat", "gatv2")
JOINS = ("concatenate", "average")


class GraphNetwork(nn.Module):
    """x (nodes, features) and edges (2, count) in, logits (nodes, classes) out.

    Each edge goes from edges[0] to edges[1]; where nodes see each other there are two. `width` is that of a head of the
    first layer, `heads` how many there are in each layer. In training a share `dropout` of what goes into each layer is
    left out.

    >>> model = GraphNetwork(features=5, classes=3, width=4, heads=(2, 1))
    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> model(torch.randn(4, 5), edges).shape
    torch.Size([4, 3])
    >>> model.attend(torch.randn(4, 5), edges)[1][0] > 0  # who looks at whom in the second layer: 2 at 1 and itself
    tensor([[ True, False, False, False],
            [ True,  True, False, False],
            [False,  True,  True, False],
            [False, False, False,  True]])
    """

    @check_types
    def __init__(
        self,
        *,
        features: int,
        classes: int,
        width: int,
        heads: tuple[int, int],
        kind: str = "gat",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.first = GraphAttention(features, width, heads=heads[0], kind=kind, join="concatenate")
        self.second = GraphAttention(heads[0] * width, classes, heads=heads[1], kind=kind, join="average")
        self.dropout = checks.probability(dropout, "dropout", below_one=True)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        checks.tensor(x, "x", shape=("nodes", self.first.features), dtype="floats")
        return self.second(self._between(x, edges), edges)  # type: ignore[no-any-return]  # modules are untyped

    def attend(self, x: Tensor, edges: Tensor) -> list[Tensor]:
        """Weights (heads, nodes, nodes) of both layers; row i says where node i looks."""
        checks.tensor(x, "x", shape=("nodes", self.first.features), dtype="floats")
        return [self.first.attend(self._left(x), edges), self.second.attend(self._between(x, edges), edges)]

    def _between(self, x: Tensor, edges: Tensor) -> Tensor:
        return self._left(elu(self.first(self._left(x), edges)))

    def _left(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class GraphAttention(nn.Module):
    """One layer: x (nodes, features) in, (nodes, heads · width) out, or (nodes, width) where heads are averaged.

    `kind` is one of `KINDS`, `join` one of `JOINS`. See `regard.mechanism.gat` and `gatv2`.

    >>> layer = GraphAttention(5, 4, heads=2)
    >>> layer(torch.randn(3, 5), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def __init__(self, features: int, width: int, *, heads: int, kind: str = "gat", join: str = "concatenate") -> None:
        super().__init__()
        self.kind, self.join = checks.choice(kind, "kind", KINDS), checks.choice(join, "join", JOINS)
        for name, size in (("features", features), ("width", width), ("heads", heads)):
            checks.size(size, name)
        checks.parameter("w", heads, features, width)
        self.features = features
        matrix, vector = (heads, features, width), (heads, width)
        if kind == "gat":
            self.w = _drawn(*matrix)
            self.a_source, self.a_target = _drawn(*vector), _drawn(*vector)
        else:
            self.w_source, self.w_target = _drawn(*matrix), _drawn(*matrix)
            self.a = _drawn(*vector)
        self.bias = nn.Parameter(torch.zeros(heads * width if join == "concatenate" else width))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        self._check(x, edges)
        if self.kind == "gat":
            rows = gat(x, edges, self.w, self.a_source, self.a_target)
        else:
            rows = gatv2(x, edges, self.w_source, self.w_target, self.a)
        return (rows.flatten(1) if self.join == "concatenate" else rows.mean(1)) + self.bias

    def _check(self, x: Tensor, edges: Tensor) -> None:
        checks.tensor(x, "x", shape=("nodes", self.features), dtype="floats")
        same_dtype(x, "x", self.bias)
        check_edges(edges, len(x))

    def attend(self, x: Tensor, edges: Tensor) -> Tensor:
        """Weights (heads, nodes, nodes); row i says where node i looks, and adds up to 1.

        Each node is given its own name to carry, in columns that no score looks at: what arrives are the weights.
        """
        self._check(x, edges)
        nodes = len(x)
        named = torch.cat((x, torch.eye(nodes, dtype=x.dtype, device=x.device)), 1)
        if self.kind == "gat":
            found = gat(
                named, edges, _wider(self.w, nodes), *(_longer(a, nodes) for a in (self.a_source, self.a_target))
            )
        else:
            both = _wider(self.w_source, nodes), _wider(self.w_target, nodes)
            found = gatv2(named, edges, *both, _longer(self.a, nodes))
        return found[..., -nodes:].transpose(0, 1)


def check_edges(edges: Tensor, nodes: int) -> None:
    checks.tensor(edges, "edges", shape=(2, "count"), dtype="integers")
    if torch.compiler.is_compiling() or not edges.numel():
        return
    least, most = (int(end) for end in edges.aminmax())
    if least < 0 or most >= nodes:
        raise SpecError(f"edges must be between nodes 0 and {nodes - 1}; got {least} to {most}.")


def _drawn(*shape: int) -> nn.Parameter:
    """Each head's matrix, or all heads' vectors, as large as Glorot and Bengio (2010) advise."""
    drawn = torch.empty(*shape)
    for each in drawn if len(shape) == 3 else (drawn,):
        nn.init.xavier_uniform_(each)
    return nn.Parameter(drawn)


def _wider(w: Tensor, nodes: int) -> Tensor:
    """w, and beside it a matrix that hands names on as they are."""
    heads, features, width = w.shape
    names = torch.eye(nodes, dtype=w.dtype, device=w.device).expand(heads, -1, -1)
    above = torch.cat((w, w.new_zeros(heads, features, nodes)), 2)
    return torch.cat((above, torch.cat((w.new_zeros(heads, nodes, width), names), 2)), 1)


def _longer(a: Tensor, nodes: int) -> Tensor:
    return torch.cat((a, a.new_zeros(len(a), nodes)), 1)
