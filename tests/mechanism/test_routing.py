"""Routing attention: clusters written out one by one, the cases that are full attention, and centroids that move."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import SpecError
from regard.mechanism.routing import moved, routing

WIDTH, HEADS = 6, 2


def numbers(n_q: int, n_k: int, leading: tuple[int, ...] = (3, HEADS)) -> list[Tensor]:
    sizes = ((n_q, WIDTH), (n_k, WIDTH), (n_k, 5))
    return [torch.randn(*leading, *size, dtype=torch.float64) for size in sizes]


def normalised(x: Tensor) -> Tensor:
    """(x - mean) / √(variance + 1e-5)."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def written_out(q: Tensor, k: Tensor, v: Tensor, centroids: Tensor, window: int, causal: bool) -> Tensor:
    """One head (n, width): one cluster after another, one query after another."""
    q, k = normalised(q), normalised(k)
    got: list[list[Tensor]] = [[] for _ in q]
    start = len(k) - len(q)
    for centroid in centroids:
        queries = sorted(range(len(q)), key=lambda i: float(-centroid @ q[i]))[:window]
        keys = sorted(range(len(k)), key=lambda j: float(-centroid @ k[j]))[:window]
        for i in queries:
            seen = [j for j in keys if not causal or j <= start + i]
            if seen:
                weights = torch.softmax(k[seen] @ q[i] / WIDTH**0.5, 0)
                got[i].append(weights @ v[seen])
    nothing = torch.zeros(v.shape[-1], dtype=v.dtype)
    return torch.stack([sum(parts) / len(parts) if parts else nothing for parts in got])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q, n_k, clusters, window", [(20, 20, 4, 5), (17, 17, 3, 7), (5, 13, 6, 3), (1, 1, 2, 1)])
def test_each_cluster_attends_within_itself(causal: bool, n_q: int, n_k: int, clusters: int, window: int) -> None:
    q, k, v = numbers(n_q, n_k)
    centroids = torch.randn(HEADS, clusters, WIDTH, dtype=torch.float64)

    found = routing(q, k, v, centroids, window=window, causal=causal)

    for b in range(3):
        for h in range(HEADS):
            expected = written_out(q[b, h], k[b, h], v[b, h], centroids[h], window, causal)
            torch.testing.assert_close(found[b, h], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_one_centroid_that_takes_all_is_attention_of_what_is_normalised(causal: bool) -> None:
    q, k, v = numbers(30, 30)

    found = routing(q, k, v, torch.randn(HEADS, 1, WIDTH, dtype=torch.float64), window=30, causal=causal)

    expected = scaled_dot_product_attention(normalised(q), normalised(k), v, is_causal=causal)
    torch.testing.assert_close(found, expected)


def test_several_centroids_that_take_all_are_one() -> None:
    q, k, v = numbers(12, 12)
    centroids = torch.randn(HEADS, 4, WIDTH, dtype=torch.float64)

    torch.testing.assert_close(routing(q, k, v, centroids, window=12), routing(q, k, v, centroids[:, :1], window=12))


def test_clusters_that_share_nothing_are_a_mask() -> None:
    q, k, v = numbers(12, 12, (1, 1))
    q, k = 0.1 * q, 0.1 * k
    apart = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)
    sides = torch.tensor([1.0, -1.0] * 6, dtype=torch.float64)
    q, k = q + sides[:, None] * apart, k + sides[:, None] * apart  # two heaps, each around its centroid

    found = routing(q, k, v, torch.stack((apart, -apart))[None], window=6)

    same = sides[:, None] == sides
    torch.testing.assert_close(found, scaled_dot_product_attention(normalised(q), normalised(k), v, attn_mask=same))


def test_a_query_that_no_centroid_took_gets_zero_and_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in numbers(10, 10, (HEADS,)))
    centroid = torch.randn(HEADS, 1, WIDTH, dtype=torch.float64)

    found = routing(q, k, v, centroid, window=4)

    taken = (normalised(q) @ centroid.mT).squeeze(-1).topk(4, -1).indices
    empty = torch.ones(HEADS, 10, dtype=torch.bool).scatter(-1, taken, False)
    assert (found[empty] == 0).all() and (found[~empty] != 0).all()
    (gradient,) = torch.autograd.grad(found.square().sum(), q)
    assert (gradient[empty] == 0).all() and (gradient[~empty] != 0).any(-1).all()


