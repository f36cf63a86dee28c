"""FAVOR+ features and linear attention against performer-pytorch.

The epsilons that performer-pytorch adds to features and sums (1e-4 and 1e-6) bias the result and are set to 0 here. Its
directions are not uniform (see `tests/test_feature_map.py`), so both sides use the same ones.
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

from regard.feature_map import CustomFeatureMap, FavorFeatureMap, FeatureMap
from regard.mechanisms.linear import linear_attention as regard_linear_attention

HEAD_DIM, NUM_FEATURES = 16, 40


def random_qkv() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, 3, 70, HEAD_DIM, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


def performer_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    if causal:
        return causal_linear_attention_noncuda(q, k, v, eps=0.0)
    return linear_attention(q, k, v)


@pytest.mark.parametrize("causal", [False, True])
def test_favor_equals_the_performer_with_its_directions(causal: bool) -> None:
    q, k, v = random_qkv()
    directions = gaussian_orthogonal_random_matrix(NUM_FEATURES, HEAD_DIM).double()
    kernel = partial(softmax_kernel, projection_matrix=directions, eps=0.0)

    expected = performer_attention(kernel(q, is_query=True), kernel(k, is_query=False), v, causal)

    output = regard_linear_attention(q, k, v, feature_map=FavorFeatureMap(directions, hyperbolic=False), causal=causal)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)  # float64 sums in another order


@pytest.mark.parametrize("causal", [False, True])
def test_custom_features_equal_the_performer(causal: bool) -> None:
    q, k, v = random_qkv()
    directions = gaussian_orthogonal_random_matrix(NUM_FEATURES, HEAD_DIM).double()
    kernel = partial(generalized_kernel, projection_matrix=directions, kernel_epsilon=1e-3)
    feature_map: FeatureMap = CustomFeatureMap(kernel)

    output = regard_linear_attention(q, k, v, feature_map=feature_map, causal=causal)

    torch.testing.assert_close(output, performer_attention(kernel(q), kernel(k), v, causal), rtol=1e-10, atol=1e-10)


def test_the_epsilon_of_performer_pytorch_changes_the_output() -> None:
    """With the epsilon, the weights are biased toward equal ones; the tests above set it to 0."""
    q, k, v = random_qkv()
    directions = gaussian_orthogonal_random_matrix(NUM_FEATURES, HEAD_DIM).double()
    plain, biased = (
        linear_attention(*(softmax_kernel(x, projection_matrix=directions, is_query=x is q, eps=e) for x in (q, k)), v)
        for e in (0.0, 1e-4)
    )
    assert float((plain - biased).abs().max()) > 1e-3
