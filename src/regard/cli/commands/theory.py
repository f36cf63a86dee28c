"""`regard theory`: run experiments that compare formulas with computed numbers."""

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

from regard.cli.app import JsonOption, exit_on_error, print_json
from regard.errors import ArgumentError
from regard.files.atomic import atomic_file
from regard.files.json_values import to_json_value
from regard.plot.chart_panels import ImagePanel
from regard.plot.style import require_matplotlib
from regard.plot.terminal_charts import text_charts
from regard.theory.experiment import Experiment, ProgressCallback
from regard.theory.experiment_result import Claim, ExperimentResult
from regard.theory.registry import get_experiment, list_experiments

LINE_WIDTH = 79
BAR_DELAY_S = 2.0  # shorter runs have no progress bar
MAX_PRINTED_NUMBERS = 4  # longer results are printed as a range


def theory(
    name: Annotated[str, typer.Argument(help="the experiment; without it all are listed")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting, as in keys=1024; may be repeated")
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of all random numbers")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="fast settings, unless --set overrides them")] = False,
    plot: Annotated[Path | None, typer.Option(help="write the charts to this file, as in charts.png")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment: compare the numbers of a formula with those that the library computes.

    The exit code is 0 if all claims hold and no known-wrong formula does, else 1.
    """
    with exit_on_error():
        if not name:
            _check_no_options(settings, plot)
            if as_json:
                print_json([_experiment_to_json(experiment) for experiment in list_experiments()])
            else:
                typer.echo(_format_list())
            return
        experiment = get_experiment(name)
        values = {**(experiment.quick_settings if quick else {}), **_parse_settings(experiment, settings or [])}
        if plot is not None:
            _check_plot_path(plot)
        with _progress_bar(name) as progress:
            outcome = experiment.run(seed=seed, progress=progress, **values)
        if plot is not None:
            _save_plot(outcome, plot)
    if as_json:
        print_json(outcome_to_json(outcome))
    else:
        typer.echo(_format_outcome(experiment, outcome))
    raise typer.Exit(0 if outcome.is_consistent else 1)


def _check_no_options(settings: list[str] | None, plot: Path | None) -> None:
    if settings or plot is not None:
        option = "--set" if settings else "--plot"
        raise ArgumentError(f"{option} needs the name of an experiment; got none. `regard theory` lists them.")


def _format_list() -> str:
    lines = ["Experiments of regard.theory; `regard theory NAME` runs one.", ""]
    indent = max(len(experiment.name) for experiment in list_experiments()) + 2
    for experiment in list_experiments():
        name = experiment.name.ljust(indent)
        lines += wrap(experiment.description, LINE_WIDTH, initial_indent=name, subsequent_indent=" " * indent)
        for slider in experiment.sliders:
            bounds = f"--set {slider.name}=  {slider.low:g} to {slider.high:g}: {slider.description}"
            lines += wrap(bounds, LINE_WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2))
    return "\n".join(lines)


def _experiment_to_json(experiment: Experiment) -> dict[str, Any]:
    sliders = [{k: getattr(s, k) for k in ("name", "description", "low", "high", "step")} for s in experiment.sliders]
    return {
        "name": experiment.name,
        "description": experiment.description,
        "settings": sliders,
        "quick_settings": dict(experiment.quick_settings),
    }


def _parse_settings(experiment: Experiment, texts: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or values[name.strip()] - values[name.strip()] != 0:  # not a number, or not finite
            names = ", ".join(slider.name for slider in experiment.sliders) or "none"
            raise ArgumentError(f"--set must be NAME=NUMBER, where NAME is one of {names}; got {text!r}.")
    return values


@contextmanager
def _progress_bar(name: str) -> Iterator[ProgressCallback]:
    """Yield a progress callback that shows a bar after two seconds, and remove the bar at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console, start = Console(stderr=True), time.monotonic()
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(name, total=1.0)
    with ExitStack() as stack:

        def update(fraction: float) -> None:
            bar.update(task, completed=fraction)
            is_slow = time.monotonic() - start > BAR_DELAY_S
            if is_slow and console.is_terminal and not bar.live.is_started:
                stack.enter_context(bar)

        yield update


def _check_plot_path(path: Path) -> None:
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in kinds:
        raise ArgumentError(f"--plot must end in one of {', '.join(kinds)}; got {path}.")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot must be a file in an existing folder; got {path}.")


def _save_plot(outcome: ExperimentResult, path: Path) -> None:
    kind = path.suffix.lower().removeprefix(".")
    with atomic_file(path) as file:
        outcome.plot().savefig(file, dpi=110, format=kind)


def _format_outcome(experiment: Experiment, outcome: ExperimentResult) -> str:
    settings = ", ".join(f"{name} {value:g}" for name, value in outcome.settings.items())
    lines = [*wrap(f"{outcome.name}: {experiment.description}", LINE_WIDTH), settings, ""]
    for claim in outcome.claims:
        lines += _format_claim(claim, "holds" if claim.holds else "FAILS")
    if outcome.false_claims:
        lines += ["Known-wrong formulas (must not hold):", ""]
    for claim in outcome.false_claims:
        lines += _format_claim(claim, "HOLDS" if claim.holds else "wrong")
    verdict = "All claims hold." if outcome.is_consistent else "Some claims do not hold, or a known-wrong formula does."
    return "\n".join([*lines, verdict, "", text_charts(outcome.panels, width=LINE_WIDTH)])


def _format_claim(claim: Claim, verdict: str) -> list[str]:
    """Return the lines of a claim: verdict and statement, numbers, error and tolerance."""
    relation = {"equal": "", "at most": " or less", "at least": " or more"}[claim.relation]
    numbers = f"expected {_format_numbers(claim.expected)}{relation}   actual {_format_numbers(claim.actual)}"
    error = f"error {claim.max_error:.2g}, tolerance {claim.tolerance:.2g}: {claim.tolerance_reason}"
    lines = wrap(claim.statement, LINE_WIDTH, initial_indent=f"{verdict}  ", subsequent_indent=" " * 7)
    for text in (numbers, error):
        lines += wrap(text, LINE_WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 9)
    return [*lines, ""]


def _format_numbers(values: Tensor) -> str:
    flat = values.flatten().tolist()
    if len(flat) <= MAX_PRINTED_NUMBERS:
        return " ".join(f"{value:.4g}" for value in flat)
    return f"{min(flat):.4g} to {max(flat):.4g} ({len(flat)} numbers)"


def outcome_to_json(outcome: ExperimentResult) -> dict[str, Any]:
    """Return the result of an experiment as JSON values. NaN and infinite numbers become null."""
    return {
        "name": outcome.name,
        "is_consistent": outcome.is_consistent,
        "settings": dict(outcome.settings),
        "claims": [_claim_to_json(claim) for claim in outcome.claims],
        "false_claims": [_claim_to_json(claim) for claim in outcome.false_claims],
        "panels": [_panel_to_json(panel) for panel in outcome.panels],
    }


def _claim_to_json(claim: Claim) -> dict[str, Any]:
    fields = {
        "statement": claim.statement,
        "relation": claim.relation,
        "tolerance_reason": claim.tolerance_reason,
        "holds": claim.holds,
    }
    numbers = {name: to_json_value(getattr(claim, name)) for name in ("expected", "actual")}
    return {**fields, **numbers, "max_error": to_json_value(claim.max_error), "tolerance": claim.tolerance}


def _panel_to_json(panel: Any) -> dict[str, Any]:
    fields = {"title": panel.title, "xlabel": panel.xlabel, "ylabel": panel.ylabel}
    if isinstance(panel, ImagePanel):
        return {**fields, "signed": panel.signed, "values": to_json_value(panel.values)}
    curves = [
        {"label": s.label, "style": s.style, "color_index": color, "x": to_json_value(s.x), "y": to_json_value(s.y)}
        for s, color in zip(panel.series, panel.color_indices, strict=True)
    ]
    return {**fields, "log_x": panel.log_x, "log_y": panel.log_y, "series": curves}
