"""`record`: run a model and record its attention calls."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ArgumentError, BudgetError, TraceError
from regard.recording import argument_checks
from regard.recording.adapters.captured_call import CapturedCall
from regard.recording.interceptor import OutputHook, intercept_attention
from regard.recording.module_tracker import ModuleTracker, force_eager, matches_layer
from regard.recording.recorded_call import copy_call
from regard.recording.recording import Recording
from regard.weights import parse_byte_count

__all__ = ["record"]

LayerSelection = int | str | Iterable[int | str]


@contextmanager
def record(
    model: nn.Module,
    *,
    layers: LayerSelection | None = None,
    heads: Iterable[int] | None = None,
    budget: str | float = "2GB",
) -> Iterator[Recording]:
    """Record every attention call that the model makes inside the `with` block.

    A recording stores q, k, v and the options of each call, not the weights. Weights are computed when they are read.
    The outputs of the model do not change.

    Args:
        model: any PyTorch model that calls torch's, Hugging Face's or regard's attention.
        layers: layers to record. An integer is an index in the order in which layers first call attention. A string
            is the path of a module, or the beginning of one. None (the default) records all layers.
        heads: indices of the heads to record. None (the default) records all heads.
        budget: memory limit, in bytes or as a string such as "2GB". Calls that exceed it are not recorded and are
            listed in `recording.dropped_calls`.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    >>> with record(model) as recording:
    ...     y = model(torch.randn(1, 10, 16))
    >>> recording[1].weights[0, 3].sum(-1).allclose(torch.ones(10))
    True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    recorder = _Recorder(model, layers, heads, parse_byte_count(budget), budget)
    with force_eager(model), recorder.module_tracker.track(), intercept_attention(model, recorder.on_call):
        yield recorder.recording
    recorder.check_selection()


class _Recorder:
    """Copies the selected calls into a recording until the budget is used up."""

    def __init__(self, model: nn.Module, layers: Any, heads: Any, budget: int, budget_text: Any) -> None:
        self.module_tracker = ModuleTracker(model)
        self.layer_selectors = None if layers is None else argument_checks.layer_selectors(layers)
        self.heads = None if heads is None else argument_checks.integers(heads, "heads", 0)
        if self.heads is not None and (not self.heads or len(set(self.heads)) != len(self.heads)):
            raise ArgumentError(f"heads must be one or more different integers, or None for all; got {self.heads}.")
        self.budget, self.budget_text, self.bytes_used = budget, budget_text, 0
        self.tensor_copies: dict[Any, tuple[Tensor, Tensor]] = {}  # tensors of masks and scores, and their copies
        self.recording = Recording()

    def on_call(self, captured: CapturedCall) -> OutputHook | None:
        """Record a call; return a hook that records the gradient of its output."""
        path, index = self.module_tracker.locate(captured)
        if not self._is_selected(index, path):
            return None
        try:
            with torch.no_grad():
                call = copy_call(captured.make_arguments(), self.heads, self._copy_once, captured.source)
        except TraceError as error:
            self.recording.dropped_calls.append(f"layer {index}, {path}: its options cannot be recorded: {error}")
            return None
        num_bytes = sum(x.nbytes for x in (call.q, call.k, call.v))
        self._check_budget(num_bytes, call.q.shape[1], path)
        if self.bytes_used + num_bytes + self._option_bytes() > self.budget:
            self.recording.dropped_calls.append(
                f"layer {index}, {path}: needs {num_bytes:,} bytes, and {self.bytes_used:,} bytes of the budget of "
                f"{self.budget_text} are used. Record fewer layers or heads, or increase budget."
            )
            return None
        layer = self.recording.get_or_add_layer(path, index, self.heads)
        self.bytes_used += layer.add(call)

        def store_gradient(gradient: Tensor) -> None:
            d_output = gradient.detach().reshape(call.q.shape[0], -1, call.q.shape[2], gradient.shape[-1])
            call.d_output = d_output if self.heads is None else d_output[:, self.heads]

        def on_output(output: Any) -> Any:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(store_gradient)
            return output

        return on_output

    def _is_selected(self, index: int, path: str) -> bool:
        return self.layer_selectors is None or any(
            matches_layer(selector, index, path) for selector in self.layer_selectors
        )

    def _copy_once(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor that a mask or a score indexes; layers share it until the tensor changes."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._version)
        if key not in self.tensor_copies:
            # the original is stored too: otherwise its memory, and so its key, could be reused by another tensor
            self.tensor_copies[key] = (tensor, tensor.detach().clone())
        return self.tensor_copies[key][1]

    def _option_bytes(self) -> int:
        return sum(copy.nbytes for _, copy in self.tensor_copies.values())

    def _check_budget(self, num_bytes: int, num_heads: int, path: str) -> None:
        if num_bytes // max(num_heads, 1) > self.budget:
            raise BudgetError(
                f"budget must be enough for one head; a head of {path} needs {num_bytes // num_heads:,} bytes; got "
                f"budget={self.budget_text}. Use budget={-(-num_bytes // num_heads)} or more, or a shorter input."
            )

    def check_selection(self) -> None:
        """Raise `ArgumentError` unless attention was called, in every selected layer."""
        attention_modules = self.module_tracker.attention_modules
        if not attention_modules:
            raise ArgumentError(
                f"{self.module_tracker.model_class_name} must call attention while it is recorded; no call was "
                "recorded. Run the model inside the `with` block. A model that computes softmax(q kᵀ) itself cannot be "
                "recorded: use torch.nn.functional.scaled_dot_product_attention or regard.attention in it."
            )
        missing = [
            selector
            for selector in self.layer_selectors or ()
            if not any(matches_layer(selector, index, path) for path, index in attention_modules.items())
        ]
        if missing:
            known = ", ".join(f"{index} ({path})" for path, index in attention_modules.items())
            raise ArgumentError(f"layers must be among those that called attention: {known}; got {missing[0]!r}.")
