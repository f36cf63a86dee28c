"""The hooks of the site: empty lines of outputs, and formulas in the search index."""

import re

import pytest

hooks = pytest.importorskip("tools.docs.hooks", reason="mkdocs is required: use pip install '.[dev]'")


@pytest.mark.parametrize(
    "formula, text",
    [
        (r"\(x + 1\)", "x + 1"),
        (r"\(a_{ij}\)", "a_ij"),
        (r"\(\sum_j a_j\)", "…"),
        ("\\[ \\begin{gathered} o \\end{gathered} \\]", "…"),
    ],
)
def test_the_search_index_has_no_latex(formula: str, text: str) -> None:
    indexed = hooks.FORMULA.sub(hooks._formula_text, f"The sum {formula} is small.")
    assert re.sub(r"\s+", " ", indexed) == f"The sum {text} is small."


def test_marks_of_empty_lines_are_removed() -> None:
    assert hooks.BLANK_LINE.sub("", "a\n<BLANKLINE>\n  <BLANKLINE>\nb <BLANKLINE>\n") == "a\n\n\nb <BLANKLINE>\n"
