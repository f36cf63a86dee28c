"""Text generation: greedy decoding, sampling and beam search.

A `CausalLM` is any object with `next_token_logits(tokens, cache)`. The method returns logits (batch, vocab_size) of the
token that follows the cached tokens and `tokens`. `generate_stream` yields tokens one by one, `generate` returns all of
them, and `beam_search` returns the most likely sequences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from regard import checks
from regard.errors import ArgumentError
from regard.nn import input_checks
from regard.nn.kv_cache import KeyValueCache

SamplerLike = Callable[[Tensor], Tensor]
MAX_NEW_TOKENS = 2**24
MAX_BEAMS = 2**16
MAX_LENGTH_PENALTY = 10.0  # MAX_NEW_TOKENS to this power does not overflow a float


class CausalLM(Protocol):
    """Protocol of models that generate tokens: a language model, or an encoded source with its decoder."""

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, vocab_size) of the token after `tokens` (batch, n); append `tokens` to the cache."""


def greedy(logits: Tensor) -> Tensor:
    """Return the most likely token of each row of `logits` (..., vocab_size). Ties go to the first token.

    >>> greedy(torch.tensor([[0.0, 2.0, 1.0]]))
    tensor([1])
    """
    check_logits(logits)
    return logits.argmax(-1)


@dataclass(eq=False)
class Sampler:
    """Samples tokens from the softmax of logits (batch, vocab_size).

    Logits are divided by `temperature`. `top_k` restricts sampling to the k most likely tokens. `top_p` restricts it to
    the smallest set of tokens with a total probability of at least `top_p` (nucleus sampling). A `seed` makes the
    sequence of samples reproducible.

    >>> Sampler(top_k=1)(torch.tensor([[0.0, 2.0, 1.0]]))
    tensor([1])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    _generator: torch.Generator | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.temperature, checks.NUMBER_TYPES) and self.temperature == 0:
            raise ArgumentError(f"temperature must be a number above 0; got {self.temperature}. Use greedy instead.")
        self.temperature = checks.finite_number(self.temperature, "temperature", above=0)
        if self.top_k is not None:
            checks.positive_int(self.top_k, "top_k")
        if self.top_p is not None:
            checks.finite_number(self.top_p, "top_p", above=0, at_most=1)
        if self.seed is not None:
            checks.seed(self.seed)

    def __call__(self, logits: Tensor) -> Tensor:
        if self._generator is None and self.seed is not None:
            self._generator = torch.Generator(logits.device).manual_seed(self.seed)
        return torch.multinomial(self.probabilities(logits), 1, generator=self._generator).squeeze(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities (batch, vocab_size) that tokens are sampled from."""
        logits = check_logits(logits).double()
        check_finite_max(logits)
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            best = logits.topk(self.top_k, dim=-1).indices
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False), -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True, stable=True)
            probabilities = ordered.softmax(-1)
            cumulative = probabilities.cumsum(-1) - probabilities  # without the token itself
            excluded = torch.zeros_like(cumulative, dtype=torch.bool).scatter(-1, order, cumulative >= self.top_p)
            logits = logits.masked_fill(excluded, -torch.inf)
        return logits.softmax(-1).float()


