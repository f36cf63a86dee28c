"""What is said of each stage under every mask and weighing, without numbers: for a page that computes those itself."""

from typing import Any

from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer
from regard.explorer.typed import MASKS
from regard.worked.projection import projected
from regard.worked.said import said_mask, said_score, said_weigh
from regard.worked.steps import Steps
from regard.worked.steps import steps as work

WEIGHINGS = (
    "softmax",
    "sink",
    "sparsemax",
    "entmax(1.5)",
    "sigmoid",
    "relu",
)  # whose numbers static/worked.js can make
ANY = ((1.0, 0.0), (0.0, 1.0))


def forms(explorer: Explorer, asked: Asked) -> Answer:
    """`stages`: of each weighing, what is said of its stages by name; `seen`: of each mask, where it lets look.

    `formulas` has the formula of the whole for each mask and weighing.
    """
    stages = {weigh: _words(_worked("causal", weigh, temperature=2.0)) for weigh in WEIGHINGS}
    seen = {mask: _worked(mask, "softmax")["seen"].formula for mask in MASKS if mask != "none"}
    formulas = {mask: {weigh: _worked(mask, weigh).formula for weigh in WEIGHINGS} for mask in MASKS}
    return Answer({"stages": stages, "seen": seen, "formulas": formulas})


def _worked(mask: str, weigh: str, temperature: float | None = None) -> Steps:
    each = projected(ANY, ANY)
    return work(
        *(each, each, each),
        score=said_score(None, scale=None, temperature=temperature),
        mask=None if mask == "none" else said_mask(mask),
        weigh=said_weigh(weigh),
    )


def _words(found: Steps) -> dict[str, Any]:
    return {
        stage.name: {"words": stage.words, "formula": stage.formula, "axes": list(stage.axes)} for stage in found.stages
    }
