"""What the page computes itself where there is no Python, against `regard.steps`."""

from typing import Any

import pytest

from regard.explorer.explorer import Explorer
from regard.explorer.forms import WEIGHINGS
from regard.explorer.questions import ask
from regard.explorer.typed import MASKS
from tests.explorer.browser import Site, needs_chromium

pytestmark = needs_chromium
X = [[1.0, -0.5, 2.0], [0.25, 3.0, -1.0], [0.0, 0.0, 0.0], [-2.0, 1.5, 0.5]]
W_Q, W_K, W_V = [[0.5, -1], [2, 0.25], [1, 1]], [[1, 0], [-0.5, 2], [0.75, 1]], [[1.0], [2.0], [-3.0]]
GIVEN: dict[str, dict[str, Any]] = {
    "projected": {"x": X, "w_q": W_Q, "w_k": W_K, "w_v": W_V, "tokens": list("abcd")},
    "more queries than keys": {"q": X, "k": X[:2], "v": W_Q[:2]},  # under a causal mask the first see nothing
    "more keys than queries": {"q": X[:2], "k": X, "v": X},
}
OPTIONS: list[dict[str, float]] = [{}, {"temperature": 0.25}, {"scale": 1.5}, {"temperature": 4.5, "scale": 0.25}]
WORK = """async ([forms, asked]) => {
  const { fromForms } = await import("./static/worked.js");
  const held = async (name) => (name === "forms" ? { values: forms } : null);
  return Promise.all(asked.map(async (params) => (await fromForms(held, "steps", params))?.values ?? null));
}"""


def here(site: Site, asked: list[dict[str, Any]]) -> Any:
    """What the page's own arithmetic answers."""
    return site.page("view=steps").evaluate(WORK, [ask(Explorer(), "forms").values, asked])


@pytest.mark.parametrize("given", GIVEN)
def test_the_page_and_the_library_have_the_same_stages_and_numbers(site: Site, given: str) -> None:
    asked = [
        {**GIVEN[given], "mask": mask, "weigh": weigh, **options}
        for mask in MASKS
        for weigh in WEIGHINGS
        for options in OPTIONS
    ]
    for params, found in zip(asked, here(site, asked), strict=True):
        right = ask(Explorer(), "steps", params).values
        assert (found["queries"], found["keys"]) == (right["queries"], right["keys"])
        assert found["formula"] == right["formula"]
        typed = {"Q", "K", "V"} if "q" in params else set()  # the view shows these as they are typed
        for one, other in zip(found["stages"], right["stages"], strict=True):
            assert one["name"] == other["name"]
            assert flat(one["values"]) == pytest.approx(flat(other["values"]), rel=1e-12, abs=1e-12), (params, one)
            if one["name"] not in typed:
                said = ("words", "formula", "axes")
                assert [one[name] for name in said] == [other[name] for name in said], params


def flat(values: Any) -> list[float]:
    """All numbers; texts such as "-inf" are those that they name."""
    return [x for row in values for x in flat(row)] if isinstance(values, list) else [float(values)]


def test_what_needs_python_is_not_made_up(site: Site) -> None:
    given = GIVEN["projected"]
    asked = [{**given, "dropout": 0.5}, {**given, "weigh": "sinkhorn(5)"}, {**given, "mask": "window(3)"}]
    assert here(site, asked) == [None, None, None]


@pytest.mark.parametrize(
    "params, said",
    [
        ({"q": [[1.0]], "k": [[1.0, 2.0]], "v": [[1.0]]}, "q and k must have the same width; got q=1, k=2."),
        ({"q": [[1.0]], "k": [[1.0]], "v": [[1.0], [2.0]]}, "k and v must have the same length; got k=1, v=2."),
        (
            {"x": X, "w_q": W_Q, "w_k": W_K[:2], "w_v": W_V},
            "w_k must have as many rows as x has columns; got 2 rows, 3 columns.",
        ),
    ],
)
def test_matrices_that_do_not_fit_are_refused_in_a_sentence(site: Site, params: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        here(site, [params])
