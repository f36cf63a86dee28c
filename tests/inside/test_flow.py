"""Across layers and along gradients: what is computed by rows is the product of whole matrices, and autograd's own."""

import networkx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import mask
from regard.errors import BudgetError, SpecError
from regard.inside import matrix

N, WIDTH, HEADS = 12, 16, 4


class Open(nn.Module):
    """A layer that keeps its weights, for autograd to tell their gradients."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.to_heads, self.out, self.is_causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), is_causal
        self.kept: dict[str, Tensor] = {}

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.to_heads(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return 2 * q, 2 * k, v

    def forward(self, x: Tensor) -> Tensor:
        o = F.scaled_dot_product_attention(*self.rows(x), is_causal=self.is_causal)
        return x + self.out(o.transpose(1, 2).flatten(2))

    def openly(self, x: Tensor) -> Tensor:
        q, k, v = self.rows(x)
        products = q @ k.mT
        scores = products / q.shape[-1] ** 0.5
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
        weights = scores.softmax(-1)
        self.kept = {"products": products, "weights": weights}
        for tensor in self.kept.values():
            tensor.retain_grad()
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


@pytest.fixture(params=[True, False], ids=["causal", "full"])
def both(request: pytest.FixtureRequest) -> tuple[regard.Tape, list[dict[str, Tensor]]]:
    """A recording whose loss was followed back, and the same computed openly, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Open(request.param) for _ in range(3)))
    x = torch.randn(2, N, WIDTH)
    with regard.record(model) as tape:
        y = model(x)
    y[:, -1].square().sum().backward()
    model.double()
    z = x.double()
    for layer in model:
        z = layer.openly(z)
    z[:, -1].square().sum().backward()
    return tape, [layer.kept for layer in model]


CLOSE = dict(rtol=1e-4, atol=1e-6)  # float32 through three layers, against float64


def test_reversed_attention_is_the_gradient_in_the_products(both: tuple[regard.Tape, list[dict[str, Tensor]]]) -> None:
    tape, layers = both
    for number, kept in enumerate(layers):
        found, right = tape.reversed(number), kept["products"].grad
        assert right is not None
        torch.testing.assert_close(found[...].double(), right, **CLOSE)
        torch.testing.assert_close(found[1, 2, 3:5, [0, 4]].double(), right[1, 2, 3:5][..., [0, 4]], **CLOSE)
        torch.testing.assert_close(found.norms().double(), right.square().sum((-2, -1)).sqrt(), **CLOSE)


def test_weights_times_gradient_are_autograds(both: tuple[regard.Tape, list[dict[str, Tensor]]]) -> None:
    tape, layers = both
    for number, kept in enumerate(layers):
        slope = kept["weights"].grad
        assert slope is not None
        torch.testing.assert_close(tape.times_gradient(number)[...].double(), kept["weights"].detach() * slope, **CLOSE)


def test_rollout_is_the_product_of_whole_matrices(
    both: tuple[regard.Tape, list[dict[str, Tensor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tape, layers = both
    whole = torch.eye(N, dtype=torch.float64).expand(2, N, N)
    for kept in layers:
        step = kept["weights"].detach().mean(1) + torch.eye(N)
        whole = step / step.sum(-1, keepdim=True) @ whole
    torch.testing.assert_close(tape.rollout(range(N)).double(), whole, **CLOSE)
    torch.testing.assert_close(tape.rollout(-1).double(), whole[:, -1:], **CLOSE)
    monkeypatch.setattr(matrix, "CELLS", 5 * 2 * HEADS * N)  # five rows at a time
    torch.testing.assert_close(tape.rollout([3, 7]).double(), whole[:, [3, 7]], **CLOSE)


def test_relevance_is_the_product_of_whole_matrices(both: tuple[regard.Tape, list[dict[str, Tensor]]]) -> None:
    tape, layers = both
    whole = torch.eye(N, dtype=torch.float64).expand(2, N, N)
    for kept in layers:
        slope = kept["weights"].grad
        assert slope is not None
        whole = whole + (kept["weights"].detach() * slope).clamp(min=0).mean(1) @ whole
    torch.testing.assert_close(tape.relevance([0, 11]).double(), whole[:, [0, 11]], **CLOSE)


def test_flow_through_one_layer_is_its_edge_and_through_two_no_more_than_what_fits(
    both: tuple[regard.Tape, list[dict[str, Tensor]]],
) -> None:
    tape, layers = both
    steps = [kept["weights"].detach().mean(1) + torch.eye(N) for kept in layers]
    steps = [step / step.sum(-1, keepdim=True) for step in steps]
    torch.testing.assert_close(tape.flow(5, layers=[0]).double(), steps[0][:, 5], **CLOSE)
    found = tape.flow(-1, layers=[0, 1]).double()
    # each way has one token in the middle, which lets through what its narrower edge does
    right = torch.minimum(steps[0].mT, steps[1][:, -1:].expand_as(steps[0])).sum(-1)
    torch.testing.assert_close(found, right, **CLOSE)
    three = tape.flow(-1)
    graph = networkx.DiGraph()
    for number, step in enumerate(steps):
        for i in range(N):
            for j in range(N):
                graph.add_edge((number, j), (number + 1, i), capacity=float(step[0, i, j]))
    cut, _ = networkx.minimum_cut(graph, (0, 2), (3, N - 1))
    assert float(three[0, 2]) == pytest.approx(cut, rel=1e-4)


def test_what_cannot_be_computed_says_why() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(F.scaled_dot_product_attention(x, x, x), y, y)

    x, y = torch.randn(1, 2, 70, 8), torch.randn(1, 2, 9, 8)
    model = Two()
    with torch.no_grad(), regard.record(model) as tape:
        model(x, y)
    with pytest.raises(SpecError, match=r"Two was called 2 times with other keys"):
        tape.rollout(0)
    layer = nn.Sequential(Open(True))
    with torch.no_grad(), regard.record(layer) as tape:
        layer(torch.randn(1, N, WIDTH))
    with pytest.raises(SpecError, match=r"none reached 0\. Record a forward pass with gradients"):
        tape.reversed(0)
    with pytest.raises(SpecError, match=r"tokens must be from 0 to 11; got \[12\]"):
        tape.rollout(12)

    class Cross(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return regard.attention(x, y, y, mask=mask.window(100))

    cross = Cross()
    with torch.no_grad(), regard.record(cross) as tape:
        cross(x, y)
    with pytest.raises(SpecError, match=r"layers must all look at one text.* Cross: 70 x 9"):
        tape.rollout(0)
    with torch.no_grad(), regard.record(cross) as tape:
        cross(x, x)
    with pytest.raises(BudgetError, match=r"at most 64 tokens.*got 70\. Use rollout"):
        tape.flow(0)
