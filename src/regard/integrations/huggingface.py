"""Hugging Face's models answered by regard: `attn_implementation="regard"`, with masks that stay formulas.

transformers asks a backend for two things: a mask, made once a forward pass, and the attention itself, once a layer.
Its masks are functions of positions, as FlexAttention's are, so they are read as formulas and never written out.

Models have one of two ways to say "causal". Those that run on "sdpa" may hand over no mask, and the layer says it. The
others hand over numbers to add, as for "eager", and no mask hides nothing. The backend's name in the configuration of
such a model, all that its layers can read, is "regard" as a `MadeForEager`.
"""

import inspect
import math
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regard.attention import attend, attention
from regard.errors import MissingError, SpecError, TraceError
from regard.spec import mask, score, weigh
from regard.spec.mask import Mask
from regard.spec.term import Term

NAME = "regard"


class MadeForEager(str):
    """The backend's name, for a model that expects masks as "eager" gets them."""


def _is_made_for_eager(config: Any) -> bool:
    return isinstance(getattr(config, "_attn_implementation", None), MadeForEager)


def register() -> None:
    """From here on `attn_implementation="regard"` is one that transformers knows; a second call changes nothing.

    A model that computes its attention itself, and asks no backend, warns when it is made and runs as "eager".

    >>> from transformers import LlamaConfig, LlamaModel
    >>> register()
    >>> sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    >>> model = LlamaModel(LlamaConfig(**sizes, attn_implementation="regard"))
    >>> model(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
    torch.Size([1, 3, 16])
    """
    _parts.update({name: _imported(name) for name in ("modeling_utils", "masking_utils", "utils.output_capturing")})
    _parts["modeling_utils"].AttentionInterface.register(NAME, answer)
    _parts["masking_utils"].AttentionMaskInterface.register(NAME, make_mask)
    _watch(_parts["modeling_utils"].PreTrainedModel)


_parts: dict[str, Any] = {}  # of transformers, kept because torch.compile does not follow an import


def _imported(name: str) -> Any:
    """A module of transformers, imported by name so that mypy does not read the whole library."""
    try:
        return import_module(f"transformers.{name}")
    except ImportError as error:
        raise MissingError(
            f"regard.integrations.huggingface must have transformers 5; got: {error}. "
            "Install it with pip install 'regard[hf]'."
        ) from None


@dataclass
class _Kept:
    """What a mask is: a formula, or the numbers once they were asked for."""

    seen: Mask | Tensor
    make: Callable[[], Tensor]

    def numbers(self) -> Tensor:
        if not isinstance(self.seen, Tensor):
            self.seen = self.make()
        return self.seen


