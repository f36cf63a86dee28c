"""The comparison of two kinds of attention: errors against their definitions, text, figure, invalid arguments."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard import feature_map, mask, normalizer
from regard.errors import ArgumentError
from regard.mechanisms import comparison as module
from regard.mechanisms.linear import linear_attention


def random_inputs(n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(2, 3, n, 8, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


def test_errors_are_relative_to_a() -> None:
    q, k, v = random_inputs()
    near = mask.sliding_window(5)

    comparison = regard.compare(q, k, v, {}, dict(mask=near), rounds=1)

    a, b = regard.attention(q, k, v), regard.attention(q, k, v, mask=near)
    rms = float(a.square().mean().sqrt())
    assert comparison.output_error == pytest.approx(float((b - a).square().mean().sqrt()) / rms)
    assert comparison.max_output_error == pytest.approx(float((b - a).abs().max()) / rms)
    torch.testing.assert_close(comparison.output_error_by_query, (b - a).square().mean((0, 1, 3)).sqrt() / rms)
    weights_a, weights_b = (
        regard.attention_with_weights(q, k, v).weights[...],
        regard.attention_with_weights(q, k, v, mask=near).weights[...],
    )
    rows = (weights_a - weights_b).abs().sum(-1) / 2
    assert comparison.weight_error == pytest.approx(float(rows.mean()))
    assert comparison.max_weight_error == pytest.approx(float(rows.max()))


def test_chunked_weight_errors_equal_unchunked_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random_inputs()
    expected = regard.compare(q, k, v, {}, dict(mask=mask.causal()), rounds=1)
    monkeypatch.setattr(module, "MAX_CHUNK_WEIGHTS", 2 * 3 * 40 * 7)

    comparison = regard.compare(q, k, v, {}, dict(mask=mask.causal()), rounds=1)

    assert comparison.weight_error == pytest.approx(expected.weight_error)
    assert comparison.max_weight_error == pytest.approx(expected.max_weight_error)


def test_identical_sides_have_zero_error() -> None:
    comparison = regard.compare(*random_inputs(), {}, {}, rounds=1)

    assert (
        comparison.output_error
        == comparison.max_output_error
        == comparison.weight_error
        == comparison.max_weight_error
        == 0.0
    )


def test_weights_on_disjoint_keys_have_error_one() -> None:
    q, k, v = random_inputs()

    comparison = regard.compare(
        q, k, v, dict(mask=mask.sliding_window(1)), dict(mask=~mask.sliding_window(1)), rounds=1
    )

    assert comparison.weight_error == pytest.approx(1.0)


def test_functions_can_be_compared() -> None:
    q, k, v = random_inputs()
    kernel = normalizer.kernel(feature_map.elu())

    def kernel_attention(q: Tensor, k: Tensor, v: Tensor) -> regard.AttentionResult:
        return regard.attention_with_weights(q, k, v, normalizer=kernel)

    comparison = regard.compare(q, k, v, kernel_attention, linear_attention, rounds=1)

    assert (comparison.a.name, comparison.b.name) == ("kernel_attention", "linear_attention")
    assert comparison.output_error < 1e-13  # two methods for the same result, in float64
    assert comparison.weight_error is None and comparison.a.weight_map is not None and comparison.b.weight_map is None


def test_time_and_memory_are_measured() -> None:
    q, k, v = (torch.randn(1, 1, 1500, 8) for _ in range(3))

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / math.sqrt(8)).softmax(-1) @ v

    comparison = regard.compare(q, k, v, ("regard", {}), dense, rounds=2)

    assert comparison.a.seconds > 0 and comparison.b.seconds > 0
    if module.PROC_CLEAR_REFS.exists():
        assert comparison.a.memory_bytes is not None and comparison.b.memory_bytes is not None
        # dense attention allocates scores and weights of 9 MB each
        assert comparison.b.memory_bytes > 15e6 and comparison.a.memory_bytes < 5e6


def test_it_prints_itself() -> None:
    sides = module.RunStats("softmax", 0.0123, 3 * 2**20, None), module.RunStats("other", 2.0, None, None)
    errors = torch.zeros(3)

    text = str(module.AttentionComparison(*sides, 0.5, 2.0, errors, 0.25, 0.75))

    assert text.splitlines() == [
        "              softmax   other",
        "time          12.3 ms   2 s",
        "extra memory  3 MiB     unknown",
        "output        relative error 0.5, at most 2",
        "weights       differ by 0.25 of a row, at most 0.75",
    ]
    assert str(module.AttentionComparison(*sides, 0.5, 2.0, errors, None, None)).endswith(
        "weights       not returned by both"
    )


def test_comparison_is_plotted(tmp_path: Path) -> None:
    figure = regard.compare(*random_inputs(), ("all", {}), ("causal", dict(mask=mask.causal())), rounds=1).plot()

    *panels, _color_bar = figure.axes
    titles = [axes.get_title() for axes in panels]
    assert titles == ["weights of all", "weights of causal", "error of causal by query", "time", "extra memory"]
    figure.savefig(tmp_path / "both.png")
    curve = figure.axes[2].lines[0].get_ydata()
    assert len(curve) == 40 and curve[-1] < curve[0]  # the last query attends to all keys


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs()
    with pytest.raises(ArgumentError, match="rounds must be from 1 to 1,000; got 0"):
        regard.compare(q, k, v, {}, {}, rounds=0)
    with pytest.raises(ArgumentError, match=r"b must be a mapping of options.*got int"):
        regard.compare(q, k, v, {}, 3)
    with pytest.raises(ArgumentError, match="a tensor or an AttentionResult; got float"):
        regard.compare(q, k, v, lambda q, k, v: 1.0, {})
    with pytest.raises(ArgumentError, match=r"same shape; got \(2, 3, 40, 8\) of a and \(2, 3, 40, 4\) of half"):
        regard.compare(q, k, v, {}, ("half", lambda q, k, v: v[..., :4]))
