"""Questions by name: which there are, and one way to ask them. Parameters are checked, refusals are sentences."""

from collections.abc import Callable
from typing import Any

from regard.errors import RegardError, SpecError
from regard.explorer import arithmetic, compare, costs, experiments, export, forms, generation, overview, typed, views
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer

Question = Callable[[Explorer, Asked], Answer]

QUESTIONS: dict[str, Question] = {
    "state": overview.state,
    "run": overview.run,
    "progress": overview.progress,
    "heads": overview.heads,
    "thumbnails": overview.thumbnails,
    "levels": views.levels,
    "tile": views.tile,
    "row": views.row,
    "column": views.column,
    "lines": views.lines,
    "cell": arithmetic.cell,
    "head_vectors": arithmetic.head_vectors,
    "generate": generation.generate,
    "compare": compare.compare,
    "difference_tile": compare.difference_tile,
    "difference_map": compare.difference_map,
    "export": lambda explorer, asked: export.export(explorer, asked, ask),
    "steps": typed.steps,
    "examples": typed.examples,
    "forms": forms.forms,
    "experiments": experiments.experiments,
    "experiment": experiments.experiment,
    "cost": costs.cost,
    "cost_names": costs.cost_names,
    "timing": costs.timing,
}
LONG = {
    "run",
    "experiment",
    "heads",
    "thumbnails",
    "generate",
    "timing",
    "export",
    "compare",
}  # these may take many seconds


def ask(explorer: Explorer, name: str, params: Any = None) -> Answer:
    """The answer to a question. A refusal is a `RegardError`, whose sentence a page shows as it is."""
    if name not in QUESTIONS:
        raise SpecError(f"a question must be one of {', '.join(QUESTIONS)}; got {name[:40]!r}.")
    asked = Asked(name, {} if params is None else params)
    try:
        return QUESTIONS[name](explorer, asked)
    except RegardError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a page must get a sentence
        raise SpecError(f"{name} could not be answered: {error}") from error
    finally:
        if asked.any("progress") and name != "progress":
            explorer.over(asked)
