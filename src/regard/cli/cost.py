"""`regard cost`: FLOPs and bytes of a model against the length, for one mechanism beside another."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from regard import cost as price
from regard.cli.app import Json, aligned, refusing, say_json, working
from regard.cli.cost_of_ranks import Speed, over_ranks, table_of_ranks
from regard.cli.sizes import SIZES, Size
from regard.errors import SpecError
from regard.explorer.prices import EVERY, Priced
from regard.plan.report import in_bytes
from regard.worked.said import said_mask

LONGEST, LONGEST_DRAWN = 2**24, 2**15  # tokens of a mechanism with a formula, and of a mask whose pairs are counted
TITLES = ("mechanism", "tokens", "attention", "the rest", "share", "held by a layer", "cache")

priced = {each.name: each for each in EVERY}


def cost(
    model: Annotated[str, typer.Option(help=f"sizes to start from: {', '.join(SIZES)}")] = "gpt2",
    length: Annotated[list[int] | None, typer.Option(help="tokens; may be given again and again")] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(help=f"one of {', '.join(priced)}, or a mask as in 'causal & window(512)'; may be given again"),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="other than the model's")] = None,
    width: Annotated[int | None, typer.Option(help="of the model")] = None,
    heads: Annotated[int | None, typer.Option(help="of queries")] = None,
    key_heads: Annotated[
        int | None, typer.Option(help="of keys and values; as many as heads where those are given")
    ] = None,
    feed_forward: Annotated[
        int | None, typer.Option(help="width of that part; 4 times the width where that is given")
    ] = None,
    gated: Annotated[bool | None, typer.Option("--gated/--plain", help="three matrices or two")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="entries of the output head")] = None,
    training: Annotated[bool, typer.Option("--training", help="forward and backward: three times as much")] = False,
    ranks: Annotated[int | None, typer.Option(help="attention alone, over 1, 2, 4 ... up to so many ranks")] = None,
    bandwidth: Annotated[float, typer.Option(help="bytes a second that a rank sends; with --ranks")] = 1e10,
    flops: Annotated[float, typer.Option(help="FLOPs a second that a rank computes; with --ranks")] = 1e13,
    as_json: Json = False,
) -> None:
    """Counts what a model of some sizes takes for one text: exact products, not a guess of the time.

    With --ranks: what attention over so many ranks takes, by method, and how long at that speed and bandwidth.
    """
    with refusing():
        if model not in SIZES:
            raise SpecError(f"a model must be one of {', '.join(SIZES)}; got {model!r}. Or give the sizes themselves.")
        changed = dict(layers=layers, width=width, heads=heads, key_heads=key_heads, gated=gated)
        size = _sized(SIZES[model], {**changed, "feed_forward": feed_forward, "vocabulary": vocabulary})
        lengths, chosen = length or [512, 2048, 8192, 32768], mechanism or ["softmax", "causal"]
        _check(size, lengths)
        if ranks is not None:
            found = over_ranks(size, length or [131072], chosen, ranks, Speed(flops, bandwidth), training)
            say_json(found) if as_json else typer.echo(table_of_ranks(found))
            return
        with working("counting"):
            rows = [_row(size, name, n, training) for name in chosen for n in lengths]
            crossings = [_crossing(size, priced[name]) for name in chosen if name in priced]
    if as_json:
        say_json({"sizes": asdict(size), "training": training, "rows": rows, "crossings": crossings})
        return
    typer.echo(aligned(TITLES, [_texts(row) for row in rows]))
    typer.echo("\n".join(["", *(found["text"] for found in crossings)]).rstrip())


def _sized(known: Size, given: dict[str, Any]) -> Size:
    """A model with some sizes changed; those that follow from a changed one follow it."""
    changed = {name: value for name, value in given.items() if value is not None}
    if "heads" in changed:
        changed.setdefault("key_heads", changed["heads"])
    if "width" in changed:
        changed.setdefault("feed_forward", 4 * changed["width"])
    return replace(known, **changed)


def _check(size: Size, lengths: list[int]) -> None:
    size.rest(1)  # refuses sizes that do not fit
    for n in lengths:
        if not 1 <= n <= LONGEST:
            raise SpecError(f"a length must be from 1 to {LONGEST:,} tokens; got {n:,}.")


def _row(size: Size, name: str, n: int, training: bool) -> dict[str, Any]:
    each, times = size.width // size.heads, 3 if training else 1
    if name in priced:
        flops, held = priced[name].flops(n, each, size.heads), 4 * priced[name].numbers(n, each, size.heads)
    else:
        flops, held = _masked(size, name, n), 4 * size.heads * n
    attention, rest = size.layers * flops, size.rest(n).total
    return {
        "mechanism": name,
        "length": n,
        "attention_flops": times * attention,
        "rest_flops": times * rest,
        "attention_share": attention / (attention + rest),
        "layer_bytes": held,
        "cache_bytes": price.cache(n, layers=size.layers, key_heads=size.key_heads, head_width=each),
    }


def _masked(size: Size, name: str, n: int) -> int:
    """FLOPs of a layer's attention under a mask: of the pairs that it lets see."""
    seen = said_mask(name)
    if n > LONGEST_DRAWN:
        raise SpecError(
            f"the pairs under a mask are counted one by one, for at most {LONGEST_DRAWN:,} tokens; got {n:,} for "
            f"{name!r}. Mechanisms with a formula go further: {', '.join(priced)}."
        )
    pairs = round(seen.density(n, heads=size.heads) * n * n)
    return price.attention(n, n, size.width // size.heads, heads=size.heads, pairs=pairs).total


def _crossing(size: Size, mechanism: Priced) -> dict[str, Any]:
    """The first length at which attention takes as many FLOPs as the rest of a layer."""
    each, name = size.width // size.heads, mechanism.name

    def more(n: int) -> bool:
        return mechanism.flops(n, each, size.heads) >= size.layer(n).total

    if not more(LONGEST):
        text = f"{name}: attention stays below the rest of a layer up to {LONGEST:,} tokens"
        return {"mechanism": name, "length": None, "text": text}
    low, high = 0, LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if more(middle) else (middle, high)
    times = f"{high / size.width:.4g} times the width"
    text = f"{name}: attention takes as much as the rest of a layer from {high:,} tokens on, {times}"
    return {"mechanism": name, "length": high, "text": text}


def _texts(row: dict[str, Any]) -> list[str]:
    return [
        row["mechanism"],
        f"{row['length']:,}",
        _in_flops(row["attention_flops"]),
        _in_flops(row["rest_flops"]),
        f"{row['attention_share']:.1%}",
        in_bytes(row["layer_bytes"]),
        in_bytes(row["cache_bytes"]),
    ]


def _in_flops(number: int) -> str:
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.4g} {prefix}FLOP"
    return f"{number:,} FLOP"
