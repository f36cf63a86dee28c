"""Valid calls of `regard.draw`; figures are closed at once."""

from typing import Any

import torch

from regard import draw, mask
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given

MAP = torch.softmax(numbers(3, 4), -1)
QUERIES, KEYS = ["a", "b", "c"], ["w", "x", "y", "z"]
SERIES = draw.Series("one", [1.0, 2.0], [3.0, 4.0])
PANEL = draw.Panel("title", "x", "y", [SERIES])
IMAGE = draw.Image("title", "x", "y", MAP)
ROWS = [{"layer": 0, "head": 0, "entropy": 1.0}, {"layer": 0, "head": 1, "entropy": 0.5}]


def closed(figure: Any) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)


def named(name: str, *positional: Any, use: Any = None, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return given(*positional, **keywords)

    return ValidCall(f"regard.draw.{name}", lambda: getattr(draw, name), arguments, use)


CALLS = [
    named("Image", "title", "x", "y", MAP, use=lambda one: draw.text_charts([one])),
    named("Motion", "title", [0.0, 1.0], numbers(2, 3, 2)),
    named("Panel", "title", "x", "y", [SERIES], use=lambda one: draw.text_charts([one])),
    named(
        "Series", "one", [1.0, 2.0], [3.0, 4.0], use=lambda one: draw.text_charts([draw.Panel("t", "x", "y", [one])])
    ),
    named("charts", [PANEL, IMAGE], use=closed),
    named("comparison", ("a", MAP, 0.1, 100), ("b", MAP, 0.2, 200), torch.ones(3), use=closed),
    named("growth", [1, 2, 4], {"one": [1.0, 2.0, 4.0]}, use=closed),
    named("heads", ROWS, "entropy", use=closed),
    named("lines", MAP, QUERIES, KEYS, use=closed),
    named("mask", mask.causal(), 6, use=closed),
    named("multiples", torch.softmax(numbers(2, 3, 4, 4), -1), use=closed),
    named("overlay", torch.rand(8, 8, 3), torch.rand(8, 8), use=closed),
    named("svg_lines", MAP, QUERIES, KEYS),
    named("svg_weights", MAP, QUERIES, KEYS),
    named("text_charts", [PANEL, IMAGE]),
    named("text_weights", MAP, QUERIES, KEYS),
    named("weights", MAP, use=closed),
]

LEFT_OUT: dict[str, str] = {}
