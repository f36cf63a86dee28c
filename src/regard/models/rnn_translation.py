"""A recurrent translator: a GRU encoder and a GRU decoder, with or without attention.

m_j = [forward_j; backward_j]                      encoder states: GRUs in both directions
s_0 = c_0 = [forward_n; backward_1]                the last state of each direction
s_i = GRU([target_i; c_{i-1}], s_{i-1})            decoder states
logits_i = W [s_i; c_i]

without attention    c_i = c_0: a fixed-size context, whatever the length of the source (Cho et al., 2014)
with attention       c_i = sum_j a_ij m_j, where a_i is the softmax of the scores of s_i: u·tanh(W_q s + W_k m)
                     (Bahdanau et al., 2015), s·m or s·W m (Luong et al., 2015)
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.mechanisms.seq2seq import ContextVectors, bahdanau, luong_dot, luong_general
from regard.nn import input_checks
from regard.nn.kv_cache import KeyValueCache

ALIGNMENTS = ("bahdanau", "luong_dot", "luong_general")


class RecurrentTranslator(nn.Module):
    """A recurrent encoder-decoder model: returns logits (batch, m, vocab_size) of the next target tokens.

    The inputs are source (batch, n) and target (batch, m) tokens; `lengths` (batch,) are the source lengths without
    padding. `vocab_sizes` are the sizes of the source and target vocabularies. `hidden_size` must be even: each
    direction of the encoder has half of it. `attention` is "bahdanau", "luong_dot" or "luong_general". With None the
    decoder receives only the last encoder states.

    >>> from regard.nn import generate
    >>> model = RecurrentTranslator((50, 30), hidden_size=32)
    >>> source, target = torch.tensor([[4, 5, 6, 0], [7, 8, 0, 0]]), torch.tensor([[1, 2], [1, 3]])
    >>> encoded = model.encode_source(source, lengths=torch.tensor([3, 2]))
    >>> encoded.logits(target).shape, generate(encoded, target[:, :1], max_new_tokens=5).shape
    (torch.Size([2, 2, 30]), torch.Size([2, 5]))
    >>> weights = encoded.attention_weights(target)
    >>> weights.shape, weights[1, :, 2:].sum()  # padding has no weight
    (torch.Size([2, 2, 4]), tensor(0., grad_fn=<SumBackward0>))
    """

    @check_types
    def __init__(self, vocab_sizes: tuple[int, int], *, hidden_size: int, attention: str | None = "bahdanau") -> None:
        super().__init__()
        if attention is not None and attention not in ALIGNMENTS:
            raise ArgumentError(f"attention must be one of {', '.join(ALIGNMENTS)}, or None; got {attention!r}.")
        checks.parameter_size("decoder.weight_ih", 3 * checks.size(hidden_size, "hidden_size"), 2 * hidden_size)
        for vocab_size in vocab_sizes:
            checks.parameter_size("embedding", checks.size(vocab_size, "vocab_sizes"), hidden_size)
        if hidden_size % 2:
            raise ArgumentError(
                f"hidden_size must be even, since each encoder direction has half of it; got {hidden_size}."
            )
        self.source_embedding = nn.Embedding(vocab_sizes[0], hidden_size)
        self.target_embedding = nn.Embedding(vocab_sizes[1], hidden_size)
        self.encoder = nn.GRU(hidden_size, hidden_size // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(2 * hidden_size, hidden_size)
        self.alignment = None if attention is None else Alignment(attention, hidden_size)
        self.output_proj = nn.Linear(2 * hidden_size, vocab_sizes[1])

    def forward(self, source: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Return logits (batch, m, vocab_size) for `source` (batch, n) and `target` (batch, m) tokens."""
        return self.encode_source(source, lengths).logits(target)

    def encode_source(self, source: Tensor, lengths: Tensor | None = None) -> "RecurrentEncodedSource":
        """Return the encoded source, which `regard.nn.generate` accepts as a model."""
        _check_tokens(source, "source", self.source_embedding)
        batch, n = source.shape
        if lengths is not None:
            checks.tensor(lengths, "lengths", dtype_kind="integers")
        if batch == 0:
            raise ArgumentError("source must have at least one batch element; got none.")
        cpu_lengths = torch.full((batch,), n) if lengths is None else lengths.cpu()
        if tuple(cpu_lengths.shape) != (batch,) or not bool(((cpu_lengths >= 1) & (cpu_lengths <= n)).all()):
            raise ArgumentError(
                f"lengths must hold a number from 1 to {n} for each of {batch} sources; got {cpu_lengths.tolist()}."
            )
        packed = pack_padded_sequence(
            self.source_embedding(source), cpu_lengths, batch_first=True, enforce_sorted=False
        )
        states, final_states = self.encoder(packed)
        memory, _ = pad_packed_sequence(states, batch_first=True, total_length=n)
        return RecurrentEncodedSource(self, memory, final_states.transpose(0, 1).flatten(1), lengths)


def _check_tokens(tokens: Tensor, name: str, embedding: nn.Embedding) -> None:
    input_checks.check_token_batch(tokens, name, min_tokens=1)
    input_checks.check_range(tokens, name, embedding.num_embeddings - 1)


