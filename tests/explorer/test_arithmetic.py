"""One weight worked through, against the weights of the tape; and the code that is said to reproduce it."""

import math
from typing import Any

import pytest
import torch

import regard
from regard import mask, score, weigh
from regard.explorer.explorer import Explorer
from regard.explorer.questions import ask
from regard.explorer.recorded import of_tape
from regard.explorer.sources import of_name
from tests.explorer.recordings import a_tape, normal

TABLE = normal(9, 2, seed=5)
ASKED: dict[str, dict[str, Any]] = {
    "softmax": {},
    "causal": {"mask": mask.causal()},
    "window": {"mask": mask.causal() & mask.window(3)},
    "another scale": {"score": score.scaled_dot(0.3)},
    "plain product": {"score": score.dot()},
    "cosine": {"score": score.cosine(4.0)},
    "multiplicative": {"score": score.multiplicative(normal(8, 8, seed=4))},
    "metric": {"score": score.metric(2.0)},
    "additive": {"score": score.additive(normal(8, 5, seed=6), normal(8, 5, seed=7), normal(5, seed=8))},
    "alibi": {"score": score.alibi(), "mask": mask.causal()},
    "softcap": {"score": score.scaled_dot().then(score.softcap(2.0)), "mask": mask.causal()},
    "a bias": {"score": normal(2, 7, 9, seed=9)},
    "sink": {"weigh": weigh.sink(torch.tensor([0.5, 2.0]))},
    "sigmoid": {"weigh": weigh.sigmoid(-1.0)},
    "relu": {"weigh": weigh.relu()},
    "sparsemax": {"weigh": weigh.sparsemax()},
    "entmax": {"weigh": weigh.entmax(torch.tensor([1.2, 1.7]))},
    "top": {"weigh": weigh.top(3)},
    "sinkhorn": {"weigh": weigh.sinkhorn(3)},
    "kernel": {"weigh": weigh.kernel()},
    "grouped": {"heads": 4, "key_heads": 2, "mask": mask.causal()},
    "relative values": {"value": score.shaw_values(normal(5, 8, seed=3))},
}  # fmt: skip


def cells(options: dict[str, Any], places: list[tuple[int, int, int]]) -> Any:
    tape = a_tape(7, 9, **options)
    explorer = Explorer(of_tape(tape))
    for head, query, key in places:
        about = {"shown": 0, "layer": 0, "head": head, "query": query, "key": key}
        yield tape, about, ask(explorer, "cell", about).values


@pytest.mark.parametrize("name", ASKED)
def test_the_weight_and_the_output_are_those_of_the_tape(name: str) -> None:
    for tape, about, found in cells(ASKED[name], [(0, 0, 0), (1, 4, 2), (1, 6, 8), (0, 3, 8)]):
        head, query, key = (about[what] for what in ("head", "query", "key"))
        # the tape computes in float32, the cell in float64
        assert found["weight"] == pytest.approx(float(tape[0].weights[0, head, query, key]), abs=2e-6)
        assert found["output"] == pytest.approx(tape[0].output[0, head, query].tolist(), abs=1e-5)
        assert found["taken"] == pytest.approx([found["weight"] * v for v in found["v"]], abs=1e-12)


@pytest.mark.parametrize("name", ["softmax", "causal", "another scale", "plain product", "cosine", "alibi", "softcap"])
def test_every_number_follows_from_those_before_it(name: str) -> None:
    for tape, about, found in cells(ASKED[name], [(0, 5, 1), (1, 6, 4)]):
        assert found["products"] == pytest.approx([a * b for a, b in zip(found["q"], found["k"], strict=True)])
        assert found["dot"] == pytest.approx(math.fsum(found["products"]))
        assert found["scaled"] == pytest.approx(found["dot"] * found["scale"])
        after = found["scaled"] if found["after_rule"] is None else found["after_rule"]
        assert found["seen"]
        assert found["score"] == pytest.approx(after)
        assert found["exponent"] == pytest.approx(found["score"] - found["maximum"])
        assert found["power"] == pytest.approx(math.exp(found["exponent"]))
        assert found["weight"] == pytest.approx(found["power"] / found["total"])
        assert found["lse"] == pytest.approx(found["maximum"] + math.log(found["total"]))
        assert found["lse"] == pytest.approx(float(tape[0].lse[0, about["head"], about["query"]]), abs=1e-5)
        assert found["row_sum"] == pytest.approx(1.0)
        most = float(tape[0].weights[0, about["head"], about["query"]].max())
        assert math.exp(found["maximum"] - found["lse"]) == pytest.approx(most, abs=1e-5)  # the largest score's weight


