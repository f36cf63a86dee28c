"""Valid calls of `regard.plot`; figures are closed at once."""

from typing import Any

import torch

from regard import mask, plot
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args

MAP = torch.softmax(numbers(3, 4), -1)
QUERIES, KEYS = ["a", "b", "c"], ["w", "x", "y", "z"]
SERIES = plot.Series("one", [1.0, 2.0], [3.0, 4.0])
PANEL = plot.Panel("title", "x", "y", [SERIES])
IMAGE = plot.ImagePanel("title", "x", "y", MAP)
ROWS = [{"layer": 0, "head": 0, "entropy": 1.0}, {"layer": 0, "head": 1, "entropy": 0.5}]


def close(figure: Any) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)


def valid_call(name: str, *positional: Any, use: Any = None, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return args(*positional, **keywords)

    return ValidCall(f"regard.plot.{name}", lambda: getattr(plot, name), arguments, use)


CALLS = [
    valid_call("ImagePanel", "title", "x", "y", MAP, use=lambda panel: plot.text_charts([panel])),
    valid_call("PointAnimation", "title", [0.0, 1.0], numbers(2, 3, 2)),
    valid_call("Panel", "title", "x", "y", [SERIES], use=lambda panel: plot.text_charts([panel])),
    valid_call(
        "Series",
        "label",
        [1.0, 2.0],
        [3.0, 4.0],
        use=lambda series: plot.text_charts([plot.Panel("t", "x", "y", [series])]),
    ),
    valid_call("charts", [PANEL, IMAGE], use=close),
    valid_call("comparison", ("a", MAP, 0.1, 100), ("b", MAP, 0.2, 200), torch.ones(3), use=close),
    valid_call("growth", [1, 2, 4], {"one": [1.0, 2.0, 4.0]}, use=close),
    valid_call("heads", ROWS, "entropy", use=close),
    valid_call("token_lines", MAP, QUERIES, KEYS, use=close),
    valid_call("mask", mask.causal(), 6, use=close),
    valid_call("head_maps", torch.softmax(numbers(2, 3, 4, 4), -1), use=close),
    valid_call("overlay", torch.rand(8, 8, 3), torch.rand(8, 8), use=close),
    valid_call("svg_token_lines", MAP, QUERIES, KEYS),
    valid_call("svg_weights", MAP, QUERIES, KEYS),
    valid_call("text_charts", [PANEL, IMAGE]),
    valid_call("text_weights", MAP, QUERIES, KEYS),
    valid_call("weights", MAP, use=close),
]

LEFT_OUT: dict[str, str] = {}
