"""Hooks on attention calls: they receive the `AttentionCall` as the caller passed it, and may replace the output."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.call.attention_call import AttentionCall
from regard.hooks import disable_hooks, install_hook


def recorder(calls: list[AttentionCall], change: Callable[[Any], Any] = lambda output: output) -> Any:
    """A hook that appends each call to `calls`."""

    def hook(call: AttentionCall) -> Callable[[Any], Any]:
        calls.append(call)
        return change

    return hook


def output_of(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result.output


@pytest.mark.parametrize("function", [regard.attention, regard.attention_with_weights], ids=lambda f: f.__name__)
def test_hook_receives_the_arguments_as_an_attention_call(function: Callable[..., Any]) -> None:
    calls: list[AttentionCall] = []
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    options: dict[str, Any] = dict(
        score=score.softcap(2.0),
        mask=mask.causal(),
        normalizer=normalizer.softmax(),
        value=torch.tanh,
        dropout=0.5,
        seed=7,
        query_offset=1,
        backend="tiled",
    )

    with install_hook(recorder(calls)):
        function(q, k, v, **options)

    (call,) = calls
    assert isinstance(call, AttentionCall)
    assert call.q is q and call.k is k and call.v is v
    assert all(getattr(call, name) is option for name, option in options.items())


def test_arguments_left_out_have_their_defaults() -> None:
    calls: list[AttentionCall] = []
    q = torch.randn(3, 4)

    with install_hook(recorder(calls)):
        regard.attention(q, q, q)

    assert calls[0][3:] == (None, None, None, None, 0.0, None, None, None)


@pytest.mark.parametrize("function", [regard.attention, regard.attention_with_weights], ids=lambda f: f.__name__)
def test_hook_may_replace_the_output(function: Callable[..., Any]) -> None:
    q = torch.randn(3, 4)
    expected = output_of(function(q, q, q)) * 3 + 1

    with install_hook(recorder([], lambda output: output * 3)), install_hook(recorder([], lambda output: output + 1)):
        output = output_of(function(q, q, q))

    assert torch.equal(output, expected)


def test_hooks_are_called_on_the_fast_path_and_only_inside_their_context() -> None:
    calls: list[AttentionCall] = []
    q = torch.randn(1, 2, 5, 4)
    with install_hook(recorder(calls)):
        for _ in range(3):
            regard.attention(q, q, q)
        with disable_hooks():
            regard.attention(q, q, q)
    regard.attention(q, q, q)

    assert len(calls) == 3