class FormulaMask(Tensor):
    """A mask (batch, 1, n_q, n_k), boolean or of floats to add, of which only the formula is kept.

    A torch operation that needs its numbers makes the tensor it stands for. From then on that tensor is the mask, since
    whoever has numbers may change them.
    """

    kept: _Kept

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's way to say none

    @staticmethod
    def __new__(
        cls, kept: _Kept, shape: tuple[int, ...], device: Any, dtype: torch.dtype = torch.bool
    ) -> "FormulaMask":
        made: FormulaMask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made.kept = kept
        return made

    def __init__(self, *_: Any) -> None:
        """Tensors are made by `__new__` alone."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no annotations
        return f"FormulaMask({self.kept.seen}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch annotates the one that is turned off
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.alias.default, torch.ops.aten.detach.default):  # a slice of all is an alias
            return cls(args[0].kept, tuple(args[0].shape), args[0].device, args[0].dtype)
        args, kwargs = tree_map_only(FormulaMask, lambda given: given.kept.numbers(), (args, kwargs or {}))
        return function(*args, **kwargs)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """What transformers' `sdpa_mask` or `eager_mask` makes of these arguments, as a formula: None, or a mask that takes
    O(n) bytes.

    None means what it means there: all is seen, or for models that run on "sdpa", causal if the layer says so. A
    function that cannot be read as a formula gives the tensor itself, and so do a single query, whose row is no larger
    than the padding, and a graph that is being compiled.
    """
    masking = _parts["masking_utils"]
    for_eager = _is_made_for_eager(others.get("config"))
    if for_eager:
        others["allow_is_causal_skip"] = False
    function = masking.causal_mask_function if mask_function is None else mask_function
    asked = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset)
    write = masking.eager_mask if for_eager else masking.sdpa_mask
    written = partial(write, **asked, mask_function=function, attention_mask=attention_mask)
    if torch.compiler.is_compiling():
        return written(**others)  # type: ignore[no-any-return]  # mypy does not read transformers
    if q_length == 1:
        row: Tensor | None = written(**others)
        if row is None or not (for_eager or any(_skips(others))):
            return row
        return None if bool((row == 0).all() if for_eager else row.all()) else row
    padding = masking.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None and bool(padding[:, kv_offset : kv_offset + kv_length].all()):
        padding = None
    if padding is None and _needs_no_mask(q_length, kv_length, others):
        return None
    dense = partial(written, **(others | dict.fromkeys(_SKIPS, False)))
    is_aligned = q_offset - kv_offset == kv_length - q_length
    if padding is None and is_aligned and function is masking.causal_mask_function:
        seen = mask.causal()
    else:
        try:
            seen = _read(function, padding, int(q_offset), kv_offset)
        except TraceError:
            return dense()  # type: ignore[no-any-return]  # mypy does not read transformers
    dtype = others.get("dtype", torch.float32) if for_eager else torch.bool
    return FormulaMask(_Kept(seen, dense), (batch_size, 1, q_length, kv_length), others.get("device", "cpu"), dtype)


_SKIPS = {"allow_is_causal_skip": True, "allow_is_bidirectional_skip": False}  # and what they are if nobody says


def _skips(others: dict[str, Any]) -> tuple[bool, bool]:
    """Whether None may stand for a causal mask, and for one that hides nothing."""
    causal, bidirectional = (bool(others.get(name, usual)) for name, usual in _SKIPS.items())
    return causal, bidirectional


def _needs_no_mask(q_length: int, kv_length: int, others: dict[str, Any]) -> bool:
    """Whether None says it all where no key is padding; a window or a chunk as long as the keys would be lost."""
    causal, bidirectional = _skips(others)
    is_local = others.get("local_size") is not None and kv_length >= others["local_size"]
    return not is_local and (bidirectional or (causal and q_length == kv_length))


def _read(function: Callable[..., Any], padding: Tensor | None, q_offset: int, kv_offset: int) -> Mask:
    """A mask function of transformers, which speaks of positions in the whole text, as one of queries and keys."""

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        # transformers asks about the first head alone, and takes the answer for all
        found = function(b, h.new_zeros(()), i + q_offset, j + kv_offset)
        return found if padding is None else found & padding[b, j + kv_offset]

    made = mask.where(seen)
    if made.tensors:
        return made
    first = _made_first(made.term)
    first[:] = first or [made]
    return first[0]


@lru_cache(maxsize=64)
def _made_first(term: Term) -> list[Mask]:
    """The mask that was first made of a formula: a call that was answered before is recognised by its mask."""
    return []


def answer(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """One layer's attention as transformers asks for it: the output (batch, n_q, heads, width), and the weights.

    query is (batch, heads, n_q, width), key and value have as many heads or fewer. A mask is boolean, or numbers to
    add; None is causal if the layer or the call says so, and hides nothing in a model made for "eager". The score is
    capped (`softcap`), then `position_bias` is added; `s_aux` has a sink's logit for each head. The weights (batch,
    heads, n_q, n_k) are None unless the model was asked for `output_attentions`, and are those before dropout.
    """
    asked = question(
        module, query, key, value, attention_mask, scaling, is_causal, position_bias, softcap, s_aux, **others
    )
    if not _wants_weights(others):
        return attention(**asked, dropout=dropout).transpose(1, 2).contiguous(), None
    attended = attend(**asked, dropout=dropout)
    weights = attended.weights[...]
    if s_aux is None:  # a mask that adds the least float leaves a row's scores too far from 0 for its lse to tell
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total == 0, 1.0, total)
    return attended.output.transpose(1, 2).contiguous(), weights.to(query.dtype)


def question(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> dict[str, Any]:
    """What `attention` is to be asked in place of a layer's call without dropout: its arguments by name."""
    _refuse(module, others)
    if torch.is_autocast_enabled(query.device.type):  # transformers' own backends run in autocast's precision
        exact = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(exact) if x.dtype != torch.float64 else x for x in (query, key, value))
    n_q, n_k = query.shape[-2], key.shape[-2]
    seen: Any = _fitting(attention_mask, (query.shape[0], 1, n_q, n_k))
    start, added = None, [position_bias]
    if attention_mask is None and not _is_made_for_eager(getattr(module, "config", None)):
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and n_q > 1:
            seen = mask.causal()
            start = None if n_q == n_k else 0  # without a mask nothing came before the first query
    elif isinstance(seen, Tensor) and seen.dtype != torch.bool:
        seen, added = None, [position_bias, seen]
    return {
        "q": query,
        "k": key,
        "v": value,
        "score": _score(query.shape[-1], scaling, softcap, added),
        "mask": seen,
        "weigh": None if s_aux is None else weigh.sink(s_aux.reshape(-1)),
        "start": start,
    }