@pytest.mark.parametrize("name", ASKED)
def test_the_code_gives_the_same_weight(name: str) -> None:
    for tape, about, found in cells(ASKED[name], [(1, 5, 3), (0, 6, 7)]):
        names: dict[str, Any] = {"tape": tape}
        exec(found["code"], names)
        assert float(names["weights"][about["key"]]) == pytest.approx(found["weight"], abs=2e-6)
        if "weights @ v" in found["code"]:
            assert (names["weights"] @ names["v"]).tolist() == pytest.approx(found["output"], abs=1e-6)


@pytest.mark.parametrize(
    "name", ["softmax", "causal", "window", "another scale", "cosine", "alibi", "softcap", "sigmoid"]
)
def test_the_code_is_plain_torch_where_a_formula_is_short(name: str) -> None:
    _, _, found = next(cells(ASKED[name], [(1, 5, 3)]))
    assert "regard" not in found["code"]


def test_a_key_that_is_hidden_says_so() -> None:
    _, _, found = next(cells({"mask": mask.causal()}, [(0, 1, 6)]))
    assert (found["seen"], found["score"], found["weight"]) == (False, -math.inf, 0.0)
    assert found["mask"] == {"text": "j <= p", "latex": r"j \leq p"}
    assert found["keys_seen"] == 4


def test_a_query_that_sees_nothing_has_weight_zero_and_output_zero() -> None:
    nothing = mask.where(lambda b, h, i, j: i > 2)
    _, _, found = next(cells({"mask": nothing}, [(0, 1, 6)]))
    assert found["weight"] == 0.0
    assert found["output"] == [0.0] * 8
    assert "maximum" not in found


def test_hidden_keys_are_part_of_the_mask_that_is_shown() -> None:
    tape = a_tape(7, 9, mask=mask.causal())
    explorer = Explorer(of_tape(tape))
    about = {"shown": 0, "layer": 0, "head": 0, "query": 6, "key": 4, "hide": [0]}
    found = ask(explorer, "cell", about).values
    plain = tape[0].weights[0, 0, 6]
    assert found["weight"] == pytest.approx(float(plain[4] / (1 - plain[0])), abs=1e-6)
    assert found["mask"]["text"] == "j <= p and j != 0"
    names: dict[str, Any] = {"tape": tape}
    exec(found["code"], names)
    assert float(names["weights"][4]) == pytest.approx(found["weight"], abs=1e-9)


def test_a_cell_of_the_shipped_model_is_what_attend_says() -> None:
    text = " The captain saw the white whale and the boats went down. The captain saw the white whale"
    shown = of_name("language").shown(text)
    found = ask(Explorer(shown), "cell", {"layer": 1, "head": 5, "query": 16, "key": 5}).values
    take = shown.layer(1).take
    right = regard.attend(take.q.double(), take.k.double(), take.v.double(), **take.options)
    assert found["weight"] == pytest.approx(float(right.weights[0, 5, 16, 5]), rel=1e-9)
    assert found["weight"] > 0.5
    assert found["output"] == pytest.approx(right.output[0, 5, 16].tolist(), rel=1e-9)


def test_the_code_of_one_text_of_a_batch_reads_that_text() -> None:
    tape = a_tape(7, 9, batch=3)
    found = ask(Explorer(of_tape(tape, text=2)), "cell", {"layer": 0, "head": 1, "query": 2, "key": 3}).values
    names: dict[str, Any] = {"tape": tape}
    exec(found["code"], names)
    assert float(names["weights"][3]) == pytest.approx(float(tape[0].weights[2, 1, 2, 3]), abs=1e-6)
