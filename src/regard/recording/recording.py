"""`Recording`: the recorded layers of a model, and the analyses of their attention weights."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError, OutOfRangeError
from regard.recording import argument_checks
from regard.recording.attribution.attention_flow import flow, relevance, rollout
from regard.recording.attribution.gradient_matrices import AttentionTimesGradient, ReversedAttention
from regard.recording.attribution.value_weighting import ValueWeightedAttention
from regard.recording.metrics.comparison import RecordingComparison
from regard.recording.metrics.divergence import HeadDivergence, head_divergence
from regard.recording.metrics.head_table import (
    MIN_SCORE,
    SEPARATOR_TOKENS,
    HeadMatch,
    HeadTable,
    build_head_table,
    find_heads,
)
from regard.recording.metrics.relations import RelationTargets, relation_accuracy
from regard.recording.metrics.token_groups import group_weights, word_ids
from regard.recording.module_tracker import matches_layer
from regard.recording.named_tokens import NamedTokens
from regard.recording.recorded_layer import RecordedLayer
from regard.recording.recording_file import RecordingContent, read_recording, write_recording
from regard.result import AttentionResult

__all__ = ["Recording", "load_recording"]


class Recording:
    """The recorded attention layers of a model, in the order of their first calls.

    `recording[3]` is the `AttentionResult` of the fourth layer. `recording["encoder.layer.3"]` is that of the layer
    whose path starts with this string. Weights are computed when they are indexed.

    Attributes:
        tokens: tokens of the input, for labels and for metrics that depend on tokens: a list of strings, or a list of
            such lists for a batch. For an encoder-decoder model, a dict of these whose keys are parts of layer paths,
            as in {"encoder": [...], "decoder": [...]}. None by default.
        dropped_calls: a message for each call that was not recorded.

    >>> import torch
    >>> from regard import record
    >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    >>> with torch.no_grad(), record(model) as recording:
    ...     y = model(torch.randn(1, 10, 16))
    >>> recording.layer_paths
    ['layers.0.self_attn', 'layers.1.self_attn']
    """

    def __init__(self) -> None:
        self._layers: dict[str, RecordedLayer] = {}
        self.dropped_calls: list[str] = []
        self.tokens: Any = None

    def get_or_add_layer(self, path: str, index: int, head_indices: list[int] | None) -> RecordedLayer:
        """Return the layer of a path; add it if it does not exist."""
        return self._layers.setdefault(path, RecordedLayer(path, index, head_indices))

    @property
    def layers(self) -> list[RecordedLayer]:
        """The recorded layers."""
        return list(self._layers.values())

    @property
    def layer_paths(self) -> list[str]:
        """The paths of the recorded layers in the model."""
        return list(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[AttentionResult[Tensor]]:
        return (layer.result for layer in self.layers)

    def __getitem__(self, layer: int | str) -> AttentionResult[Tensor]:
        return self.layer_named(layer).result

    def calls(self, layer: int | str) -> list[AttentionResult[Tensor]]:
        """Return the result of each call of a layer. In generation there is one call per step."""
        return [call.result for call in self.layer_named(layer).calls]

    def layer_named(self, index_or_name: int | str) -> RecordedLayer:
        """Return a layer by `index_or_name`: its index, which may be negative, or the beginning of its path."""
        index_or_name = argument_checks.layer_selector(index_or_name)
        if isinstance(index_or_name, int) and index_or_name < 0:
            matches = self.layers[index_or_name:][:1] if -index_or_name <= len(self) else []
        else:
            matches = [layer for layer in self.layers if matches_layer(index_or_name, layer.index, layer.path)]
        if len(matches) == 1:
            return matches[0]
        known = ", ".join(f"{layer.index} ({layer.path})" for layer in self.layers) or "none"
        problem = f"several begin with {index_or_name!r}" if matches else f"got {index_or_name!r}"
        dropped = f" Not recorded: {'; '.join(self.dropped_calls)}" if self.dropped_calls else ""
        raise OutOfRangeError(f"layer must be one of the recorded layers: {known}; {problem}.{dropped}")

    def head_table(
        self,
        *,
        separators: Sequence[str] = SEPARATOR_TOKENS,
        window_size: int = 16,
        progress: Callable[[float], None] | None = None,
    ) -> HeadTable:
        """Compute every metric of every head; return a table with one row per head.

        The attention matrices are not stored: each layer takes a few passes over tiles. With `tokens` the table has
        the columns separator, duplicate and induction as well. See `regard.recording.metrics.head_metrics`.

        Args:
            separators: tokens that count as separators. By default punctuation and the usual special tokens.
            window_size: width of the window of the column `window`. Default: 16.
            progress: called with the fraction of layers that are done.
        """
        separators = argument_checks.strings(separators, "separators")
        window_size = argument_checks.integer(window_size, "window_size", 1)
        if progress is not None:
            argument_checks.function(progress, "progress")
        return build_head_table(self.layers, self._named_tokens, separators, window_size, progress)

    def find_heads(self, kind: str, *, min_score: float = MIN_SCORE, table: HeadTable | None = None) -> list[HeadMatch]:
        """Return the heads of a kind, such as "induction" or "previous", with their scores, the highest first.

        Args:
            kind: one of `regard.recording.metrics.head_table.HEAD_KINDS`.
            min_score: the lowest score of a match. A match also scores at least three times as high as a uniform head.
            table: a head table of this recording, to avoid computing it again for several kinds. Computed by default.
        """
        min_score = argument_checks.finite_number(min_score, "min_score")
        if table is not None:
            argument_checks.instance(table, HeadTable, "table")
        return find_heads(self.head_table() if table is None else table, kind, min_score)

    def rollout(self, positions: int | Iterable[int], *, layers: Iterable[int | str] | None = None) -> Tensor:
        """Compute attention rollout (Abnar and Zuidema, 2020): how much of each state comes from each input token.

        Args:
            positions: token positions of the last layer, negative ones counted from the end.
            layers: the layers of one stack; all by default.

        Returns:
            A tensor (batch, positions, n) whose rows sum to 1.
        """
        return rollout(self._select_layers(layers), positions)

    def relevance(self, positions: int | Iterable[int], *, layers: Iterable[int | str] | None = None) -> Tensor:
        """Compute the relevance (batch, positions, n) of each input token for a loss (Chefer et al., 2021).

        Requires `backward()` on the loss, outside of `torch.no_grad()`. `positions` and `layers` are as in `rollout`.
        """
        return relevance(self._select_layers(layers), positions)

    def flow(self, position: int, *, layers: Iterable[int | str] | None = None) -> Tensor:
        """Compute attention flow (Abnar and Zuidema, 2020): the maximum flow (batch, n) from each token to `position`.

        `layers` are those of `rollout`. At most 64 tokens are allowed. Needs NetworkX, which torch installs.
        """
        return flow(self._select_layers(layers), position)

    def reversed_attention(self, layer: int | str) -> ReversedAttention:
        """Return the gradients of a loss with respect to the products q·k, as a lazy matrix (Katz and Wolf, 2024).

        Requires `backward()` on the loss.
        """
        return ReversedAttention(self.layer_named(layer))

    def attention_times_gradient(self, layer: int | str) -> AttentionTimesGradient:
        """Return the weights of `layer`, an index or a path, times their gradients, as a lazy matrix.

        Requires `backward()` on the loss.
        """
        return AttentionTimesGradient(self.layer_named(layer))

    def compare(self, other: "Recording") -> RecordingComparison:
        """Compare this recording with another one, of another model, input or mechanism."""
        return RecordingComparison(self.layers, argument_checks.instance(other, Recording, "other").layers)

    def head_divergence(
        self, *, num_queries: int = 64, seed: int = 0, layers: Iterable[int | str] | None = None
    ) -> HeadDivergence:
        """Compute the Jensen-Shannon divergence of each pair of heads, over randomly chosen queries.

        Args:
            num_queries: number of queries. Default: 64.
            seed: seed of the choice. Default: 0.
            layers: layers of equal lengths; all by default.
        """
        num_queries = argument_checks.integer(num_queries, "num_queries", 1)
        return head_divergence(
            self._select_layers(layers), num_queries, argument_checks.integer(seed, "seed", 0, 2**63 - 1)
        )

    def value_weighted(self, layer: int | str, out_proj_weight: Tensor | None = None) -> ValueWeightedAttention:
        """Return the weights of `layer`, an index or a path, times the norms of the values, as a lazy matrix.

        `out_proj_weight`, of shape (embed_dim, heads * v_dim), is the weight of the output projection. With it the
        norms are those of the projected values (Kobayashi et al., 2020).
        """
        return ValueWeightedAttention(self.layer_named(layer), out_proj_weight)

    def word_weights(self, index_or_name: int | str, group_ids: Sequence[int] | None = None) -> Tensor:
        """Compute the weights between words (batch, heads, words, words): a sum over keys, a mean over queries.

        `index_or_name` selects the layer, as in `layer_named`.
        `group_ids` has the index of the word, or of another group, of each token; -1 leaves a token out. By default
        words are derived from `tokens`.
        """
        layer = self.layer_named(index_or_name)
        if group_ids is not None:
            group_ids = argument_checks.integers(group_ids, "group_ids", -1)
            return group_weights(layer, group_ids, group_ids)
        texts, path = self._named_tokens, layer.path
        names = texts.query_name(path), texts.key_name(path)
        if any(name is None or len(texts.tokens_by_name[name]) != 1 for name in names):
            raise ArgumentError(
                "word_weights needs the tokens of one text: set recording.tokens to a list of tokens, or pass "
                "group_ids. For cross-attention name the tokens of both texts: "
                'recording.tokens = {"encoder": [...], "decoder": [...]}.'
            )
        query_words, key_words = (word_ids(texts.tokens_by_name[str(name)][0]) for name in names)
        return group_weights(layer, query_words, key_words)

    def relation_accuracy(
        self, targets: RelationTargets, *, word_ids: Sequence[int] | None = None, special_words: Iterable[int] = ()
    ) -> HeadTable:
        """Compute how often the largest weight of each head is on a target word, beside the best fixed offset.

        Args:
            targets: from each word to its target words, as `dependency_targets` and `coreference_targets` in
                `regard.recording.metrics.relations` return them.
            word_ids: the index of the word of each token. By default each token is a word.
            special_words: words that are ignored as keys.

        Returns:
            A table sorted by the column `accuracy`. See `regard.recording.metrics.relations`.
        """
        length = self.layers[0].merged_call.k.shape[2] if self.layers else 0
        groups = list(range(length)) if word_ids is None else argument_checks.integers(word_ids, "word_ids", -1)
        return relation_accuracy(self.layers, targets, groups, argument_checks.integers(special_words, "special_words"))

    def _select_layers(self, layers: Iterable[int | str] | None) -> list[RecordedLayer]:
        if layers is None:
            return self.layers
        return [self.layer_named(layer) for layer in argument_checks.layer_selectors(layers)]

    @property
    def _named_tokens(self) -> NamedTokens:
        return NamedTokens.from_tokens(self.tokens, self.layer_paths)

    def __repr__(self) -> str:
        lines = [f"Recording of {len(self)} layers"]
        for layer in self.layers:
            n_k = layer.calls[-1].k.shape[2]
            n_q = sum(call.q.shape[2] for call in layer.calls)
            calls = f", {len(layer.calls)} calls" if len(layer.calls) > 1 else ""
            lines.append(
                f"  {layer.index:3} {layer.path}: {len(layer.head_indices)} heads, {n_q} queries, {n_k} keys{calls}"
            )
        return "\n".join([*lines, *(f"  not recorded: {message}" for message in self.dropped_calls)])

    def save(self, path: str | Path) -> None:
        """Write the recording to one safetensors file with a checksum. See `load_recording`."""
        write_recording(
            argument_checks.file_path(path, "path"), RecordingContent(self.layers, self.tokens, self.dropped_calls)
        )


def load_recording(path: str | Path) -> Recording:
    """Read a recording that `Recording.save` wrote to `path`. Raises `LoadError` for any other or damaged file.

    >>> import tempfile, torch, regard
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> with regard.record(layer) as recording, torch.no_grad():
    ...     output = layer(torch.randn(1, 10, 16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recording.save(f"{folder}/recording.safetensors")
    ...     print(len(load_recording(f"{folder}/recording.safetensors")))
    1
    """
    content = read_recording(argument_checks.file_path(path, "path"))
    recording = Recording()
    recording.tokens, recording.dropped_calls = content.tokens, content.dropped_calls
    recording._layers = {layer.path: layer for layer in content.layers}
    return recording
