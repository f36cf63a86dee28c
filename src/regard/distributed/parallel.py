"""A model whose sequences ranks hold parts of: each computes its tokens, and attention sees all of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.distributed.attention import METHODS, attention
from regard.distributed.decode import decode
from regard.distributed.layout import LAYOUTS, held, positions, shard
from regard.distributed.peers import Peers
from regard.errors import SpecError
from regard.nn.attention import MultiHeadAttention
from regard.nn.cache import KeyValueCache
from regard.nn.latent import LatentAttention

Layer = MultiHeadAttention | LatentAttention


class SequenceParallel(nn.Module):
    """A model of `regard.nn` layers that is called with whole texts on every rank and computes this rank's tokens.

    model: takes tokens (batch, n) and `at`, where they stand, as `regard.models.LanguageModel` does. Its attention
    layers compute over the group while this model runs; alone it stays what it was. See `regard.distributed.attention`
    for group, method and layout.

    For training: `parallel(tokens)` are the logits of this rank's tokens, `parallel.own(targets)` the targets that
    belong to them; divide by the number of all targets, and after backward call `sum_gradients()`. Data can be divided
    over another dimension of the mesh, by DDP or FSDP around or inside the model.

    For writing: `regard.nn.generate(parallel, tokens, most=...)` gives every rank the same tokens; each keeps the keys
    and values of its part of the text, and the last one those of what is written.
    """

    def __init__(self, model: nn.Module, *, group: Any = None, method: str = "ring", layout: str = "zigzag") -> None:
        super().__init__()
        checks.instance(model, "model", nn.Module, "a torch.nn.Module with attention layers of regard.nn")
        checks.choice(method, "method", METHODS)
        checks.choice(layout, "layout", LAYOUTS)
        self.model = model
        self.peers = Peers.of(group)
        self.method, self.layout = method, layout
        self._layers = [m for m in model.modules() if isinstance(m, MultiHeadAttention | LatentAttention)]
        if not self._layers:
            raise SpecError(
                f"a model over ranks must have attention layers of regard.nn; got {type(model).__name__} without any."
            )

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        """What the model makes of this rank's part of the tokens (batch, n)."""
        at = positions(tokens.shape[1], group=self.peers, layout=self.layout)
        compute = partial(attention, group=self.peers, method=self.method, layout=self.layout)
        with self._computing(compute):
            found: Tensor = self.model(self.own(tokens), at=at.to(tokens.device), **options)
        return found

    def own(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's part of something that has an entry a token."""
        return shard(x, dim=dim, group=self.peers, layout=self.layout)

    def total(self, number: float) -> float:
        """The sum of a number over all ranks."""
        return float(self.peers.summed(torch.tensor(number, dtype=torch.float64, device=self.peers.device)))

    def sum_gradients(self) -> None:
        """Every rank gets the sum of all ranks' gradients; a parameter that one of them did not use has none there."""
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradient: Any = parameter.grad
                # FSDP divides parameters over other ranks: each sums the part that it has
                self.peers.summed(gradient.to_local() if hasattr(gradient, "to_local") else gradient)

    def following(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Scores (batch, vocabulary) of the next token; see `regard.nn.Writer`."""
        if cache.padding is not None or cache.window is not None:
            raise SpecError(
                "over ranks a cache must keep whole prompts of one length; got one with "
                f"{'padding' if cache.padding is not None else 'a window'}. Write for each prompt by itself."
            )
        lengths = [n for (n,) in self.peers.every([cache.length])]
        if not sum(lengths):
            return self._read(tokens, cache)
        return self._written(tokens, cache, sum(lengths))

    def _read(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """The prompt: each rank keeps a stretch of it. Who has the last token tells the others what became of it."""
        n, peers = tokens.shape[1], self.peers
        at = positions(n, group=peers, layout="contiguous")
        own = shard(tokens, dim=1, group=peers, layout="contiguous")
        with self._computing(partial(attention, group=peers, method=self.method, layout="contiguous")):
            states = self.model.states(own, at=at, cache=cache)  # type: ignore[operator]  # a method of the model
        holds = [sum(p.count for p in held("contiguous", n, peers.count, rank)) for rank in range(peers.count)]
        last = max(rank for rank, count in enumerate(holds) if count)
        end = states[:, -1] if peers.rank == last else states.new_zeros((len(tokens), states.shape[-1]))
        found: Tensor = self.model.logits(peers.summed(end.contiguous()))  # type: ignore[operator]  # as above
        return found

    def _written(self, tokens: Tensor, cache: KeyValueCache, length: int) -> Tensor:
        """New tokens, on every rank; the last one keeps them."""
        n, peers = tokens.shape[1], self.peers
        at = torch.arange(length, length + n, device=tokens.device)
        keeps = peers.rank == peers.count - 1

        def compute(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **options: Any) -> Tensor:
            k, v = (k, v) if keeps else (k[:, :, : k.shape[2] - n], v[:, :, : v.shape[2] - n])
            found: Tensor = decode(q, k, v, **options, group=peers)
            return found

        with self._computing(compute):
            states = self.model.states(tokens, at=at, cache=cache)  # type: ignore[operator]  # a method of the model
        if not keeps:
            cache.crop(cache.length - n)
        found: Tensor = self.model.logits(states[:, -1])  # type: ignore[operator]  # as above
        return found

    @contextmanager
    def _computing(self, operator: Callable[..., Tensor]) -> Iterator[None]:
        before = [layer.operator for layer in self._layers]
        for layer in self._layers:
            layer.operator = operator
        try:
            yield
        finally:
            for layer, old in zip(self._layers, before, strict=True):
                layer.operator = old
