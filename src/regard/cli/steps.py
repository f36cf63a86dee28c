"""`regard steps`: a small attention worked through in the terminal."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from regard.cli.app import Json, MaskText, ScoreText, WeighText, refusing
from regard.cli.numbers import numbers
from regard.errors import SpecError
from regard.files.atomic import write_text
from regard.worked.examples import EXAMPLES, Example
from regard.worked.examples import example as named_example
from regard.worked.plain import WIDTH
from regard.worked.projection import projected
from regard.worked.said import said_mask, said_score, said_weigh
from regard.worked.steps import Steps
from regard.worked.steps import steps as worked

Given = Mapping[str, str | None]  # what options were given, by their names
ABOUT = "'1 0; 0 1', JSON, or a .json, .csv, .npy or .safetensors file (FILE:NAME)"


def steps(
    example: Annotated[str, typer.Argument(help=f"one of {', '.join(EXAMPLES)}, unless numbers are given")] = "",
    q: Annotated[str | None, typer.Option(help=f"queries: {ABOUT}")] = None,
    k: Annotated[str | None, typer.Option(help="keys; the queries unless given")] = None,
    v: Annotated[str | None, typer.Option(help="values; the keys unless given")] = None,
    x: Annotated[str | None, typer.Option(help="tokens that q, k and v are made of")] = None,
    context: Annotated[
        str | None, typer.Option(help="tokens that k and v are made of; those of --x unless given")
    ] = None,
    w_q: Annotated[str | None, typer.Option(help="the matrix that makes queries of tokens")] = None,
    w_k: Annotated[str | None, typer.Option(help="the one that makes keys")] = None,
    w_v: Annotated[str | None, typer.Option(help="the one that makes values")] = None,
    tokens: Annotated[str | None, typer.Option(help="names of the rows, divided by spaces")] = None,
    key_tokens: Annotated[str | None, typer.Option(help="names of the keys, if others")] = None,
    mask: MaskText = None,
    score: ScoreText = None,
    weigh: WeighText = None,
    scale: Annotated[float | None, typer.Option(help="of the products, in the place of 1/√d")] = None,
    temperature: Annotated[float | None, typer.Option(help="what scores are divided by")] = None,
    dropout: Annotated[float, typer.Option(help="the share of weights left out")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="decides which weights are left out")] = None,
    start: Annotated[int | None, typer.Option(help="where the first query stands among the keys")] = None,
    batch: Annotated[int, typer.Option(help="the batch element to show")] = 0,
    head: Annotated[int, typer.Option(help="the head to show")] = 0,
    digits: Annotated[int, typer.Option(min=1, max=12, help="digits behind the point")] = 4,
    as_json: Json = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="for a document that uses amsmath")] = False,
    as_code: Annotated[bool, typer.Option("--code", help="lines of torch that give the same numbers")] = False,
    html: Annotated[Path | None, typer.Option(help="write a page to this file")] = None,
) -> None:
    """Works a small attention through: every number from the inputs to the output.

    Without numbers it works the example dog-ate-dinner.
    """
    with refusing():
        if as_json + as_latex + as_code > 1:
            raise SpecError("steps prints in one form at a time; got more than one of --json, --latex, --code.")
        plain = {"--q": q, "--k": k, "--v": v}
        made = {"--x": x, "--context": context, "--w-q": w_q, "--w-k": w_k, "--w-v": w_v}
        chosen = _chosen(example, plain, made)
        inputs = chosen.inputs if chosen is not None else _made(made) if x is not None else _plain(plain)
        said = [*chosen.words] if chosen is not None and tokens is None else _split(tokens)
        changed = any(given is not None for given in (score, scale, temperature))
        found = worked(
            *inputs,
            score=said_score(score, scale=scale, temperature=temperature) if changed else None,
            mask=None if mask is None else said_mask(mask),
            weigh=None if weigh is None else said_weigh(weigh),
            dropout=dropout,
            seed=seed,
            start=start,
            tokens=said,
            key_tokens=_split(key_tokens),
        ).at(batch, head)
        if html is not None:
            write_text(html, found.html(digits))
    typer.echo(_said(found, chosen, as_json, as_latex, as_code, digits))


def _chosen(example: str, *given: Given) -> Example | None:
    """The example that is meant, unless there are numbers; refuses what does not go together."""
    plain, made = ([name for name, text in each.items() if text is not None] for each in given)
    if not plain and not made:
        return named_example(example or "dog-ate-dinner")
    both = [f"the example {example!r}"] * bool(example) + plain[:1] + made[:1]
    if len(both) > 1:
        raise SpecError(f"steps takes an example, or --q, or --x with matrices; got {' and '.join(both)}.")
    missing = "--x" if made and "--x" not in made else "--q" if plain and "--q" not in plain else ""
    if missing:
        raise SpecError(f"steps must know what asks; got {', '.join(plain + made)} without {missing}.")
    return None


def _plain(given: Given) -> tuple[Any, ...]:
    """Keys are the queries and values the keys, unless they are given."""
    found: list[Any] = []
    for name, text in given.items():
        found.append(found[-1] if text is None else numbers(text, name))
    return tuple(found)


def _made(given: Given) -> tuple[Any, ...]:
    """Queries of the tokens, keys and values of the context; a matrix that is not given changes nothing."""
    own, other = (None if given[name] is None else numbers(str(given[name]), name) for name in ("--x", "--context"))
    other = own if other is None else other
    found = []
    for name, tokens in (("--w-q", own), ("--w-k", other), ("--w-v", other)):
        matrix = given[name]
        found.append(tokens if matrix is None else projected(tokens, numbers(matrix, name)))
    return tuple(found)


def _split(names: str | None) -> list[str] | None:
    return None if names is None else names.split()


def _said(found: Steps, chosen: Example | None, as_json: bool, as_latex: bool, as_code: bool, digits: int) -> str:
    if as_json:
        return found.json()
    if as_latex:
        return found.latex(digits)
    if as_code:
        return found.code()
    return found.text(digits) if chosen is None else f"{_about(chosen)}\n\n{found.text(digits)}"


def _about(chosen: Example) -> str:
    lines = [f"{chosen.title}.", "Worked wrongly elsewhere:"]
    for sentence in chosen.wrong:
        lines += wrap(sentence, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)
