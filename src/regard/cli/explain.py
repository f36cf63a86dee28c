"""`regard explain`: what a call would run and cost, from shapes alone."""

import re
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer

from regard.attention import engines
from regard.attention import explain as planned
from regard.cli.app import Json, MaskText, ScoreText, WeighText, refusing, say_json
from regard.errors import SpecError
from regard.plan.choose import Plan
from regard.worked.said import said_mask, said_score, said_weigh

DTYPES = {str(x).removeprefix("torch."): x for x in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}


def explain(
    q: Annotated[str, typer.Argument(help="shape of the queries, as in 1x16x4096x64: batch, heads, length, width")],
    k: Annotated[str | None, typer.Argument(help="shape of the keys; that of the queries unless given")] = None,
    v: Annotated[str | None, typer.Argument(help="shape of the values; that of the keys unless given")] = None,
    mask: MaskText = None,
    score: ScoreText = None,
    weigh: WeighText = None,
    dropout: Annotated[float, typer.Option(help="the share of weights left out")] = 0.0,
    start: Annotated[int | None, typer.Option(help="where the first query stands among the keys")] = None,
    engine: Annotated[
        str | None, typer.Option(help=f"one of {', '.join(engines())}; the plan chooses unless given")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"one of {', '.join(DTYPES)}")] = "float32",
    as_json: Json = False,
) -> None:
    """Says what would run, why, and what it would cost. Nothing is computed."""
    with refusing():
        if dtype not in DTYPES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}.")
        keys = q if k is None else k
        shapes = (("q", q), ("k", keys), ("v", keys if v is None else v))
        given = [torch.empty(_shape(text, name), device="meta", dtype=DTYPES[dtype]) for name, text in shapes]
        plan = planned(
            *given,
            score=None if score is None else said_score(score),
            mask=None if mask is None else said_mask(mask),
            weigh=None if weigh is None else said_weigh(weigh),
            dropout=dropout,
            start=start,
            engine=engine,
        )
    if as_json:
        say_json(_spoken(plan))
    else:
        typer.echo(str(plan))


def _shape(text: str, name: str) -> tuple[int, ...]:
    parts = re.split(r"[x×, ]+", text.strip().strip("()[]"))
    if not all(part.isdecimal() and len(part) <= 12 for part in parts):
        raise SpecError(f"the shape of {name} must be whole numbers, as in 1x16x4096x64; got {text!r}.")
    return tuple(int(part) for part in parts)


def _spoken(plan: Plan) -> dict[str, Any]:
    spec, cover = plan.spec, plan.cover
    return {
        "formula": spec.formula,
        "batch": spec.batch,
        "heads": spec.heads,
        "key_heads": spec.key_heads,
        "queries": spec.n_q,
        "keys": spec.n_k,
        "width": spec.width,
        "value_width": spec.value_width,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "engine": plan.engine,
        "variant": plan.variant,
        "linear_memory": plan.linear_memory,
        "objections": {name: list(reasons) for name, reasons in plan.objections.items()},
        "tiles": None if cover is None else {**cover.counts, "size": list(cover.tile)},
        "cost": asdict(plan.cost),
    }
