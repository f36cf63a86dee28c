"""Recordings in several threads: each records its own calls, and torch is restored when all have ended."""

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

from regard.integrations.function_override import original_function, override_function
from regard.integrations.torch_sdpa import override_sdpa
from regard.recording.patching import patch, zero_ablate
from regard.recording.recorder import record
from regard.recording.recording import Recording

OVERRIDDEN_FUNCTIONS = [
    (functional, "scaled_dot_product_attention"),
    (functional, "multi_head_attention_forward"),
    (torch, "_transformer_encoder_layer_fwd"),
    (torch, "_native_multi_head_attention"),
    (flex, "flex_attention"),
]
imported_flex = flex.flex_attention  # an attribute of this module, as in the source file of a model


class ThreeAttentionCalls(nn.Module):
    """A model that calls three attention functions on its input."""

    def forward(self, x: Tensor) -> Tensor:
        q = x[:, None]
        return functional.scaled_dot_product_attention(q, q, q) + imported_flex(q, q, q) + flex.flex_attention(q, q, q)


@pytest.fixture(autouse=True)
def check_torch_is_restored() -> Iterator[None]:
    before = [getattr(owner, name) for owner, name in OVERRIDDEN_FUNCTIONS] + [imported_flex]
    hooks = [len(nn.modules.module._global_forward_pre_hooks), len(nn.modules.module._global_forward_hooks)]
    yield
    after = [getattr(owner, name) for owner, name in OVERRIDDEN_FUNCTIONS] + [imported_flex]
    assert all(a is b for a, b in zip(after, before, strict=True))
    assert [len(nn.modules.module._global_forward_pre_hooks), len(nn.modules.module._global_forward_hooks)] == hooks


def run_in_threads(count: int, work: Callable[[int], None]) -> None:
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


def num_queries(recording: Recording) -> list[int]:
    return [call.q.shape[2] for layer in recording.layers for call in layer.calls]


@torch.no_grad()
def test_threads_that_overlap_record_only_their_own_calls() -> None:
    # thread n enters after thread n - 1 entered, and leaves after thread n - 1 left: no two are nested
    count = 6
    entered, left = ([threading.Event() for _ in range(count + 1)] for _ in range(2))
    entered[0].set()
    left[0].set()
    lengths_by_thread: dict[int, list[int]] = {}
    references: list[weakref.ref[Recording]] = []

    def work(number: int) -> None:
        model, x = ThreeAttentionCalls(), torch.randn(1, 10 + number, 8)
        entered[number].wait(60)
        with record(model) as recording:
            model(x)
            entered[number + 1].set()
            entered[count].wait(60)
            model(x)
            left[number].wait(60)
        left[number + 1].set()
        lengths_by_thread[number] = num_queries(recording)
        references.append(weakref.ref(recording))

    def work_or_release(number: int) -> None:
        try:
            work(number)
        except BaseException:
            for event in (*entered, *left):  # no thread waits for one that failed
                event.set()
            raise

    run_in_threads(count, work_or_release)
    assert lengths_by_thread == {number: [10 + number] * 6 for number in range(count)}
    gc.collect()
    assert [reference() for reference in references] == [None] * count


@torch.no_grad()
def test_many_recordings_in_many_threads_restore_torch() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(number: int) -> None:
        layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        x = torch.randn(1, 5 + number, 8)
        for turn in range(8):
            with record(layer) as recording:
                layer(x, x, x, need_weights=bool(turn % 2))
            assert num_queries(recording) == [5 + number]
            with override_sdpa():
                layer(x, x, x)
            with patch(layer, {(0, 1): zero_ablate}):
                layer(x, x, x, need_weights=False)

    try:
        run_in_threads(4, work)
    finally:
        sys.setswitchinterval(before)


def test_overrides_nest_and_end_in_any_order() -> None:
    class Owner:
        name = staticmethod(lambda x: [x])

    def appending(label: str) -> Callable[..., Any]:
        return lambda function, x: [*function(x), label]

    original = Owner.name
    first, second = ExitStack(), ExitStack()
    first.enter_context(override_function(Owner, "name", appending("first")))
    second.enter_context(override_function(Owner, "name", appending("second")))
    assert Owner.name("x") == ["x", "first", "second"]
    assert original_function(Owner.name) is original
    first.close()
    assert Owner.name("x") == ["x", "second"]
    run_in_threads(1, lambda _: pytest.fail("overridden elsewhere") if Owner.name("x") != ["x"] else None)
    second.close()
    assert Owner.name is original