def _refuse(module: Any, others: dict[str, Any]) -> None:
    """Say no where keys are chosen by their number: a backend that does not look would attend to all of them."""
    other = "eager" if _is_made_for_eager(getattr(module, "config", None)) else "sdpa"
    for name in ("indices", "block_indices", "cache"):
        if others.get(name) is not None:
            raise SpecError(
                f"a layer must hand over its keys and a mask; {type(module).__name__} also gave {name}, which regard "
                f"does not read. Load this model with attn_implementation={other!r}."
            )


def _fitting(given: Tensor | None, shape: tuple[int, ...]) -> Mask | Tensor | None:
    """The formula of a mask that was made for this call; any other mask as the tensor it is."""
    if isinstance(given, FormulaMask):
        return given.kept.seen if tuple(given.shape) == shape else given.kept.numbers()
    if given is not None and given.dtype != torch.bool and not given.is_floating_point():
        raise SpecError(
            f"a mask must be boolean, True meaning may attend, or hold floats to add; got {given.dtype}. "
            "Give attention_mask.bool() where 1 means may attend."
        )
    return given


def _score(width: int, scaling: float | Tensor | None, softcap: float | None, added: list[Tensor | None]) -> Any:
    """The score that a layer asks for; None for q·k/√d, which is recognised when it comes again."""
    rules: list[Any] = [] if softcap is None else [score.softcap(softcap)]
    rules += [score.bias(values) for values in added if values is not None]
    usual = scaling is None or (not isinstance(scaling, Tensor) and math.isclose(scaling, width**-0.5, rel_tol=1e-12))
    if usual and not rules:
        return None
    chosen: Any = score.scaled_dot(None if usual else scaling)
    for rule in rules:
        chosen = chosen.then(rule)
    return chosen


def _wants_weights(others: dict[str, Any]) -> bool:
    """Whether the caller asked for attentions: in the call itself, or of a model that records what its layers give."""
    if others.get("output_attentions"):
        return True
    collected = _parts["utils.output_capturing"]._active_collector.get()
    return any(key.endswith("attentions") for key in collected or ())


_warned: set[type] = set()


def _watch(model: Any) -> None:
    """A model that cannot run on regard says so when it is made, and gets the masks that its own attention needs."""
    original = model.get_correct_attn_implementation
    if hasattr(original, "watched_by_regard"):
        return

    @wraps(original)
    def checked(self: Any, requested_attention: str | None, is_init_check: bool = False) -> Any:
        kind: Any = type(self)
        if requested_attention == NAME and not _asks_a_backend(kind, model):
            _warn(kind)
            requested_attention = "eager"
        if requested_attention == NAME:
            requested_attention = NAME if kind._supports_sdpa else MadeForEager(NAME)
        return original(self, requested_attention, is_init_check)

    checked.watched_by_regard = True  # type: ignore[attr-defined]  # a mark on a function
    model.get_correct_attn_implementation = checked


def _warn(kind: type) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{kind.__name__} computes its attention itself and asks no backend, so regard cannot answer it; "
            "it runs with attn_implementation='eager'.",
            UserWarning,
            stacklevel=_frames_up(),
        )


def _frames_up() -> int:
    """How far away the line is that made the model: the first that is neither here nor in transformers."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("regard", "transformers"):
        frame, level = frame.f_back, level + 1
    return level


@lru_cache(maxsize=256)
def _asks_a_backend(kind: type, model: type) -> bool:
    """Whether a model's files look its attention up among transformers' backends, or have no attention of their own.

    A table of classes by the name of the backend has none for this one. A file that cannot be read gets the benefit of
    the doubt.
    """
    modules = {c.__module__: sys.modules.get(c.__module__) for c in kind.__mro__ if issubclass(c, model)}
    modules.pop(model.__module__, None)
    texts = [_source(module) for module in modules.values()]
    if any(re.search(r"_CLASSES\[[\w.]*config\._attn_implementation\]", text) for text in texts):
        return False
    if any("ALL_ATTENTION_FUNCTIONS" in text for text in texts):
        return True
    return not any(re.search(r"^class \w*Attention\w*\(", text, re.MULTILINE) for text in texts)


def _source(module: Any) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""
