"""The numbers that the unit tests of the page compare with, as Python computes them.

`python -m tests.explorer.frontend_numbers` writes them to `frontend/python-numbers.json`.
"""

import json
import re
from base64 import b64encode
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import mask
from regard.explorer.api.packing import Payload, pack
from regard.explorer.api.registry import dispatch
from regard.explorer.api.walkthrough_api import MASK_CHOICES
from regard.explorer.explorer import Explorer
from regard.explorer.html_export import request_key
from regard.files.json_values import to_json_value
from tests.explorer.recordings import make_session

PATH = Path(__file__).parent / "frontend" / "python-numbers.json"
STORED_ENDPOINTS = re.compile(r"(state|map_info|tile|head_vectors|thumbnails|stage_templates|cost_options|cost)\{")
MATRICES = {"q": [[1.0, -0.5], [0.25, 3.0], [0.0, 2.0]], "k": [[2.0, 0.5], [-1.0, 1.5], [0.5, 0.25], [1.0, 1.0]]}
VALUES = [[1.0, 0.0], [0.0, 1.0], [2.0, -1.0], [0.5, 0.5]]
OPTIONS: list[dict[str, float]] = [{}, {"temperature": 0.5}, {"scale": 3, "temperature": 2}]  # the page sends integers
HEADS = {"session": 0, "layer": 0, "head": 1}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("query_weights", {"session": 0, "layer": 0, "heads": [1], "queries": [4]}),
    ("query_weights", {"session": 0, "layer": 0, "heads": [0, 1], "queries": [1, 3]}),
    ("key_weights", {"session": 0, "layer": 0, "heads": [1], "keys": [0, 2]}),
    ("top_weights", {"session": 0, "layer": 0, "heads": [0, 1], "query_start": 1, "query_end": 5, "mass": 0.8}),
    ("tile", {**HEADS, "level": 0, "row": 0, "column": 0, "hidden_keys": [0]}),
    ("query_weights", {"session": 0, "layer": 0, "heads": [1], "queries": [4], "hidden_keys": [1]}),
    *(("cell_steps", {**HEADS, "query": query, "key": key}) for query, key in ((0, 0), (4, 2), (2, 6))),
]
KEYS: list[tuple[str, dict[str, Any]]] = [
    ("state", {}),
    ("tile", {"row": 0, "level": 1, "hidden_keys": None, "progress_id": "page-1"}),
    ("top_weights", {"mass": 0.8, "heads": [1, 0], "query_start": 0}),
    ("steps", {"tokens": ["Größe", 'a "b"', "\u2028"], "q": [[1.5, -2]], "mask": "causal"}),
    ("experiment", {"settings": {"width": 3, "beta": 1e-07}, "seed": 0}),
]


def compute() -> dict[str, Any]:
    """Return all numbers as JSON values."""
    explorer = Explorer(make_session(5, 7, mask=mask.causal()))
    return {
        "responses": _stored_responses(explorer),
        "requests": [
            {"name": name, "params": params, "expected": _to_json(dispatch(explorer, name, params))}
            for name, params in REQUESTS
        ],
        "steps": [
            {"params": params, "expected": _without_code(dispatch(explorer, "steps", params).values)}
            for params in _steps_params(explorer)
        ],
        "keys": [{"name": name, "params": params, "key": request_key(name, params)} for name, params in KEYS],
        "packed": _packed(),
    }


def _stored_responses(explorer: Explorer) -> dict[str, str]:
    """Return the responses of an exported file, packed, compressed and in base64."""
    html = dispatch(explorer, "export", {"session": 0}).arrays["html"].tobytes().decode()
    match = re.search(r'<script type="application/json" id="regard-responses">(.*?)</script>', html, re.DOTALL)
    assert match is not None
    responses = json.loads(match[1])["responses"]
    cost_key = next(key for key in responses if key.startswith("cost{"))
    return {
        key: response
        for key, response in responses.items()
        if STORED_ENDPOINTS.match(key) and (not key.startswith("cost{") or key == cost_key)
    }


def _steps_params(explorer: Explorer) -> list[dict[str, Any]]:
    normalizers = dispatch(explorer, "stage_templates").values["normalizers"]
    return [
        {**MATRICES, "v": VALUES, "mask": mask, "normalizer": normalizer, **options}
        for mask, normalizer, options in product(MASK_CHOICES, normalizers, OPTIONS)
    ]


def _without_code(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "formula": values["formula"],
        "stages": {stage["name"]: stage["values"] for stage in to_json_value(values)["stages"]},
        "formulas": {
            stage["name"]: [stage["formula"], stage["description"]]
            for stage in values["stages"]
            if stage["name"] not in {"Q", "K", "V"}
        },
    }


def _to_json(payload: Payload) -> dict[str, Any]:
    arrays = {name: {"data": x.ravel().tolist(), "shape": list(x.shape)} for name, x in payload.arrays.items()}
    return to_json_value({"values": payload.values, "arrays": arrays})


def _packed() -> dict[str, str]:
    """Return packed responses with arrays of each type, in base64."""
    halves = torch.tensor([0.0, -1.5, 65504.0, 6e-8, 0.1, float("inf")]).half().numpy()
    arrays = {
        "floats": np.array([[1.5, -2.0, 0.25]], np.float32),
        "integers": np.array([-7, 2**31 - 1], np.int32),
        "bytes": np.array([0, 1, 255], np.uint8),
        "halves": halves,
        "empty": np.zeros((0, 3), np.float32),
    }
    packed = {"arrays": Payload({"name": "Größe"}, arrays), "values only": Payload({"n": [1, None]})}
    return {name: b64encode(pack(payload)).decode() for name, payload in packed.items()}


if __name__ == "__main__":
    PATH.write_text(json.dumps(compute(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf8")
