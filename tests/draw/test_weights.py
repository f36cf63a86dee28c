"""Pictures of weights: the colours, numbers and labels are those of the array."""

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgba

import regard
from regard import draw, mask, measure
from regard.draw.figure import HIDDEN, UNDEFINED
from regard.errors import SpecError


def pixels(axes):
    return np.asarray(axes.get_images()[0].get_array())


def numbers(axes):
    return [text.get_text() for text in axes.texts]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_small_array_shows_its_numbers_and_leaves_hidden_pairs_blank():
    axes, bar = draw.weights([[1.0, 0.0], [0.254, 0.746]], ["to", "be"]).axes

    assert numbers(axes) == ["1.00", "0.25", "0.75"]
    assert pixels(axes)[0, 1].tolist() == list(to_rgba(HIDDEN))
    assert pixels(axes)[1, 0].tolist() == list(colormaps["viridis"](0.254))
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["to", "be"]
    assert bar.get_ylim() == (0.0, 1.0)


@pytest.mark.parametrize("kind", ["numpy", "float32", "bfloat16", "gradient"])
def test_any_kind_of_array_can_be_drawn(kind):
    values = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    given = {
        "numpy": values.numpy(),
        "float32": values,
        "bfloat16": values.bfloat16(),
        "gradient": values.clone().requires_grad_(),
    }

    assert numbers(draw.weights(given[kind]).axes[0]) == ["0.50", "0.50", "0.25", "0.75"]


def test_what_is_not_finite_has_a_colour_of_its_own():
    axes = draw.weights([[float("nan"), 0.5], [float("inf"), 0.5]]).axes[0]

    assert pixels(axes)[0, 0].tolist() == pixels(axes)[1, 0].tolist() == list(to_rgba(UNDEFINED))
    assert numbers(axes) == ["0.50", "0.50"]


def test_leading_dimensions_become_panels_with_one_scale():
    values = torch.rand(1, 3, 5, 5)

    figure = draw.weights(values)

    panels = [axes for axes in figure.axes if axes.get_images() and axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["[0, 0]", "[0, 1]", "[0, 2]"]
    for h, axes in enumerate(panels):
        expected = colormaps["viridis"](values[0, h].numpy().astype(float) / float(values.max()))
        np.testing.assert_allclose(pixels(axes), expected, atol=0.01)  # colours come in 256 steps


def test_titles_name_the_panels():
    figure = draw.weights(torch.rand(2, 4, 4), titles=["one $", "other"], title="both")

    assert [axes.get_title() for axes in figure.axes[:2]] == ["one $", "other"]
    assert figure.get_suptitle() == "both"


def test_a_pooled_map_is_drawn_as_mean_and_maximum_in_positions():
    x = torch.randn(2, 1, 300, 8)
    found = regard.attend(x, x, x, mask=mask.causal()).weights.measure(measure.pool(50, 100))

    figure = draw.weights(found.pool, titles=["first", "second"])

    panels = [axes for axes in figure.axes if axes.get_images()]
    assert [p.get_title() for p in panels] == ["first, mean", "first, maximum", "second, mean", "second, maximum"]
    assert pixels(panels[0]).shape == (50, 100, 4)
    assert panels[0].get_xlim() == (-0.5, 299.5) and panels[0].get_ylim() == (299.5, -0.5)
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("key (3 a cell)", "query (6 a cell)")
    assert pixels(panels[1])[0, -1].tolist() == list(to_rgba(HIDDEN))


def test_the_logarithmic_scale_spans_four_powers_of_ten():
    axes, bar = draw.weights([[1.0, 1e-2], [1e-4, 1e-9]], scale="log").axes

    assert bar.get_ylim() == pytest.approx((1e-4, 1.0))
    shades = pixels(axes)
    assert shades[0, 1].tolist() == list(colormaps["viridis"](0.5))
    assert shades[1, 0].tolist() == shades[1, 1].tolist() == list(colormaps["viridis"](0.0))


def test_queries_and_keys_may_have_labels_of_their_own():
    axes = draw.weights(torch.rand(2, 3), (["q", "r"], None)).axes[0]
    assert ticks(axes.yaxis) == ["q", "r"]

    axes = draw.weights(torch.rand(2, 3), (None, range(7, 10))).axes[0]
    assert ticks(axes.xaxis) == ["7", "8", "9"]

    axes = draw.weights(torch.rand(2, 2), ("to", "be")).axes[0]
    assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["to", "be"]


def test_tokens_are_shown_as_they_are_on_one_short_line():
    tokens = ["$x^2$", " a", "two words", "\n", "incomprehensible"]

    axes = draw.weights(torch.rand(5, 5), tokens).axes[0]

    assert ticks(axes.xaxis) == ["$x^2$", "␣a", "two words", "↵", "incomprehensi…"]
    assert not any(label.get_parse_math() for label in axes.get_xticklabels())


def test_of_many_tokens_as_many_are_written_as_fit():
    axes = draw.weights(torch.rand(300, 300), [str(n) for n in range(300)]).axes[0]

    assert 20 < len(ticks(axes.xaxis)) < 100
    assert ticks(axes.xaxis)[:2] == ["0", str(int(axes.get_xticks()[1]))]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(weights=torch.rand(5)), r"an array \(\.\.\., n_q, n_k\) or what measure.pool found; got shape \(5,\)"),
        (dict(weights=torch.rand(0, 5)), r"got shape \(0, 5\)"),
        (dict(weights=torch.rand(3000, 2)), r"at most 2048 cells a side to be drawn; got \(3000, 2\)\. Use attended"),
        (dict(weights=torch.rand(2, 3), tokens=["a", "b"]), r"each of 3 keys; got 2\. For unequal axes give a pair"),
        (dict(weights=torch.rand(2, 2), tokens=["a"]), r"each of 2 queries; got 1\. For unequal axes give a pair"),
        (dict(weights=torch.rand(2, 2), scale="cubic"), "scale must be 'linear' or 'log'; got 'cubic'"),
        (dict(weights=torch.rand(2, 2, 2), titles=["a"]), "titles must name each of 2 maps; got 1"),
        (dict(weights=torch.rand(17, 2, 2)), r"at most 16 panels; got 4 x 5\. Draw fewer"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, message):
    with pytest.raises(SpecError, match=message):
        draw.weights(**wrong)


def test_weights_that_were_not_computed_are_refused_with_what_to_do():
    x = torch.randn(4, 2)
    attended = regard.attend(x, x, x)

    with pytest.raises(SpecError, match=r"got Weights\. Take a part such as attended\.weights\[0, 0, :20, :20\]"):
        draw.weights(attended.weights)
    with pytest.raises(SpecError, match=r"got Measured\. .*measure\.pool\(128, 128\)\)\.pool"):
        draw.weights(attended.weights.measure(measure.pool(2, 2)))


def test_cells_of_several_positions_have_no_tokens():
    x = torch.randn(8, 2)
    pooled = regard.attend(x, x, x).weights.measure(measure.pool(4, 4)).pool

    with pytest.raises(SpecError, match=r"tokens must label single queries; got a map with 2 queries a cell"):
        draw.weights(pooled, list("abcd"))
