"""Endpoints of the walkthrough: attention over small matrices, stage by stage."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.explorer.api.endpoint import endpoint
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.expr.serialize import example_texts
from regard.walkthrough.examples import WALKTHROUGH_EXAMPLES
from regard.walkthrough.option_parser import parse_mask, parse_normalizer, parse_score
from regard.walkthrough.projection import project
from regard.walkthrough.steps import steps as compute_steps

MASK_CHOICES = ("none", *example_texts("mask"), "causal & sliding_window(2)")
NORMALIZER_CHOICES = tuple(example_texts("normalizer"))
LONG_NUMBER_PATTERN = re.compile(r"\d{5}")  # useless for small matrices, and possibly slow
MAX_MATRIX_SIDE = 16  # rows or columns of an input


@endpoint
def steps(explorer: Explorer, params: Params) -> Payload:
    """Return every stage of attention over q, k and v, or over the projections of x.

    `temperature` divides the scores, and `scale` replaces 1/√d. `mask`, `score` and `normalizer` are strings such as
    "causal & sliding_window(2)".
    """
    q, k, v = _matrix_inputs(params)
    temperature = params.number("temperature", 0.01, 100.0, 1.0)
    result = compute_steps(
        *(q, k, v),
        score=parse_score(
            _option_text(params, "score", ""),
            scale=params.number("scale", -100.0, 100.0) if params.has("scale") else None,
            temperature=None if temperature == 1.0 else temperature,
        ),
        mask=_parse_option(parse_mask, _option_text(params, "mask", "none")),
        normalizer=_parse_option(parse_normalizer, _option_text(params, "normalizer", "softmax")),
        dropout=params.number("dropout", 0.0, 0.95, 0.0),
        seed=params.integer("seed", 0, 2**31 - 1, 0),
        tokens=_token_labels_param(params, "tokens"),
        key_tokens=_token_labels_param(params, "key_tokens"),
    )
    return Payload({**result.as_dict(), "text": str(result), "latex": result.latex(), "code": result.code()})


@endpoint
def walkthrough_examples(explorer: Explorer, params: Params) -> Payload:
    """Return the published examples, and the masks and normalizers to choose from."""
    examples = [
        {"name": e.name, "title": e.title, "tokens": e.tokens, "x": e.x, "w_q": e.w_q, "w_k": e.w_k, "w_v": e.w_v}
        | {"published_values": e.published_values, "corrections": e.corrections}
        for e in WALKTHROUGH_EXAMPLES.values()
    ]
    return Payload(
        {
            "examples": examples,
            "masks": list(MASK_CHOICES),
            "normalizers": list(NORMALIZER_CHOICES),
            "max_matrix_side": MAX_MATRIX_SIDE,
        }
    )


def matrix(params: Params, key: str) -> Tensor:
    """Return a parameter as a float64 matrix; raise `ArgumentError` if it is not a small matrix of numbers."""
    value = params.raw(key)
    rows = value if isinstance(value, list) else []
    widths = {len(row) if isinstance(row, list) else -1 for row in rows}
    if not 1 <= len(rows) <= MAX_MATRIX_SIDE or len(widths) != 1 or not 1 <= widths.pop() <= MAX_MATRIX_SIDE:
        raise ArgumentError(
            f"{key} must be a matrix with 1 to {MAX_MATRIX_SIDE} rows, all of the same length of 1 to "
            f"{MAX_MATRIX_SIDE} numbers; got {str(value)[:60]}."
        )
    return torch.tensor(
        [[Params(key, {key: number}).number(key, -1e6, 1e6) for number in row] for row in rows], dtype=torch.float64
    )


def _matrix_inputs(params: Params) -> tuple[Any, Any, Any]:
    if not params.has("x"):
        return matrix(params, "q"), matrix(params, "k"), matrix(params, "v")
    x = matrix(params, "x")
    return project(x, matrix(params, "w_q")), project(x, matrix(params, "w_k")), project(x, matrix(params, "w_v"))


def _option_text(params: Params, key: str, default: str) -> str | None:
    """Return the text of a mask, score or normalizer; None for an empty text or "none"."""
    text = params.text(key, 200, default)
    if LONG_NUMBER_PATTERN.search(text):
        raise ArgumentError(f"numbers in {key} must have at most four digits; got {text[:60]!r}.")
    return None if text in ("", "none") else text


def _parse_option(parse: Callable[[str], Any], text: str | None) -> Any:
    return None if text is None else parse(text)


def _token_labels_param(params: Params, key: str) -> list[str] | None:
    labels = params.raw(key)
    if labels is None:
        return None
    if not isinstance(labels, list) or not all(isinstance(token, str) and len(token) <= 80 for token in labels):
        raise ArgumentError(f"{key} must be a list of strings of at most 80 characters; got {str(labels)[:60]}.")
    return labels
