"""`regard steps`: print a small attention call step by step."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from regard.cli.app import JsonOption, MaskOption, NormalizerOption, ScoreOption, exit_on_error
from regard.cli.tensor_option import parse_tensor
from regard.errors import ArgumentError
from regard.files.atomic import write_text
from regard.walkthrough.examples import WALKTHROUGH_EXAMPLES, WalkthroughExample, get_example
from regard.walkthrough.option_parser import parse_mask, parse_normalizer, parse_score
from regard.walkthrough.projection import project
from regard.walkthrough.render.text import MAX_LINE_CHARACTERS
from regard.walkthrough.steps import Steps
from regard.walkthrough.steps import steps as compute_steps

TextOptions = Mapping[str, str | None]  # option texts by option name
TENSOR_HELP = "'1 0; 0 1', JSON, or a .json, .csv, .npy or .safetensors file (FILE:NAME)"


def steps(
    example: Annotated[str, typer.Argument(help=f"one of {', '.join(WALKTHROUGH_EXAMPLES)}; not with --q or --x")] = "",
    q: Annotated[str | None, typer.Option(help=f"queries: {TENSOR_HELP}")] = None,
    k: Annotated[str | None, typer.Option(help="keys; by default the queries")] = None,
    v: Annotated[str | None, typer.Option(help="values; by default the keys")] = None,
    x: Annotated[str | None, typer.Option(help="token vectors that are projected to q, k and v")] = None,
    context: Annotated[
        str | None, typer.Option(help="token vectors that are projected to k and v; by default those of --x")
    ] = None,
    w_q: Annotated[str | None, typer.Option(help="query projection; identity by default")] = None,
    w_k: Annotated[str | None, typer.Option(help="key projection; identity by default")] = None,
    w_v: Annotated[str | None, typer.Option(help="value projection; identity by default")] = None,
    tokens: Annotated[str | None, typer.Option(help="names of the queries, separated by spaces")] = None,
    key_tokens: Annotated[str | None, typer.Option(help="names of the keys, if they differ")] = None,
    mask: MaskOption = None,
    score: ScoreOption = None,
    normalizer: NormalizerOption = None,
    scale: Annotated[float | None, typer.Option(help="scale of the products; 1/√d by default")] = None,
    temperature: Annotated[float | None, typer.Option(help="divisor of the scores")] = None,
    dropout: Annotated[float, typer.Option(help="the fraction of weights set to 0")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="seed of dropout")] = None,
    query_offset: Annotated[int | None, typer.Option(help="position of the first query among the keys")] = None,
    batch: Annotated[int, typer.Option(help="the batch element to show")] = 0,
    head: Annotated[int, typer.Option(help="the head to show")] = 0,
    digits: Annotated[int, typer.Option(min=1, max=12, help="digits after the decimal point")] = 4,
    as_json: JsonOption = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="print LaTeX for amsmath")] = False,
    as_code: Annotated[bool, typer.Option("--code", help="print PyTorch code that computes the same numbers")] = False,
    html: Annotated[Path | None, typer.Option(help="write a page to this file")] = None,
) -> None:
    """Print every number of a small attention call, from the inputs to the output.

    Without options it prints the example dog-ate-dinner.
    """
    with exit_on_error():
        if as_json + as_latex + as_code > 1:
            raise ArgumentError("steps prints one format at a time; got more than one of --json, --latex, --code.")
        qkv_options = {"--q": q, "--k": k, "--v": v}
        token_options = {"--x": x, "--context": context, "--w-q": w_q, "--w-k": w_k, "--w-v": w_v}
        selected = _resolve_example(example, qkv_options, token_options)
        if selected is not None:
            inputs = selected.inputs
        else:
            inputs = _project_tokens(token_options) if x is not None else _parse_qkv(qkv_options)
        token_names = [*selected.tokens] if selected is not None and tokens is None else _split_names(tokens)
        has_score = any(option is not None for option in (score, scale, temperature))
        result = compute_steps(
            *inputs,
            score=parse_score(score, scale=scale, temperature=temperature) if has_score else None,
            mask=None if mask is None else parse_mask(mask),
            normalizer=None if normalizer is None else parse_normalizer(normalizer),
            dropout=dropout,
            seed=seed,
            query_offset=query_offset,
            tokens=token_names,
            key_tokens=_split_names(key_tokens),
        ).at(batch, head)
        if html is not None:
            write_text(html, result.html(digits))
    typer.echo(_format_steps(result, selected, as_json, as_latex, as_code, digits))


def _resolve_example(example: str, qkv_options: TextOptions, token_options: TextOptions) -> WalkthroughExample | None:
    """Return the named example, or None if tensors are set. Raises for options that exclude each other."""
    qkv, tokens = (
        [name for name, text in options.items() if text is not None] for options in (qkv_options, token_options)
    )
    if not qkv and not tokens:
        return get_example(example or "dog-ate-dinner")
    sources = [f"the example {example!r}"] * bool(example) + qkv[:1] + tokens[:1]
    if len(sources) > 1:
        raise ArgumentError(f"steps takes an example, or --q, or --x with matrices; got {' and '.join(sources)}.")
    missing = "--x" if tokens and "--x" not in tokens else "--q" if qkv and "--q" not in qkv else ""
    if missing:
        raise ArgumentError(f"{missing} is required with {', '.join(qkv + tokens)}. Add {missing}.")
    return None


def _parse_qkv(options: TextOptions) -> tuple[Any, ...]:
    """Return q, k and v. By default k is q, and v is k."""
    tensors: list[Any] = []
    for name, text in options.items():
        tensors.append(tensors[-1] if text is None else parse_tensor(text, name))
    return tuple(tensors)


def _project_tokens(options: TextOptions) -> tuple[Any, ...]:
    """Return q from the tokens, and k and v from the context. A missing projection is the identity."""
    x = parse_tensor(str(options["--x"]), "--x")
    context = x if options["--context"] is None else parse_tensor(str(options["--context"]), "--context")
    projected = []
    for name, tokens in (("--w-q", x), ("--w-k", context), ("--w-v", context)):
        matrix = options[name]
        projected.append(tokens if matrix is None else project(tokens, parse_tensor(matrix, name)))
    return tuple(projected)


def _split_names(names: str | None) -> list[str] | None:
    return None if names is None else names.split()


def _format_steps(
    steps: Steps, example: WalkthroughExample | None, as_json: bool, as_latex: bool, as_code: bool, digits: int
) -> str:
    if as_json:
        return steps.json()
    if as_latex:
        return steps.latex(digits)
    if as_code:
        return steps.code()
    return steps.text(digits) if example is None else f"{_describe_example(example)}\n\n{steps.text(digits)}"


def _describe_example(example: WalkthroughExample) -> str:
    lines = [f"{example.title}.", "Errors in published versions:"]
    for sentence in example.corrections:
        lines += wrap(sentence, MAX_LINE_CHARACTERS, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)
