"""Worked steps as text, HTML, LaTeX and code: aligned, complete in themselves, and nothing in them taken for markup."""

import itertools
import re
from html.parser import HTMLParser

import pytest
import torch

import regard
from regard import mask, score, weigh
from regard.worked.examples import example
from regard.worked.steps import Steps, steps
from regard.worked.table import texts

MARKUP = ["<script>alert(1)</script>", "a&b", '"quoted"']


def dog() -> Steps:
    chosen = example("dog-ate-dinner")
    return steps(*chosen.inputs, tokens=chosen.words, mask=mask.causal())


def marked() -> Steps:
    q = torch.eye(3)
    return steps(q, q, q, tokens=MARKUP)


def test_a_terminal_shows_aligned_matrices_with_names() -> None:
    assert str(dog()[["masked", "row sum"]]) == (
        "masked: what is hidden scores -∞, so that it will weigh exactly 0\n"
        "  s_ij where seen, -∞ elsewhere\n"
        "             dog    ate dinner\n"
        "  dog     1.9163     -∞     -∞\n"
        "  ate     0.9581 0.4791     -∞\n"
        "  dinner  1.0288 0.5144 0.4685\n"
        "\n"
        "row sum: the sum of each row\n"
        "  z_i = Σ_j exp(s_ij - m_i)\n"
        "  dog     1.0000\n"
        "  ate     1.6194\n"
        "  dinner  2.1688"
    )


def test_more_digits_are_shown_when_asked_for() -> None:
    assert "0.617527 0.382473" in dog()[["weights"]].text(digits=6)


def test_a_wide_matrix_is_cut_into_parts_that_fit() -> None:
    q = torch.linspace(0, 1, 40).view(40, 1)
    shown = steps(q, q, q)[["weights"]].text()
    assert max(len(line) for line in shown.splitlines()) <= 100
    parts = re.findall(r"columns (\d+) to (\d+)", shown)
    assert parts[0][0] == "0" and parts[-1][1] == "39"
    assert all(int(after[0]) == int(before[1]) + 1 for before, after in itertools.pairwise(parts))


def test_three_axes_are_shown_query_by_query() -> None:
    additive = score.additive(torch.eye(2), torch.eye(2), torch.ones(2))
    shown = str(steps(torch.eye(2), torch.eye(2), torch.eye(2), score=additive, tokens=["to", "be"])[["tanh"]])
    assert "  query to\n" in shown and "  query be\n" in shown


@pytest.mark.parametrize(
    "values, shown",
    [
        ([0.5, 2.25], ["0.50", "2.25"]),
        ([1.0, 2.0], ["1", "2"]),
        ([0.1 + 0.2, 1.0], ["0.3", "1.0"]),
        ([1 / 3, -1e-9], ["0.3333", "0.0000"]),
        ([float("inf"), float("-inf"), float("nan"), 0.0], ["∞", "-∞", "nan", "0"]),
        ([1.5e9, 1.0], ["1.5e+09", "1"]),
        ([1.234e-7, 0.0], ["1.234e-07", "0"]),
        ([True, False], ["█", "·"]),
    ],
)
def test_numbers_have_as_many_digits_as_they_need(values: list[float], shown: list[str]) -> None:
    kind = torch.bool if isinstance(values[0], bool) else torch.float64
    assert texts(torch.tensor(values, dtype=kind)) == shown


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.attributes: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_endtag(self, tag: str) -> None:
        self.closed.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Tags:
    found = Tags()
    found.feed(page)
    return found


@pytest.mark.parametrize("page", [marked()._repr_html_(), marked().html()])
def test_tokens_in_html_are_text_and_no_markup(page: str) -> None:
    found = parsed(page)
    assert "script" not in found.opened
    assert all(token in found.text for token in MARKUP)
    assert sorted(found.opened) == sorted([*found.closed, *(tag for tag in found.opened if tag == "meta")])


def test_html_asks_for_nothing_from_elsewhere_and_knows_light_and_dark() -> None:
    page = dog().html()
    assert not {"src", "href", "onclick", "onload"} & set(parsed(page).attributes)
    assert "http" not in page and "@import" not in page and "url(" not in page
    assert "prefers-color-scheme:dark" in page
    assert page.startswith("<!doctype html>")


def test_html_has_every_number_of_every_stage() -> None:
    found = parsed(dog()._repr_html_())
    assert all(stage.words in found.text for stage in dog())
    assert all(number in found.text for number in ("0.6175", "2.8307", "-∞", "█"))


def test_latex_has_a_line_for_every_stage_and_balanced_braces() -> None:
    found = dog().latex()
    assert found.startswith("\\begin{align*}") and found.endswith("\\end{align*}")
    assert found.count("\\begin{pmatrix}") == found.count("\\end{pmatrix}") == len(dog())
    assert found.count("{") == found.count("}")
    assert "0.6175 & 0.3825 & 0 " in found and r"-\infty" in found
    assert r"\text{W\_Q}" in found  # an underscore in text would end the document


def test_latex_tells_amsmath_of_wide_matrices() -> None:
    q = torch.zeros(12, 2)
    assert steps(q, q, q).latex().startswith("\\setcounter{MaxMatrixCols}{12}")


def test_code_needs_torch_alone() -> None:
    lines = dog().code().splitlines()
    assert [line for line in lines if "import" in line] == ["from math import inf", "import torch"]
    assert not any("regard" in line for line in lines)
    assert "arange" not in steps([[1.0]], [[1.0]], [[1.0]]).code()  # positions stand there only where they are used


def test_the_number_of_tokens_must_be_that_of_the_rows() -> None:
    q = torch.eye(3)
    with pytest.raises(regard.errors.SpecError, match=r"tokens must be a list of 3 names, .* got 2"):
        steps(q, q, q, tokens=["a", "b"])
    with pytest.raises(regard.errors.SpecError, match=r"key_tokens must be a list of 3 names, .* got 1"):
        steps(q, q, q, key_tokens=["a"])
    with pytest.raises(regard.errors.SpecError, match=r"tokens must be a sequence of strings or None; got 'abc'"):
        steps(q, q, q, tokens="abc")


def test_tokens_cannot_break_lines_or_steer_a_terminal() -> None:
    q = torch.eye(2)
    shown = str(steps(q, q, q, tokens=["a\nb", "\x1b[31m"]))
    assert "a\\nb" in shown and "\x1b" not in shown


def test_queries_and_keys_may_have_names_of_their_own() -> None:
    q, k = torch.eye(3)[:2], torch.eye(3)
    found = steps(q, k, k, tokens=["was", "ist"], key_tokens=["what", "is", "it"])
    assert (found.labels.queries, found.labels.keys) == (("was", "ist"), ("what", "is", "it"))
    assert steps(q, k, k, tokens=["was", "ist"]).labels.keys == ("k0", "k1", "k2")


def test_every_weighing_says_what_it_does_in_its_own_words() -> None:
    q = torch.eye(3)
    for how, words in (
        (weigh.sparsemax(), "threshold of each query"),
        (weigh.sink(), "one more key, whose value is zero"),
        (weigh.sinkhorn(2), "each column divided by its sum"),
        (weigh.top(2), "the 2 largest scores"),
        (weigh.kernel(), "features that are never negative"),
        (weigh.gumbel(), "noise of a Gumbel distribution"),
    ):
        assert words in str(steps(q, q, q, weigh=how))
