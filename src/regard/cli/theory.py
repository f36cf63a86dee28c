"""`regard theory`: the mathematics as experiments, run and shown."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

from regard.cli.app import Json, refusing, say_json
from regard.draw.charts import Image
from regard.draw.figure import check
from regard.draw.text_charts import text_charts
from regard.errors import SpecError
from regard.files.atomic import atomic_file
from regard.theory.catalogue import experiment, experiments
from regard.theory.experiment import Experiment
from regard.theory.experiment import Progress as Told
from regard.theory.outcome import Claim, Outcome

WIDTH = 79
PATIENCE = 2.0  # seconds without a bar
MOST_NUMBERS = 4  # of a claim that are printed


def theory(
    name: Annotated[str, typer.Argument(help="the experiment; all are listed without it")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting, as in keys=1024; may be given again")
    ] = None,
    seed: Annotated[int, typer.Option(help="decides every random number")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="settings that take moments, where no other is given")] = False,
    picture: Annotated[Path | None, typer.Option(help="write the charts to this file, as in charts.png")] = None,
    as_json: Json = False,
) -> None:
    """Runs an experiment: what a formula says, beside what the library computes.

    The code is 0 if all claims hold and the formulas known as wrong do not, 1 if not.
    """
    with refusing():
        if not name:
            _refuse_without_name(settings, picture)
            say_json([_listed(each) for each in experiments()]) if as_json else typer.echo(_list())
            return
        chosen = experiment(name)
        given = {**(chosen.quick if quick else {}), **_settings(chosen, settings or [])}
        if picture is not None:
            _check_picture(picture)
        with _bar(name) as told:
            outcome = chosen.run(seed=seed, progress=told, **given)
        if picture is not None:
            _draw(outcome, picture)
    if as_json:
        say_json(spoken(outcome))
    else:
        typer.echo(_said(chosen, outcome))
    raise typer.Exit(0 if outcome.agrees else 1)


def _refuse_without_name(settings: list[str] | None, picture: Path | None) -> None:
    if settings or picture is not None:
        got = "--set" if settings else "--picture"
        raise SpecError(f"{got} must go with the name of an experiment; got none. `regard theory` lists them.")


def _list() -> str:
    lines = ["Experiments of regard.theory; `regard theory NAME` runs one.", ""]
    side = max(len(each.name) for each in experiments()) + 2
    for each in experiments():
        lines += wrap(each.about, WIDTH, initial_indent=each.name.ljust(side), subsequent_indent=" " * side)
        for slider in each.sliders:
            bounds = f"--set {slider.name}=  {slider.low:g} to {slider.high:g}: {slider.about}"
            lines += wrap(bounds, WIDTH, initial_indent=" " * side, subsequent_indent=" " * (side + 2))
    return "\n".join(lines)


def _listed(each: Experiment) -> dict[str, Any]:
    sliders = [{k: getattr(s, k) for k in ("name", "about", "low", "high", "step")} for s in each.sliders]
    return {"name": each.name, "about": each.about, "settings": sliders, "quick": dict(each.quick)}


def _settings(chosen: Experiment, texts: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or found[name.strip()] - found[name.strip()] != 0:  # neither a number nor a finite one
            names = ", ".join(slider.name for slider in chosen.sliders) or "none"
            raise SpecError(f"--set must be NAME=NUMBER, of {names}; got {text!r}.")
    return found


@contextmanager
def _bar(name: str) -> Iterator[Told]:
    """What to tell progress: work that takes over two seconds gets a bar, which goes away when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console, begun = Console(stderr=True), time.monotonic()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(name, total=1.0)
    with ExitStack() as shown:

        def told(share: float) -> None:
            bar.update(task, completed=share)
            late = time.monotonic() - begun > PATIENCE
            if late and console.is_terminal and not bar.live.is_started:
                shown.enter_context(bar)

        yield told


def _check_picture(path: Path) -> None:
    check()
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in kinds:
        raise SpecError(f"--picture must end in one of {', '.join(kinds)}; got {path}.")
    if not path.parent.is_dir():
        raise SpecError(f"--picture must be a file in a folder that is there; got {path}.")


def _draw(outcome: Outcome, path: Path) -> None:
    kind = path.suffix.lower().removeprefix(".")
    with atomic_file(path) as file:
        outcome.picture().savefig(file, dpi=110, format=kind)


def _said(chosen: Experiment, outcome: Outcome) -> str:
    settings = ", ".join(f"{name} {value:g}" for name, value in outcome.settings.items())
    lines = [*wrap(f"{outcome.name}: {chosen.about}", WIDTH), settings, ""]
    for claim in outcome.claims:
        lines += _claimed(claim, "holds" if claim.holds else "FAILS")
    if outcome.wrong:
        lines += ["Formulas that are wrong, and must not hold:", ""]
    for claim in outcome.wrong:
        lines += _claimed(claim, "HOLDS" if claim.holds else "wrong")
    verdict = "Everything is as the mathematics says." if outcome.agrees else "Not everything is as it should be."
    return "\n".join([*lines, verdict, "", text_charts(outcome.panels, width=WIDTH)])


def _claimed(claim: Claim, verdict: str) -> list[str]:
    """A row of the table: the verdict and the sentence, the numbers, and how far off they were."""
    relation = {"equal": "", "at most": " or less", "at least": " or more"}[claim.relation]
    numbers = f"predicted {_numbers(claim.predicted)}{relation}   found {_numbers(claim.found)}"
    allowed = f"off by {claim.error:.2g}, allowed {claim.within:.2g}: {claim.because}"
    lines = wrap(claim.says, WIDTH, initial_indent=f"{verdict}  ", subsequent_indent=" " * 7)
    for text in (numbers, allowed):
        lines += wrap(text, WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 9)
    return [*lines, ""]


def _numbers(values: Tensor) -> str:
    flat = values.flatten().tolist()
    if len(flat) <= MOST_NUMBERS:
        return " ".join(f"{value:.4g}" for value in flat)
    return f"{min(flat):.4g} to {max(flat):.4g} ({len(flat)} numbers)"


def spoken(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON has it: numbers that are missing or endless are null."""
    return {
        "name": outcome.name,
        "agrees": outcome.agrees,
        "settings": dict(outcome.settings),
        "claims": [_spoken_claim(claim) for claim in outcome.claims],
        "wrong": [_spoken_claim(claim) for claim in outcome.wrong],
        "panels": [_spoken_panel(panel) for panel in outcome.panels],
    }


def _spoken_claim(claim: Claim) -> dict[str, Any]:
    words = {"says": claim.says, "relation": claim.relation, "because": claim.because, "holds": claim.holds}
    numbers = {name: _plain(getattr(claim, name)) for name in ("predicted", "found")}
    return {**words, **numbers, "error": _plain(claim.error), "within": claim.within}


def _spoken_panel(panel: Any) -> dict[str, Any]:
    words = {"title": panel.title, "across": panel.across, "up": panel.up}
    if isinstance(panel, Image):
        return {**words, "signed": panel.signed, "values": _plain(panel.values)}
    curves = [
        {"label": s.label, "style": s.style, "colour": colour, "x": _plain(s.x), "y": _plain(s.y)}
        for s, colour in zip(panel.series, panel.colours, strict=True)
    ]
    return {**words, "log_x": panel.log_x, "log_y": panel.log_y, "series": curves}


def _plain(values: Any) -> Any:
    """Nested lists of numbers, with None for what JSON has no number for."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, list):
        return [_plain(each) for each in values]
    return values if values - values == 0 else None
