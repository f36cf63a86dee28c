"""The walkthrough endpoints: attention over small matrices."""

import pytest
import torch

import regard
from regard.errors import ArgumentError
from regard.explorer.api.expression_tree import UnsupportedOffline, expression_tree
from regard.explorer.api.registry import dispatch
from regard.explorer.api.walkthrough_api import MASK_CHOICES, NORMALIZER_CHOICES
from regard.explorer.explorer import Explorer

Q, K, V = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [[1.0], [2.0], [3.0]]


def stage_values(**params: object) -> dict[str, list[object]]:
    values = dispatch(Explorer(), "steps", {"q": Q, "k": K, "v": V, **params}).values
    return {stage["name"]: stage["values"] for stage in values["stages"]}


def attention_output(**options: object) -> list[list[float]]:
    q, k, v = (torch.tensor(x, dtype=torch.float64) for x in (Q, K, V))
    return regard.attention(q, k, v, backend="reference", **options).tolist()


def assert_close(actual: object, expected: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(actual, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64))


def test_the_output_equals_that_of_attention() -> None:
    assert_close(stage_values()["output"], attention_output())


def test_temperature_and_scale_change_the_scores() -> None:
    assert_close(stage_values(temperature=2.0)["output"], attention_output(score=regard.score.scaled_dot(2**-0.5 / 2)))
    assert_close(stage_values(scale=1.0)["output"], attention_output(score=regard.score.dot()))
    assert_close(
        stage_values(scale=3.0, temperature=0.5)["output"], attention_output(score=regard.score.scaled_dot(6.0))
    )


def test_masks_and_normalizers_are_parsed_from_text() -> None:
    expected = attention_output(
        mask=regard.mask.causal() & regard.mask.sliding_window(2), normalizer=regard.normalizer.entmax(1.5)
    )
    assert_close(stage_values(mask="causal & sliding_window(2)", normalizer="entmax(1.5)")["output"], expected)


@pytest.mark.parametrize("mask", MASK_CHOICES)
@pytest.mark.parametrize("normalizer", NORMALIZER_CHOICES)
def test_every_mask_and_normalizer_choice_works(mask: str, normalizer: str) -> None:
    if normalizer.startswith("sinkhorn") and "causal" in mask:
        with pytest.raises(ArgumentError, match="sinkhorn"):
            stage_values(mask=mask, normalizer=normalizer)
    else:
        assert "output" in stage_values(mask=mask, normalizer=normalizer)


def test_the_examples_give_the_corrected_numbers() -> None:
    values = dispatch(Explorer(), "walkthrough_examples").values
    examples = {}
    for example in values["examples"]:
        matrices = {name: [list(row) for row in example[name]] for name in ("x", "w_q", "w_k", "w_v")}
        stages = dispatch(Explorer(), "steps", {**matrices, "tokens": list(example["tokens"])}).values["stages"]
        examples[example["name"]] = {stage["name"]: stage["values"] for stage in stages}
    assert examples["dog-ate-dinner"]["weights"][0] == pytest.approx([0.448328, 0.171983, 0.379690], abs=1e-6)
    assert examples["dog-ate-dinner"]["output"][0] == pytest.approx([1.274714, 2.363713], abs=1e-6)
    assert examples["three-tokens"]["weights"][0] == pytest.approx([0.391114, 0.296221, 0.312664], abs=1e-6)
    assert all(example["corrections"] for example in values["examples"])


def test_the_page_computes_every_option_whose_operations_it_supports() -> None:
    templates = dispatch(Explorer(), "stage_templates").values
    assert ["none", *templates["masks"]] == list(templates["formulas"]) == list(MASK_CHOICES)
    assert set(NORMALIZER_CHOICES) - set(templates["normalizers"]) == {"gumbel", "kernel", "sinkhorn(5)"}
    assert templates["normalizers"]["entmax(1.5)"]["constants"] == {"parameter": 2.0}


@pytest.mark.parametrize(
    "code, operation",
    [
        ("torch.cumsum(scores)", "cumsum"),
        ("scores.sum(-2)", "sum"),
        ("scores.amax(-1, keepdim=True)", "amax"),
        ("scores[0]", r"scores\[0\]"),
        ("f(scores)", r"f\(scores\)"),
    ],
)
def test_other_operations_need_python(code: str, operation: str) -> None:
    with pytest.raises(UnsupportedOffline, match=f"^{operation}$"):
        expression_tree(code)


def test_the_code_runs_and_ends_with_the_output() -> None:
    values = dispatch(Explorer(), "steps", {"q": Q, "k": K, "v": V, "mask": "causal"}).values
    variables: dict[str, object] = {}
    exec(values["code"], variables)
    assert_close(variables["output"].tolist(), attention_output(mask=regard.mask.causal()))  # type: ignore[attr-defined]
    assert "output" in values["text"]
    assert values["latex"].startswith(r"\begin{align*}")


@pytest.mark.parametrize(
    "params, message",
    [
        ({"q": [[1, 2], [3]]}, r"q must be a matrix with 1 to 16 rows, all of .* got \[\[1, 2\], \[3\]\]\."),
        ({"q": [[1, "a"]]}, r"q must be a number from -1e\+06 to 1e\+06; got 'a'\."),
        ({"q": [[float("inf"), 1]]}, r"q must be a number from -1e\+06 to 1e\+06; got inf\."),
        ({"q": []}, r"q must be a matrix .* got \[\]\."),
        ({"k": [[1.0]] * 17}, r"k must be a matrix with 1 to 16 rows"),
        ({"mask": "open('x')"}, "mask"),
        (
            {"normalizer": "sinkhorn(1000000)"},
            r"numbers in normalizer must have at most four digits; got 'sinkhorn",
        ),
        ({"dropout": 1.0}, r"dropout must be a number from 0 to 0\.95; got 1\.0\."),
        ({"tokens": [1]}, r"tokens must be a list of strings of at most 80 characters; got \[1\]\."),
        ({"k": [[1.0]] * 3}, "q and k must have the same head dimension; got q=2, k=1"),
    ],
)
def test_invalid_walkthrough_requests_raise(params: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stage_values(**params)
