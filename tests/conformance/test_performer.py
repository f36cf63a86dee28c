"""performer-pytorch as a witness for FAVOR+ features and linear attention, where it is right.

Left out of it: the number that it adds to every feature and every sum (1e-4 and 1e-6), which biases them and is 0
here; its directions, which lean to one side (`tests/spec/test_feature.py` shows that); and its causal kernel for CUDA.
"""

from functools import partial

import pytest
import torch
from performer_pytorch.performer_pytorch import (
    causal_linear_attention_noncuda,
    gaussian_orthogonal_random_matrix,
    generalized_kernel,
    linear_attention,
    softmax_kernel,
)
from torch import Tensor

from regard.mechanism.linear import linear_attention as ours
from regard.spec.feature import Favor, FeatureMap, Given

WIDTH, FEATURES = 16, 40


def problem() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, 3, 70, WIDTH, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


def theirs(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    if causal:
        return causal_linear_attention_noncuda(q, k, v, eps=0.0)
    return linear_attention(q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_favor_with_the_performers_directions_is_the_performer(causal: bool) -> None:
    q, k, v = problem()
    directions = gaussian_orthogonal_random_matrix(FEATURES, WIDTH).double()
    kernel = partial(softmax_kernel, projection_matrix=directions, eps=0.0)

    expected = theirs(kernel(q, is_query=True), kernel(k, is_query=False), v, causal)

    found = ours(q, k, v, features=Favor(directions, hyperbolic=False), causal=causal)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)  # float64 in another order


@pytest.mark.parametrize("causal", [False, True])
def test_any_features_give_the_performers_answer(causal: bool) -> None:
    q, k, v = problem()
    directions = gaussian_orthogonal_random_matrix(FEATURES, WIDTH).double()
    kernel = partial(generalized_kernel, projection_matrix=directions, kernel_epsilon=1e-3)
    features: FeatureMap = Given(kernel)

    found = ours(q, k, v, features=features, causal=causal)

    torch.testing.assert_close(found, theirs(kernel(q), kernel(k), v, causal), rtol=1e-10, atol=1e-10)


def test_the_number_it_adds_to_features_moves_the_answer() -> None:
    """Why it is set to 0 above: with it weights are drawn towards equal ones."""
    q, k, v = problem()
    directions = gaussian_orthogonal_random_matrix(FEATURES, WIDTH).double()
    plain, biased = (
        linear_attention(*(softmax_kernel(x, projection_matrix=directions, is_query=x is q, eps=e) for x in (q, k)), v)
        for e in (0.0, 1e-4)
    )
    assert float((plain - biased).abs().max()) > 1e-3
