"""All heads of a tape in one table, a row a head; and which of them are of a kind, with the evidence.

A head is of a kind if it puts at least `LEAST` of its weight where the kind does, and `TIMES` as much as a head that
looks at all it sees alike.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torch import Tensor

from regard.argument_types import check_signature
from regard.errors import MissingError, SpecError
from regard.inside import arguments
from regard.inside.heads import Looked, Scores
from regard.inside.layer import Layer
from regard.inside.texts import Texts, crosses

LEAST, TIMES = 0.4, 3.0
SPECIAL = ("[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "[PAD]", "<|endoftext|>", "<|end|>", "<bos>", "<eos>")
SEPARATORS = (*SPECIAL, ".", ",", ";", ":", "!", "?")

KINDS = {
    "self": "itself",
    "previous": "the token before",
    "next": "the token after",
    "first": "the first token",
    "window": "tokens near by",
    "separator": "separators",
    "duplicate": "earlier occurrences of its own token",
    "induction": "what followed its own token earlier",
    "positional": "one and the same distance",
    "alignment": "how much a query tells about its key",
}
NEED_TOKENS = ("separator", "duplicate", "induction")

Row = dict[str, Any]


class HeadTable(Sequence[Row]):
    """Rows with a number for each measure; `name_uniform` beside `name` is what a uniform head would score.

    A measure that has no number for a head, as the weight on separators for one whose text is not known, is NaN there.
    `sort` and `where` give another table, `frame` a pandas DataFrame.
    """

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        places = arguments.index(place, len(self), "a row")
        if isinstance(place, slice):
            return HeadTable(self._rows[places] if isinstance(places, slice) else [self._rows[n] for n in places])
        if not arguments.is_single(place):
            raise SpecError(f"a row must be a whole number or a slice; got {arguments.short(place)}.")
        return self._rows[place]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @property
    def columns(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []

    def column(self, name: str) -> list[Any]:
        self.check(name)
        return [row[name] for row in self._rows]

    def sort(self, by: str, *, largest_first: bool = True) -> "HeadTable":
        """By a column; heads for which it has no number come last."""
        self.check(by)
        known = [row for row in self._rows if not _is_missing(row[by])]
        missing = [row for row in self._rows if _is_missing(row[by])]
        return HeadTable(sorted(known, key=lambda row: row[by], reverse=largest_first) + missing)

    def where(self, holds: Callable[[Row], bool]) -> "HeadTable":
        arguments.function(holds, "the condition")
        return HeadTable([row for row in self._rows if holds(row)])

    def frame(self) -> Any:
        """The same as a pandas DataFrame."""
        try:
            import pandas  # type: ignore[import-untyped]  # it has no annotations here
        except ImportError:
            raise MissingError(
                "a frame needs the package pandas, which is not installed. Use pip install pandas."
            ) from None
        return pandas.DataFrame(self._rows)

    def check(self, name: str) -> None:
        """Refuses a column that is not there."""
        if not isinstance(name, str):
            raise SpecError(f"a column must be named by a string; got {arguments.short(name)}.")
        if self._rows and name not in self._rows[0]:
            known = ", ".join(self.columns)
            more = " Give the tape its tokens first: tape.tokens = [...]." if name in NEED_TOKENS else ""
            raise SpecError(f"a column must be one of {known}; got {name!r}.{more}")

    def __repr__(self) -> str:
        shown = [name for name in self.columns if not name.endswith("_uniform")]
        lines = [shown, *([_text(row[name]) for name in shown] for row in self._rows)]
        widths = [max(len(line[n]) for line in lines) for n in range(len(shown))]
        return "\n".join("  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)) for line in lines)

    def _repr_html_(self) -> str:
        shown = [name for name in self.columns if not name.endswith("_uniform")]
        head = "".join(f"<th>{escape(name)}</th>" for name in shown)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_text(row[name]))}</td>" for name in shown) + "</tr>" for row in self._rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if _is_missing(value):
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def table(
    layers: Sequence[Layer],
    texts: Texts,
    separators: Sequence[str] = SEPARATORS,
    window: int = 16,
    progress: Callable[[float], None] | None = None,
) -> HeadTable:
    """A row for each head of each layer; numbers are means over the texts of a batch. `progress` is called with the
    share of layers that are done."""
    _check_tokens(layers, texts)
    if progress is not None:
        check_signature(progress, "progress", "share")
    rows: list[Row] = []
    before: tuple[Any, Looked] | None = None
    for done, layer in enumerate(layers):
        if progress is not None:
            progress(done / len(layers))
        tokens = _fitting(layer, texts)
        # a uniform head counts separators as well, so its numbers are of one text
        hidden = _hidden(layer, texts.of_queries(layer.path))
        like = before[1] if before is not None and hidden is not None and before[0] == hidden else None
        looked = Looked(layer.take, tokens, separators, window, like)
        before = (hidden, looked)
        columns = _columns(looked)
        for place, head in enumerate(layer.heads):
            numbers = {name: _number(name, values, place) for name, values in columns.items()}
            rows.append({"layer": layer.number, "head": head, "path": layer.path, **numbers})
    names = dict.fromkeys(name for row in rows for name in row)
    return HeadTable([{name: row.get(name, math.nan) for name in names} for row in rows])


def _hidden(layer: Layer, text: str | None) -> Any:
    """What two layers have in common that hide the same of the same text; None where it cannot be told."""
    take = layer.take
    seen = take.options["mask"]
    if seen is not None and (take.spelled is None or take.options["start"] is not None):
        return None
    captured = () if seen is None else tuple(id(t) for t in seen.tensors)
    term = None if seen is None else seen.term
    return (*take.q.shape[:3], take.k.shape[2], term, captured, crosses(layer.path), text)


def _own_text(layer: Layer, texts: Texts) -> str | None:
    """The name of the text of a layer that looks at its own; None of any other."""
    looks_elsewhere = crosses(layer.path) or layer.take.q.shape[2] > layer.take.k.shape[2]
    return None if looks_elsewhere else texts.of_queries(layer.path)


def _fitting(layer: Layer, texts: Texts) -> list[list[str]] | None:
    """The tokens of a layer that looks at its own text, if there is one for each key."""
    name, batch, n_k = _own_text(layer, texts), layer.take.q.shape[0], layer.take.k.shape[2]
    tokens = [] if name is None else texts.named[name]
    return tokens if len(tokens) == batch and all(len(text) == n_k for text in tokens) else None


def _check_tokens(layers: Sequence[Layer], texts: Texts) -> None:
    """Refuses tokens that belong to layers and fit none of them, where columns would be missing without a word."""
    for name, tokens in texts.named.items():
        meant = [layer for layer in layers if _own_text(layer, texts) == name]
        if meant and not any(_fitting(layer, texts) for layer in meant):
            batch, n_k = meant[0].take.q.shape[0], meant[0].take.k.shape[2]
            got = ", ".join(str(len(text)) for text in tokens)
            raise SpecError(
                f"tokens must be one for each of {n_k} keys, in each of {batch} texts; got {got}. Set tape.tokens to "
                "those, or to None."
            )


def _columns(looked: Looked) -> dict[str, Tensor]:
    positional, offset = looked.positional()
    sink, key = looked.sinks()
    vertical, slash = looked.lines()
    scores: dict[str, Scores] = {
        "entropy": looked.entropy(),
        "entropy_share": looked.entropy_share(),
        "distance": looked.distance(),
        "confidence": looked.confidence(),
        "positional": positional,
        "self": looked.self_(),
        "previous": looked.previous(),
        "next": looked.next(),
        "window": looked.window(),
        "first": looked.first(),
        "alignment": looked.alignment(),
    }
    if looked.own.tokens is not None:
        scores |= {name: getattr(looked, name)() for name in NEED_TOKENS}
    found: dict[str, Tensor] = {"offset": offset, "sink": sink, "sink_at": key, "vertical": vertical, "slash": slash}
    for name, each in scores.items():
        found[name] = each.found
        found[f"{name}_uniform"] = each.uniform.expand_as(each.found)
    return found


def _number(name: str, values: Tensor, head: int) -> float | int:
    here = values[:, head]
    return int(here.mode().values) if name in ("offset", "sink_at") else float(here.double().mean())


@dataclass(frozen=True)
class Found:
    """A head of a kind, and what speaks for it."""

    layer: int
    head: int
    path: str
    kind: str
    score: float
    uniform: float

    def __str__(self) -> str:
        what = {"positional": "of its largest weights at", "alignment": "by"}.get(self.kind, "on")
        return (
            f"layer {self.layer}, head {self.head} ({self.path}): {self.score:.2f} {what} {KINDS[self.kind]}, "
            f"where a uniform head has {self.uniform:.2f}"
        )


def found(heads: HeadTable, kind: str, least: float) -> list[Found]:
    """The heads of a kind, the strongest first."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpecError(f"a kind of head must be one of {', '.join(KINDS)}; got {kind!r}.")
    if not len(heads):
        return []
    heads.check(kind)
    chosen = heads.where(lambda row: row[kind] >= least and row[kind] >= TIMES * row[f"{kind}_uniform"]).sort(kind)
    return [Found(r["layer"], r["head"], r["path"], kind, r[kind], r[f"{kind}_uniform"]) for r in chosen]
