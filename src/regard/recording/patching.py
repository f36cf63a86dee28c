"""Run a model with some heads patched: ablated, averaged, or with other attention weights.

A patch is a function from a `HeadCall`, one head in one call, to the new output of the head.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from regard.attention import AttentionOptions, attention
from regard.errors import ArgumentError
from regard.hooks import disable_hooks
from regard.recording import argument_checks
from regard.recording.adapters.captured_call import CapturedCall
from regard.recording.interceptor import OutputHook, intercept_attention
from regard.recording.module_tracker import ModuleTracker, force_eager, matches_layer
from regard.recording.recorded_call import RecordedCall, canonicalize_call

__all__ = [
    "HeadCall",
    "HeadPatch",
    "mean_ablate",
    "override_options",
    "patch",
    "replace_weights",
    "shift_attention",
    "uniform_attention",
    "zero_ablate",
]


def __dir__() -> list[str]:
    return sorted(__all__)


@dataclass(frozen=True, eq=False)
class HeadCall:
    """One head in one call: `call` with q (batch, 1, n_q, head_dim), and `output` (batch, 1, n_q, v_dim)."""

    call: RecordedCall
    output: Tensor


HeadPatch = Callable[[HeadCall], Tensor]
"""A function that returns the new output of a head."""

MAX_SHIFT = 2**31


def zero_ablate(head: HeadCall) -> Tensor:
    """Patch: replace the output of the head with zeros.

    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(layer, {(0, 3): zero_ablate}):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x))
    False
    """
    return torch.zeros_like(head.output)


def mean_ablate(head: HeadCall) -> Tensor:
    """Patch: replace the output of every query with the mean over all queries of the same text.

    The mean includes later queries, also under a causal mask. It is not the mean over a dataset.

    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(layer, {(0, 3): mean_ablate}):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x))
    False
    """
    return head.output.mean(-2, keepdim=True).expand_as(head.output)


def uniform_attention(head: HeadCall) -> Tensor:
    """Patch: give equal weights to all keys that a query may attend to.

    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(layer, {(0, 3): uniform_attention}):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x))
    False
    """
    call = head.call
    options = {name: call.options[name] for name in ("mask", "query_offset")}
    return _run_attention(torch.zeros_like(call.q), call.k, call.v, options)


def shift_attention(offset: int) -> HeadPatch:
    """Return a patch that moves all weights to keys `offset` positions later; weights beyond the end are dropped.

    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(layer, {(0, 3): shift_attention(-1)}):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x))
    False
    """
    offset = argument_checks.integer(offset, "offset", -MAX_SHIFT, MAX_SHIFT)

    def shift(head: HeadCall) -> Tensor:
        v = head.call.v.roll(-offset, dims=2)
        v[:, :, slice(-offset, None) if offset > 0 else slice(0, -offset)] = 0.0
        return _run_attention(head.call.q, head.call.k, v if offset else head.call.v, head.call.options)

    return shift


def override_options(**options: Unpack[AttentionOptions]) -> HeadPatch:
    """Return a patch that computes the head with other options of `regard.attention`, such as mask or score.

    >>> from regard import mask
    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(layer, {(0, 3): override_options(mask=mask.causal())}):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x))
    False
    """
    return lambda head: _run_attention(head.call.q, head.call.k, head.call.v, {**head.call.options, **options})


def replace_weights(weights: Tensor) -> HeadPatch:
    """Return a patch that uses these weights, of shape (n_q, n_k), (1, n_q, n_k) or (batch, 1, n_q, n_k).

    >>> layer = nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(layer, {(0, 3): replace_weights(torch.eye(10))}):
    ...     y = layer(x)
    >>> torch.allclose(y, layer(x))
    False
    """
    argument_checks.tensor(weights, "weights", 2)

    def apply_weights(head: HeadCall) -> Tensor:
        shape = (*head.output.shape[:3], head.call.k.shape[2])
        try:
            rows = weights.to(head.call.v.dtype).expand(shape)
        except RuntimeError:
            raise ArgumentError(
                f"weights must be broadcastable to shape {shape}; got shape {tuple(weights.shape)}."
            ) from None
        return rows @ head.call.v

    return apply_weights


def _run_attention(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> Tensor:
    with disable_hooks():
        return attention(q, k, v, **options)


def _check_patches(patches: Any) -> dict[tuple[int | str, int], HeadPatch]:
    """Return the patches if they are functions by (layer, head)."""
    if not isinstance(patches, Mapping) or not all(isinstance(key, tuple) and len(key) == 2 for key in patches):
        raise ArgumentError(
            "patches must be a dict of functions by (layer, head), as in {(0, 3): zero_ablate}; "
            f"got {argument_checks.describe(patches)}."
        )
    return {
        (argument_checks.layer_selector(layer), argument_checks.integer(head, "head", 0)): argument_checks.function(
            patch_head, "a patch"
        )
        for (layer, head), patch_head in patches.items()
    }


def _apply_patch(patch_head: HeadPatch, head: HeadCall) -> Tensor:
    output = patch_head(head)
    if not isinstance(output, Tensor) or output.shape != head.output.shape:
        raise ArgumentError(
            f"a patch must return a tensor of shape {tuple(head.output.shape)}; got {argument_checks.describe(output)}."
        )
    return output


@contextmanager
def patch(model: nn.Module, patches: Mapping[tuple[int | str, int], HeadPatch]) -> Iterator[None]:
    """Run the model with patched heads inside the `with` block.

    Args:
        model: any PyTorch model that `regard.record` can record.
        patches: from (layer, head) to a patch. A layer is an index or a path, as in `regard.record`.

    >>> from regard.recording.patching import zero_ablate
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(model, {(1, 3): zero_ablate}):
    ...     y = model(x)
    >>> torch.allclose(y, model(x))
    False
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module; got {argument_checks.describe(model)}.")
    patches = _check_patches(patches)
    tracker, applied = ModuleTracker(model), set()

    def on_call(captured: CapturedCall) -> OutputHook | None:
        path, index = tracker.locate(captured)
        layer_patches = {key: function for key, function in patches.items() if matches_layer(key[0], index, path)}
        if not layer_patches:
            return None
        if captured.replace_output is None and captured.source != "regard":
            raise ArgumentError(
                f"{path} must return the output of each head to be patched; {captured.source} does not. "
                "Call the layer with need_weights=False."
            )

        def on_output(output: Tensor) -> Tensor:
            q, k, v, options = canonicalize_call(captured.make_arguments())
            call = RecordedCall(q, k, v, options, None, captured.source)
            new_output = output.clone()
            heads = new_output.view(*q.shape[:3], output.shape[-1])
            for (layer, head), patch_head in layer_patches.items():
                if not 0 <= head < q.shape[1]:
                    raise ArgumentError(f"heads of {path} must be from 0 to {q.shape[1] - 1}; got {head}.")
                kv_head = head // (q.shape[1] // k.shape[1])
                head_call = RecordedCall(
                    q[:, head : head + 1],
                    k[:, kv_head : kv_head + 1],
                    v[:, kv_head : kv_head + 1],
                    call.reindex_options({"h": [head]}),
                    None,
                    captured.source,
                )
                head_output = heads[:, head : head + 1].clone()
                heads[:, head : head + 1] = _apply_patch(patch_head, HeadCall(head_call, head_output))
                applied.add((layer, head))
            return new_output

        return on_output

    with force_eager(model), tracker.track(), intercept_attention(model, on_call, allow_fused=False):
        yield
    unused = [key for key in patches if key not in applied]
    if unused:
        known = ", ".join(f"{index} ({path})" for path, index in tracker.attention_modules.items()) or "none"
        raise ArgumentError(f"patched layers must be among those that called attention: {known}; got {unused[0][0]!r}.")
