"""Stacks of blocks: an encoder, a decoder, and both together.

Parameters have the names of torch's `TransformerEncoder`, `TransformerDecoder` and `Transformer`: states load in both
directions, where the design is one that torch has (heads with keys of their own, relu or gelu, layer norms).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard import checks
from regard.errors import SpecError
from regard.nn import inputs
from regard.nn.attention import check_mask, joined
from regard.nn.block import Block, Design, Looks
from regard.nn.cache import KeyValueCache, places
from regard.nn.position import Position
from regard.spec.mask import causal, window

MAX_LAYERS = 100_000


class Stack(nn.Module):
    """`layers` blocks, one after another, and a norm at the end if `norm`. Several designs take turns.

    `mask` is who may look at whom in every call; `position` is what the layers know of where tokens stand. With `cross`
    every block looks at a memory as well.
    """

    def __init__(
        self,
        design: Design | Sequence[Design],
        layers: int,
        *,
        cross: bool = False,
        mask: Any = None,
        position: Position | None = None,
        norm: bool = True,
    ) -> None:
        super().__init__()
        turns = designs_of(design)
        checks.whole_number(layers, "layers", at_least=1, at_most=MAX_LAYERS)
        checks.flag(cross, "cross")
        checks.flag(norm, "norm")
        if position is not None:
            checks.instance(position, "position", Position, "a position, such as regard.nn.Rotary(64), or None")
        check_mask(mask)
        self.designs = tuple(turns[place % len(turns)] for place in range(layers))
        self.layers = nn.ModuleList(Block(each, cross=cross) for each in self.designs)
        self.norm = turns[0].norm_layer() if norm else None
        self.position = position
        self._is_narrowed = mask is not None and mask is not causal()
        # made once: a mask that is the same object is recognised without being read again
        masks = {each.window: joined(mask, each.window and window(each.window)) for each in turns}
        self._masks = [masks[each.window] for each in self.designs]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Any = None,
        memory_mask: Any = None,
        at: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x (batch, n, width) in and out.

        `mask` narrows who may look at whom in this call, `memory_mask` who may look at what of the memory. `at` says
        where the tokens stand, if not behind those in the cache. With a cache x are the new tokens alone.
        """
        self._check(x, memory, at)
        if cache is not None:
            checks.instance(cache, "cache", KeyValueCache, "a KeyValueCache or None")
            cache.check_whole(len(self.designs))
            if cache.window is not None and mask is None and not self._is_narrowed:
                self._check_kept(cache.window)
        self._check_places(at)
        x, at = self._placed(x, at, cache)
        narrowed = joined(mask, None if cache is None else cache.seen(x.shape[1]))
        for place, block in enumerate(self.blocks):
            x = block(
                x,
                memory=memory,
                mask=joined(self._masks[place], narrowed),
                memory_mask=memory_mask,
                position=self._position(place),
                at=at,
                cache=None if cache is None else cache[place],
                memory_cache=None if cache is None else cache.memory(place),
            )
        return x if self.norm is None else self.norm(x)

    @property
    def blocks(self) -> list[Block]:
        return cast("list[Block]", list(self.layers))

    def attend(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Any = None,
        memory_mask: Any = None,
        at: Tensor | None = None,
    ) -> list[Looks]:
        """The attention inside each layer, kept open; arguments as in a call."""
        self._check(x, memory, at)
        self._check_places(at)
        x, at = self._placed(x, at, None)
        found = []
        for place, block in enumerate(self.blocks):
            options = {"mask": joined(self._masks[place], mask), "position": self._position(place), "at": at}
            found.append(block.attend(x, memory=memory, memory_mask=memory_mask, **options))
            x = block(x, memory=memory, memory_mask=memory_mask, **options)
        return found

    def _placed(self, x: Tensor, at: Tensor | None, cache: KeyValueCache | None) -> tuple[Tensor, Tensor]:
        """Tokens with what is added to them for their positions, and these."""
        if at is None:
            n = x.shape[1]
            at = places(0, n, device=x.device) if cache is None else cache.positions(n, x.device)
        if self.position is None:
            return x, at
        return nn.functional.dropout(self.position.added(x, at), self.designs[0].dropout, self.training), at

    def _check(self, x: Tensor, memory: Tensor | None, at: Tensor | None) -> None:
        parameter = self.blocks[0].linear2.weight
        inputs.vectors(x, "x", self.designs[0].width, parameter)
        if at is not None:
            inputs.positions(at, x.shape[0], x.shape[1])
        if memory is None and any(block.multihead_attn is not None for block in self.blocks):
            raise SpecError("a stack made with cross=True looks at a memory; got none. Give memory=.")

    def _check_kept(self, kept: int) -> None:
        """Refuses a cache that forgets what a layer asks for: each token would be answered from another text."""
        for place, (design, block) in enumerate(zip(self.designs, self.blocks, strict=True)):
            if (design.window is None or design.window > kept) and getattr(block.self_attn, "mask", None) is None:
                sees = "everything" if design.window is None else f"a window of {design.window}"
                raise SpecError(
                    f"a cache must keep what layers look at; got window={kept}, and layer {place} sees {sees}. Use "
                    f"KeyValueCache(), or say who may look at whom with mask=window({kept}) in every call."
                )

    def _check_places(self, at: Tensor | None) -> None:
        """Refuses places that leave some out, where positions are a rule on scores: those count from key to key."""
        if at is None or self.position is None or self.position.rule() is None or torch.compiler.is_compiling():
            return
        over_ranks = any(getattr(block.self_attn, "operator", None) is not None for block in self.blocks)
        if not over_ranks and bool((at.diff() != 1).any()):
            raise SpecError(
                f"{type(self.position).__name__} counts from one token to the next, so `at` must leave none out; got "
                f"{at.flatten()[:8].tolist()}. Leave `at` out, or use Rotary."
            )

    def _position(self, place: int) -> Position | None:
        return self.position if self.designs[place].positions else None


