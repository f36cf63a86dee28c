"""Clustered attention: written out group by group, the cases that are exact, and groups by the bits of a code."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import SpecError
from regard.mechanism.clustered import clustered, grouped

WIDTH = 6


def numbers(n_q: int, n_k: int, leading: tuple[int, ...] = (2, 3)) -> list[Tensor]:
    sizes = ((n_q, WIDTH), (n_k, WIDTH), (n_k, 5))
    return [torch.randn(*leading, *size, dtype=torch.float64) for size in sizes]


def written_out(q: Tensor, k: Tensor, v: Tensor, groups: list[int], top: int | None) -> Tensor:
    """One head (n, width): the whole matrix of weights, row by row."""
    rows = []
    for i, group in enumerate(groups):
        members = [r for r, other in enumerate(groups) if other == group]
        weights = torch.softmax(k @ (sum(q[r] for r in members) / len(members)) / WIDTH**0.5, 0)
        if top is not None:
            best = weights.argsort(descending=True)[:top]
            own = torch.softmax(k[best] @ q[i] / WIDTH**0.5, 0)
            weights = weights.index_put((best,), weights[best].sum() * own)
        rows.append(weights)
    return torch.stack(rows) @ v


@pytest.mark.parametrize("top", [None, 1, 4, 11])
@pytest.mark.parametrize("n", [1, 9, 20])
def test_a_query_gets_what_the_mean_of_its_group_gets(n: int, top: int | None) -> None:
    q, k, v = numbers(n, 11)
    groups = torch.randint(4, (2, 3, n))

    found = clustered(q, k, v, groups, top=top)

    for b in range(2):
        for h in range(3):
            expected = written_out(q[b, h], k[b, h], v[b, h], groups[b, h].tolist(), top)
            torch.testing.assert_close(found[b, h], expected)


@pytest.mark.parametrize("top", [None, 1, 5])
def test_groups_of_one_are_exact(top: int | None) -> None:
    q, k, v = numbers(9, 11)

    found = clustered(q, k, v, torch.randperm(9).expand(2, 3, 9), top=top)

    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v))


def test_the_improved_form_with_all_keys_is_exact() -> None:
    q, k, v = numbers(9, 11)

    found = clustered(q, k, v, torch.zeros(2, 3, 9, dtype=torch.long), top=11)

    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v))


def test_equal_queries_in_a_group_are_exact() -> None:
    _, k, v = numbers(1, 11)
    few = torch.randn(2, 3, 4, WIDTH, dtype=torch.float64)
    q = few.repeat_interleave(5, dim=-2)

    found = clustered(q, k, v, grouped(q, clusters=20))

    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v))


def test_the_improved_form_is_nearer_the_more_keys_it_takes() -> None:
    q, k, v = numbers(64, 64, (1, 2))
    groups = grouped(q, clusters=6)
    exact = scaled_dot_product_attention(q, k, v)

    errors = [float((clustered(q, k, v, groups, top=top) - exact).norm()) for top in (None, 8, 32, 60, 64)]

    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12 < errors[-2]


def test_rows_of_weights_add_up_to_one() -> None:
    q, k, _ = numbers(9, 11)
    ones = torch.ones(2, 3, 11, 1, dtype=torch.float64)

    for top in (None, 3):
        found = clustered(q, k, ones, torch.randint(4, (2, 3, 9), dtype=torch.int32), top=top)
        torch.testing.assert_close(found, torch.ones(2, 3, 9, 1, dtype=torch.float64))


@pytest.mark.parametrize("top", [None, 2, 5])
def test_gradients(top: int | None) -> None:
    q, k, v = (x.requires_grad_() for x in numbers(4, 5, (2,)))
    groups = torch.tensor([[0, 1, 0, 3], [2, 2, 2, 0]])  # group 1 is empty in the second head

    assert gradcheck(lambda q, k, v: clustered(q, k, v, groups, top=top), (q, k, v))


def test_single_precision_is_near() -> None:
    q, k, v = numbers(300, 300, (1, 2))
    groups = grouped(q, clusters=20)

    found = clustered(*(x.float() for x in (q, k, v)), groups, top=16)

    # scores are at most about 5: their error in single precision is 1e-6, and so is that of a weight, relatively
    torch.testing.assert_close(found, clustered(q, k, v, groups, top=16).float(), rtol=1e-5, atol=1e-5)


def hamming(x: Tensor, y: Tensor) -> int:
    return int((x != y).sum())


def test_groups_are_lloyds_by_different_bits() -> None:
    q = torch.randn(2, 40, WIDTH, dtype=torch.float64)
    clusters, bits, iterations = 5, 16, 3

    found = grouped(q, clusters=clusters, bits=bits, iterations=iterations, seed=4)

    numbers = torch.Generator().manual_seed(4)
    planes = torch.randn(WIDTH, bits, generator=numbers, dtype=torch.float64)
    first = torch.randperm(40, generator=numbers)[:clusters].tolist()
    for h in range(2):
        codes = torch.tensor([[bool(row @ plane > 0) for plane in planes.T] for row in q[h]])
        centres = [codes[i].clone() for i in first]
        for _ in range(iterations):
            groups = [min(range(clusters), key=lambda c: hamming(code, centres[c])) for code in codes]
            for c in range(clusters):
                mine = codes[[i for i, g in enumerate(groups) if g == c]]
                yes, no = mine.sum(0), (~mine).sum(0)
                centres[c] = torch.where(yes == no, centres[c], yes > no)
        distances = torch.tensor([[hamming(code, centre) for centre in centres] for code in codes])
        # where two centres are equally near either may be taken
        assert torch.equal(distances.gather(1, found[h][:, None]).squeeze(1), distances.min(1).values)


def test_queries_of_one_direction_share_a_group_whatever_their_length() -> None:
    heaps = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0][:4]
    q = heaps.repeat_interleave(10, 0) * torch.rand(40, 1, dtype=torch.float64).exp()

    groups = grouped(q[None], clusters=12, seed=1)[0].reshape(4, 10)

    assert (groups == groups[:, :1]).all()
    assert len(set(groups[:, 0].tolist())) == 4


def test_the_seed_alone_decides() -> None:
    q = torch.randn(1, 50, WIDTH)

    state = torch.get_rng_state()
    one, same, other = (grouped(q, clusters=7, seed=s) for s in (3, 3, 4))

    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())
    assert one.min() >= 0 and one.max() < 7 and one.dtype == torch.long


def test_no_queries() -> None:
    q, k, v = numbers(0, 4)

    assert clustered(q, k, v, torch.zeros(2, 3, 0, dtype=torch.long), top=2).shape == (2, 3, 0, 5)


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(9, 11)
    groups = torch.zeros(2, 3, 9, dtype=torch.long)
    with pytest.raises(SpecError, match=r"k and v equally long; got q=\(2, 3, 9, 6\), .*, v=\(2, 3, 4, 5\)"):
        clustered(q, k, v[..., :4, :], groups)
    with pytest.raises(SpecError, match=r"for each query, \(2, 3, 9\); got torch.int64 of shape \(2, 3, 8\)"):
        clustered(q, k, v, groups[..., :8])
    with pytest.raises(SpecError, match=r"for each query, \(2, 3, 9\); got torch.float32 of shape \(2, 3, 9\)"):
        clustered(q, k, v, groups.float())
    with pytest.raises(SpecError, match="numbered from 0 on; got -1"):
        clustered(q, k, v, groups - 1)
    with pytest.raises(SpecError, match="the number of keys, 11; got 12"):
        clustered(q, k, v, groups, top=12)
    with pytest.raises(SpecError, match="the number of queries, 9; got 10"):
        grouped(q, clusters=10)
    with pytest.raises(SpecError, match="bits must be from 1 to 65,536 and iterations from 0 to 1,000; got 0 and 2"):
        grouped(q, clusters=2, bits=0, iterations=2)
