"""The stages that a normalizer declares: expressions that are evaluated and shown."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import regard
from regard import mask
from regard.normalizer import Normalizer
from regard.normalizers.streaming import RowState, StreamingNormalizer
from regard.stage_spec import SCALAR_AXES, StageSpec, StageSpecs
from regard.walkthrough.steps import steps


@dataclass(frozen=True)
class ShiftedRelu(StreamingNormalizer):
    """max(s - shift, 0), a normalizer with a number as a field."""

    name: ClassVar[str] = "shifted relu"
    stages: ClassVar[StageSpecs] = (
        StageSpec("shifted", "the scores minus $shift", code="scores - shift"),
        StageSpec("weights", "the positive part", code="torch.relu(shifted)"),
    )

    shift: float

    def normalize(self, scores: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return torch.relu(scores - self.shift), None

    def update(self, state: RowState, scores: Tensor) -> tuple[RowState, Tensor, Tensor | None]:
        return state, torch.relu(scores - self.shift), None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        return torch.relu(scores - self.shift)

    def backward(self, weights: Tensor, gradient: Tensor) -> Tensor:
        return gradient * (weights > 0)


@dataclass(frozen=True, eq=False)
class PerHead:
    """A factor with a tensor as a field."""

    scale: Tensor

    def __call__(self, statistic: Tensor | None, n_k: int | Tensor) -> Tensor:
        return self.scale.reshape(-1, 1)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


def program_output(code: str) -> Tensor:
    variables: dict[str, Any] = {}
    exec(code, variables)
    output: Tensor = variables["output"]
    return output


@pytest.mark.parametrize(("shift", "code"), [(0.25, "masked - 0.25"), (-0.5, "masked - (-0.5)")])
def test_a_number_of_the_normalizer_is_written_into_the_code(shift: float, code: str) -> None:
    result = steps(*inputs(), normalizer=ShiftedRelu(shift), mask=mask.causal())
    assert result["shifted"].code == f"shifted = {code}"
    assert result["shifted"].description == f"the scores minus {shift}"
    expected = regard.attention(*inputs(), normalizer=ShiftedRelu(shift), mask=mask.causal(), backend="reference")
    torch.testing.assert_close(result["output"].tensor, expected)
    torch.testing.assert_close(program_output(result.at(1, 2).code()), expected[1, 2])


def test_a_tensor_of_the_normalizer_is_a_stage() -> None:
    scale = torch.tensor([0.5, 2.0, -1.0])
    stage_specs = (
        StageSpec("c", "a factor of each head", axes=SCALAR_AXES, value="scale"),
        StageSpec("weights", "times the factor", code="torch.relu(scores - shift) * c"),
    )
    normalizer = Normalizer(ShiftedRelu(0.25), "scaled", factor=PerHead(scale), stages=stage_specs)
    result = steps(*inputs(), normalizer=normalizer)
    assert result["c"].code == "" and result.at(1, 2)["c"].values == -1.0
    expected = regard.attention(*inputs(), normalizer=normalizer, backend="reference")
    torch.testing.assert_close(result["output"].tensor, expected)
    torch.testing.assert_close(program_output(result.at(1, 2).code()), expected[1, 2])


def test_without_stages_of_its_own_a_factor_hides_those_of_the_row_normalizer() -> None:
    normalizer = Normalizer(ShiftedRelu(0.25), "halved", factor=lambda statistic, n_k: 0.5)
    result = steps(*inputs(), normalizer=normalizer)
    assert "shifted" not in result.names
    torch.testing.assert_close(result["weights"].tensor, 0.5 * torch.relu(result["scaled"].tensor - 0.25))
