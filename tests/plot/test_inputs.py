"""Invalid arguments of plots raise an error with the name of the argument."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from regard import mask, plot
from regard.errors import ArgumentError

MAP = np.full((2, 2), 0.5)
TOKENS = ["to", "be"]
SERIES = plot.Series("curve", [1.0, 2.0], [3.0, 4.0])
PANEL = plot.Panel("title", "x", "y", [SERIES])
ROWS = [{"layer": 0, "head": 0, "entropy": 1.0}]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: plot.Series(3, [1], [2]), "label must be a string; got 3"),
        (lambda: plot.Series("a", ["x"], [2]), "x must be a tensor, an array or lists of real numbers; got list of 1"),
        (lambda: plot.Series("a", [1], [2], "x"), "style must be one of 'line', 'dashed', 'points'; got 'x'"),
        (lambda: plot.Series("a", [1, 2], [2, 3], spread=[1.0]), "spread of 'a' must be 2 numbers of at least 0"),
        (lambda: plot.Series("a", [1], [2], spread=[-1.0]), "spread of 'a' must be 1 numbers of at least 0"),
        (lambda: plot.Panel("t", "x", "y", None), "series must be a sequence of .*; got None"),
        (lambda: plot.Panel("t", "x", "y", [SERIES], log_x="x"), "log_x must be True or False; got 'x'"),
        (lambda: plot.ImagePanel("t", "x", "y", None), "values must be a tensor, an array or lists .* got None"),
        (lambda: plot.ImagePanel("t", "x", "y", np.zeros((0, 2))), r"must be a matrix; got shape \(0, 2\)"),
        (lambda: plot.PointAnimation("t", [0.0], np.zeros((1, 2, 2)), groups=[0]), "an integer for each of 2 points"),
        (lambda: plot.charts([PANEL, None]), "panels must be a sequence of .*; got list of 2"),
        (lambda: plot.charts([PANEL], title=3), "title must be a string; got 3"),
        (lambda: plot.text_charts([PANEL], width=-1), "width must be an integer from 20 to 10000; got -1"),
        (lambda: plot.text_charts([PANEL], height=10**9), "height must be an integer from 2 to 10000; got 10000"),
        (lambda: plot.comparison(("a", None, 1.0), ("b", None, 1.0, 1), [0.0]), "a must be a tuple of a string,"),
        (
            lambda: plot.comparison(("a", [1.0], 1.0, 1), ("b", None, 1.0, 1), [0.0]),
            r"weights of a .* shape \(1,\)",
        ),
        (lambda: plot.growth([1], {}), r"seq_lens must be at least two increasing integers above 0; got \[1\]"),
        (lambda: plot.growth([1, 1], {}), r"at least two increasing integers above 0; got \[1, 1\]"),
        (lambda: plot.growth([1, 2], {"a": [1.0, math.nan]}), "must have finite values above 0; a has others"),
        (lambda: plot.heads([{}], "entropy"), "metric must be one of the columns"),
        (lambda: plot.heads([{"entropy": 1.0}], "entropy"), "layer of each row must be an integer.* got None"),
        (lambda: plot.heads([ROWS[0] | {"entropy": "x"}], "entropy"), "entropy of each row must be a number; got 'x'"),
        (lambda: plot.head_maps("x"), "maps must be a tensor, an array or lists of real numbers; got 'x'"),
        (lambda: plot.head_maps(np.ones((1, 1, 2, 2)), gamma=math.nan), "gamma must be a finite number; got nan"),
        (lambda: plot.token_lines(MAP, "x"), "queries must be a sequence of strings; got 'x'"),
        (lambda: plot.token_lines(MAP, TOKENS, min_weight="x"), "min_weight must be a finite number; got 'x'"),
        (lambda: plot.overlay(np.zeros((4, 4, 2)), np.zeros((4, 4))), r"image must be .* got shape \(4, 4, 2\)"),
        (lambda: plot.overlay(MAP, MAP, alpha=-1.0), "alpha must be a number from 0 to 1; got -1.0"),
        (lambda: plot.svg_weights(MAP, [1, 2]), "queries must be a sequence of strings; got list of 2"),
        (
            lambda: plot.svg_token_lines(np.zeros((0, 0)), []),
            r"weights must have shape \(0, 0\), like the tokens; got shape \(0, 0\)",
        ),
        (lambda: plot.text_weights([["x"]], ["a"]), "weights must be a tensor, an array or lists .* got list of 1"),
        (lambda: plot.mask(mask.causal(), 1.5), "n_q must be an integer; got 1.5"),
        (
            lambda: plot.mask(mask.causal(), 4, num_heads=-1),
            "num_heads must be an integer from 1 to 2147483647; got -1",
        ),
        (lambda: plot.weights(MAP, tokens=3), "tokens must be a list of labels, or a pair of lists; got 3"),
        (
            lambda: plot.weights(MAP, tokens=(3, None)),
            "labels of queries must be a list of strings, or None; got 3",
        ),
        (lambda: plot.weights(MAP, title=3), "title must be a string or None; got 3"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
