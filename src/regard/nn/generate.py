"""Writing on: a model is asked for the next token again and again.

A `Writer` is anything with `following(tokens, cache)`: scores (batch, vocabulary) of what comes after these tokens and
those in the cache. `stream` hands out tokens as they come, `generate` all of them at the end, `beam` looks for the
likeliest whole text.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from regard import checks
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.cache import KeyValueCache

Choice = Callable[[Tensor], Tensor]
MAX_TOKENS = 2**24  # of one generation
MAX_WIDTH = 2**16  # of a beam search
MAX_LENGTH_POWER = 10.0  # MAX_TOKENS to this power is a float


class Writer(Protocol):
    """What can write: a language model, or a translator that has read its source."""

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Scores (batch, vocabulary) of the token after tokens (batch, n)."""


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token, the first of equals."""
    check_logits(logits)
    return logits.argmax(-1)


@dataclass(eq=False)
class Sample:
    """A token drawn by its probability.

    `temperature` below 1 makes likely ones likelier. `top_k` leaves the k likeliest, `top_p` the fewest that have at
    least this probability together. With a `seed` the same tokens come again.

    >>> Sample(top_k=1)(torch.tensor([[0.0, 2.0, 1.0]]))
    tensor([1])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    _source: torch.Generator | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.temperature, checks.NUMBERS) and self.temperature == 0:
            raise SpecError(f"temperature must be a number above 0; got {self.temperature}. For 0 use greedy.")
        self.temperature = checks.finite_number(self.temperature, "temperature", above=0)
        if self.top_k is not None:
            checks.positive_int(self.top_k, "top_k")
        if self.top_p is not None:
            checks.finite_number(self.top_p, "top_p", above=0, at_most=1)
        if self.seed is not None:
            checks.seed(self.seed)

    def __call__(self, logits: Tensor) -> Tensor:
        if self._source is None and self.seed is not None:
            self._source = torch.Generator(logits.device).manual_seed(self.seed)
        drawn = torch.multinomial(self.probabilities(logits), 1, generator=self._source)
        return drawn.squeeze(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """How likely each token is to be drawn, (batch, vocabulary)."""
        logits = check_logits(logits).double()
        check_largest(logits)
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            best = logits.topk(self.top_k, dim=-1).indices
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False), -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True, stable=True)
            share = ordered.softmax(-1)
            before = share.cumsum(-1) - share  # what the likelier ones have together
            hidden = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= self.top_p)
            logits = logits.masked_fill(hidden, -torch.inf)
        return logits.softmax(-1).float()


