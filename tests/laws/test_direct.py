"""The direct definition against torch and against numbers computed by hand."""

import math

import torch
import torch.nn.functional as F

from tests.random_tensors import normal

from . import direct

EXACT = dict(rtol=1e-13, atol=1e-13)  # both sides are float64 sums of a few terms


def test_direct_equals_torch_with_grouped_heads():
    q, k, v = normal(2, 4, 7, 3, seed=1), normal(2, 2, 5, 3, seed=2), normal(2, 2, 5, 6, seed=3)

    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    torch.testing.assert_close(direct.attention(q, k, v).output, expected, **EXACT)


def test_direct_equals_torch_with_boolean_and_float_masks():
    q, k, v = normal(2, 2, 6, 3, seed=1), normal(2, 2, 5, 3, seed=2), normal(2, 2, 5, 4, seed=3)
    visible = normal(2, 1, 6, 5, seed=4) > 0
    visible[0, 0, 2] = False
    extra = torch.where(visible, normal(6, 5, seed=5), -math.inf)

    boolean = direct.attention(q, k, v, mask=lambda where: visible)
    biased = direct.attention(q, k, v, modifiers=[direct.bias(extra)])

    torch.testing.assert_close(boolean.output, F.scaled_dot_product_attention(q, k, v, attn_mask=visible), **EXACT)
    torch.testing.assert_close(biased.output, F.scaled_dot_product_attention(q, k, v, attn_mask=extra), **EXACT)
    assert (boolean.output[0, :, 2] == 0).all() and (boolean.lse[0, :, 2] == -math.inf).all()


def test_direct_with_query_offset_zero_equals_torch_is_causal():
    q, k, v = normal(1, 2, 4, 3, seed=1), normal(1, 2, 6, 3, seed=2), normal(1, 2, 6, 3, seed=3)

    result = direct.attention(q, k, v, mask=direct.causal(), query_offset=0).output

    torch.testing.assert_close(result, F.scaled_dot_product_attention(q, k, v, is_causal=True), **EXACT)


def test_direct_equals_numbers_computed_by_hand():
    q = torch.tensor([[1.0], [0.0]]).double().view(1, 1, 2, 1)
    k = torch.tensor([[math.log(3)], [0.0], [9.0]], dtype=torch.float64).view(1, 1, 3, 1)
    v = torch.tensor([[4.0], [8.0], [100.0]]).double().view(1, 1, 3, 1)

    result = direct.attention(q, k, v, mask=lambda where: where.j < 2)

    # row 0: weights 3 : 1, so (3 * 4 + 8) / 4 = 5 and lse = log 4. Row 1: equal weights, so 6 and log 2.
    torch.testing.assert_close(result.output.flatten(), torch.tensor([5.0, 6.0]).double(), **EXACT)
    torch.testing.assert_close(result.lse.flatten().exp(), torch.tensor([4.0, 2.0]).double(), **EXACT)


def test_direct_sink_is_softmax_with_one_more_key():
    q, k, v = normal(1, 2, 4, 3, seed=1), normal(1, 2, 5, 3, seed=2), normal(1, 2, 5, 3, seed=3)
    logit = torch.tensor([0.3, -2.0]).double()

    scores = torch.cat([q @ k.mT / math.sqrt(3), logit.view(1, 2, 1, 1).expand(1, 2, 4, 1)], -1)
    result = direct.attention(q, k, v, normalizer=direct.sink(logit))

    torch.testing.assert_close(result.output, scores.softmax(-1)[..., :-1] @ v, **EXACT)
    torch.testing.assert_close(result.lse, scores[..., :-1].logsumexp(-1), **EXACT)


def test_direct_gaussian_and_additive_scores():
    q, k = normal(1, 1, 3, 4, seed=1), normal(1, 1, 5, 4, seed=2)
    w_q, w_k, u = normal(4, 6, seed=3), normal(4, 6, seed=4), normal(6, seed=5)
    pairs = torch.cat([q.unsqueeze(3).expand(1, 1, 3, 5, 4), k.unsqueeze(2).expand(1, 1, 3, 5, 4)], -1)

    torch.testing.assert_close(direct.gaussian(0.7)(q, k), -(torch.cdist(q, k) ** 2) / (2 * 0.49), **EXACT)
    torch.testing.assert_close(
        direct.additive(w_q, w_k, u)(q, k), torch.tanh(pairs @ torch.cat([w_q, w_k])) @ u, **EXACT
    )
    torch.testing.assert_close(
        direct.mahalanobis(torch.eye(4).double() / 0.49)(q, k), direct.gaussian(0.7)(q, k), **EXACT
    )


def test_direct_buckets_are_those_of_t5():
    bidirectional = {-128: 15, -64: 14, -16: 10, -8: 8, -1: 1, 0: 0, 1: 17, 8: 24, 16: 26, 64: 30, 128: 31}
    unidirectional = {5: 0, -15: 15, -16: 16, -20: 17, -32: 21, -64: 26, -127: 31}

    assert {gap: direct.t5_bucket(gap, 32, True, 128) for gap in bidirectional} == bidirectional
    assert {gap: direct.t5_bucket(gap, 32, False, 128) for gap in unidirectional} == unidirectional


def test_direct_propagates_nan_to_the_rows_that_attend_to_it():
    q, k, v = normal(1, 1, 3, 2, seed=1), normal(1, 1, 3, 2, seed=2), normal(1, 1, 3, 2, seed=3)
    v[0, 0, 1, 0] = math.nan

    result = direct.attention(q, k, v, mask=direct.causal()).output[0, 0]

    assert result.isnan().tolist() == [[False, False], [True, False], [True, False]]
