"""The tables of docs/how-to/options.md list every mask, score, normalizer and measure, and each call in them runs."""

import re
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

import regard
from regard import mask, measure, normalizer, score

from .test_documents import ROOT, python_blocks

PAGE = (ROOT / "docs/how-to/options.md").read_text(encoding="utf8")
CALLS = re.findall(r"^\| `((?:mask|score|normalizer|measure)\..+?)` \|", PAGE, re.MULTILINE)


def test_the_tables_are_read() -> None:
    assert len(CALLS) > 40


@pytest.mark.parametrize("module", [mask, score, normalizer, measure], ids=lambda module: module.__name__)
def test_the_page_names_every_option(module: ModuleType) -> None:
    short_name = module.__name__.removeprefix("regard.")
    names = set(re.findall(rf"\b{short_name}\.(\w+)", PAGE))
    assert set(module.__all__) - names == set()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_table_runs(call: str) -> None:
    namespace: dict[str, Any] = {}
    exec(python_blocks(PAGE)[0].code, namespace)
    option = call.partition(".")[0]
    result = eval(call, namespace)
    if option == "measure":
        (measured,) = namespace["weights"].measure(result)
        values = measured if isinstance(measured, Tensor) else measured[0]
        assert values.shape[:2] == (2, 4)
    else:
        q, k, v = (namespace[name] for name in "qkv")
        assert regard.attention(q, k, v, **{option: result}).shape == v.shape
