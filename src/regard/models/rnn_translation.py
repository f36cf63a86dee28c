"""A recurrent translator: a GRU reads the source, a GRU writes the target, with attention between them or without.

m_j = [forwards_j; backwards_j]                    the encoder's states: two GRUs read in both directions
s_0 = c_0 = [forwards_n; backwards_1]              the last state of each
s_i = GRU([target_i; c_{i-1}], s_{i-1})            the decoder's states
logits_i = W [s_i; c_i]

without attention    c_i = c_0: one vector, however long the source is                     (Cho and others, 2014)
with attention       c_i = sum_j a_ij m_j, where a_i says which m_j the state s_i looks at: u·tanh(W_q s + W_k m)
                     (Bahdanau, Cho and Bengio, 2015), s·m or s·W m (Luong, Pham and Manning, 2015)
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard import checks
from regard.argument_types import check_types
from regard.errors import SpecError
from regard.mechanism.recurrent import Context, bahdanau, luong_dot, luong_general
from regard.nn import inputs
from regard.nn.cache import KeyValueCache

ALIGNMENTS = ("bahdanau", "luong_dot", "luong_general")


class RecurrentTranslator(nn.Module):
    """source (batch, n) and target (batch, m) tokens in, logits (batch, m, vocabulary) of the next target tokens out.

    `vocabularies` are the numbers of source and target tokens. `width` is that of all vectors, an even number: half for
    each direction of the encoder. `attention` is one of `ALIGNMENTS`, or None for a decoder that knows the source by
    the encoder's last states alone. `lengths` says how many tokens of each source are real.

    >>> from regard.nn import generate
    >>> model = RecurrentTranslator((50, 30), width=32)
    >>> source, target = torch.tensor([[4, 5, 6, 0], [7, 8, 0, 0]]), torch.tensor([[1, 2], [1, 3]])
    >>> reading = model.reading(source, lengths=torch.tensor([3, 2]))
    >>> reading.logits(target).shape, generate(reading, target[:, :1], most=5).shape
    (torch.Size([2, 2, 30]), torch.Size([2, 5]))
    >>> weights = reading.attend(target)
    >>> weights.shape, weights[1, :, 2:].sum()  # what is not real is not looked at
    (torch.Size([2, 2, 4]), tensor(0., grad_fn=<SumBackward0>))
    """

    @check_types
    def __init__(self, vocabularies: tuple[int, int], *, width: int, attention: str | None = "bahdanau") -> None:
        super().__init__()
        if attention is not None and attention not in ALIGNMENTS:
            raise SpecError(f"attention must be one of {', '.join(ALIGNMENTS)}, or None; got {attention!r}.")
        checks.parameter("decoder.weight_ih", 3 * checks.size(width, "width"), 2 * width)
        for vocabulary in vocabularies:
            checks.parameter("embedding", checks.size(vocabulary, "vocabularies"), width)
        if width % 2:
            raise SpecError(f"width must be even, half for each direction of the encoder; got {width}.")
        self.source_embedding = nn.Embedding(vocabularies[0], width)
        self.target_embedding = nn.Embedding(vocabularies[1], width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(2 * width, width)
        self.alignment = None if attention is None else Alignment(attention, width)
        self.head = nn.Linear(2 * width, vocabularies[1])

    def forward(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        return self.reading(source, lengths).logits(target)

    def reading(self, source: Tensor, lengths: Tensor | None = None) -> "Reading":
        """What the encoder made of a source, ready to be written from."""
        _check_tokens(source, "source", self.source_embedding)
        batch, n = source.shape
        if lengths is not None:
            checks.tensor(lengths, "lengths", dtype="integers")
        if batch == 0:
            raise SpecError("source must have at least one batch element; got none.")
        real = torch.full((batch,), n) if lengths is None else lengths.cpu()
        if tuple(real.shape) != (batch,) or not bool(((real >= 1) & (real <= n)).all()):
            raise SpecError(
                f"lengths must hold a number from 1 to {n} for each of {batch} sources; got {real.tolist()}."
            )
        packed = pack_padded_sequence(self.source_embedding(source), real, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        memory, _ = pad_packed_sequence(states, batch_first=True, total_length=n)
        return Reading(self, memory, last.transpose(0, 1).flatten(1), lengths)


def _check_tokens(tokens: Tensor, name: str, embedding: nn.Embedding) -> None:
    inputs.token_rows(tokens, name, at_least=1)
    if torch.compiler.is_compiling() or not tokens.numel():
        return
    least, most = (int(end) for end in tokens.aminmax())
    if least < 0 or most >= embedding.num_embeddings:
        raise SpecError(f"{name} must be from 0 to {embedding.num_embeddings - 1}; got {least} to {most}.")


class Alignment(nn.Module):
    """Which of the encoder's states a state of the decoder looks at; `kind` is one of `ALIGNMENTS`.

    See `regard.mechanism.recurrent` for the formulas.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        spread = 1.0 / math.sqrt(width)
        if kind == "bahdanau":
            self.w_q = nn.Parameter(spread * torch.randn(width, width))
            self.w_k = nn.Parameter(spread * torch.randn(width, width))
            self.u = nn.Parameter(spread * torch.randn(width))
            self.bias = nn.Parameter(torch.zeros(width))
        elif kind == "luong_general":
            self.w = nn.Parameter(spread * torch.randn(width, width))

    def look(self, state: Tensor, memory: Tensor, lengths: Tensor | None) -> Context:
        """From a state (batch, width) at the memory (batch, n, width), one step."""
        h = state.unsqueeze(1)
        if self.kind == "luong_dot":
            return luong_dot(h, memory, lengths=lengths)
        if self.kind == "luong_general":
            return luong_general(h, memory, self.w, lengths=lengths)
        return bahdanau(h, memory, self.w_q, self.w_k, self.u, self.bias, lengths=lengths)


