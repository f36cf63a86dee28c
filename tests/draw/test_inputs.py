"""Wrong arguments of plots: refused with the argument's name, before anything is drawn."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from regard import draw, mask
from regard.errors import SpecError

MAP = np.full((2, 2), 0.5)
TOKENS = ["to", "be"]
SERIES = draw.Series("one", [1.0, 2.0], [3.0, 4.0])
PANEL = draw.Panel("title", "x", "y", [SERIES])
ROWS = [{"layer": 0, "head": 0, "entropy": 1.0}]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: draw.Series(3, [1], [2]), "label must be a string; got 3"),
        (lambda: draw.Series("a", ["x"], [2]), "x must be a tensor, an array or lists of real numbers; got list of 1"),
        (lambda: draw.Series("a", [1], [2], "x"), "style must be one of 'line', 'dashed', 'points'; got 'x'"),
        (lambda: draw.Panel("t", "x", "y", None), "series must be a sequence of .*; got None"),
        (lambda: draw.Panel("t", "x", "y", [SERIES], log_x="x"), "log_x must be True or False; got 'x'"),
        (lambda: draw.Image("t", "x", "y", None), "values must be a tensor, an array or lists .* got None"),
        (lambda: draw.Image("t", "x", "y", np.zeros((0, 2))), r"must be a matrix; got shape \(0, 2\)"),
        (lambda: draw.Motion("t", [0.0], np.zeros((1, 2, 2)), groups=[0]), "whole number for each of 2 points"),
        (lambda: draw.charts([PANEL, None]), "panels must be a sequence of .*; got list of 2"),
        (lambda: draw.charts([PANEL], title=3), "title must be a string; got 3"),
        (lambda: draw.text_charts([PANEL], width=-1), "width must be a whole number from 20 to 10000; got -1"),
        (lambda: draw.text_charts([PANEL], height=10**9), "height must be a whole number from 2 to 10000; got 10000"),
        (lambda: draw.comparison(("a", None, 1.0), ("b", None, 1.0, 1), [0.0]), "a must be a tuple of a string,"),
        (
            lambda: draw.comparison(("a", [1.0], 1.0, 1), ("b", None, 1.0, 1), [0.0]),
            r"weights of a .* shape \(1,\)",
        ),
        (lambda: draw.growth([1], {}), r"lengths must be at least two whole numbers above 0, increasing; got \[1\]"),
        (lambda: draw.growth([1, 1], {}), r"at least two whole numbers above 0, increasing; got \[1, 1\]"),
        (lambda: draw.growth([1, 2], {"a": [1.0, math.nan]}), "must have finite numbers above 0; a has others"),
        (lambda: draw.heads([{}], "entropy"), "a measure must be one of the columns"),
        (lambda: draw.heads([{"entropy": 1.0}], "entropy"), "layer of each row must be a whole number.* got None"),
        (lambda: draw.heads([ROWS[0] | {"entropy": "x"}], "entropy"), "entropy of each row must be a number; got 'x'"),
        (lambda: draw.multiples("x"), "maps must be a tensor, an array or lists of real numbers; got 'x'"),
        (lambda: draw.multiples(np.ones((1, 1, 2, 2)), scale=math.nan), "scale must be a finite number; got nan"),
        (lambda: draw.lines(MAP, "x"), "queries must be a sequence of strings; got 'x'"),
        (lambda: draw.lines(MAP, TOKENS, least="x"), "least must be a finite number; got 'x'"),
        (lambda: draw.overlay(np.zeros((4, 4, 2)), np.zeros((4, 4))), r"image must be .* got shape \(4, 4, 2\)"),
        (lambda: draw.overlay(MAP, MAP, strength=-1.0), "strength must be a number from 0 to 1; got -1.0"),
        (lambda: draw.svg_weights(MAP, [1, 2]), "queries must be a sequence of strings; got list of 2"),
        (lambda: draw.svg_lines(np.zeros((0, 0)), []), r"weights must be 0 x 0, as tokens are; got shape \(0, 0\)"),
        (lambda: draw.text_weights([["x"]], ["a"]), "weights must be a tensor, an array or lists .* got list of 1"),
        (lambda: draw.mask(mask.causal(), 1.5), "n_q must be a whole number; got 1.5"),
        (lambda: draw.mask(mask.causal(), 4, heads=-1), "heads must be a whole number from 1 to 2147483647; got -1"),
        (lambda: draw.weights(MAP, tokens=3), "tokens must be a list of labels, or a pair of lists; got 3"),
        (
            lambda: draw.weights(MAP, tokens=(3, None)),
            "labels of queries must be a list of strings, or None; got 3",
        ),
        (lambda: draw.weights(MAP, title=3), "title must be a string or None; got 3"),
    ],
)
def test_wrong_calls_of_plots_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()
