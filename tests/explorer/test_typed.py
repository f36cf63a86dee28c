"""Matrices that somebody typed, worked through."""

import pytest
import torch

import regard
from regard.errors import SpecError
from regard.explorer.explorer import Explorer
from regard.explorer.questions import ask
from regard.explorer.typed import MASKS, WEIGHINGS

Q, K, V = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [[1.0], [2.0], [3.0]]


def worked(**params: object) -> dict[str, list[object]]:
    values = ask(Explorer(), "steps", {"q": Q, "k": K, "v": V, **params}).values
    return {stage["name"]: stage["values"] for stage in values["stages"]}


def attended(**options: object) -> list[list[float]]:
    q, k, v = (torch.tensor(x, dtype=torch.float64) for x in (Q, K, V))
    return regard.attention(q, k, v, engine="reference", **options).tolist()


def close(found: object, right: list[list[float]]) -> None:
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), torch.tensor(right, dtype=torch.float64))


def test_the_output_is_what_attention_gives() -> None:
    close(worked()["output"], attended())


def test_temperature_and_scale_change_the_scores() -> None:
    close(worked(temperature=2.0)["output"], attended(score=regard.score.scaled_dot(2**-0.5 / 2)))
    close(worked(scale=1.0)["output"], attended(score=regard.score.dot()))
    close(worked(scale=3.0, temperature=0.5)["output"], attended(score=regard.score.scaled_dot(6.0)))


def test_masks_and_weighings_go_by_words() -> None:
    right = attended(mask=regard.mask.causal() & regard.mask.window(2), weigh=regard.weigh.entmax(1.5))
    close(worked(mask="causal & window(2)", weigh="entmax(1.5)")["output"], right)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weigh", WEIGHINGS)
def test_every_mask_and_weighing_that_is_offered_works(mask: str, weigh: str) -> None:
    if weigh.startswith("sinkhorn") and "causal" in mask:
        with pytest.raises(SpecError, match="sinkhorn"):
            worked(mask=mask, weigh=weigh)
    else:
        assert "output" in worked(mask=mask, weigh=weigh)


def test_the_examples_are_the_corrected_ones() -> None:
    values = ask(Explorer(), "examples").values
    found = {}
    for example in values["examples"]:
        given = {name: [list(row) for row in example[name]] for name in ("x", "w_q", "w_k", "w_v")}
        stages = ask(Explorer(), "steps", {**given, "tokens": list(example["tokens"])}).values["stages"]
        found[example["name"]] = {stage["name"]: stage["values"] for stage in stages}
    assert found["dog-ate-dinner"]["weights"][0] == pytest.approx([0.448328, 0.171983, 0.379690], abs=1e-6)
    assert found["dog-ate-dinner"]["output"][0] == pytest.approx([1.274714, 2.363713], abs=1e-6)
    assert found["three-tokens"]["weights"][0] == pytest.approx([0.391114, 0.296221, 0.312664], abs=1e-6)
    assert all(example["wrong"] for example in values["examples"])


def test_the_code_runs_and_ends_with_the_output() -> None:
    values = ask(Explorer(), "steps", {"q": Q, "k": K, "v": V, "mask": "causal"}).values
    names: dict[str, object] = {}
    exec(values["all_code"], names)
    close(names["output"].tolist(), attended(mask=regard.mask.causal()))  # type: ignore[attr-defined]
    assert "output" in values["text"]
    assert values["all_latex"].startswith(r"\begin{align*}")


@pytest.mark.parametrize(
    "params, said",
    [
        ({"q": [[1, 2], [3]]}, r"q must be a matrix of 1 to 16 rows, all with .* got \[\[1, 2\], \[3\]\]\."),
        ({"q": [[1, "a"]]}, r"q must be a number from -1e\+06 to 1e\+06; got 'a'\."),
        ({"q": [[float("inf"), 1]]}, r"q must be a number from -1e\+06 to 1e\+06; got inf\."),
        ({"q": []}, r"q must be a matrix .* got \[\]\."),
        ({"k": [[1.0]] * 17}, r"k must be a matrix of 1 to 16 rows"),
        ({"mask": "open('x')"}, "mask"),
        ({"weigh": "sinkhorn(1000000)"}, r"weigh must have numbers of at most four digits here; got 'sinkhorn"),
        ({"dropout": 1.0}, r"dropout must be a number from 0 to 0\.95; got 1\.0\."),
        ({"tokens": [1]}, r"tokens must be a list of short texts; got \[1\]\."),
        ({"k": [[1.0]] * 3}, "q and k must have the same width; got q=2, k=1"),
    ],
)
def test_what_cannot_be_worked_through_is_refused(params: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        worked(**params)