def test_a_cluster_that_shows_a_query_nothing_does_not_count() -> None:
    """Two clusters take query 0; only in one of them there is a key that is not later."""
    along = torch.tensor([1.0, -1, 0, 0], dtype=torch.float64)
    across = torch.tensor([0.0, 0, 1, -1], dtype=torch.float64)
    q = torch.stack((along + across, -along - across))[None]
    k = torch.stack((along, across))[None]
    v = torch.tensor([[[3.0], [5.0]]], dtype=torch.float64)

    found = routing(q, k, v, torch.stack((along, across))[None], window=1, causal=True)

    assert found.flatten().tolist() == [3.0, 0.0]


def test_gradients() -> None:
    q, k, v = (x.requires_grad_() for x in numbers(6, 6, (2,)))
    centroids = torch.randn(2, 3, WIDTH, dtype=torch.float64)

    for causal in (False, True):
        assert gradcheck(lambda q, k, v, c=causal: routing(q, k, v, centroids, window=3, causal=c), (q, k, v))


def test_centroids_move_to_the_mean_of_what_belongs_to_them() -> None:
    q, k, _ = numbers(8, 11)
    centroids = torch.randn(HEADS, 5, WIDTH, dtype=torch.float64)
    # half of one that has an opposite is never the nearest: nothing belongs to it
    centroids[:, 3], centroids[:, 4] = -centroids[:, 0], 0.5 * centroids[:, 0]

    found = moved(centroids, q, k, decay=0.9)

    for h in range(HEADS):
        rows = torch.cat([normalised(x[:, h]).reshape(-1, WIDTH) for x in (q, k)])
        expected = centroids[h].clone()
        for c in range(5):
            mine = [r for r in rows if max(range(5), key=lambda e: float(centroids[h, e] @ r)) == c]
            if mine:
                expected[c] = 0.9 * centroids[h, c] + 0.1 * sum(mine) / len(mine)
        torch.testing.assert_close(found[h], expected)
    assert torch.equal(found[:, 4], centroids[:, 4])


def test_moving_often_finds_heaps() -> None:
    heaps = normalised(torch.randn(1, 3, WIDTH, dtype=torch.float64))
    x = heaps.repeat(1, 20, 1) + 0.01 * torch.randn(1, 60, WIDTH, dtype=torch.float64)
    centroids = heaps + 0.5 * torch.randn(1, 3, WIDTH, dtype=torch.float64)

    for _ in range(200):
        centroids = moved(centroids, x.requires_grad_(), x, decay=0.9)

    torch.testing.assert_close(centroids, heaps, rtol=0, atol=0.02)  # the mean of 20 rows with noise of 0.01
    assert not centroids.requires_grad


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(8, 9)
    centroids = torch.randn(HEADS, 3, WIDTH, dtype=torch.float64)
    with pytest.raises(SpecError, match=r"their length alone; got q=\(3, 2, 8, 6\), k=\(3, 2, 9, 5\)"):
        routing(q, v, v, centroids, window=2)
    with pytest.raises(SpecError, match=r"= \(2, at least 1, 6\); got \(3, 3, 6\)"):
        routing(q, k, v, torch.randn(3, 3, WIDTH), window=2)
    with pytest.raises(SpecError, match=r"= \(2, at least 1, 6\); got \(2, 0, 6\)"):
        moved(centroids[:, :0], q, k)
    with pytest.raises(SpecError, match=r"the shape of k, \(3, 2, 9, 6\), but for its width; got \(3, 2, 8, 5\)"):
        routing(q, k, v[..., :8, :], centroids, window=2)
    with pytest.raises(SpecError, match="of queries and of keys, 8 and 9; got 9"):
        routing(q, k, v, centroids, window=9)
    with pytest.raises(SpecError, match="of queries and of keys, 8 and 9; got 0"):
        routing(q, k, v, centroids, window=0)
    with pytest.raises(SpecError, match="9 queries and 8 keys"):
        routing(k, q, q, centroids, window=2, causal=True)
    with pytest.raises(SpecError, match=r"decay must be from 0 to 1; got 1\.1"):
        moved(centroids, q, k, decay=1.1)