class Alignment(nn.Module):
    """Attention from a decoder state to the encoder states; `kind` is one of `ALIGNMENTS`.

    See `regard.mechanisms.seq2seq` for the formulas.
    """

    def __init__(self, kind: str, hidden_size: int) -> None:
        super().__init__()
        self.kind = kind
        std = 1.0 / math.sqrt(hidden_size)
        if kind == "bahdanau":
            self.w_q = nn.Parameter(std * torch.randn(hidden_size, hidden_size))
            self.w_k = nn.Parameter(std * torch.randn(hidden_size, hidden_size))
            self.u = nn.Parameter(std * torch.randn(hidden_size))
            self.bias = nn.Parameter(torch.zeros(hidden_size))
        elif kind == "luong_general":
            self.w = nn.Parameter(std * torch.randn(hidden_size, hidden_size))

    def forward(self, state: Tensor, memory: Tensor, lengths: Tensor | None) -> ContextVectors:
        """Return the context vectors of a state (batch, hidden_size) over the memory (batch, n, hidden_size)."""
        h = state.unsqueeze(1)
        if self.kind == "luong_dot":
            return luong_dot(h, memory, lengths=lengths)
        if self.kind == "luong_general":
            return luong_general(h, memory, self.w, lengths=lengths)
        return bahdanau(h, memory, self.w_q, self.w_k, self.u, self.bias, lengths=lengths)


@dataclass(eq=False)
class RecurrentEncodedSource:
    """An encoded source with its translator; implements `regard.nn.CausalLM`.

    `memory` (batch, n, hidden_size) holds the encoder states, and `final_state` (batch, hidden_size) the last state of
    each direction.
    """

    translator: RecurrentTranslator
    memory: Tensor
    final_state: Tensor
    lengths: Tensor | None

    def logits(self, target: Tensor) -> Tensor:
        """Return logits (batch, m, vocab_size) of the token after each token of the target (batch, m)."""
        return self._decode_steps(target, self.final_state, self.final_state).logits

    def attention_weights(self, target: Tensor) -> Tensor:
        """Return the attention weights (batch, m, n) over the source after each token of the target."""
        if self.translator.alignment is None:
            raise ArgumentError(
                "attention_weights needs a translator with attention; got attention=None. "
                f"Use one of {', '.join(ALIGNMENTS)}."
            )
        steps = self._decode_steps(target, self.final_state, self.final_state)
        return torch.cat([context.weights for context in steps.attentions], 1)

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, vocab_size) of the next token; the cache holds decoder states and context vectors."""
        layer_cache = cache[0]
        if cache.left_padding is not None or (cache.length and not layer_cache.num_cached_tokens):
            raise ArgumentError(
                "a recurrent decoder needs its last state and prompts of equal length; got a cache with "
                f"left_padding={cache.left_padding} and sliding_window={cache.sliding_window}. Omit prompt_lengths, "
                "and use a sliding_window of at least 2."
            )
        input_checks.check_token_batch(tokens)
        encoded = self._repeat_for_beams(input_checks.beams_per_source(tokens, "tokens", len(self.final_state)))
        if cache.length:
            state, context = (x[:, 0, -1] for x in layer_cache.tensors())
        else:
            state, context = encoded.final_state, encoded.final_state
        steps = encoded._decode_steps(tokens, state, context)
        layer_cache.append(steps.states.unsqueeze(1), steps.contexts.unsqueeze(1))
        return steps.logits[:, -1]

    def _repeat_for_beams(self, num_beams: int) -> "RecurrentEncodedSource":
        """Return this source with each batch element repeated `num_beams` times."""
        if num_beams == 1:
            return self
        lengths = None if self.lengths is None else self.lengths.repeat_interleave(num_beams)
        memory, final_state = (x.repeat_interleave(num_beams, 0) for x in (self.memory, self.final_state))
        return replace(self, memory=memory, final_state=final_state, lengths=lengths)

    def _decode_steps(self, target: Tensor, state: Tensor, context: Tensor) -> "DecoderSteps":
        """Run the decoder over a target (batch, m), starting from a state and a context (batch, hidden_size)."""
        translator = self.translator
        _check_tokens(target, "target", translator.target_embedding)
        if len(target) != len(state):
            raise ArgumentError(f"target must have {len(state)} batch elements like the source; got {len(target)}.")
        states, contexts, attentions = [], [], []
        for token in translator.target_embedding(target).unbind(1):
            state = translator.decoder(torch.cat((token, context), -1), state)
            if translator.alignment is not None:
                attentions.append(translator.alignment.forward(state, self.memory, self.lengths))
                context = attentions[-1].output.squeeze(1)
            states.append(state)
            contexts.append(context)
        states_and_contexts = torch.stack(states, 1), torch.stack(contexts, 1)
        logits = translator.output_proj(torch.cat(states_and_contexts, -1))
        return DecoderSteps(*states_and_contexts, attentions, logits)


@dataclass(frozen=True, eq=False)
class DecoderSteps:
    """The outputs of decoder steps: `states` and `contexts` (batch, m, hidden_size), and `logits`.

    `attentions` has an entry per step, and is empty without attention.
    """

    states: Tensor
    contexts: Tensor
    attentions: list[ContextVectors]
    logits: Tensor
