"""The two worked examples of the articles, number by number, and where the printed numbers were wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from tests.laws.cases import dtype_of

# The articles' numbers are worked out to six decimals.
SIX_DECIMALS = dict(rtol=0, atol=1e-6)


def numbers(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Example:
    """Tokens, projections, and everything that follows from them."""

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

    def projected(self, engine: str) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.x @ self.w_q, self.x @ self.w_k, self.x @ self.w_v
        return q.to(dtype_of(engine)), k.to(dtype_of(engine)), v.to(dtype_of(engine))


DOG_ATE_DINNER = Example(
    x=numbers((1, 2, 3), (0.5, 1, 1.5), (2, 1, 0.5)),
    w_q=numbers((0.6, -0.2), (0.1, 0.5), (-0.3, 0.4)),
    w_k=numbers((0.2, 0.3), (-0.4, 0.7), (0.5, -0.1)),
    w_v=numbers((0.9, 0.1), (0.2, 0.8), (-0.1, 0.6)),
    q=numbers((-0.1, 2), (-0.05, 1), (1.15, 0.3)),
    k=numbers((0.9, 1.4), (0.45, 0.7), (0.25, 1.25)),
    v=numbers((1, 3.5), (0.5, 1.75), (1.95, 1.3)),
    products=numbers((2.71, 1.355, 2.475), (1.355, 0.6775, 1.2375), (1.455, 0.7275, 0.6625)),
    weights=numbers(
        (0.448328, 0.171983, 0.379690),
        (0.393757, 0.243878, 0.362364),
        (0.461076, 0.275653, 0.263270),
    ),
    output=numbers((1.274714, 2.363713), (1.222307, 2.276011), (1.112280, 2.438412)),
    causal_output=numbers((1, 3.5), (0.808763, 2.830672), (1.112280, 2.438412)),
)

THREE_TOKENS = Example(
    x=numbers((1, 0.5, 0.2, 0.8), (0.3, 0.9, 0.1, 0.4), (0.7, 0.2, 0.6, 0.3)),
    w_q=numbers((0.5, 0.3), (0.2, 0.4), (0.1, 0.6), (0.7, 0.2)),
    w_k=numbers((0.4, 0.1), (0.3, 0.5), (0.6, 0.2), (0.2, 0.4)),
    w_v=numbers((0.6, 0.3), (0.2, 0.7), (0.4, 0.1), (0.3, 0.5)),
    q=numbers((1.18, 0.78), (0.62, 0.59), (0.66, 0.71)),
    k=numbers((0.83, 0.71), (0.53, 0.66), (0.76, 0.41)),
    v=numbers((1.02, 1.07), (0.52, 0.93), (0.79, 0.56)),
    products=numbers((1.5332, 1.1402, 1.2166), (0.9335, 0.7180, 0.7131), (1.0519, 0.8184, 0.7927)),
    weights=numbers(
        (0.391114, 0.296221, 0.312664),
        (0.368412, 0.316341, 0.315247),
        (0.373088, 0.316304, 0.310608),
    ),
    output=numbers((0.799977, 0.869070), (0.789323, 0.864936), (0.790408, 0.867307)),
    causal_output=numbers((1.02, 1.07), (0.789011, 1.005323), (0.790408, 0.867307)),
)

both_examples = pytest.mark.parametrize(
    "example", [DOG_ATE_DINNER, THREE_TOKENS], ids=["dog ate dinner", "three tokens"]
)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, **SIX_DECIMALS)


@both_examples
def test_the_projections_are_those_of_the_example(example):
    for found, expected in zip(example.projected("reference"), (example.q, example.k, example.v), strict=True):
        close(found, expected)


@both_examples
def test_the_output_has_the_numbers_of_the_example(engine, example):
    close(regard.attention(*example.projected(engine), engine=engine), example.output)


@both_examples
def test_the_weights_have_the_numbers_of_the_example(engine, example):
    found = regard.attend(*example.projected(engine), engine=engine)

    close(found.weights[...], example.weights)
    close(found.weights.dense(), example.weights)
    close(found.output, example.output)


@both_examples
def test_one_weight_asked_for_alone_is_the_one_of_the_example(engine, example):
    weights = regard.attend(*example.projected(engine), engine=engine).weights

    for i in range(3):
        for j in range(3):
            close(weights[i, j], example.weights[i, j])


@both_examples
def test_weights_and_lse_lead_back_to_the_products_of_the_example(engine, example):
    found = regard.attend(*example.projected(engine), engine=engine)

    scaled = found.weights[...].double().log() + found.lse.double().unsqueeze(-1)

    close(scaled * 2**0.5, example.products)


@both_examples
def test_the_causal_output_has_the_numbers_of_the_example(engine, example):
    close(
        regard.attention(*example.projected(engine), mask=mask.causal(), engine=engine),
        example.causal_output,
    )


@both_examples
def test_a_causal_first_row_is_its_own_value_and_the_last_row_is_as_without_a_mask(engine, example):
    found = regard.attend(*example.projected(engine), mask=mask.causal(), engine=engine)

    close(found.output[0], example.v[0])
    close(found.output[2], example.output[2])
    assert torch.equal(found.weights[...].triu(1), torch.zeros_like(found.weights[...]))


# What the texts say, and what follows from their inputs.


def test_the_weights_of_dog_were_scaled_though_the_text_does_not_say_so(engine):
    q, k, v = DOG_ATE_DINNER.projected(engine)

    unscaled = regard.attend(q, k, v, score=score.dot(), engine=engine)

    close(unscaled.weights[0], numbers((0.488158, 0.125919, 0.385923))[0])
    close(unscaled.output[0], numbers((1.303668, 2.430611))[0])
    assert (unscaled.weights[0].double() - DOG_ATE_DINNER.weights[0]).abs().max() > 0.03
    assert (unscaled.output[0].double() - DOG_ATE_DINNER.output[0]).abs().min() > 0.02


def test_the_printed_numbers_of_dog_are_right_to_the_digits_shown(engine):
    found = regard.attend(*DOG_ATE_DINNER.projected(engine), engine=engine)

    assert [round(x, 3) for x in found.weights[0].tolist()] == [0.448, 0.172, 0.380]
    # The text multiplied rounded weights: its second coordinate, 2.363, is 2.364 when it is rounded once.
    assert [round(x, 3) for x in found.output[0].tolist()] == [1.275, 2.364]
    rounded = numbers((0.448, 0.172, 0.380)) @ DOG_ATE_DINNER.v
    assert [round(x, 3) for x in rounded[0].tolist()] == [1.275, 2.363]


PRINTED_Q = numbers((1.07, 0.77), (0.47, 0.57), (0.61, 0.55))
PRINTED_K = numbers((0.79, 0.79), (0.35, 0.51), (0.62, 0.41))
PRINTED_V = numbers((1.09, 0.97), (0.44, 0.59), (0.71, 0.52))
PRINTED_OUTPUT = numbers((0.81, 0.78), (0.64, 0.65), (0.71, 0.68))
PRINTED_ROW = numbers((0.48, 0.25, 0.27))[0]
A_PRINTED_DIGIT = 0.005  # numbers with two decimals are this near to what they stand for


def test_the_printed_queries_keys_and_values_are_not_the_projections():
    projected = THREE_TOKENS.projected("reference")

    for printed, right in zip((PRINTED_Q, PRINTED_K, PRINTED_V), projected, strict=True):
        assert (printed - right).abs().max() > 5 * A_PRINTED_DIGIT


def test_the_printed_scores_do_not_follow_from_the_printed_queries_and_keys():
    products = PRINTED_Q @ PRINTED_K.mT

    for (i, j), right, printed in [((0, 2), 0.9791, 1.09), ((1, 0), 0.8216, 0.66)]:
        assert float(products[i, j]) == pytest.approx(right, abs=1e-12)
        assert abs(right - printed) > 5 * A_PRINTED_DIGIT


def test_the_printed_weights_do_not_follow_from_the_printed_scaled_row(engine):
    # One query that meets the unit vectors: its scores are the printed row itself.
    row, keys = (x.to(dtype_of(engine)) for x in (numbers((1.03, 0.54, 0.77)), torch.eye(3)))

    found = regard.attend(row, keys, keys, score=score.dot(), engine=engine)

    torch.testing.assert_close(found.weights[0].double(), numbers((0.4195, 0.2570, 0.3235))[0], rtol=0, atol=5e-5)
    assert abs(float(found.weights[0, 0]) - 0.48) > 5 * A_PRINTED_DIGIT


def test_the_printed_output_does_not_follow_from_the_printed_weights_and_values():
    output = PRINTED_ROW @ PRINTED_V

    torch.testing.assert_close(output, numbers((0.8249, 0.7535))[0], rtol=0, atol=5e-5)
    assert (output - PRINTED_OUTPUT[0]).abs().min() > 2 * A_PRINTED_DIGIT


def test_position_one_attends_less_to_itself_than_was_printed(engine):
    found = regard.attend(*THREE_TOKENS.projected(engine), engine=engine)

    assert [round(x, 3) for x in found.weights[0].tolist()] == [0.391, 0.296, 0.313]
    assert float((found.weights[0].double() - PRINTED_ROW).abs().max()) > 5 * A_PRINTED_DIGIT
    assert float((found.output.double() - PRINTED_OUTPUT).abs().max()) > 5 * A_PRINTED_DIGIT
