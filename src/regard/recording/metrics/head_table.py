"""A table of all heads of a recording, and the heads of a kind.

A head is of a kind if its score is at least `MIN_SCORE` and `MIN_RATIO_TO_UNIFORM` times the score of a uniform head.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torch import Tensor

from regard.argument_types import check_signature
from regard.errors import ArgumentError
from regard.optional_imports import import_optional
from regard.recording import argument_checks
from regard.recording.metrics.head_metrics import HeadMetrics, HeadScores
from regard.recording.named_tokens import NamedTokens, is_cross_attention
from regard.recording.recorded_layer import RecordedLayer

MIN_SCORE, MIN_RATIO_TO_UNIFORM = 0.4, 3.0
SPECIAL_TOKENS = ("[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "[PAD]", "<|endoftext|>", "<|end|>", "<bos>", "<eos>")
SEPARATOR_TOKENS = (*SPECIAL_TOKENS, ".", ",", ";", ":", "!", "?")

HEAD_KINDS = {
    "self": "the query's own position",
    "previous": "the previous token",
    "next": "the next token",
    "first_token": "the first token",
    "window": "nearby tokens",
    "separator": "separators",
    "duplicate": "earlier occurrences of the same token",
    "induction": "the tokens after earlier occurrences of the same token",
    "positional": "the same relative position",
    "alignment": "mutual information of query and key",
}
KINDS_NEEDING_TOKENS = ("separator", "duplicate", "induction")

HeadRow = dict[str, Any]


class HeadTable(Sequence[HeadRow]):
    """A table with a row for each head and a column for each metric.

    Next to a column `name`, the column `name_uniform` is the score of a uniform head. A metric that is unknown for a
    head, such as the mass on separators without tokens, is NaN. Index the table like a list of dicts.

    >>> table = HeadTable([{"layer": 0, "head": 0, "entropy": 0.5}, {"layer": 0, "head": 1, "entropy": 1.5}])
    >>> table.sort("entropy")[0]["head"]
    1
    """

    def __init__(self, rows: list[HeadRow]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        positions = argument_checks.axis_index(index, len(self), "row")
        if isinstance(index, slice):
            return HeadTable(
                self._rows[positions] if isinstance(positions, slice) else [self._rows[n] for n in positions]
            )
        if not argument_checks.is_single(index):
            raise ArgumentError(f"row must be an integer or a slice; got {argument_checks.describe(index)}.")
        return self._rows[index]

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self._rows)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._rows[0]) if self._rows else []

    def column(self, name: str) -> list[Any]:
        """Return the values of a column."""
        self.check_column(name)
        return [row[name] for row in self._rows]

    def sort(self, by: str, *, descending: bool = True) -> "HeadTable":
        """Return the table sorted by a column, by default the largest value first. NaN comes last."""
        self.check_column(by)
        known = [row for row in self._rows if not _is_missing(row[by])]
        missing = [row for row in self._rows if _is_missing(row[by])]
        return HeadTable(sorted(known, key=lambda row: row[by], reverse=descending) + missing)

    def filter(self, predicate: Callable[[HeadRow], bool]) -> "HeadTable":
        """Return the rows for which `predicate(row)` is true."""
        argument_checks.function(predicate, "predicate")
        return HeadTable([row for row in self._rows if predicate(row)])

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame. Needs pandas: `pip install pandas`."""
        return import_optional("pandas", "HeadTable.to_pandas", "pandas").DataFrame(self._rows)

    def check_column(self, name: str) -> None:
        """Raise `ArgumentError` if the table has no such column."""
        if not isinstance(name, str):
            raise ArgumentError(f"column must be a string; got {argument_checks.describe(name)}.")
        if self._rows and name not in self._rows[0]:
            known = ", ".join(self.columns)
            hint = " Set the tokens first: recording.tokens = [...]." if name in KINDS_NEEDING_TOKENS else ""
            raise ArgumentError(f"column must be one of {known}; got {name!r}.{hint}")

    def __repr__(self) -> str:
        columns = [name for name in self.columns if not name.endswith("_uniform")]
        lines = [columns, *([_format_value(row[name]) for name in columns] for row in self._rows)]
        widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
        return "\n".join("  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)) for line in lines)

    def _repr_html_(self) -> str:
        columns = [name for name in self.columns if not name.endswith("_uniform")]
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_format_value(row[name]))}</td>" for name in columns) + "</tr>"
            for row in self._rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _format_value(value: Any) -> str:
    if _is_missing(value):
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _is_missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def build_head_table(
    layers: Sequence[RecordedLayer],
    named_tokens: NamedTokens,
    separators: Sequence[str] = SEPARATOR_TOKENS,
    window_size: int = 16,
    progress: Callable[[float], None] | None = None,
) -> HeadTable:
    """Return a table with a row for each head of each layer. Scores are means over the batch.

    `progress` is called with the fraction of layers that are done.
    """
    _check_tokens(layers, named_tokens)
    if progress is not None:
        check_signature(progress, "progress", "fraction")
    rows: list[HeadRow] = []
    last: tuple[Any, HeadMetrics] | None = None
    for num_done, layer in enumerate(layers):
        if progress is not None:
            progress(num_done / len(layers))
        tokens = _matching_tokens(layer, named_tokens)
        # the baseline depends on the text too, because it includes the mass on separators
        baseline_key = _baseline_key(layer, named_tokens.query_name(layer.path))
        is_shared = last is not None and baseline_key is not None and last[0] == baseline_key
        baseline_from = last[1] if last is not None and is_shared else None
        metrics = HeadMetrics(layer.merged_call, tokens, separators, window_size, baseline_from)
        last = (baseline_key, metrics)
        columns = _metric_columns(metrics)
        for n, head in enumerate(layer.head_indices):
            scores = {name: _head_value(name, values, n) for name, values in columns.items()}
            rows.append({"layer": layer.index, "head": head, "path": layer.path, **scores})
    names = dict.fromkeys(name for row in rows for name in row)
    return HeadTable([{name: row.get(name, math.nan) for name in names} for row in rows])