def generate_stream(
    model: CausalLM,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    sampler: SamplerLike = greedy,
    eos_token_id: int | None = None,
    prompt_lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> Iterator[Tensor]:
    """Yield the next tokens (batch,), up to `max_new_tokens` times or until every batch element has ended.

    `model` has the method `next_token_logits` of `CausalLM`. `tokens` (batch, n) are the prompts. A batch element ends
    with `eos_token_id`, which it then repeats (None: never ends). For prompts padded on the left, `prompt_lengths`
    (batch,) are the lengths without padding. `sampler` maps logits (batch, vocab_size) to tokens (batch,). `cache` may
    hold earlier tokens (None: a new `KeyValueCache`).

    >>> from regard.models import language_model
    >>> model, tokenizer = language_model()
    >>> next(generate_stream(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5)).shape
    torch.Size([1])
    """
    checks.function(sampler, "sampler", "from logits (batch, vocab_size) to tokens (batch,)")
    tokens, cache = _prepare_generation(model, tokens, max_new_tokens, eos_token_id, prompt_lengths, cache)
    return _generate_tokens(model, tokens, max_new_tokens, sampler, eos_token_id, cache)


def _generate_tokens(
    model: CausalLM,
    tokens: Tensor,
    max_new_tokens: int,
    sampler: SamplerLike,
    eos_token_id: int | None,
    cache: KeyValueCache,
) -> Iterator[Tensor]:
    ended = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for _ in range(max_new_tokens):
        with torch.no_grad():
            next_tokens = _call_sampler(sampler, _next_token_logits(model, tokens, cache))
        if eos_token_id is not None:
            next_tokens = torch.where(ended, eos_token_id, next_tokens)
            ended |= next_tokens == eos_token_id
        yield next_tokens
        if eos_token_id is not None and bool(ended.all()):
            return
        tokens = next_tokens.unsqueeze(-1)


def generate(
    model: CausalLM,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    sampler: SamplerLike = greedy,
    eos_token_id: int | None = None,
    prompt_lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> Tensor:
    """Return the generated tokens, (batch, at most `max_new_tokens`), without the prompts.

    `model`, the prompts `tokens` (batch, n), `sampler` (default: `greedy`), `eos_token_id`, `prompt_lengths` and
    `cache` are those of `generate_stream`.

    >>> from regard.models import language_model
    >>> model, tokenizer = language_model()
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 5])
    """
    steps = list(
        generate_stream(
            model,
            tokens,
            max_new_tokens=max_new_tokens,
            sampler=sampler,
            eos_token_id=eos_token_id,
            prompt_lengths=prompt_lengths,
            cache=cache,
        )
    )
    return torch.stack(steps, dim=1) if steps else tokens[:, :0]


@dataclass(frozen=True)
class BeamSearchResult:
    """The continuations that beam search returns for each batch element, best first.

    `tokens` is (batch, num_beams, at most `max_new_tokens`), padded with `eos_token_id`. `scores` (batch, num_beams)
    are log probabilities divided by length ** length_penalty.
    """

    tokens: Tensor
    scores: Tensor


def beam_search(
    model: CausalLM,
    tokens: Tensor,
    *,
    max_new_tokens: int,
    num_beams: int,
    eos_token_id: int | None = None,
    length_penalty: float = 0.0,
    prompt_lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> BeamSearchResult:
    """Return the `num_beams` most likely continuations found by beam search.

    A `length_penalty` above 0 favors longer continuations: 1 compares mean log probabilities per token. `model`, the
    prompts `tokens` (batch, n), `eos_token_id`, `prompt_lengths` and `cache` are those of `generate_stream`.

    >>> from regard.models import language_model
    >>> model, tokenizer = language_model()
    >>> beam_search(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5, num_beams=4).tokens.shape
    torch.Size([1, 4, 5])
    """
    checks.integer(num_beams, "num_beams", at_least=1, at_most=MAX_BEAMS)
    checks.integer(max_new_tokens, "max_new_tokens", at_least=1, at_most=MAX_NEW_TOKENS)
    checks.finite_number(length_penalty, "length_penalty", at_least=0, at_most=MAX_LENGTH_PENALTY)
    tokens, cache = _prepare_generation(model, tokens, max_new_tokens, eos_token_id, prompt_lengths, cache)
    batch, device = len(tokens), tokens.device
    search = _BeamSearch(batch, num_beams, max_new_tokens, eos_token_id, length_penalty, device)
    for step in range(max_new_tokens):
        with torch.no_grad():
            scores = _next_token_logits(model, tokens, cache).float().log_softmax(-1)
        if step == 0:  # from now on the batch holds each element `num_beams` times
            scores = scores.repeat_interleave(num_beams, 0)
            cache.reorder(torch.arange(batch, device=device).repeat_interleave(num_beams))
        order, tokens = search.step(scores)
        if search.is_done():
            break
        cache.reorder(order)
    return search.best()


class _BeamSearch:
    """The state of a beam search: running and finished beams."""

    def __init__(
        self,
        batch_size: int,
        num_beams: int,
        max_new_tokens: int,
        eos_token_id: int | None,
        length_penalty: float,
        device: torch.device,
    ) -> None:
        self.num_beams, self.max_new_tokens, self.eos_token_id, self.length_penalty = (
            num_beams,
            max_new_tokens,
            eos_token_id,
            length_penalty,
        )
        self.running_scores = torch.full((batch_size, num_beams), -torch.inf, device=device)
        self.running_scores[:, 0] = 0.0  # all beams start equal: only one may continue
        self.running_tokens = torch.zeros(batch_size, num_beams, 0, dtype=torch.long, device=device)
        self.finished_beams: list[list[tuple[float, list[int]]]] = [[] for _ in range(batch_size)]

    def step(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Extend the beams by a token, given log_probs (batch · num_beams, vocab_size).

        Return the batch indices of the extended beams (batch · num_beams,) and their tokens (batch · num_beams, 1).
        """
        batch, vocab_size = len(self.finished_beams), log_probs.shape[-1]
        total = (self.running_scores.unsqueeze(-1) + log_probs.view(batch, self.num_beams, vocab_size)).flatten(1)
        # each beam has at most one continuation that ends, so 2 · num_beams candidates leave num_beams that continue
        best, index = total.topk(min(2 * self.num_beams, total.shape[1]), dim=1)
        parent, token = index // vocab_size, index % vocab_size
        is_eos = torch.zeros_like(token, dtype=torch.bool) if self.eos_token_id is None else token == self.eos_token_id
        self._collect_finished(best, parent, token, is_eos)
        best = best.masked_fill(is_eos, -torch.inf)
        self.running_scores, candidate = best.topk(min(self.num_beams, best.shape[1]), dim=1)
        if candidate.shape[1] < self.num_beams:  # fewer candidates than beams: pad with beams of score -inf
            missing = self.num_beams - candidate.shape[1]
            candidate = torch.nn.functional.pad(candidate, (0, missing))
            self.running_scores = torch.nn.functional.pad(self.running_scores, (0, missing), value=-torch.inf)
        parent, token = parent.gather(1, candidate), token.gather(1, candidate)
        earlier = self.running_tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, self.running_tokens.shape[-1]))
        self.running_tokens = torch.cat((earlier, token.unsqueeze(-1)), dim=-1)
        first = self.num_beams * torch.arange(batch, device=log_probs.device).unsqueeze(-1)
        return (first + parent).flatten(), token.view(-1, 1)

    def _collect_finished(self, scores: Tensor, parents: Tensor, tokens: Tensor, is_eos: Tensor) -> None:
        for b, rank in is_eos.nonzero().tolist():
            if scores[b, rank] == -torch.inf or rank >= self.num_beams:  # only the best num_beams candidates count
                continue
            sequence = [*self.running_tokens[b, parents[b, rank]].tolist(), int(tokens[b, rank])]
            self._add_finished(b, float(scores[b, rank]), sequence)

    def _add_finished(self, batch_index: int, score: float, tokens: list[int]) -> None:
        self.finished_beams[batch_index].append((score / len(tokens) ** self.length_penalty, tokens))
        self.finished_beams[batch_index].sort(key=lambda beam: -beam[0])
        del self.finished_beams[batch_index][self.num_beams :]

    def is_done(self) -> bool:
        """Return whether no running beam can surpass the finished beams."""
        bounds = self.running_scores.max(-1).values / (self.max_new_tokens**self.length_penalty)
        return all(
            len(beams) == self.num_beams and beams[-1][0] >= bound
            for beams, bound in zip(self.finished_beams, bounds, strict=True)
        )

    def best(self) -> BeamSearchResult:
        """Return the best finished beams; running beams of the maximum length count as finished."""
        for b, (scores, sequences) in enumerate(
            zip(self.running_scores.tolist(), self.running_tokens.tolist(), strict=True)
        ):
            if len(sequences[0]) < self.max_new_tokens:
                continue  # the search ended early: no running beam can surpass the finished ones
            for score, sequence in zip(scores, sequences, strict=True):
                if score > -torch.inf:
                    self._add_finished(b, score, sequence)
        max_len = max(
            (len(tokens) for beams in self.finished_beams for _, tokens in beams), default=self.max_new_tokens
        )
        tokens = torch.full((len(self.finished_beams), self.num_beams, max_len), self.eos_token_id or 0)
        scores = torch.full(tokens.shape[:2], -torch.inf)
        for b, beams in enumerate(self.finished_beams):
            for rank, (score, sequence) in enumerate(beams):
                tokens[b, rank, : len(sequence)], scores[b, rank] = torch.tensor(sequence), score
        return BeamSearchResult(tokens.to(self.running_scores.device), scores.to(self.running_scores.device))


def check_logits(logits: Tensor) -> Tensor:
    """Check that logits are (batch, vocab_size) or (vocab_size,); return them."""
    checks.tensor(logits, "logits", dims=(1, 2), dtype_kind="floats")
    if logits.shape[-1] == 0:
        raise ArgumentError(f"logits must cover at least one token; got shape {tuple(logits.shape)}.")
    return logits


def check_finite_max(logits: Tensor) -> None:
    """Raise if the largest logit of a row is not finite: no token could be sampled."""
    if torch.compiler.is_compiling() or logits.device.type == "meta":
        return
    largest = logits.amax(-1)
    if not bool(largest.isfinite().all()):
        nonfinite = largest[~largest.isfinite()].flatten()[0] if largest.dim() else largest
        raise ArgumentError(f"the largest logit of each row must be finite; got {float(nonfinite)}.")


def _next_token_logits(model: CausalLM, tokens: Tensor, cache: KeyValueCache) -> Tensor:
    logits = checks.tensor(
        model.next_token_logits(tokens, cache), "the result of next_token_logits", dtype_kind="floats"
    )
    if logits.dim() != 2 or logits.shape[0] != len(tokens):
        raise ArgumentError(
            f"the result of next_token_logits must be ({len(tokens)}, vocab_size); got shape {tuple(logits.shape)}."
        )
    return check_logits(logits)


def _call_sampler(sampler: SamplerLike, logits: Tensor) -> Tensor:
    try:
        tokens = sampler(logits)
    except (TypeError, ValueError) as problem:
        raise ArgumentError(
            "sampler must be a function from logits (batch, vocab_size) to tokens (batch,); calling it failed: "
            f"{problem}"
        ) from problem
    return checks.tensor(tokens, "the result of sampler", shape=(len(logits),), dtype_kind="integers")


def _prepare_generation(
    model: CausalLM,
    tokens: Tensor,
    max_new_tokens: int,
    eos_token_id: int | None,
    prompt_lengths: Tensor | None,
    cache: KeyValueCache | None,
) -> tuple[Tensor, KeyValueCache]:
    if not callable(getattr(model, "next_token_logits", None)):
        raise ArgumentError(f"model must have a method next_token_logits(tokens, cache); got {checks.describe(model)}.")
    input_checks.check_token_batch(tokens, min_tokens=1)
    checks.integer(max_new_tokens, "max_new_tokens", at_least=0, at_most=MAX_NEW_TOKENS)
    if eos_token_id is not None:
        checks.integer(eos_token_id, "eos_token_id", at_least=0, at_most=checks.MAX_DIM_SIZE)
    if cache is not None:
        checks.instance(cache, "cache", KeyValueCache, "a KeyValueCache or None")
    cache = KeyValueCache() if cache is None else cache
    if prompt_lengths is not None:
        n = tokens.shape[1]
        checks.tensor(prompt_lengths, "prompt_lengths", dtype_kind="integers")
        if tuple(prompt_lengths.shape) != (len(tokens),) or not bool(
            ((prompt_lengths > 0) & (prompt_lengths <= n)).all()
        ):
            raise ArgumentError(
                f"prompt_lengths must hold a number from 1 to {n} for each of {len(tokens)} prompts; got "
                f"{prompt_lengths.tolist()}."
            )
        if cache.length:
            raise ArgumentError(
                f"prompt_lengths need an empty cache; got a cache that holds {cache.length} tokens. Pass a new cache, "
                "or omit prompt_lengths."
            )
        cache.left_padding = n - prompt_lengths
    return tokens, cache
