"""Routing attention against an explicit computation, the cases of full attention, and updates of centroids."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import ArgumentError
from regard.mechanisms.routing import routing_attention, update_centroids
from tests.mechanisms.random_inputs import HEAD_DIM, random_inputs

HEADS = 2


def normalize(x: Tensor) -> Tensor:
    """Return (x - mean) / √(variance + 1e-5)."""
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt(centered.square().mean(-1, keepdim=True) + 1e-5)


def reference(q: Tensor, k: Tensor, v: Tensor, centroids: Tensor, cluster_size: int, causal: bool) -> Tensor:
    """Compute one head (n, head_dim), cluster by cluster and query by query."""
    q, k = normalize(q), normalize(k)
    outputs: list[list[Tensor]] = [[] for _ in q]
    start = len(k) - len(q)
    for centroid in centroids:
        queries = sorted(range(len(q)), key=lambda i: float(-centroid @ q[i]))[:cluster_size]
        keys = sorted(range(len(k)), key=lambda j: float(-centroid @ k[j]))[:cluster_size]
        for i in queries:
            visible = [j for j in keys if not causal or j <= start + i]
            if visible:
                weights = torch.softmax(k[visible] @ q[i] / HEAD_DIM**0.5, 0)
                outputs[i].append(weights @ v[visible])
    zeros = torch.zeros(v.shape[-1], dtype=v.dtype)
    return torch.stack([sum(parts) / len(parts) if parts else zeros for parts in outputs])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "n_q, n_k, num_clusters, cluster_size", [(20, 20, 4, 5), (17, 17, 3, 7), (5, 13, 6, 3), (1, 1, 2, 1)]
)
def test_routing_matches_the_reference(causal: bool, n_q: int, n_k: int, num_clusters: int, cluster_size: int) -> None:
    q, k, v = random_inputs(n_q, n_k, (3, HEADS))
    centroids = torch.randn(HEADS, num_clusters, HEAD_DIM, dtype=torch.float64)

    output = routing_attention(q, k, v, centroids, cluster_size=cluster_size, causal=causal)

    for b in range(3):
        for h in range(HEADS):
            expected = reference(q[b, h], k[b, h], v[b, h], centroids[h], cluster_size, causal)
            torch.testing.assert_close(output[b, h], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_one_centroid_with_all_tokens_is_attention_of_normalized_inputs(causal: bool) -> None:
    q, k, v = random_inputs(30, 30, (3, HEADS))

    output = routing_attention(
        q, k, v, torch.randn(HEADS, 1, HEAD_DIM, dtype=torch.float64), cluster_size=30, causal=causal
    )

    expected = scaled_dot_product_attention(normalize(q), normalize(k), v, is_causal=causal)
    torch.testing.assert_close(output, expected)


def test_several_centroids_with_all_tokens_equal_one() -> None:
    q, k, v = random_inputs(12, 12, (3, HEADS))
    centroids = torch.randn(HEADS, 4, HEAD_DIM, dtype=torch.float64)

    torch.testing.assert_close(
        routing_attention(q, k, v, centroids, cluster_size=12),
        routing_attention(q, k, v, centroids[:, :1], cluster_size=12),
    )


def test_disjoint_clusters_are_a_block_mask() -> None:
    q, k, v = random_inputs(12, 12, (1, 1))
    q, k = 0.1 * q, 0.1 * k
    direction = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0] * 6, dtype=torch.float64)
    q, k = q + signs[:, None] * direction, k + signs[:, None] * direction  # two clusters around the two centroids

    output = routing_attention(q, k, v, torch.stack((direction, -direction))[None], cluster_size=6)

    same_cluster = signs[:, None] == signs
    torch.testing.assert_close(
        output, scaled_dot_product_attention(normalize(q), normalize(k), v, attn_mask=same_cluster)
    )


def test_a_query_in_no_cluster_has_zero_output_and_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(10, 10, (HEADS,)))
    centroid = torch.randn(HEADS, 1, HEAD_DIM, dtype=torch.float64)

    output = routing_attention(q, k, v, centroid, cluster_size=4)

    selected = (normalize(q) @ centroid.mT).squeeze(-1).topk(4, -1).indices
    is_empty = torch.ones(HEADS, 10, dtype=torch.bool).scatter(-1, selected, False)
    assert (output[is_empty] == 0).all() and (output[~is_empty] != 0).all()
    (gradient,) = torch.autograd.grad(output.square().sum(), q)
    assert (gradient[is_empty] == 0).all() and (gradient[~is_empty] != 0).any(-1).all()


def test_a_cluster_without_visible_keys_does_not_count() -> None:
    """Query 0 is in two clusters; only one of them has a key that is not later."""
    along = torch.tensor([1.0, -1, 0, 0], dtype=torch.float64)
    across = torch.tensor([0.0, 0, 1, -1], dtype=torch.float64)
    q = torch.stack((along + across, -along - across))[None]
    k = torch.stack((along, across))[None]
    v = torch.tensor([[[3.0], [5.0]]], dtype=torch.float64)

    output = routing_attention(q, k, v, torch.stack((along, across))[None], cluster_size=1, causal=True)

    assert output.flatten().tolist() == [3.0, 0.0]


def test_gradients() -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(6, 6, (2,)))
    centroids = torch.randn(2, 3, HEAD_DIM, dtype=torch.float64)

    for causal in (False, True):
        assert gradcheck(
            lambda q, k, v, c=causal: routing_attention(q, k, v, centroids, cluster_size=3, causal=c), (q, k, v)
        )


def test_centroids_move_toward_the_mean_of_their_rows() -> None:
    q, k, _ = random_inputs(8, 11, (3, HEADS))
    centroids = torch.randn(HEADS, 5, HEAD_DIM, dtype=torch.float64)
    # centroid 4 is half of centroid 0, and centroid 3 is opposite to both, so no row is assigned to centroid 4
    centroids[:, 3], centroids[:, 4] = -centroids[:, 0], 0.5 * centroids[:, 0]

    updated = update_centroids(centroids, q, k, decay=0.9)

    for h in range(HEADS):
        rows = torch.cat([normalize(x[:, h]).reshape(-1, HEAD_DIM) for x in (q, k)])
        expected = centroids[h].clone()
        for c in range(5):
            members = [r for r in rows if max(range(5), key=lambda e: float(centroids[h, e] @ r)) == c]
            if members:
                expected[c] = 0.9 * centroids[h, c] + 0.1 * sum(members) / len(members)
        torch.testing.assert_close(updated[h], expected)
    assert torch.equal(updated[:, 4], centroids[:, 4])


def test_repeated_updates_converge_to_clusters() -> None:
    clusters = normalize(torch.randn(1, 3, HEAD_DIM, dtype=torch.float64))
    x = clusters.repeat(1, 20, 1) + 0.01 * torch.randn(1, 60, HEAD_DIM, dtype=torch.float64)
    centroids = clusters + 0.5 * torch.randn(1, 3, HEAD_DIM, dtype=torch.float64)

    for _ in range(200):
        centroids = update_centroids(centroids, x.requires_grad_(), x, decay=0.9)

    torch.testing.assert_close(centroids, clusters, rtol=0, atol=0.02)  # the mean of 20 rows with noise of 0.01
    assert not centroids.requires_grad


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs(8, 9, (3, HEADS))
    centroids = torch.randn(HEADS, 3, HEAD_DIM, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"shapes that differ only in n; got q=\(3, 2, 8, 6\), k=\(3, 2, 9, 5\)"):
        routing_attention(q, v, v, centroids, cluster_size=2)
    with pytest.raises(ArgumentError, match=r"= \(2, at least 1, 6\); got \(3, 3, 6\)"):
        routing_attention(q, k, v, torch.randn(3, 3, HEAD_DIM), cluster_size=2)
    with pytest.raises(ArgumentError, match=r"= \(2, at least 1, 6\); got \(2, 0, 6\)"):
        update_centroids(centroids[:, :0], q, k)
    with pytest.raises(
        ArgumentError, match=r"the shape of k, \(3, 2, 9, 6\), except for the last dimension; got \(3, 2, 8, 5\)"
    ):
        routing_attention(q, k, v[..., :8, :], centroids, cluster_size=2)
    with pytest.raises(ArgumentError, match="number of queries and keys, 8 and 9; got 9"):
        routing_attention(q, k, v, centroids, cluster_size=9)
    with pytest.raises(ArgumentError, match="number of queries and keys, 8 and 9; got 0"):
        routing_attention(q, k, v, centroids, cluster_size=0)
    with pytest.raises(ArgumentError, match="more queries than keys; got n_q=9 and n_k=8"):
        routing_attention(k, q, q, centroids, cluster_size=2, causal=True)
    with pytest.raises(ArgumentError, match=r"decay must be from 0 to 1; got 1\.1"):
        update_centroids(centroids, q, k, decay=1.1)