def _baseline_key(layer: RecordedLayer, text_name: str | None) -> Any:
    """Return a key that is equal for layers with the same uniform baseline; None if that cannot be decided."""
    call = layer.merged_call
    mask = call.options["mask"]
    if mask is not None and (call.serialized_options is None or call.options["query_offset"] is not None):
        return None
    tensor_ids = () if mask is None else tuple(id(tensor) for tensor in mask.tensors)
    expr = None if mask is None else mask.expr
    return (*call.q.shape[:3], call.k.shape[2], expr, tensor_ids, is_cross_attention(layer.path), text_name)


def _self_attention_text(layer: RecordedLayer, named_tokens: NamedTokens) -> str | None:
    """Return the name of the text of a self-attention layer; None for cross-attention."""
    is_cross = is_cross_attention(layer.path) or layer.merged_call.q.shape[2] > layer.merged_call.k.shape[2]
    return None if is_cross else named_tokens.query_name(layer.path)


def _matching_tokens(layer: RecordedLayer, named_tokens: NamedTokens) -> list[list[str]] | None:
    """Return the tokens of a self-attention layer if there is one for each key; None otherwise."""
    name = _self_attention_text(layer, named_tokens)
    batch_size, n_k = layer.merged_call.q.shape[0], layer.merged_call.k.shape[2]
    tokens = [] if name is None else named_tokens.tokens_by_name[name]
    return tokens if len(tokens) == batch_size and all(len(text) == n_k for text in tokens) else None


def _check_tokens(layers: Sequence[RecordedLayer], named_tokens: NamedTokens) -> None:
    """Raise `ArgumentError` for tokens that match none of their layers; columns would be missing silently."""
    for name, tokens in named_tokens.tokens_by_name.items():
        own_layers = [layer for layer in layers if _self_attention_text(layer, named_tokens) == name]
        if own_layers and not any(_matching_tokens(layer, named_tokens) for layer in own_layers):
            batch_size, n_k = own_layers[0].merged_call.q.shape[0], own_layers[0].merged_call.k.shape[2]
            lengths = ", ".join(str(len(text)) for text in tokens)
            raise ArgumentError(
                f"tokens must have one token for each of {n_k} keys, in each of {batch_size} texts; got {lengths}. Set "
                "recording.tokens to these tokens, or to None."
            )


def _metric_columns(metrics: HeadMetrics) -> dict[str, Tensor]:
    positional, offset = metrics.positional()
    sink, sink_key = metrics.strongest_sink()
    vertical, slash = metrics.vertical_and_slash()
    scores: dict[str, HeadScores] = {
        "entropy": metrics.entropy(),
        "normalized_entropy": metrics.normalized_entropy(),
        "distance": metrics.distance(),
        "confidence": metrics.confidence(),
        "positional": positional,
        "self": metrics.own_position(),
        "previous": metrics.previous(),
        "next": metrics.next(),
        "window": metrics.window(),
        "first_token": metrics.first_token(),
        "alignment": metrics.alignment(),
    }
    if metrics.query_metrics.tokens is not None:
        scores |= {name: getattr(metrics, name)() for name in KINDS_NEEDING_TOKENS}
    columns: dict[str, Tensor] = {
        "offset": offset,
        "sink": sink,
        "sink_key": sink_key,
        "vertical": vertical,
        "slash": slash,
    }
    for name, score in scores.items():
        columns[name] = score.values
        columns[f"{name}_uniform"] = score.uniform.expand_as(score.values)
    return columns


def _head_value(name: str, values: Tensor, head: int) -> float | int:
    batch = values[:, head]
    return int(batch.mode().values) if name in ("offset", "sink_key") else float(batch.double().mean())


@dataclass(frozen=True)
class HeadMatch:
    """A head of a kind: its score, and the score of a uniform head."""

    layer: int
    head: int
    path: str
    kind: str
    score: float
    uniform: float

    def __str__(self) -> str:
        preposition = {"positional": "of its largest weights at", "alignment": "of the maximum"}.get(self.kind, "on")
        return (
            f"layer {self.layer}, head {self.head} ({self.path}): {self.score:.2f} {preposition} "
            f"{HEAD_KINDS[self.kind]} (uniform head: {self.uniform:.2f})"
        )


def find_heads(table: HeadTable, kind: str, min_score: float) -> list[HeadMatch]:
    """Return the heads of a kind, the highest score first."""
    if not isinstance(kind, str) or kind not in HEAD_KINDS:
        raise ArgumentError(f"kind must be one of {', '.join(HEAD_KINDS)}; got {kind!r}.")
    if not len(table):
        return []
    table.check_column(kind)
    matches = table.filter(
        lambda row: row[kind] >= min_score and row[kind] >= MIN_RATIO_TO_UNIFORM * row[f"{kind}_uniform"]
    ).sort(kind)
    return [
        HeadMatch(row["layer"], row["head"], row["path"], kind, row[kind], row[f"{kind}_uniform"]) for row in matches
    ]
