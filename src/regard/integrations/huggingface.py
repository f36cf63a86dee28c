"""Hugging Face's models on regard: `attn_implementation="regard"`, with masks that stay formulas.

transformers calls a backend for two things: a mask, made once a forward pass, and the attention itself, once a layer.
Its masks are functions of positions, as FlexAttention's are, so they are traced as formulas and never written out
(`huggingface_masks`).
"""

import inspect
import math
import re
import sys
import warnings
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from regard.attention import attend, attention
from regard.errors import SpecError
from regard.integrations.huggingface_masks import FormulaMask, MadeForEager, fitting, is_made_for_eager, make_mask
from regard.integrations.transformers_modules import load, modules
from regard.spec import mask, score, weigh

__all__ = ["FormulaMask", "MadeForEager", "answer", "make_mask", "question", "register"]

NAME = "regard"


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
    load("modeling_utils", "masking_utils", "utils.output_capturing")
    modules["modeling_utils"].AttentionInterface.register(NAME, answer)
    modules["masking_utils"].AttentionMaskInterface.register(NAME, make_mask)
    _watch(modules["modeling_utils"].PreTrainedModel)


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
    seen: Any = _readable(attention_mask, (query.shape[0], 1, n_q, n_k))
    start, added = None, [position_bias]
    if attention_mask is None and not is_made_for_eager(getattr(module, "config", None)):
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
    other = "eager" if is_made_for_eager(getattr(module, "config", None)) else "sdpa"
    for name in ("indices", "block_indices", "cache"):
        if others.get(name) is not None:
            raise SpecError(
                f"a layer must hand over its keys and a mask; {type(module).__name__} also gave {name}, which regard "
                f"does not read. Load this model with attn_implementation={other!r}."
            )


def _readable(given: Tensor | None, shape: tuple[int, ...]) -> Any:
    """The mask of a call: a formula, a tensor of booleans or floats, or None."""
    if given is not None and given.dtype != torch.bool and not given.is_floating_point():
        raise SpecError(
            f"a mask must be boolean, True meaning may attend, or hold floats to add; got {given.dtype}. "
            "Give attention_mask.bool() where 1 means may attend."
        )
    return fitting(given, shape)


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
    collected = modules["utils.output_capturing"]._active_collector.get()
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
