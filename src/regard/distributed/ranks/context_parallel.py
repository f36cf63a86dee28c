"""Context parallelism: a model whose sequences are sharded over ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import checks
from regard.distributed.ranks.attention import METHODS, attention
from regard.distributed.ranks.communicator import Communicator, GroupLike
from regard.distributed.ranks.decode import decode
from regard.distributed.ranks.sharding import LAYOUTS, positions, shard, shard_lengths
from regard.errors import ArgumentError
from regard.nn.attention import MultiHeadAttention
from regard.nn.kv_cache import KeyValueCache
from regard.nn.latent_attention import LatentAttention

AttentionModule = MultiHeadAttention | LatentAttention


class ContextParallel(nn.Module):
    """Run a model of `regard.nn` layers over ranks: every rank passes the whole sequence and computes its own tokens.

    In training, `parallel(tokens)` returns the logits of this rank's tokens and `parallel.shard(targets)` the targets
    that belong to them. Divide the summed loss by the number of all targets, and call `sum_gradients()` after backward.
    DDP or FSDP can split the batch over another dimension of the device mesh.

    In generation, `regard.nn.generate(parallel, tokens, max_new_tokens=...)` returns the same tokens on every rank.
    Each rank caches the keys and values of its part of the prompt, and the last rank also those of the new tokens.

    Args:
        model: module that takes tokens (batch, n) and `position_ids`, such as `regard.models.LanguageModel`. Its
            attention layers run over the group only while `ContextParallel` calls the model.
        group, method: see `regard.distributed.attention`.
        layout: see `regard.distributed.attention`; default "zigzag".
    """

    def __init__(
        self, model: nn.Module, *, group: "GroupLike | None" = None, method: str = "ring", layout: str = "zigzag"
    ) -> None:
        super().__init__()
        checks.instance(model, "model", nn.Module, "a torch.nn.Module with attention layers of regard.nn")
        checks.choice(method, "method", METHODS)
        checks.choice(layout, "layout", LAYOUTS)
        self.model = model
        self.comm = Communicator.from_group(group)
        self.method, self.layout = method, layout
        self._layers = [m for m in model.modules() if isinstance(m, MultiHeadAttention | LatentAttention)]
        if not self._layers:
            raise ArgumentError(
                f"model must have attention layers of regard.nn; got {type(model).__name__} without any."
            )

    def forward(self, tokens: Tensor, **options: object) -> Tensor:
        """Return the model's output for this rank's part of tokens (batch, n)."""
        position_ids = positions(tokens.shape[1], group=self.comm, layout=self.layout).to(tokens.device)
        attention_fn = partial(attention, group=self.comm, method=self.method, layout=self.layout)
        with self._override_attention(attention_fn):
            output: Tensor = self.model(self.shard(tokens), position_ids=position_ids, **options)
        return output

    def shard(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return this rank's part of a tensor whose dimension `dim` has one entry per token."""
        return shard(x, dim=dim, group=self.comm, layout=self.layout)

    def sum_over_ranks(self, value: float) -> float:
        """Return the sum of a number over all ranks."""
        return float(self.comm.all_reduce(torch.tensor(value, dtype=torch.float64, device=self.comm.device)))

    def sum_gradients(self) -> None:
        """Sum the gradients of all parameters over ranks in place; a missing gradient counts as zero."""
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradient: Any = parameter.grad
                # FSDP shards parameters over other ranks, so each rank sums its own shard
                self.comm.all_reduce(gradient.to_local() if hasattr(gradient, "to_local") else gradient)

    def next_token_logits(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Return the logits (batch, vocab_size) of the next token; see `regard.nn.CausalLM`."""
        if cache.left_padding is not None or cache.sliding_window is not None:
            raise ArgumentError(
                "a cache over ranks must hold whole prompts of one length; got one with "
                f"{'padding' if cache.left_padding is not None else 'a sliding window'}. Generate for each prompt "
                "separately."
            )
        lengths = [length for (length,) in self.comm.all_gather_ints([cache.length])]
        if not sum(lengths):
            return self._prefill(tokens, cache)
        return self._decode_tokens(tokens, cache, sum(lengths))

    def _prefill(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """Run the prompt and return the logits of the last token; each rank caches a contiguous part of the prompt."""
        n, comm = tokens.shape[1], self.comm
        position_ids = positions(n, group=comm, layout="contiguous")
        local_tokens = shard(tokens, dim=1, group=comm, layout="contiguous")
        with self._override_attention(partial(attention, group=comm, method=self.method, layout="contiguous")):
            states = self.model.hidden_states(local_tokens, position_ids=position_ids, cache=cache)  # type: ignore[operator]  # a method of the model
        counts = shard_lengths("contiguous", n, comm.world_size)
        last_rank = max(rank for rank, count in enumerate(counts) if count)
        last_state = states[:, -1] if comm.rank == last_rank else states.new_zeros((len(tokens), states.shape[-1]))
        logits: Tensor = self.model.logits(comm.all_reduce(last_state.contiguous()))  # type: ignore[operator]  # as above
        return logits

    def _decode_tokens(self, tokens: Tensor, cache: KeyValueCache, length: int) -> Tensor:
        """Run new tokens on every rank; only the last rank keeps them in its cache."""
        n, comm = tokens.shape[1], self.comm
        position_ids = torch.arange(length, length + n, device=tokens.device)
        caches_new_tokens = comm.rank == comm.world_size - 1

        def attention_fn(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **options: Any) -> Tensor:
            if not caches_new_tokens:
                k, v = k[:, :, : k.shape[2] - n], v[:, :, : v.shape[2] - n]
            output: Tensor = decode(q, k, v, **options, group=comm)
            return output

        with self._override_attention(attention_fn):
            states = self.model.hidden_states(tokens, position_ids=position_ids, cache=cache)  # type: ignore[operator]  # a method of the model
        if not caches_new_tokens:
            cache.crop(cache.length - n)
        logits: Tensor = self.model.logits(states[:, -1])  # type: ignore[operator]  # as above
        return logits

    @contextmanager
    def _override_attention(self, attention_fn: Callable[..., Tensor]) -> Iterator[None]:
        originals = [layer.attention_fn for layer in self._layers]
        for layer in self._layers:
            layer.attention_fn = attention_fn
        try:
            yield
        finally:
            for layer, original in zip(self._layers, originals, strict=True):
                layer.attention_fn = original
