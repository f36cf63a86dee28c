"""A recording from a file or a notebook as something to show: one text of it, each layer one matrix."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.errors import SpecError
from regard.explorer.shown import Place, Shown, Text
from regard.inside.layer import Layer
from regard.inside.take import Take
from regard.inside.tape import Tape
from regard.inside.texts import ONLY, Texts, crosses


def of_tape(
    tape: Tape, *, tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None, title: str = "", text: int = 0
) -> Shown:
    """A recording as it came from a file or a notebook; `text` is the number of one in a batch.

    `tokens` stand for those of the tape. Layers over another number of keys than there are tokens have their positions
    as names.
    """
    if not tape.layers:
        raise SpecError("a tape must have at least one layer to be shown; this one has none.")
    batch = tape.layers[0].takes[0].q.shape[0]
    if not 0 <= text < batch:
        raise SpecError(f"text must be from 0 to {batch - 1}, the number of one of the texts; got {text}.")
    single, notes = _alone(tape, text)
    given = Texts.of(tape.tokens if tokens is None else tokens, single.paths)
    named = {name: [str(token) for token in each[text if len(each) > 1 else 0]] for name, each in given.named.items()}
    texts = [Text(name or "text", each) for name, each in named.items()]
    places = {layer.number: _fitting(layer, texts, given) for layer in single.layers}
    own = {place.key_text for place in places.values() if not place.crosses}
    fitting = {name: each for place, (name, each) in enumerate(named.items()) if place in own}
    single.tokens = fitting.get(ONLY, fitting) or None
    counted = f", text {text + 1} of {batch}" if batch > 1 else ""
    return Shown(single, texts, places, (title or "a recording") + counted, notes=notes, batch=text)


def _fitting(layer: Layer, texts: list[Text], given: Texts) -> Place:
    """The texts a layer looks from and at, by their names and lengths; new ones of positions where none fits."""
    n_q, n_k = layer.take.q.shape[2], layer.take.k.shape[2]
    crossing = crosses(layer.path)
    keys = _of_length(texts, n_k, given.of_keys(layer.path), "keys" if crossing else "positions")
    if crossing or n_q > n_k:
        return Place(_of_length(texts, n_q, given.of_queries(layer.path), "queries"), keys, 0, True)
    start = layer.take.start
    first = int(start) if not isinstance(start, Tensor) or start.numel() == 1 else int(start[0])
    return Place(keys, keys, min(max(first, 0), n_k - n_q), False)


def _of_length(texts: list[Text], length: int, meant: str | None, otherwise: str) -> int:
    """The text that is meant, if it is as long, or else the first one that is."""
    fitting = [place for place, text in enumerate(texts) if len(text.tokens) == length]
    named = [place for place in fitting if texts[place].name == meant]
    if named or fitting:
        return (named or fitting)[0]
    texts.append(Text(otherwise, [str(n) for n in range(length)]))
    return len(texts) - 1


def _alone(tape: Tape, text: int) -> tuple[Tape, list[str]]:
    """The recording of one text of a batch, each layer one matrix; and what had to be left out for that."""
    single, notes = Tape(), []
    single.dropped = list(tape.dropped)
    for layer in tape.layers:
        try:
            take = layer.take
        except SpecError:
            take = layer.takes[-1]
            notes.append(
                f"layer {layer.number}, {layer.path}: {len(layer.takes)} calls are not one matrix; the last is shown."
            )
        if text >= take.q.shape[0]:
            notes.append(f"layer {layer.number}, {layer.path}: it has {take.q.shape[0]} texts, and not number {text}.")
            continue
        single.layer(layer.path, layer.number, layer.heads).add(take if take.q.shape[0] == 1 else _of_text(take, text))
    return single, notes


def _of_text(take: Take, text: int) -> Take:
    start = take.start
    options = take.rewritten({"b": text})
    if isinstance(start, Tensor) and start.numel() > 1:
        options["start"] = int(start[text])
    q, k, v = (x[text : text + 1] for x in (take.q, take.k, take.v))
    return Take(q, k, v, options, None, take.source)
