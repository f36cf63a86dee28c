"""Clustered attention against an explicit computation, its exact cases, and the clustering of queries."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import ArgumentError
from regard.mechanisms.clustered import cluster_queries, clustered_attention
from tests.mechanisms.random_inputs import HEAD_DIM, random_inputs


def reference(q: Tensor, k: Tensor, v: Tensor, cluster_ids: list[int], topk: int | None) -> Tensor:
    """Compute one head (n, head_dim) with the full matrix of weights, row by row."""
    rows = []
    for i, cluster in enumerate(cluster_ids):
        members = [r for r, other in enumerate(cluster_ids) if other == cluster]
        weights = torch.softmax(k @ (sum(q[r] for r in members) / len(members)) / HEAD_DIM**0.5, 0)
        if topk is not None:
            best = weights.argsort(descending=True)[:topk]
            own_weights = torch.softmax(k[best] @ q[i] / HEAD_DIM**0.5, 0)
            weights = weights.index_put((best,), weights[best].sum() * own_weights)
        rows.append(weights)
    return torch.stack(rows) @ v


@pytest.mark.parametrize("topk", [None, 1, 4, 11])
@pytest.mark.parametrize("n", [1, 9, 20])
def test_clustered_attention_matches_the_reference(n: int, topk: int | None) -> None:
    q, k, v = random_inputs(n, 11, (2, 3))
    cluster_ids = torch.randint(4, (2, 3, n))

    output = clustered_attention(q, k, v, cluster_ids, topk=topk)

    for b in range(2):
        for h in range(3):
            expected = reference(q[b, h], k[b, h], v[b, h], cluster_ids[b, h].tolist(), topk)
            torch.testing.assert_close(output[b, h], expected)


@pytest.mark.parametrize("topk", [None, 1, 5])
def test_clusters_of_one_query_are_exact(topk: int | None) -> None:
    q, k, v = random_inputs(9, 11, (2, 3))

    output = clustered_attention(q, k, v, torch.randperm(9).expand(2, 3, 9), topk=topk)

    torch.testing.assert_close(output, scaled_dot_product_attention(q, k, v))


def test_topk_of_all_keys_is_exact() -> None:
    q, k, v = random_inputs(9, 11, (2, 3))

    output = clustered_attention(q, k, v, torch.zeros(2, 3, 9, dtype=torch.long), topk=11)

    torch.testing.assert_close(output, scaled_dot_product_attention(q, k, v))


def test_clusters_of_equal_queries_are_exact() -> None:
    _, k, v = random_inputs(1, 11, (2, 3))
    distinct = torch.randn(2, 3, 4, HEAD_DIM, dtype=torch.float64)
    q = distinct.repeat_interleave(5, dim=-2)

    output = clustered_attention(q, k, v, cluster_queries(q, num_clusters=20))

    torch.testing.assert_close(output, scaled_dot_product_attention(q, k, v))


def test_larger_topk_has_a_smaller_error() -> None:
    q, k, v = random_inputs(64, 64, (1, 2))
    cluster_ids = cluster_queries(q, num_clusters=6)
    exact = scaled_dot_product_attention(q, k, v)

    errors = [
        float((clustered_attention(q, k, v, cluster_ids, topk=topk) - exact).norm()) for topk in (None, 8, 32, 60, 64)
    ]

    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12 < errors[-2]


def test_rows_of_weights_sum_to_one() -> None:
    q, k, _ = random_inputs(9, 11, (2, 3))
    ones = torch.ones(2, 3, 11, 1, dtype=torch.float64)

    for topk in (None, 3):
        output = clustered_attention(q, k, ones, torch.randint(4, (2, 3, 9), dtype=torch.int32), topk=topk)
        torch.testing.assert_close(output, torch.ones(2, 3, 9, 1, dtype=torch.float64))


@pytest.mark.parametrize("topk", [None, 2, 5])
def test_gradients(topk: int | None) -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(4, 5, (2,)))
    cluster_ids = torch.tensor([[0, 1, 0, 3], [2, 2, 2, 0]])  # cluster 1 is empty in the second head

    assert gradcheck(lambda q, k, v: clustered_attention(q, k, v, cluster_ids, topk=topk), (q, k, v))


def test_float32_is_close_to_float64() -> None:
    q, k, v = random_inputs(300, 300, (1, 2))
    cluster_ids = cluster_queries(q, num_clusters=20)

    output = clustered_attention(*(x.float() for x in (q, k, v)), cluster_ids, topk=16)

    # scores are at most about 5: their error in float32 is 1e-6, and so is the relative error of a weight
    torch.testing.assert_close(output, clustered_attention(q, k, v, cluster_ids, topk=16).float(), rtol=1e-5, atol=1e-5)


def hamming(x: Tensor, y: Tensor) -> int:
    return int((x != y).sum())


def test_clusters_follow_lloyds_algorithm_on_hash_bits() -> None:
    q = torch.randn(2, 40, HEAD_DIM, dtype=torch.float64)
    clusters, bits, iterations = 5, 16, 3

    actual_ids = cluster_queries(q, num_clusters=clusters, bits=bits, iterations=iterations, seed=4)

    generator = torch.Generator().manual_seed(4)
    planes = torch.randn(HEAD_DIM, bits, generator=generator, dtype=torch.float64)
    initial = torch.randperm(40, generator=generator)[:clusters].tolist()
    for h in range(2):
        codes = torch.tensor([[bool(row @ plane > 0) for plane in planes.T] for row in q[h]])
        centers = [codes[i].clone() for i in initial]
        for _ in range(iterations):
            cluster_ids = [min(range(clusters), key=lambda c: hamming(code, centers[c])) for code in codes]
            for c in range(clusters):
                members = codes[[i for i, g in enumerate(cluster_ids) if g == c]]
                yes, no = members.sum(0), (~members).sum(0)
                centers[c] = torch.where(yes == no, centers[c], yes > no)
        distances = torch.tensor([[hamming(code, center) for center in centers] for code in codes])
        # ties between centers may be resolved either way
        assert torch.equal(distances.gather(1, actual_ids[h][:, None]).squeeze(1), distances.min(1).values)


def test_parallel_queries_share_a_cluster() -> None:
    directions = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0][:4]
    q = directions.repeat_interleave(10, 0) * torch.rand(40, 1, dtype=torch.float64).exp()

    cluster_ids = cluster_queries(q[None], num_clusters=12, seed=1)[0].reshape(4, 10)

    assert (cluster_ids == cluster_ids[:, :1]).all()
    assert len(set(cluster_ids[:, 0].tolist())) == 4


def test_clusters_depend_only_on_the_seed() -> None:
    q = torch.randn(1, 50, HEAD_DIM)

    state = torch.get_rng_state()
    one, same, other = (cluster_queries(q, num_clusters=7, seed=s) for s in (3, 3, 4))

    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())
    assert one.min() >= 0 and one.max() < 7 and one.dtype == torch.long


def test_no_queries() -> None:
    q, k, v = random_inputs(0, 4, (2, 3))

    assert clustered_attention(q, k, v, torch.zeros(2, 3, 0, dtype=torch.long), topk=2).shape == (2, 3, 0, 5)


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs(9, 11, (2, 3))
    cluster_ids = torch.zeros(2, 3, 9, dtype=torch.long)
    with pytest.raises(
        ArgumentError, match=r"k and v must have the same length; got q=\(2, 3, 9, 6\), .*, v=\(2, 3, 4, 5\)"
    ):
        clustered_attention(q, k, v[..., :4, :], cluster_ids)
    with pytest.raises(ArgumentError, match=r"integers of shape \(2, 3, 9\); got torch.int64 of shape \(2, 3, 8\)"):
        clustered_attention(q, k, v, cluster_ids[..., :8])
    with pytest.raises(ArgumentError, match=r"integers of shape \(2, 3, 9\); got torch.float32 of shape \(2, 3, 9\)"):
        clustered_attention(q, k, v, cluster_ids.float())
    with pytest.raises(ArgumentError, match="cluster_ids must be at least 0; got -1"):
        clustered_attention(q, k, v, cluster_ids - 1)
    with pytest.raises(ArgumentError, match="the number of keys, 11; got 12"):
        clustered_attention(q, k, v, cluster_ids, topk=12)
    with pytest.raises(ArgumentError, match="the number of queries, 9; got 10"):
        cluster_queries(q, num_clusters=10)
    with pytest.raises(
        ArgumentError, match="bits must be from 1 to 65,536 and iterations from 0 to 1,000; got 0 and 2"
    ):
        cluster_queries(q, num_clusters=2, bits=0, iterations=2)