@dataclass(eq=False)
class Reading:
    """A source that was read; a `regard.nn.Writer`.

    `memory` (batch, n, width) holds the encoder's states, `last` (batch, width) those after all of the source was read.
    """

    translator: RecurrentTranslator
    memory: Tensor
    last: Tensor
    lengths: Tensor | None

    def logits(self, target: Tensor) -> Tensor:
        """Scores (batch, m, vocabulary) of what follows each of the target's tokens (batch, m)."""
        return self._walk(target, self.last, self.last).logits

    def attend(self, target: Tensor) -> Tensor:
        """Weights (batch, m, n): where in the source the decoder looks after each of the target's tokens, to write the
        next."""
        if self.translator.alignment is None:
            raise SpecError(
                "weights must come from a translator with attention; got one with attention=None. "
                f"Use one of {', '.join(ALIGNMENTS)}."
            )
        return torch.cat([look.weights for look in self._walk(target, self.last, self.last).looks], 1)

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Scores (batch, vocabulary) of the next token; the cache keeps the decoder's states and contexts."""
        kept = cache[0]
        if cache.padding is not None or (cache.length and not kept.kept):
            raise SpecError(
                "a recurrent decoder goes on from its last state, and begins with prompts of one length; "
                f"got a cache with padding={cache.padding} and window={cache.window}. Leave lengths out, and use a "
                "window of 2 or more."
            )
        inputs.token_rows(tokens)
        reading = self._times(inputs.copies(tokens, "tokens", len(self.last)))
        begin = [x[:, 0, -1] for x in kept.rows()] if cache.length else [reading.last, reading.last]
        walk = reading._walk(tokens, *begin)
        kept.append(walk.states.unsqueeze(1), walk.contexts.unsqueeze(1))
        return walk.logits[:, -1]

    def _times(self, times: int) -> "Reading":
        """With beams each source is there several times."""
        if times == 1:
            return self
        lengths = None if self.lengths is None else self.lengths.repeat_interleave(times)
        memory, last = (x.repeat_interleave(times, 0) for x in (self.memory, self.last))
        return replace(self, memory=memory, last=last, lengths=lengths)

    def _walk(self, target: Tensor, state: Tensor, context: Tensor) -> "Walk":
        """The decoder's way over a target's tokens, from a state and a context."""
        translator = self.translator
        _check_tokens(target, "target", translator.target_embedding)
        if len(target) != len(state):
            raise SpecError(f"target must have {len(state)} batch elements, as the source; got {len(target)}.")
        states, contexts, looks = [], [], []
        for token in translator.target_embedding(target).unbind(1):
            state = translator.decoder(torch.cat((token, context), -1), state)
            if translator.alignment is not None:
                looks.append(translator.alignment.look(state, self.memory, self.lengths))
                context = looks[-1].output.squeeze(1)
            states.append(state)
            contexts.append(context)
        both = torch.stack(states, 1), torch.stack(contexts, 1)
        return Walk(*both, looks, translator.head(torch.cat(both, -1)))


@dataclass(frozen=True, eq=False)
class Walk:
    """`states` and `contexts` (batch, m, width), the attention of each step, if there was any, and the `logits`."""

    states: Tensor
    contexts: Tensor
    looks: list[Context]
    logits: Tensor