def designs_of(design: Design | Sequence[Design]) -> tuple[Design, ...]:
    """The designs whose blocks take turns: one, or a sequence of at least one, all of the same width."""
    if isinstance(design, Design):
        return (design,)
    expected = "a Design or a sequence of designs"
    designs = tuple(checks.instance(design, "design", (list, tuple), expected))
    for each in designs:
        checks.instance(each, "design", Design, expected)
    if not designs:
        raise SpecError("a stack needs at least one design; got none.")
    if len({each.width for each in designs}) > 1:
        raise SpecError(f"all designs of a stack must have the same width; got {[each.width for each in designs]}.")
    return designs


class Encoder(Stack):
    """Every token sees every other, unless `mask` says otherwise.

    >>> import torch
    >>> Encoder(Design(width=64, heads=4), layers=2)(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        design: Design | Sequence[Design],
        layers: int,
        *,
        mask: Any = None,
        position: Position | None = None,
        norm: bool = True,
    ) -> None:
        super().__init__(design, layers, mask=mask, position=position, norm=norm)


class Decoder(Stack):
    """No token sees one after it; with `cross`, all see the whole memory.

    >>> import torch
    >>> decoder = Decoder(Design(width=64, heads=4), layers=2, cross=True)
    >>> decoder(torch.randn(2, 10, 64), torch.randn(2, 7, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        design: Design | Sequence[Design],
        layers: int,
        *,
        cross: bool = False,
        mask: Any = None,
        position: Position | None = None,
        norm: bool = True,
    ) -> None:
        super().__init__(design, layers, cross=cross, mask=joined(causal(), mask), position=position, norm=norm)


class Transformer(nn.Module):
    """An encoder reads, a decoder writes and looks at what was read.

    >>> import torch
    >>> both = Transformer(Design(width=64, heads=4, norm_first=False, activation="relu"), layers=2)
    >>> both(torch.randn(2, 7, 64), torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        design: Design,
        layers: int,
        *,
        encoder_position: Position | None = None,
        decoder_position: Position | None = None,
    ) -> None:
        super().__init__()
        checks.instance(design, "design", Design, "a Design")
        self.encoder = Encoder(design, layers, position=encoder_position)
        self.decoder = Decoder(design, layers, cross=True, position=decoder_position)

    def forward(self, source: Tensor, target: Tensor, *, source_mask: Any = None, target_mask: Any = None) -> Tensor:
        """Vectors (batch, n, width) of what is read and of what is written. `source_mask` hides what is none, such as
        `mask.padding(lengths)`, from both."""
        memory = self.encoder(source, mask=source_mask)
        return self.decoder(target, memory, mask=target_mask, memory_mask=source_mask)  # type: ignore[no-any-return]  # modules are untyped
