"""Recordings in several threads at once: each holds its own calls, and torch is as it was when all have ended."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from regard.inside.patch import patch, zero
from regard.inside.record import record
from regard.inside.tape import Tape
from regard.integrations.function_override import original_of, overridden
from regard.integrations.torch_sdpa import replacing_sdpa

NAMES = [
    (functional, "scaled_dot_product_attention"),
    (functional, "multi_head_attention_forward"),
    (torch, "_transformer_encoder_layer_fwd"),
    (torch, "_native_multi_head_attention"),
    (flex, "flex_attention"),
]
held_flex = flex.flex_attention  # a name in this file, as in a model's own file


class Attending(nn.Module):
    """A model that attends in three ways, over as many tokens as it is given."""

    def forward(self, x: Tensor) -> Tensor:
        q = x[:, None]
        return functional.scaled_dot_product_attention(q, q, q) + held_flex(q, q, q) + flex.flex_attention(q, q, q)


@pytest.fixture(autouse=True)
def torch_is_as_it_was() -> Iterator[None]:
    before = [getattr(owner, name) for owner, name in NAMES] + [held_flex]
    hooks = [len(nn.modules.module._global_forward_pre_hooks), len(nn.modules.module._global_forward_hooks)]
    yield
    assert all(now is then for now, then in zip([getattr(*at) for at in NAMES] + [held_flex], before, strict=True))
    assert [len(nn.modules.module._global_forward_pre_hooks), len(nn.modules.module._global_forward_hooks)] == hooks


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # a thread's failure is reported below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors, errors


def lengths(tape: Tape) -> list[int]:
    return [take.q.shape[2] for layer in tape.layers for take in layer.takes]


@torch.no_grad()
def test_threads_that_enter_and_leave_in_overlapping_order_record_their_own_calls() -> None:
    # thread n enters after thread n - 1 entered, and leaves after thread n - 1 left: no two are nested
    count = 6
    entered, left = ([threading.Event() for _ in range(count + 1)] for _ in range(2))
    entered[0].set()
    left[0].set()
    tapes: dict[int, list[int]] = {}
    references: list[weakref.ref[Tape]] = []

    def work(number: int) -> None:
        model, x = Attending(), torch.randn(1, 10 + number, 8)
        entered[number].wait(60)
        with record(model) as tape:
            model(x)
            entered[number + 1].set()
            entered[count].wait(60)
            model(x)
            left[number].wait(60)
        left[number + 1].set()
        tapes[number] = lengths(tape)
        references.append(weakref.ref(tape))

    def work_or_release(number: int) -> None:
        try:
            work(number)
        except BaseException:
            for event in (*entered, *left):  # nobody waits for a thread that failed
                event.set()
            raise

    in_threads(count, work_or_release)
    assert tapes == {number: [10 + number] * 6 for number in range(count)}
    gc.collect()
    assert [reference() for reference in references] == [None] * count


@torch.no_grad()
def test_many_recordings_in_many_threads_leave_nothing_behind() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(number: int) -> None:
        layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        x = torch.randn(1, 5 + number, 8)
        for turn in range(8):
            with record(layer) as tape:
                layer(x, x, x, need_weights=bool(turn % 2))
            assert lengths(tape) == [5 + number]
            with replacing_sdpa():
                layer(x, x, x)
            with patch(layer, {(0, 1): zero}):
                layer(x, x, x, need_weights=False)

    try:
        in_threads(4, work)
    finally:
        sys.setswitchinterval(before)


def test_overrides_nest_and_end_in_any_order() -> None:
    class Owner:
        name = staticmethod(lambda x: [x])

    def adding(what: str) -> Callable[..., Any]:
        return lambda function, x: [*function(x), what]

    original = Owner.name
    first, second = ExitStack(), ExitStack()
    first.enter_context(overridden(Owner, "name", adding("first")))
    second.enter_context(overridden(Owner, "name", adding("second")))
    assert Owner.name("x") == ["x", "first", "second"]
    assert original_of(Owner.name) is original
    first.close()
    assert Owner.name("x") == ["x", "second"]
    in_threads(1, lambda _: pytest.fail("overridden elsewhere") if Owner.name("x") != ["x"] else None)
    second.close()
    assert Owner.name is original
