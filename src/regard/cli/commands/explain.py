"""`regard explain`: print the plan and the cost of a call, from shapes alone."""

import re
from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer

from regard.attention import explain as plan_call
from regard.backends.registry import available_backends
from regard.cli.app import JsonOption, MaskOption, NormalizerOption, ScoreOption, exit_on_error, print_json
from regard.errors import ArgumentError
from regard.plan.choose import Plan
from regard.walkthrough.option_parser import parse_mask, parse_normalizer, parse_score

DTYPE_OPTIONS = {
    str(x).removeprefix("torch."): x for x in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
}


def explain(
    q: Annotated[str, typer.Argument(help="shape of the queries, as in 1x16x4096x64: batch, heads, tokens, head_dim")],
    k: Annotated[str | None, typer.Argument(help="shape of the keys; by default that of the queries")] = None,
    v: Annotated[str | None, typer.Argument(help="shape of the values; by default that of the keys")] = None,
    mask: MaskOption = None,
    score: ScoreOption = None,
    normalizer: NormalizerOption = None,
    dropout: Annotated[float, typer.Option(help="the fraction of weights set to 0")] = 0.0,
    query_offset: Annotated[int | None, typer.Option(help="position of the first query among the keys")] = None,
    backend: Annotated[
        str | None, typer.Option(help=f"one of {', '.join(available_backends())}; chosen by the plan by default")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"one of {', '.join(DTYPE_OPTIONS)}")] = "float32",
    as_json: JsonOption = False,
) -> None:
    """Print which backend would run a call, why, and the cost. Nothing is computed."""
    with exit_on_error():
        if dtype not in DTYPE_OPTIONS:
            raise ArgumentError(f"dtype must be one of {', '.join(DTYPE_OPTIONS)}; got {dtype!r}.")
        keys = q if k is None else k
        shapes = (("q", q), ("k", keys), ("v", keys if v is None else v))
        inputs = [
            torch.empty(_parse_shape(text, name), device="meta", dtype=DTYPE_OPTIONS[dtype]) for name, text in shapes
        ]
        plan = plan_call(
            *inputs,
            score=None if score is None else parse_score(score),
            mask=None if mask is None else parse_mask(mask),
            normalizer=None if normalizer is None else parse_normalizer(normalizer),
            dropout=dropout,
            query_offset=query_offset,
            backend=backend,
        )
    if as_json:
        print_json(_plan_to_json(plan))
    else:
        typer.echo(str(plan))


def _parse_shape(text: str, name: str) -> tuple[int, ...]:
    parts = re.split(r"[x×, ]+", text.strip().strip("()[]"))
    if not all(part.isdecimal() and len(part) <= 12 for part in parts):
        raise ArgumentError(f"the shape of {name} must be integers, as in 1x16x4096x64; got {text!r}.")
    return tuple(int(part) for part in parts)


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    spec, coverage = plan.spec, plan.coverage
    return {
        "formula": spec.formula,
        "batch_size": spec.batch_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "n_q": spec.n_q,
        "n_k": spec.n_k,
        "head_dim": spec.head_dim,
        "v_head_dim": spec.value_dim,
        "dtype": str(spec.dtype).removeprefix("torch."),
        "backend": plan.backend,
        "variant": plan.variant,
        "has_linear_memory": plan.has_linear_memory,
        "unsupported_reasons": {name: list(reasons) for name, reasons in plan.unsupported_reasons.items()},
        "tiles": None if coverage is None else {**coverage.tile_counts, "shape": list(coverage.tile_shape)},
        "cost": asdict(plan.cost),
    }
