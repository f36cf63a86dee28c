"""Create a session from a recording: one text of a batch, each layer as one matrix."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.errors import ArgumentError
from regard.explorer.session import LayerTexts, Session, TokenizedText
from regard.recording.named_tokens import UNNAMED, NamedTokens, is_cross_attention
from regard.recording.recorded_call import RecordedCall
from regard.recording.recorded_layer import RecordedLayer
from regard.recording.recording import Recording


def session_from_recording(
    recording: Recording,
    *,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    title: str = "",
    batch_index: int = 0,
) -> Session:
    """Return the session of one text of a recording, the element `batch_index` of its batch.

    `tokens` replace the tokens of the recording. Layers whose number of keys differs from the number of tokens are
    labeled with positions.
    """
    if not recording.layers:
        raise ArgumentError("a recording must have at least one layer; got none.")
    batch_size = recording.layers[0].calls[0].q.shape[0]
    if not 0 <= batch_index < batch_size:
        raise ArgumentError(f"batch_index must be from 0 to {batch_size - 1}; got {batch_index}.")
    single, notes = _select_batch_element(recording, batch_index)
    named_tokens = NamedTokens.from_tokens(recording.tokens if tokens is None else tokens, single.layer_paths)
    tokens_by_name = {
        name: [str(token) for token in batch[batch_index if len(batch) > 1 else 0]]
        for name, batch in named_tokens.tokens_by_name.items()
    }
    texts = [TokenizedText(name or "text", text_tokens) for name, text_tokens in tokens_by_name.items()]
    layer_texts = {layer.index: _match_layer_texts(layer, texts, named_tokens) for layer in single.layers}
    used = {layer.key_text for layer in layer_texts.values() if not layer.is_cross_attention}
    used_tokens = {name: tokens_by_name[name] for n, name in enumerate(tokens_by_name) if n in used}
    single.tokens = used_tokens.get(UNNAMED, used_tokens) or None
    position = f", text {batch_index + 1} of {batch_size}" if batch_size > 1 else ""
    return Session(
        single, texts, layer_texts, (title or "a recording") + position, notes=notes, batch_index=batch_index
    )


def _match_layer_texts(layer: RecordedLayer, texts: list[TokenizedText], named_tokens: NamedTokens) -> LayerTexts:
    """Return the query text and key text of a layer, by name and length; add a text of positions if none fits."""
    n_q, n_k = layer.merged_call.q.shape[2], layer.merged_call.k.shape[2]
    is_cross = is_cross_attention(layer.path)
    keys = _find_text_of_length(texts, n_k, named_tokens.key_name(layer.path), "keys" if is_cross else "positions")
    if is_cross or n_q > n_k:
        return LayerTexts(
            _find_text_of_length(texts, n_q, named_tokens.query_name(layer.path), "queries"), keys, 0, True
        )
    offset = layer.merged_call.query_offset
    first = int(offset) if not isinstance(offset, Tensor) or offset.numel() == 1 else int(offset[0])
    return LayerTexts(keys, keys, min(max(first, 0), n_k - n_q), False)


def _find_text_of_length(
    texts: list[TokenizedText], length: int, preferred_name: str | None, fallback_name: str
) -> int:
    """Return the index of the text of this length, preferably with this name; add a text of positions if none fits."""
    fitting = [n for n, text in enumerate(texts) if len(text.tokens) == length]
    preferred = [n for n in fitting if texts[n].name == preferred_name]
    if preferred or fitting:
        return (preferred or fitting)[0]
    texts.append(TokenizedText(fallback_name, [str(n) for n in range(length)]))
    return len(texts) - 1


def _select_batch_element(recording: Recording, batch_index: int) -> tuple[Recording, list[str]]:
    """Return the recording of one text of a batch, each layer as one matrix, and notes on omitted calls."""
    single, notes = Recording(), []
    single.dropped_calls = list(recording.dropped_calls)
    for layer in recording.layers:
        try:
            call = layer.merged_call
        except ArgumentError:
            call = layer.calls[-1]
            notes.append(
                f"layer {layer.index}, {layer.path}: its {len(layer.calls)} calls do not form one matrix; the last is "
                "shown."
            )
        if batch_index >= call.q.shape[0]:
            notes.append(
                f"layer {layer.index}, {layer.path}: its batch has {call.q.shape[0]} texts, and no text {batch_index}."
            )
            continue
        single.get_or_add_layer(layer.path, layer.index, layer.head_indices).add(
            call if call.q.shape[0] == 1 else _select_from_call(call, batch_index)
        )
    return single, notes


def _select_from_call(recorded_call: RecordedCall, batch_index: int) -> RecordedCall:
    offset = recorded_call.query_offset
    options = recorded_call.reindex_options({"b": batch_index})
    if isinstance(offset, Tensor) and offset.numel() > 1:
        options["query_offset"] = int(offset[batch_index])
    q, k, v = (x[batch_index : batch_index + 1] for x in (recorded_call.q, recorded_call.k, recorded_call.v))
    return RecordedCall(q, k, v, options, None, recorded_call.source)