def stream(
    writer: Writer,
    tokens: Tensor,
    *,
    most: int,
    choose: Choice = greedy,
    stop: int | None = None,
    lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> Iterator[Tensor]:
    """The tokens (batch,) that follow, one after another, `most` of them or until `stop` came in every batch element.

    tokens (batch, n) is what was written so far; `lengths` says how many of each row are real, at its end. A `cache`
    decides what is kept (None: everything); it may hold what came before these tokens. An element that has stopped
    gives `stop` again.
    """
    checks.function(choose, "choose", "from logits (batch, vocabulary) to tokens (batch,)")
    tokens, cache = _begun(writer, tokens, most, stop, lengths, cache)
    return _tokens(writer, tokens, most, choose, stop, cache)


def _tokens(
    writer: Writer, tokens: Tensor, most: int, choose: Choice, stop: int | None, cache: KeyValueCache
) -> Iterator[Tensor]:
    stopped = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for _ in range(most):
        with torch.no_grad():
            chosen = _chosen(choose, _logits(writer, tokens, cache))
        if stop is not None:
            chosen = torch.where(stopped, stop, chosen)
            stopped |= chosen == stop
        yield chosen
        if stop is not None and bool(stopped.all()):
            return
        tokens = chosen.unsqueeze(-1)


def generate(
    writer: Writer,
    tokens: Tensor,
    *,
    most: int,
    choose: Choice = greedy,
    stop: int | None = None,
    lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> Tensor:
    """The tokens (batch, at most `most`) that follow, all at once; see `stream`."""
    parts = list(stream(writer, tokens, most=most, choose=choose, stop=stop, lengths=lengths, cache=cache))
    return torch.stack(parts, dim=1) if parts else tokens[:, :0]


@dataclass(frozen=True)
class Beams:
    """The best continuations of each batch element, best first.

    `tokens` is (batch, width, at most `most`), filled up with `stop` behind its first; `scores` (batch, width) are the
    logarithms of their probabilities, divided by their lengths to the power of `length_power`.
    """

    tokens: Tensor
    scores: Tensor


def beam(
    writer: Writer,
    tokens: Tensor,
    *,
    most: int,
    width: int,
    stop: int | None = None,
    length_power: float = 0.0,
    lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
) -> Beams:
    """The `width` likeliest continuations that are found when at each step only the `width` best go on.

    A `length_power` above 0 favours longer ones: 1 compares the mean logarithm a token.
    """
    checks.whole_number(width, "width", at_least=1, at_most=MAX_WIDTH)
    checks.whole_number(most, "most", at_least=1, at_most=MAX_TOKENS)
    checks.finite_number(length_power, "length_power", at_least=0, at_most=MAX_LENGTH_POWER)
    tokens, cache = _begun(writer, tokens, most, stop, lengths, cache)
    batch, device = len(tokens), tokens.device
    search = _Search(batch, width, most, stop, length_power, device)
    for step in range(most):
        with torch.no_grad():
            scores = _logits(writer, tokens, cache).float().log_softmax(-1)
        if step == 0:  # from now on every element is there `width` times
            scores = scores.repeat_interleave(width, 0)
            cache.reorder(torch.arange(batch, device=device).repeat_interleave(width))
        order, tokens = search.step(scores)
        if search.is_over():
            break
        cache.reorder(order)
    return search.best()


class _Search:
    """Beams that go on, and those that are finished."""

    def __init__(self, batch: int, width: int, most: int, stop: int | None, power: float, device: torch.device) -> None:
        self.width, self.most, self.stop, self.power = width, most, stop, power
        self.alive = torch.full((batch, width), -torch.inf, device=device)
        self.alive[:, 0] = 0.0  # all beams begin alike: one of them counts
        self.written = torch.zeros(batch, width, 0, dtype=torch.long, device=device)
        self.finished: list[list[tuple[float, list[int]]]] = [[] for _ in range(batch)]

    def step(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """From scores (batch · width, vocabulary) of what comes next: which beams go on, and with which tokens."""
        batch, vocabulary = len(self.finished), scores.shape[-1]
        total = (self.alive.unsqueeze(-1) + scores.view(batch, self.width, vocabulary)).flatten(1)
        # at most one continuation of each beam stops, so this many always leave enough that go on
        best, place = total.topk(min(2 * self.width, total.shape[1]), dim=1)
        parent, token = place // vocabulary, place % vocabulary
        stops = torch.zeros_like(token, dtype=torch.bool) if self.stop is None else token == self.stop
        self._finish(best, parent, token, stops)
        best = best.masked_fill(stops, -torch.inf)
        self.alive, chosen = best.topk(min(self.width, best.shape[1]), dim=1)
        if chosen.shape[1] < self.width:  # a vocabulary smaller than the width: beams that lead nowhere
            missing = self.width - chosen.shape[1]
            chosen = torch.nn.functional.pad(chosen, (0, missing))
            self.alive = torch.nn.functional.pad(self.alive, (0, missing), value=-torch.inf)
        parent, token = parent.gather(1, chosen), token.gather(1, chosen)
        kept = self.written.gather(1, parent.unsqueeze(-1).expand(-1, -1, self.written.shape[-1]))
        self.written = torch.cat((kept, token.unsqueeze(-1)), dim=-1)
        first = self.width * torch.arange(batch, device=scores.device).unsqueeze(-1)
        return (first + parent).flatten(), token.view(-1, 1)

    def _finish(self, best: Tensor, parent: Tensor, token: Tensor, stops: Tensor) -> None:
        for b, place in stops.nonzero().tolist():
            if best[b, place] == -torch.inf or place >= self.width:  # as good as those that go on, or nothing
                continue
            text = [*self.written[b, parent[b, place]].tolist(), int(token[b, place])]
            self._keep(b, float(best[b, place]), text)

    def _keep(self, b: int, score: float, text: list[int]) -> None:
        self.finished[b].append((score / len(text) ** self.power, text))
        self.finished[b].sort(key=lambda found: -found[0])
        del self.finished[b][self.width :]

    def is_over(self) -> bool:
        """Whether nothing that goes on can still become better than what is finished."""
        hope = self.alive.max(-1).values / (self.most**self.power)
        full = (len(found) == self.width for found in self.finished)
        return all(is_full and found[-1][0] >= h for is_full, found, h in zip(full, self.finished, hope, strict=True))

    def best(self) -> Beams:
        for b, (scores, texts) in enumerate(zip(self.alive.tolist(), self.written.tolist(), strict=True)):
            if len(texts[0]) < self.most:
                continue  # over before: those that went on were given up
            for score, text in zip(scores, texts, strict=True):
                if score > -torch.inf:
                    self._keep(b, score, text)
        longest = max((len(text) for found in self.finished for _, text in found), default=self.most)
        tokens = torch.full((len(self.finished), self.width, longest), self.stop or 0)
        scores = torch.full(tokens.shape[:2], -torch.inf)
        for b, found in enumerate(self.finished):
            for place, (score, text) in enumerate(found):
                tokens[b, place, : len(text)], scores[b, place] = torch.tensor(text), score
        return Beams(tokens.to(self.alive.device), scores.to(self.alive.device))


def check_logits(logits: Tensor) -> Tensor:
    """Logits, which are (batch, vocabulary) or (vocabulary,)."""
    checks.tensor(logits, "logits", dims=(1, 2), dtype="floats")
    if logits.shape[-1] == 0:
        raise SpecError(f"logits must be of at least one token; got shape {tuple(logits.shape)}.")
    return logits


def check_largest(logits: Tensor) -> None:
    """Refuses rows without a largest logit: no token could be drawn from them."""
    if torch.compiler.is_compiling() or logits.device.type == "meta":
        return
    largest = logits.amax(-1)
    if not bool(largest.isfinite().all()):
        worst = largest[~largest.isfinite()].flatten()[0] if largest.dim() else largest
        raise SpecError(f"the largest logit of each row must be finite; got {float(worst)}.")


def _logits(writer: Writer, tokens: Tensor, cache: KeyValueCache) -> Tensor:
    logits = checks.tensor(writer.following(tokens, cache), "the result of following", dtype="floats")
    if logits.dim() != 2 or logits.shape[0] != len(tokens):
        raise SpecError(
            f"the result of following must be ({len(tokens)}, vocabulary); got shape {tuple(logits.shape)}."
        )
    return check_logits(logits)


def _chosen(choose: Choice, logits: Tensor) -> Tensor:
    try:
        chosen = choose(logits)
    except (TypeError, ValueError) as problem:
        raise SpecError(
            "choose must be a function from logits (batch, vocabulary) to tokens (batch,); calling it failed: "
            f"{problem}"
        ) from problem
    return checks.tensor(chosen, "the result of choose", shape=(len(logits),), dtype="integers")


def _begun(
    writer: Writer,
    tokens: Tensor,
    most: int,
    stop: int | None,
    lengths: Tensor | None,
    cache: KeyValueCache | None,
) -> tuple[Tensor, KeyValueCache]:
    if not callable(getattr(writer, "following", None)):
        raise SpecError(f"writer must have a method following(tokens, cache); got {checks.describe(writer)}.")
    inputs.tokens(tokens)
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise SpecError(f"tokens must be (batch, n) with at least one token each; got shape {tuple(tokens.shape)}.")
    checks.whole_number(most, "most", at_least=0, at_most=MAX_TOKENS)
    if stop is not None:
        checks.whole_number(stop, "stop", at_least=0, at_most=checks.MAX_SIZE)
    if cache is not None:
        checks.instance(cache, "cache", KeyValueCache, "a KeyValueCache or None")
    cache = KeyValueCache() if cache is None else cache
    if lengths is not None:
        n = tokens.shape[1]
        checks.tensor(lengths, "lengths", dtype="integers")
        if tuple(lengths.shape) != (len(tokens),) or not bool(((lengths > 0) & (lengths <= n)).all()):
            raise SpecError(
                f"lengths must hold a number from 1 to {n} for each of {len(tokens)}; got {lengths.tolist()}."
            )
        if cache.length:
            raise SpecError(
                "lengths are those of the first tokens; got a cache that holds some. Leave one of them out."
            )
        cache.padding = n - lengths
    return tokens, cache
