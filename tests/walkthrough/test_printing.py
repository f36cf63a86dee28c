"""Steps as text, HTML, LaTeX and code: aligned, self-contained, and with escaped tokens."""

import itertools
import re
from html.parser import HTMLParser

import pytest
import torch

import regard
from regard import mask, normalizer, score
from regard.walkthrough.examples import get_example
from regard.walkthrough.render.tables import format_numbers
from regard.walkthrough.steps import Steps, steps

MARKUP = ["<script>alert(1)</script>", "a&b", '"quoted"']


def dog_steps() -> Steps:
    example = get_example("dog-ate-dinner")
    return steps(*example.inputs, tokens=example.tokens, mask=mask.causal())


def steps_with_markup() -> Steps:
    q = torch.eye(3)
    return steps(q, q, q, tokens=MARKUP)


def test_text_has_aligned_matrices_with_labels() -> None:
    assert str(dog_steps()[["masked", "row sum"]]) == (
        "masked: hidden pairs have the score -∞, so that their weight is exactly 0\n"
        "  s_ij where visible, -∞ elsewhere\n"
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


def test_text_has_the_requested_number_of_decimals() -> None:
    assert "0.617527 0.382473" in dog_steps()[["weights"]].text(digits=6)


def test_a_wide_matrix_is_split_into_groups_of_columns() -> None:
    q = torch.linspace(0, 1, 40).view(40, 1)
    text = steps(q, q, q)[["weights"]].text()
    assert max(len(line) for line in text.splitlines()) <= 100
    ranges = re.findall(r"columns (\d+) to (\d+)", text)
    assert ranges[0][0] == "0" and ranges[-1][1] == "39"
    assert all(int(after[0]) == int(before[1]) + 1 for before, after in itertools.pairwise(ranges))


def test_a_stage_with_three_axes_has_one_matrix_per_query() -> None:
    additive = score.additive(torch.eye(2), torch.eye(2), torch.ones(2))
    text = str(steps(torch.eye(2), torch.eye(2), torch.eye(2), score=additive, tokens=["to", "be"])[["tanh"]])
    assert "  query to\n" in text and "  query be\n" in text


@pytest.mark.parametrize(
    "values, expected",
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
def test_numbers_have_as_many_decimals_as_they_need(values: list[float], expected: list[str]) -> None:
    dtype = torch.bool if isinstance(values[0], bool) else torch.float64
    assert format_numbers(torch.tensor(values, dtype=dtype)) == expected


class TagCollector(HTMLParser):
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


def parse_html(page: str) -> TagCollector:
    collector = TagCollector()
    collector.feed(page)
    return collector


@pytest.mark.parametrize("page", [steps_with_markup()._repr_html_(), steps_with_markup().html()])
def test_tokens_in_html_are_escaped(page: str) -> None:
    tags = parse_html(page)
    assert "script" not in tags.opened
    assert all(token in tags.text for token in MARKUP)
    assert sorted(tags.opened) == sorted([*tags.closed, *(tag for tag in tags.opened if tag == "meta")])


def test_html_has_no_remote_resources_and_a_dark_color_scheme() -> None:
    page = dog_steps().html()
    assert not {"src", "href", "onclick", "onload"} & set(parse_html(page).attributes)
    assert "http" not in page and "@import" not in page and "url(" not in page
    assert "prefers-color-scheme:dark" in page
    assert page.startswith("<!doctype html>")


def test_html_has_every_number_of_every_stage() -> None:
    tags = parse_html(dog_steps()._repr_html_())
    assert all(stage.description in tags.text for stage in dog_steps())
    assert all(number in tags.text for number in ("0.6175", "2.8307", "-∞", "█"))


def test_latex_has_a_line_for_every_stage_and_balanced_braces() -> None:
    latex = dog_steps().latex()
    assert latex.startswith("\\begin{align*}") and latex.endswith("\\end{align*}")
    assert latex.count("\\begin{pmatrix}") == latex.count("\\end{pmatrix}") == len(dog_steps())
    assert latex.count("{") == latex.count("}")
    assert "0.6175 & 0.3825 & 0 " in latex and r"-\infty" in latex
    assert r"\text{W\_Q}" in latex  # an underscore in text would end the document


def test_latex_raises_the_column_limit_of_amsmath_for_wide_matrices() -> None:
    q = torch.zeros(12, 2)
    assert steps(q, q, q).latex().startswith("\\setcounter{MaxMatrixCols}{12}")


def test_code_imports_only_torch() -> None:
    lines = dog_steps().code().splitlines()
    assert [line for line in lines if "import" in line] == ["from math import inf", "import torch"]
    assert not any("regard" in line for line in lines)
    assert "arange" not in steps([[1.0]], [[1.0]], [[1.0]]).code()  # positions are defined only if they are used


def test_the_number_of_tokens_must_equal_the_number_of_rows() -> None:
    q = torch.eye(3)
    with pytest.raises(regard.errors.ArgumentError, match=r"tokens must be a list of 3 strings, .* got 2"):
        steps(q, q, q, tokens=["a", "b"])
    with pytest.raises(regard.errors.ArgumentError, match=r"key_tokens must be a list of 3 strings, .* got 1"):
        steps(q, q, q, key_tokens=["a"])
    with pytest.raises(regard.errors.ArgumentError, match=r"tokens must be a sequence of strings or None; got 'abc'"):
        steps(q, q, q, tokens="abc")


def test_tokens_cannot_break_lines_or_control_a_terminal() -> None:
    q = torch.eye(2)
    text = str(steps(q, q, q, tokens=["a\nb", "\x1b[31m"]))
    assert "a\\nb" in text and "\x1b" not in text


def test_queries_and_keys_may_have_different_labels() -> None:
    q, k = torch.eye(3)[:2], torch.eye(3)
    labels = steps(q, k, k, tokens=["was", "ist"], key_tokens=["what", "is", "it"]).labels
    assert (labels.queries, labels.keys) == (("was", "ist"), ("what", "is", "it"))
    assert steps(q, k, k, tokens=["was", "ist"]).labels.keys == ("k0", "k1", "k2")


def test_every_normalizer_has_its_own_description() -> None:
    q = torch.eye(3)
    for option, description in (
        (normalizer.sparsemax(), "threshold of each query"),
        (normalizer.sink(), "one more key, whose value is zero"),
        (normalizer.sinkhorn(2), "each column divided by its sum"),
        (normalizer.topk(2), "the 2 largest scores"),
        (normalizer.kernel(), "features that are never negative"),
        (normalizer.gumbel(), "noise of a Gumbel distribution"),
    ):
        assert description in str(steps(q, q, q, normalizer=option))
