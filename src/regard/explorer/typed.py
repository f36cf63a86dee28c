"""Questions about small matrices that somebody typed: every stage from them to the output."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer
from regard.worked.examples import EXAMPLES
from regard.worked.projection import projected
from regard.worked.said import said_mask, said_score, said_weigh
from regard.worked.steps import steps as work

MASKS = ("none", "causal", "window(2)", "causal & window(2)")
WEIGHINGS = ("softmax", "sparsemax", "entmax(1.5)", "top(2)", "sink", "sigmoid", "relu", "argmax", "sinkhorn(5)")
LONG = re.compile(r"\d{5}")  # a number that nobody needs for matrices of this size, and that might take for ever
SIDE = 16  # rows and columns that can be typed


def steps(explorer: Explorer, asked: Asked) -> Answer:
    """Every stage of attention over q, k and v, or over x and its projections.

    `temperature` divides the scores, `scale` takes the place of 1/√d; `mask`, `score` and `weigh` are words such as
    "causal & window(2)".
    """
    q, k, v = _inputs(asked)
    temperature = asked.number("temperature", 0.01, 100.0, 1.0)
    found = work(
        *(q, k, v),
        score=said_score(
            _said(asked, "score", ""),
            scale=asked.number("scale", -100.0, 100.0) if asked.has("scale") else None,
            temperature=None if temperature == 1.0 else temperature,
        ),
        mask=_read(said_mask, _said(asked, "mask", "none")),
        weigh=_read(said_weigh, _said(asked, "weigh", "softmax")),
        dropout=asked.number("dropout", 0.0, 0.95, 0.0),
        seed=asked.whole("seed", 0, 2**31 - 1, 0),
        tokens=_tokens(asked, "tokens"),
        key_tokens=_tokens(asked, "key_tokens"),
    )
    return Answer({**found.as_dict(), "text": str(found), "all_latex": found.latex(), "all_code": found.code()})


def examples(explorer: Explorer, asked: Asked) -> Answer:
    """Matrices to begin with: the worked examples, and the names of masks and weighings."""
    each = [
        {"name": e.name, "title": e.title, "tokens": e.words, "x": e.x, "w_q": e.w_q, "w_k": e.w_k, "w_v": e.w_v}
        | {"printed": e.printed, "wrong": e.wrong}
        for e in EXAMPLES.values()
    ]
    return Answer({"examples": each, "masks": list(MASKS), "weighings": list(WEIGHINGS), "side": SIDE})


def matrix(asked: Asked, key: str) -> Tensor:
    """A small matrix of numbers."""
    given = asked.any(key)
    rows = given if isinstance(given, list) else []
    widths = {len(row) if isinstance(row, list) else -1 for row in rows}
    if not 1 <= len(rows) <= SIDE or len(widths) != 1 or not 1 <= widths.pop() <= SIDE:
        raise SpecError(
            f"{key} must be a matrix of 1 to {SIDE} rows, all with the same 1 to {SIDE} numbers; got {str(given)[:60]}."
        )
    return torch.tensor(
        [[Asked(key, {key: number}).number(key, -1e6, 1e6) for number in row] for row in rows], dtype=torch.float64
    )


def _inputs(asked: Asked) -> tuple[Any, Any, Any]:
    if not asked.has("x"):
        return matrix(asked, "q"), matrix(asked, "k"), matrix(asked, "v")
    x = matrix(asked, "x")
    return projected(x, matrix(asked, "w_q")), projected(x, matrix(asked, "w_k")), projected(x, matrix(asked, "w_v"))


def _said(asked: Asked, key: str, default: str) -> str | None:
    """A mask, score or weighing in words; None for none."""
    text = asked.text(key, 200, default)
    if LONG.search(text):
        raise SpecError(f"{key} must have numbers of at most four digits here; got {text[:60]!r}.")
    return None if text in ("", "none") else text


def _read(reader: Callable[[str], Any], text: str | None) -> Any:
    return None if text is None else reader(text)


def _tokens(asked: Asked, key: str) -> list[str] | None:
    given = asked.any(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(token, str) and len(token) <= 80 for token in given):
        raise SpecError(f"{key} must be a list of short texts; got {str(given)[:60]}.")
    return given
