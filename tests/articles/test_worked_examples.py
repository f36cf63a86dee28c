"""The two worked examples of the articles, value by value, and errors in the printed values."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from tests.laws.cases import dtype_of

# The expected values have six decimals.
SIX_DECIMALS = dict(rtol=0, atol=1e-6)


def matrix(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Example:
    """Tokens, projections, and the expected intermediate values."""

    x: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    products: Tensor
    weights: Tensor
    output: Tensor
    causal_output: Tensor

    def project(self, backend: str) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.x @ self.w_q, self.x @ self.w_k, self.x @ self.w_v
        return q.to(dtype_of(backend)), k.to(dtype_of(backend)), v.to(dtype_of(backend))


DOG_ATE_DINNER = Example(
    x=matrix((1, 2, 3), (0.5, 1, 1.5), (2, 1, 0.5)),
    w_q=matrix((0.6, -0.2), (0.1, 0.5), (-0.3, 0.4)),
    w_k=matrix((0.2, 0.3), (-0.4, 0.7), (0.5, -0.1)),
    w_v=matrix((0.9, 0.1), (0.2, 0.8), (-0.1, 0.6)),
    q=matrix((-0.1, 2), (-0.05, 1), (1.15, 0.3)),
    k=matrix((0.9, 1.4), (0.45, 0.7), (0.25, 1.25)),
    v=matrix((1, 3.5), (0.5, 1.75), (1.95, 1.3)),
    products=matrix((2.71, 1.355, 2.475), (1.355, 0.6775, 1.2375), (1.455, 0.7275, 0.6625)),
    weights=matrix(
        (0.448328, 0.171983, 0.379690),
        (0.393757, 0.243878, 0.362364),
        (0.461076, 0.275653, 0.263270),
    ),
    output=matrix((1.274714, 2.363713), (1.222307, 2.276011), (1.112280, 2.438412)),
    causal_output=matrix((1, 3.5), (0.808763, 2.830672), (1.112280, 2.438412)),
)

THREE_TOKENS = Example(
    x=matrix((1, 0.5, 0.2, 0.8), (0.3, 0.9, 0.1, 0.4), (0.7, 0.2, 0.6, 0.3)),
    w_q=matrix((0.5, 0.3), (0.2, 0.4), (0.1, 0.6), (0.7, 0.2)),
    w_k=matrix((0.4, 0.1), (0.3, 0.5), (0.6, 0.2), (0.2, 0.4)),
    w_v=matrix((0.6, 0.3), (0.2, 0.7), (0.4, 0.1), (0.3, 0.5)),
    q=matrix((1.18, 0.78), (0.62, 0.59), (0.66, 0.71)),
    k=matrix((0.83, 0.71), (0.53, 0.66), (0.76, 0.41)),
    v=matrix((1.02, 1.07), (0.52, 0.93), (0.79, 0.56)),
    products=matrix((1.5332, 1.1402, 1.2166), (0.9335, 0.7180, 0.7131), (1.0519, 0.8184, 0.7927)),
    weights=matrix(
        (0.391114, 0.296221, 0.312664),
        (0.368412, 0.316341, 0.315247),
        (0.373088, 0.316304, 0.310608),
    ),
    output=matrix((0.799977, 0.869070), (0.789323, 0.864936), (0.790408, 0.867307)),
    causal_output=matrix((1.02, 1.07), (0.789011, 1.005323), (0.790408, 0.867307)),
)

both_examples = pytest.mark.parametrize(
    "example", [DOG_ATE_DINNER, THREE_TOKENS], ids=["dog ate dinner", "three tokens"]
)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, **SIX_DECIMALS)


@both_examples
def test_projections_match_the_example(example):
    for projection, expected in zip(example.project("reference"), (example.q, example.k, example.v), strict=True):
        close(projection, expected)


@both_examples
def test_output_matches_the_example(backend, example):
    close(regard.attention(*example.project(backend), backend=backend), example.output)


@both_examples
def test_weights_match_the_example(backend, example):
    result = regard.attention_with_weights(*example.project(backend), backend=backend)

    close(result.weights[...], example.weights)
    close(result.weights.to_dense(), example.weights)
    close(result.output, example.output)


@both_examples
def test_indexed_weights_match_the_example(backend, example):
    weights = regard.attention_with_weights(*example.project(backend), backend=backend).weights

    for i in range(3):
        for j in range(3):
            close(weights[i, j], example.weights[i, j])


@both_examples
def test_weights_and_lse_recover_the_products(backend, example):
    result = regard.attention_with_weights(*example.project(backend), backend=backend)

    scaled = result.weights[...].double().log() + result.lse.double().unsqueeze(-1)

    close(scaled * 2**0.5, example.products)


@both_examples
def test_causal_output_matches_the_example(backend, example):
    close(
        regard.attention(*example.project(backend), mask=mask.causal(), backend=backend),
        example.causal_output,
    )


@both_examples
def test_causal_first_and_last_rows(backend, example):
    result = regard.attention_with_weights(*example.project(backend), mask=mask.causal(), backend=backend)

    close(result.output[0], example.v[0])
    close(result.output[2], example.output[2])
    assert torch.equal(result.weights[...].triu(1), torch.zeros_like(result.weights[...]))


# Printed values and the values that follow from the printed inputs


def test_the_first_example_uses_the_scale(backend):
    q, k, v = DOG_ATE_DINNER.project(backend)

    unscaled = regard.attention_with_weights(q, k, v, score=score.dot(), backend=backend)

    close(unscaled.weights[0], matrix((0.488158, 0.125919, 0.385923))[0])
    close(unscaled.output[0], matrix((1.303668, 2.430611))[0])
    assert (unscaled.weights[0].double() - DOG_ATE_DINNER.weights[0]).abs().max() > 0.03
    assert (unscaled.output[0].double() - DOG_ATE_DINNER.output[0]).abs().min() > 0.02


def test_printed_values_of_the_first_example_are_correct(backend):
    result = regard.attention_with_weights(*DOG_ATE_DINNER.project(backend), backend=backend)

    assert [round(x, 3) for x in result.weights[0].tolist()] == [0.448, 0.172, 0.380]
    # the article multiplied rounded weights: its second coordinate 2.363 is 2.364 if rounded once
    assert [round(x, 3) for x in result.output[0].tolist()] == [1.275, 2.364]
    rounded = matrix((0.448, 0.172, 0.380)) @ DOG_ATE_DINNER.v
    assert [round(x, 3) for x in rounded[0].tolist()] == [1.275, 2.363]


PRINTED_Q = matrix((1.07, 0.77), (0.47, 0.57), (0.61, 0.55))
PRINTED_K = matrix((0.79, 0.79), (0.35, 0.51), (0.62, 0.41))
PRINTED_V = matrix((1.09, 0.97), (0.44, 0.59), (0.71, 0.52))
PRINTED_OUTPUT = matrix((0.81, 0.78), (0.64, 0.65), (0.71, 0.68))
PRINTED_ROW = matrix((0.48, 0.25, 0.27))[0]
A_PRINTED_DIGIT = 0.005  # rounding error of two decimals


def test_printed_queries_keys_and_values_are_not_the_projections():
    projections = THREE_TOKENS.project("reference")

    for printed, correct in zip((PRINTED_Q, PRINTED_K, PRINTED_V), projections, strict=True):
        assert (printed - correct).abs().max() > 5 * A_PRINTED_DIGIT


def test_printed_scores_do_not_follow_from_printed_queries_and_keys():
    products = PRINTED_Q @ PRINTED_K.mT

    for (i, j), correct, printed in [((0, 2), 0.9791, 1.09), ((1, 0), 0.8216, 0.66)]:
        assert float(products[i, j]) == pytest.approx(correct, abs=1e-12)
        assert abs(correct - printed) > 5 * A_PRINTED_DIGIT


def test_printed_weights_do_not_follow_from_the_printed_scores(backend):
    # with unit vectors as keys, the scores of the query are the printed row
    row, keys = (x.to(dtype_of(backend)) for x in (matrix((1.03, 0.54, 0.77)), torch.eye(3)))

    result = regard.attention_with_weights(row, keys, keys, score=score.dot(), backend=backend)

    torch.testing.assert_close(result.weights[0].double(), matrix((0.4195, 0.2570, 0.3235))[0], rtol=0, atol=5e-5)
    assert abs(float(result.weights[0, 0]) - 0.48) > 5 * A_PRINTED_DIGIT


def test_printed_output_does_not_follow_from_printed_weights_and_values():
    output = PRINTED_ROW @ PRINTED_V

    torch.testing.assert_close(output, matrix((0.8249, 0.7535))[0], rtol=0, atol=5e-5)
    assert (output - PRINTED_OUTPUT[0]).abs().min() > 2 * A_PRINTED_DIGIT


def test_the_first_token_attends_less_to_itself_than_printed(backend):
    result = regard.attention_with_weights(*THREE_TOKENS.project(backend), backend=backend)

    assert [round(x, 3) for x in result.weights[0].tolist()] == [0.391, 0.296, 0.313]
    assert float((result.weights[0].double() - PRINTED_ROW).abs().max()) > 5 * A_PRINTED_DIGIT
    assert float((result.output.double() - PRINTED_OUTPUT).abs().max()) > 5 * A_PRINTED_DIGIT
