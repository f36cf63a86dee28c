"""Plots of weights have the colors, numbers and labels of the array."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba

import regard
from regard import mask, measure, plot
from regard.errors import ArgumentError
from regard.plot.style import HIDDEN_COLOR, NONFINITE_COLOR, sequential_colormap


def pixels(axes):
    return np.asarray(axes.get_images()[0].get_array())


def numbers(axes):
    return [text.get_text() for text in axes.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_small_arrays_have_numbers_and_blank_masked_pairs():
    axes, bar = plot.weights([[1.0, 0.0], [0.254, 0.746]], ["to", "be"]).axes

    assert numbers(axes) == ["1.00", "0.25", "0.75"]
    assert pixels(axes)[0, 1].tolist() == list(to_rgba(HIDDEN_COLOR))
    assert pixels(axes)[1, 0].tolist() == list(sequential_colormap()(0.254))
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["to", "be"]
    assert bar.get_ylim() == (0.0, 1.0)


@pytest.mark.parametrize("kind", ["numpy", "float32", "bfloat16", "gradient"])
def test_arrays_and_tensors_of_any_dtype_can_be_drawn(kind):
    values = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    arrays = {
        "numpy": values.numpy(),
        "float32": values,
        "bfloat16": values.bfloat16(),
        "gradient": values.clone().requires_grad_(),
    }

    assert numbers(plot.weights(arrays[kind]).axes[0]) == ["0.50", "0.50", "0.25", "0.75"]


def test_nonfinite_values_have_their_own_color():
    axes = plot.weights([[float("nan"), 0.5], [float("inf"), 0.5]]).axes[0]

    assert pixels(axes)[0, 0].tolist() == pixels(axes)[1, 0].tolist() == list(to_rgba(NONFINITE_COLOR))
    assert numbers(axes) == ["0.50", "0.50"]


def test_leading_dimensions_become_panels_with_one_color_scale():
    values = torch.rand(1, 3, 5, 5)

    figure = plot.weights(values)

    panels = [axes for axes in figure.axes if axes.get_images() and axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["[0, 0]", "[0, 1]", "[0, 2]"]
    for h, axes in enumerate(panels):
        expected = sequential_colormap()(values[0, h].numpy().astype(float) / float(values.max()))
        np.testing.assert_allclose(pixels(axes), expected, atol=0.01)  # colors have 256 steps


def test_titles_of_panels():
    figure = plot.weights(torch.rand(2, 4, 4), titles=["first $", "second"], title="all")

    assert [axes.get_title() for axes in figure.axes[:2]] == ["first $", "second"]
    assert figure.get_suptitle() == "all"


def test_pooled_maps_are_drawn_as_mean_and_maximum():
    x = torch.randn(2, 1, 300, 8)
    measured = regard.attention_with_weights(x, x, x, mask=mask.causal()).weights.measure(measure.pooled_map(50, 100))

    figure = plot.weights(measured.pooled_map, titles=["first", "second"])

    panels = [axes for axes in figure.axes if axes.get_images()]
    assert [p.get_title() for p in panels] == ["first, mean", "first, maximum", "second, mean", "second, maximum"]
    assert pixels(panels[0]).shape == (50, 100, 4)
    assert panels[0].get_xlim() == (-0.5, 299.5) and panels[0].get_ylim() == (299.5, -0.5)
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("key (3 per cell)", "query (6 per cell)")
    assert pixels(panels[1])[0, -1].tolist() == list(to_rgba(HIDDEN_COLOR))


def test_the_log_scale_spans_four_powers_of_ten():
    axes, bar = plot.weights([[1.0, 1e-2], [1e-4, 1e-9]], scale="log").axes

    assert bar.get_ylim() == pytest.approx((1e-4, 1.0))
    colors = pixels(axes)
    assert colors[0, 1].tolist() == list(sequential_colormap()(0.5))
    assert colors[1, 0].tolist() == colors[1, 1].tolist() == list(sequential_colormap()(0.0))


def test_queries_and_keys_may_have_different_labels():
    axes = plot.weights(torch.rand(2, 3), (["q", "r"], None)).axes[0]
    assert ticks(axes.yaxis) == ["q", "r"]

    axes = plot.weights(torch.rand(2, 3), (None, range(7, 10))).axes[0]
    assert ticks(axes.xaxis) == ["7", "8", "9"]

    axes = plot.weights(torch.rand(2, 2), ("to", "be")).axes[0]
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["to", "be"]


def test_tokens_are_labels_of_one_short_line():
    tokens = ["$x^2$", " a", "two words", "\n", "incomprehensible"]

    axes = plot.weights(torch.rand(5, 5), tokens).axes[0]

    assert ticks(axes.xaxis) == ["$x^2$", "␣a", "two words", "↵", "incomprehensi…"]
    assert not any(label.get_parse_math() for label in axes.get_xticklabels())


def test_only_as_many_tokens_as_fit_are_drawn():
    axes = plot.weights(torch.rand(300, 300), [str(n) for n in range(300)]).axes[0]

    assert 20 < len(ticks(axes.xaxis)) < 100
    assert ticks(axes.xaxis)[:2] == ["0", str(int(axes.get_xticks()[1]))]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            dict(weights=torch.rand(5)),
            r"an array \(\.\.\., n_q, n_k\) or a result of measure.pooled_map; got shape \(5,\)",
        ),
        (dict(weights=torch.rand(0, 5)), r"got shape \(0, 5\)"),
        (dict(weights=torch.rand(3000, 2)), r"at most 2048 cells per side; got \(3000, 2\)\. Use result"),
        (dict(weights=torch.rand(2, 3), tokens=["a", "b"]), r"each of 3 keys; got 2\. For different axes use a pair"),
        (dict(weights=torch.rand(2, 2), tokens=["a"]), r"each of 2 queries; got 1\. For different axes use a pair"),
        (dict(weights=torch.rand(2, 2), scale="cubic"), "scale must be 'linear' or 'log'; got 'cubic'"),
        (dict(weights=torch.rand(2, 2, 2), titles=["a"]), "titles must have one title for each of 2 maps; got 1"),
        (dict(weights=torch.rand(17, 2, 2)), r"at most 16 panels; got 4 x 5\. Plot fewer"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        plot.weights(**arguments)


def test_lazy_weights_raise():
    x = torch.randn(4, 2)
    result = regard.attention_with_weights(x, x, x)

    with pytest.raises(
        ArgumentError, match=r"got AttentionWeights\. Index a part such as result\.weights\[0, 0, :20, :20\]"
    ):
        plot.weights(result.weights)
    with pytest.raises(ArgumentError, match=r"got Measurements\. .*measure\.pooled_map\(128, 128\)\)\.pooled_map"):
        plot.weights(result.weights.measure(measure.pooled_map(2, 2)))


def test_tokens_of_pooled_maps_raise():
    x = torch.randn(8, 2)
    pooled = regard.attention_with_weights(x, x, x).weights.measure(measure.pooled_map(4, 4)).pooled_map

    with pytest.raises(ArgumentError, match=r"tokens must label single queries; got a map with 2 queries per cell"):
        plot.weights(pooled, list("abcd"))
