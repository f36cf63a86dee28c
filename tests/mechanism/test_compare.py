"""Two attentions side by side: errors against what they are by hand, text, picture, refusals."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard import feature, mask, weigh
from regard.errors import SpecError
from regard.mechanism import compare as module
from regard.mechanism.linear import linear_attention


def problem(n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, 3, n, 8, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


def test_errors_are_those_of_b_in_parts_of_a() -> None:
    q, k, v = problem()
    near = mask.window(5)

    found = regard.compare(q, k, v, {}, dict(mask=near), rounds=1)

    a, b = regard.attention(q, k, v), regard.attention(q, k, v, mask=near)
    size = float(a.square().mean().sqrt())
    assert found.output_error == pytest.approx(float((b - a).square().mean().sqrt()) / size)
    assert found.largest_error == pytest.approx(float((b - a).abs().max()) / size)
    torch.testing.assert_close(found.by_query, (b - a).square().mean((0, 1, 3)).sqrt() / size)
    one, other = regard.attend(q, k, v).weights[...], regard.attend(q, k, v, mask=near).weights[...]
    rows = (one - other).abs().sum(-1) / 2
    assert found.weight_error == pytest.approx(float(rows.mean()))
    assert found.largest_weight_error == pytest.approx(float(rows.max()))


def test_some_rows_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = problem()
    whole = regard.compare(q, k, v, {}, dict(mask=mask.causal()), rounds=1)
    monkeypatch.setattr(module, "ROWS", 2 * 3 * 40 * 7)

    found = regard.compare(q, k, v, {}, dict(mask=mask.causal()), rounds=1)

    assert found.weight_error == pytest.approx(whole.weight_error)
    assert found.largest_weight_error == pytest.approx(whole.largest_weight_error)


def test_the_same_is_no_distance_apart() -> None:
    found = regard.compare(*problem(), {}, {}, rounds=1)

    assert found.output_error == found.largest_error == found.weight_error == found.largest_weight_error == 0.0


def test_weights_that_share_no_key_are_one_apart() -> None:
    q, k, v = problem()

    found = regard.compare(q, k, v, dict(mask=mask.window(1)), dict(mask=~mask.window(1)), rounds=1)

    assert found.weight_error == pytest.approx(1.0)


def test_functions_are_compared_as_well() -> None:
    q, k, v = problem()
    chosen = weigh.kernel(feature.elu())

    def shown(q: Tensor, k: Tensor, v: Tensor) -> regard.Attended:
        return regard.attend(q, k, v, weigh=chosen)

    found = regard.compare(q, k, v, shown, linear_attention, rounds=1)

    assert (found.a.name, found.b.name) == ("shown", "linear_attention")
    assert found.output_error < 1e-13  # two ways to the same numbers, in float64
    assert found.weight_error is None and found.a.map is not None and found.b.map is None


def test_time_is_the_best_of_the_rounds_and_memory_that_of_one_call() -> None:
    q, k, v = (torch.randn(1, 1, 1500, 8) for _ in range(3))

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / math.sqrt(8)).softmax(-1) @ v

    found = regard.compare(q, k, v, ("regard", {}), dense, rounds=2)

    assert found.a.seconds > 0 and found.b.seconds > 0
    if module.SWITCH.exists():
        assert found.a.memory is not None and found.b.memory is not None
        # scores and weights: 9 MB each, and nothing like it
        assert found.b.memory > 15e6 and found.a.memory < 5e6


def test_it_prints_itself() -> None:
    side = module.Side("softmax", 0.0123, 3 * 2**20, None), module.Side("other", 2.0, None, None)
    errors = torch.zeros(3)

    text = str(module.Comparison(*side, 0.5, 2.0, errors, 0.25, 0.75))

    assert text.splitlines() == [
        "              softmax   other",
        "time          12.3 ms   2 s",
        "extra memory  3 MiB     not known",
        "output        off by 0.5 of its size, at most 2",
        "weights       0.25 of a row lies elsewhere, at most 0.75",
    ]
    assert str(module.Comparison(*side, 0.5, 2.0, errors, None, None)).endswith("weights       not both have them")


def test_it_draws_itself(tmp_path: Path) -> None:
    figure = regard.compare(*problem(), ("all", {}), ("causal", dict(mask=mask.causal())), rounds=1).draw()

    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["weights of all", "weights of causal", "error of causal by query", "time", "extra memory"]
    figure.savefig(tmp_path / "both.png")
    curve = figure.axes[2].lines[0].get_ydata()
    assert len(curve) == 40 and curve[-1] < curve[0]  # the last query sees all keys


def test_what_is_wrong_is_said() -> None:
    q, k, v = problem()
    with pytest.raises(SpecError, match="from 1 to 1,000 rounds; got 0"):
        regard.compare(q, k, v, {}, {}, rounds=0)
    with pytest.raises(SpecError, match=r"b must be a mapping of options.*got int"):
        regard.compare(q, k, v, {}, 3)
    with pytest.raises(SpecError, match="or what attend gives; got float"):
        regard.compare(q, k, v, lambda q, k, v: 1.0, {})
    with pytest.raises(SpecError, match=r"same shape; got \(2, 3, 40, 8\) of a and \(2, 3, 40, 4\) of half"):
        regard.compare(q, k, v, {}, ("half", lambda q, k, v: v[..., :4]))
