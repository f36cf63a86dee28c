"""The two published examples: every correct number, and every number in the corrections."""

import re

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score
from regard.walkthrough.examples import WALKTHROUGH_EXAMPLES, WalkthroughExample, get_example
from regard.walkthrough.steps import steps

SIX_DECIMALS = dict(rtol=0, atol=1e-6)  # the expected float64_tensor are written with six decimals

CORRECT_STAGES = {
    "dog-ate-dinner": {
        "Q": [[-0.1, 2], [-0.05, 1], [1.15, 0.3]],
        "K": [[0.9, 1.4], [0.45, 0.7], [0.25, 1.25]],
        "V": [[1, 3.5], [0.5, 1.75], [1.95, 1.3]],
        "products": [[2.71, 1.355, 2.475], [1.355, 0.6775, 1.2375], [1.455, 0.7275, 0.6625]],
        "weights": [
            [0.448328, 0.171983, 0.379690],
            [0.393757, 0.243878, 0.362364],
            [0.461076, 0.275653, 0.263270],
        ],
        "output": [[1.274714, 2.363713], [1.222307, 2.276011], [1.112280, 2.438412]],
    },
    "three-tokens": {
        "Q": [[1.18, 0.78], [0.62, 0.59], [0.66, 0.71]],
        "K": [[0.83, 0.71], [0.53, 0.66], [0.76, 0.41]],
        "V": [[1.02, 1.07], [0.52, 0.93], [0.79, 0.56]],
        "products": [[1.5332, 1.1402, 1.2166], [0.9335, 0.7180, 0.7131], [1.0519, 0.8184, 0.7927]],
        "scaled": [
            [1.084136, 0.806243, 0.860266],
            [0.660084, 0.507703, 0.504238],
            [0.743806, 0.578696, 0.560524],
        ],
        "weights": [
            [0.391114, 0.296221, 0.312664],
            [0.368412, 0.316341, 0.315247],
            [0.373088, 0.316304, 0.310608],
        ],
        "output": [[0.799977, 0.869070], [0.789323, 0.864936], [0.790408, 0.867307]],
    },
}
CORRECT_CAUSAL_OUTPUT = {
    "dog-ate-dinner": [[1, 3.5], [0.808763, 2.830672], [1.112280, 2.438412]],
    "three-tokens": [[1.02, 1.07], [0.789011, 1.005323], [0.790408, 0.867307]],
}


def float64_tensor(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("name", WALKTHROUGH_EXAMPLES)
def test_every_stage_has_the_correct_numbers(name: str) -> None:
    result = steps(*get_example(name).inputs)
    for stage, expected in CORRECT_STAGES[name].items():
        torch.testing.assert_close(result[stage].values, float64_tensor(expected), **SIX_DECIMALS)


@pytest.mark.parametrize("name", WALKTHROUGH_EXAMPLES)
def test_the_causal_output_has_the_correct_numbers(name: str) -> None:
    result = steps(*get_example(name).inputs, mask=mask.causal())
    torch.testing.assert_close(result["output"].values, float64_tensor(CORRECT_CAUSAL_OUTPUT[name]), **SIX_DECIMALS)


def numbers_in_correction(example: WalkthroughExample, index: int) -> list[float]:
    return [float(x) for x in re.findall(r"(?<![\w√])\d+\.\d+", example.corrections[index])]


def test_the_corrections_of_the_first_example_are_correct() -> None:
    dog = get_example("dog-ate-dinner")
    unscaled = steps(*dog.inputs, score=score.dot())
    expected = [*unscaled["weights"].values[0].tolist(), *unscaled["output"].values[0].tolist()]
    assert numbers_in_correction(dog, 0) == [round(x, 3) for x in expected]
    from_rounded_weights = float64_tensor(dog.published_values["weights"]) @ steps(*dog.inputs)["V"].values
    correct = steps(*dog.inputs)["output"].values[0, 1].item()
    assert (
        numbers_in_correction(dog, 1)
        == [round(from_rounded_weights[0, 1].item(), 3), round(correct, 3)]
        == [2.363, 2.364]
    )
    assert [[round(x, 3) for x in from_rounded_weights[0].tolist()]] == [list(dog.published_values["output"][0])]


def test_the_corrections_of_the_second_example_are_correct() -> None:
    three = get_example("three-tokens")
    result = steps(*three.inputs)
    published = {name: float64_tensor(rows) for name, rows in three.published_values.items()}
    assert numbers_in_correction(three, 0) == [*result["Q"].values[0].tolist(), *published["Q"][0].tolist()]
    products = published["Q"] @ published["K"].mT
    assert numbers_in_correction(three, 1) == pytest.approx(
        [1.09, products[0, 2].item(), 0.66, products[1, 0].item()], abs=1e-12
    )
    weights = torch.softmax(published["scaled"], -1)[0].tolist()
    assert numbers_in_correction(three, 2) == [
        1.03,
        0.54,
        0.77,
        *(round(x, 4) for x in weights),
        *published["weights"][0].tolist(),
    ]
    output = (published["weights"] @ published["V"])[0].tolist()
    assert numbers_in_correction(three, 3) == [*(round(x, 4) for x in output), *published["output"][0].tolist()]
    correct = [*result["weights"].values[0].tolist(), *result["output"].values[0].tolist()]
    assert numbers_in_correction(three, 4) == [round(x, 3) for x in correct]


def test_an_unknown_example_name_raises() -> None:
    with pytest.raises(regard.errors.ArgumentError, match="one of dog-ate-dinner, three-tokens; got 'cat'"):
        get_example("cat")
