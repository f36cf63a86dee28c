"""Rollout, relevance, flow and gradient matrices against dense products and autograd."""

import networkx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import mask
from regard.errors import ArgumentError, BudgetError
from regard.recording import lazy_matrix

N, EMBED_DIM, NUM_HEADS = 12, 16, 4


class DenseBlock(nn.Module):
    """A block that can also run densely, with the gradients of its scores and weights."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.is_causal = (
            nn.Linear(EMBED_DIM, 3 * EMBED_DIM),
            nn.Linear(EMBED_DIM, EMBED_DIM),
            is_causal,
        )
        self.dense: dict[str, Tensor] = {}

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        return 2 * q, 2 * k, v

    def forward(self, x: Tensor) -> Tensor:
        o = F.scaled_dot_product_attention(*self.project(x), is_causal=self.is_causal)
        return x + self.out(o.transpose(1, 2).flatten(2))

    def forward_dense(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        products = q @ k.mT
        scores = products / q.shape[-1] ** 0.5
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
        weights = scores.softmax(-1)
        self.dense = {"products": products, "weights": weights}
        for tensor in self.dense.values():
            tensor.retain_grad()
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


@pytest.fixture(params=[True, False], ids=["causal", "full"])
def recording_and_dense(request: pytest.FixtureRequest) -> tuple[regard.Recording, list[dict[str, Tensor]]]:
    """A recording with gradients, and the tensors of the dense computation in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(*(DenseBlock(request.param) for _ in range(3)))
    x = torch.randn(2, N, EMBED_DIM)
    with regard.record(model) as recording:
        y = model(x)
    y[:, -1].square().sum().backward()
    model.double()
    z = x.double()
    for layer in model:
        z = layer.forward_dense(z)
    z[:, -1].square().sum().backward()
    return recording, [layer.dense for layer in model]


CLOSE = dict(rtol=1e-4, atol=1e-6)  # float32 through three layers, against float64


def test_reversed_attention_is_the_gradient_of_the_products(
    recording_and_dense: tuple[regard.Recording, list[dict[str, Tensor]]],
) -> None:
    recording, layers = recording_and_dense
    for layer, dense in enumerate(layers):
        reversed_attention, expected = recording.reversed_attention(layer), dense["products"].grad
        assert expected is not None
        torch.testing.assert_close(reversed_attention[...].double(), expected, **CLOSE)
        torch.testing.assert_close(
            reversed_attention[1, 2, 3:5, [0, 4]].double(), expected[1, 2, 3:5][..., [0, 4]], **CLOSE
        )
        torch.testing.assert_close(
            reversed_attention.head_norms().double(), expected.square().sum((-2, -1)).sqrt(), **CLOSE
        )


def test_attention_times_gradient_is_that_of_autograd(
    recording_and_dense: tuple[regard.Recording, list[dict[str, Tensor]]],
) -> None:
    recording, layers = recording_and_dense
    for layer, dense in enumerate(layers):
        gradient = dense["weights"].grad
        assert gradient is not None
        torch.testing.assert_close(
            recording.attention_times_gradient(layer)[...].double(), dense["weights"].detach() * gradient, **CLOSE
        )


def test_rollout_is_the_product_of_dense_matrices(
    recording_and_dense: tuple[regard.Recording, list[dict[str, Tensor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, layers = recording_and_dense
    product = torch.eye(N, dtype=torch.float64).expand(2, N, N)
    for dense in layers:
        step = dense["weights"].detach().mean(1) + torch.eye(N)
        product = step / step.sum(-1, keepdim=True) @ product
    torch.testing.assert_close(recording.rollout(range(N)).double(), product, **CLOSE)
    torch.testing.assert_close(recording.rollout(-1).double(), product[:, -1:], **CLOSE)
    monkeypatch.setattr(lazy_matrix, "MAX_PAIRS_PER_BLOCK", 5 * 2 * NUM_HEADS * N)  # five rows at a time
    torch.testing.assert_close(recording.rollout([3, 7]).double(), product[:, [3, 7]], **CLOSE)


def test_relevance_is_the_product_of_dense_matrices(
    recording_and_dense: tuple[regard.Recording, list[dict[str, Tensor]]],
) -> None:
    recording, layers = recording_and_dense
    product = torch.eye(N, dtype=torch.float64).expand(2, N, N)
    for dense in layers:
        gradient = dense["weights"].grad
        assert gradient is not None
        product = product + (dense["weights"].detach() * gradient).clamp(min=0).mean(1) @ product
    torch.testing.assert_close(recording.relevance([0, 11]).double(), product[:, [0, 11]], **CLOSE)


def test_flow_is_the_maximum_flow(
    recording_and_dense: tuple[regard.Recording, list[dict[str, Tensor]]],
) -> None:
    recording, layers = recording_and_dense
    steps = [dense["weights"].detach().mean(1) + torch.eye(N) for dense in layers]
    steps = [step / step.sum(-1, keepdim=True) for step in steps]
    torch.testing.assert_close(recording.flow(5, layers=[0]).double(), steps[0][:, 5], **CLOSE)
    two_layers = recording.flow(-1, layers=[0, 1]).double()
    # each path has one token in the middle, and the smaller capacity of its two edges
    expected = torch.minimum(steps[0].mT, steps[1][:, -1:].expand_as(steps[0])).sum(-1)
    torch.testing.assert_close(two_layers, expected, **CLOSE)
    three_layers = recording.flow(-1)
    graph = networkx.DiGraph()
    for depth, step in enumerate(steps):
        for i in range(N):
            for j in range(N):
                graph.add_edge((depth, j), (depth + 1, i), capacity=float(step[0, i, j]))
    cut, _ = networkx.minimum_cut(graph, (0, 2), (3, N - 1))
    assert float(three_layers[0, 2]) == pytest.approx(cut, rel=1e-4)


def test_impossible_attributions_raise() -> None:
    class TwoCalls(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(F.scaled_dot_product_attention(x, x, x), y, y)

    x, y = torch.randn(1, 2, 70, 8), torch.randn(1, 2, 9, 8)
    model = TwoCalls()
    with torch.no_grad(), regard.record(model) as recording:
        model(x, y)
    with pytest.raises(ArgumentError, match=r"TwoCalls was called 2 times with unrelated keys"):
        recording.rollout(0)
    layer = nn.Sequential(DenseBlock(True))
    with torch.no_grad(), regard.record(layer) as recording:
        layer(torch.randn(1, N, EMBED_DIM))
    with pytest.raises(ArgumentError, match=r"0 has none\. Record a forward pass with gradients"):
        recording.reversed_attention(0)
    with pytest.raises(ArgumentError, match=r"positions must be from -12 to 11; got \[12\]"):
        recording.rollout(12)

    class Cross(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return regard.attention(x, y, y, mask=mask.sliding_window(100))

    cross = Cross()
    with torch.no_grad(), regard.record(cross) as recording:
        cross(x, y)
    with pytest.raises(ArgumentError, match=r"the same number of queries and keys.* Cross: 70 x 9"):
        recording.rollout(0)
    with torch.no_grad(), regard.record(cross) as recording:
        cross(x, x)
    with pytest.raises(BudgetError, match=r"at most 64 tokens.*got 70\. Use rollout"):
        recording.flow(0)
