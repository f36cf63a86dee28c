"""A recording: what the attention of a model was asked, layer by layer, open for every question about its weights."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import OutOfRangeError, SpecError
from regard.inside import arguments
from regard.inside.compare import Comparison
from regard.inside.flow import flow, relevance, rollout
from regard.inside.gradient import Reversed, TimesGradient
from regard.inside.layer import Layer
from regard.inside.places import by_group, word_ids
from regard.inside.recording_file import Content, read_recording, write_recording
from regard.inside.relations import Targets, related
from regard.inside.running import is_meant
from regard.inside.similarity import Similarity, similarity
from regard.inside.table import LEAST, SEPARATORS, Found, HeadTable, found, table
from regard.inside.texts import Texts
from regard.inside.values import Weighted
from regard.result import Attended


class Tape:
    """The layers of a model that attended, in the order in which they first did.

    `tape[3]` is the fourth, `tape["encoder.layer.3"]` the one whose path begins so: an `Attended`, whose weights are
    computed when they are asked for. `tokens` may name the positions of the text, or of each text of a batch; of a
    model that reads one text and writes another, {"encoder": [...], "decoder": [...]}. `dropped` says what is missing.
    """

    def __init__(self) -> None:
        self._layers: dict[str, Layer] = {}
        self.dropped: list[str] = []
        self.tokens: Any = None

    def layer(self, path: str, number: int, heads: list[int] | None) -> Layer:
        """The layer of a path, a new one if there was none."""
        return self._layers.setdefault(path, Layer(path, number, heads))

    @property
    def layers(self) -> list[Layer]:
        return list(self._layers.values())

    @property
    def paths(self) -> list[str]:
        """Where in the model the layers are."""
        return list(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Attended]:
        return (layer.attended for layer in self.layers)

    def __getitem__(self, which: int | str) -> Attended:
        return self.find_layer(which).attended

    def calls(self, which: int | str) -> list[Attended]:
        """The calls of a layer one by one: in generation, one for each step."""
        return [take.attended for take in self.find_layer(which).takes]

    def find_layer(self, which: int | str) -> Layer:
        """The layer of a number, from the end if it is negative, or of the beginning of a path."""
        which = arguments.layer_name(which)
        if isinstance(which, int) and which < 0:
            matches = self.layers[which:][:1] if -which <= len(self) else []
        else:
            matches = [layer for layer in self.layers if is_meant(which, layer.number, layer.path)]
        if len(matches) == 1:
            return matches[0]
        known = ", ".join(f"{layer.number} ({layer.path})" for layer in self.layers) or "none"
        what = f"several begin with {which!r}" if matches else f"got {which!r}"
        dropped = f" Not kept: {'; '.join(self.dropped)}" if self.dropped else ""
        raise OutOfRangeError(f"a layer must be one of those on the tape: {known}; {what}.{dropped}")

    def heads(
        self,
        *,
        separators: Sequence[str] = SEPARATORS,
        window: int = 16,
        progress: Callable[[float], None] | None = None,
    ) -> HeadTable:
        """Every measure of every head, a row each; see `regard.inside.heads`. Tokens make three more columns.

        A layer is passed over some few times in tiles; no matrix of weights is made. `progress` hears the share that is
        done.
        """
        separators = arguments.strings(separators, "separators")
        window = arguments.whole(window, "window", 1)
        if progress is not None:
            arguments.function(progress, "progress")
        return table(self.layers, self._texts, separators, window, progress)

    def find(self, kind: str, *, least: float = LEAST, heads: HeadTable | None = None) -> list[Found]:
        """The heads of a kind, such as "induction" or "previous", with their evidence, the strongest first.

        Who asks for several kinds gives the table: `tape.find("previous", heads=tape.heads())`.
        """
        least = arguments.number(least, "least")
        if heads is not None:
            arguments.of_kind(heads, HeadTable, "heads")
        return found(self.heads() if heads is None else heads, kind, least)

    def rollout(self, of: int | Iterable[int], *, layers: Iterable[int | str] | None = None) -> Tensor:
        """How much of some tokens' last states comes from each token, by attention alone; see `regard.inside.flow`."""
        return rollout(self._some(layers), of)

    def relevance(self, of: int | Iterable[int], *, layers: Iterable[int | str] | None = None) -> Tensor:
        """The same for a loss that was followed back, by attention and its gradient (Chefer and others, 2021)."""
        return relevance(self._some(layers), of)

    def flow(self, of: int, *, layers: Iterable[int | str] | None = None) -> Tensor:
        """The largest flow of attention from each token to one, of at most 64 tokens."""
        return flow(self._some(layers), of)

    def reversed(self, which: int | str) -> Reversed:
        """The gradient of a loss in a layer's scores, any part of it; see `regard.inside.gradient`."""
        return Reversed(self.find_layer(which))

    def times_gradient(self, which: int | str) -> TimesGradient:
        """A layer's weights times the gradients of a loss in them, any part."""
        return TimesGradient(self.find_layer(which))

    def compare(self, other: "Tape") -> Comparison:
        """This recording against another, of another model, prompt, kernel or mechanism; see `Comparison`."""
        return Comparison(self.layers, arguments.of_kind(other, Tape, "the other recording").layers)

    def similarity(self, *, rows: int = 64, seed: int = 0, layers: Iterable[int | str] | None = None) -> Similarity:
        """How alike heads look, over some rows that are drawn by the seed."""
        rows = arguments.whole(rows, "rows", 1)
        return similarity(self._some(layers), rows, arguments.whole(seed, "seed", 0, 2**63 - 1))

    def weighted(self, which: int | str, out: Tensor | None = None) -> Weighted:
        """A layer's weights times the sizes of its values; with `out`, the matrix after attention, of what they become
        there."""
        return Weighted(self.find_layer(which), out)

    def words(self, which: int | str, groups: Sequence[int] | None = None) -> Tensor:
        """A layer's weights between words, (batch, heads, words, words): sum over keys, mean over queries.

        `groups` has the number of its word, or of its sentence, for each token; None takes the words of `tokens`.
        """
        layer = self.find_layer(which)
        if groups is not None:
            groups = arguments.wholes(groups, "groups", -1)
            return by_group(layer, groups, groups)
        texts, path = self._texts, layer.path
        names = texts.of_queries(path), texts.of_keys(path)
        if any(name is None or len(texts.named[name]) != 1 for name in names):
            raise SpecError(
                "words must be those of one text: set tape.tokens to its tokens, or give groups. Where a layer looks "
                'from one text at another, both have names: tape.tokens = {"encoder": [...], "decoder": [...]}.'
            )
        queries, keys = (word_ids(texts.named[str(name)][0]) for name in names)
        return by_group(layer, queries, keys)

    def related(
        self, targets: Targets, *, words: Sequence[int] | None = None, special: Iterable[int] = ()
    ) -> HeadTable:
        """How often each head's largest weight is on a right word, beside the best single distance; the best first.

        `targets` come from `regard.inside.relations`: `syntactic(edges)` or `coreferent(clusters)`. `words` has the
        number of its word for each token; None takes each token for a word. `special` words are not counted.
        """
        length = self.layers[0].take.k.shape[2] if self.layers else 0
        groups = list(range(length)) if words is None else arguments.wholes(words, "words", -1)
        return related(self.layers, targets, groups, arguments.wholes(special, "special"))

    def _some(self, which: Iterable[int | str] | None) -> list[Layer]:
        return self.layers if which is None else [self.find_layer(each) for each in arguments.layer_names(which)]

    @property
    def _texts(self) -> Texts:
        return Texts.of(self.tokens, self.paths)

    def __repr__(self) -> str:
        lines = [f"Tape of {len(self)} layers"]
        for layer in self.layers:
            k = layer.takes[-1].k
            calls = f", {len(layer.takes)} calls" if len(layer.takes) > 1 else ""
            n_q = sum(take.q.shape[2] for take in layer.takes)
            lines.append(
                f"  {layer.number:3} {layer.path}: {len(layer.heads)} heads, {n_q} queries, {k.shape[2]} keys{calls}"
            )
        return "\n".join([*lines, *(f"  not kept: {what}" for what in self.dropped)])

    def save(self, path: str | Path) -> None:
        """Writes the recording into one safetensors file with a checksum. See `load_tape`."""
        write_recording(arguments.path(path, "a recording"), Content(self.layers, self.tokens, self.dropped))


def load_tape(path: str | Path) -> Tape:
    """Reads a recording that `Tape.save` wrote. Raises `LoadError` where the file is damaged or of another kind."""
    content = read_recording(arguments.path(path, "a recording"))
    tape = Tape()
    tape.tokens, tape.dropped = content.tokens, content.dropped
    tape._layers = {layer.path: layer for layer in content.layers}
    return tape
