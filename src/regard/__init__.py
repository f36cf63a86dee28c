"""regard: exact, differentiable attention in memory linear in the sequence length.

`attention(q, k, v, score=, mask=, normalizer=)` is the one definition; every backend computes it, and `explain` shows
the plan of a call. Options are in `regard.score`, `regard.mask`, `regard.normalizer` and `regard.feature_map`;
reductions of the attention weights are in `regard.measure`.

>>> import regard, torch
>>> q = k = v = torch.randn(2, 8, 128, 64)
>>> regard.attention(q, k, v, mask=regard.mask.causal()).shape
torch.Size([2, 8, 128, 64])
"""

from importlib import import_module
from types import ModuleType

from regard.torch_ops.private_names import check_private_names

check_private_names()  # before a module uses one of the names

from regard import (
    cost,
    distributed,
    errors,
    feature_map,
    integrations,
    mask,
    measure,
    mechanisms,
    nn,
    normalizer,
    score,
)
from regard.attention import attention, attention_with_weights, explain
from regard.backends.registry import available_backends
from regard.backends.shared.merge import merge_states
from regard.cache import clear_caches
from regard.explorer import explore
from regard.integrations.torch_sdpa import override_sdpa, scaled_dot_product_attention
from regard.mechanisms.comparison import compare
from regard.recording.patching import patch
from regard.recording.recorder import record
from regard.recording.recording import Recording, load_recording
from regard.result import AttentionResult
from regard.torch_ops import operator as operator  # registers regard::attention for torch.compile
from regard.varlen import attention_varlen
from regard.walkthrough.steps import Steps, steps

__all__ = [
    "AttentionResult",
    "Recording",
    "Steps",
    "attention",
    "attention_varlen",
    "attention_with_weights",
    "available_backends",
    "clear_caches",
    "compare",
    "cost",
    "distributed",
    "errors",
    "explain",
    "explore",
    "feature_map",
    "integrations",
    "load_recording",
    "mask",
    "measure",
    "mechanisms",
    "merge_states",
    "models",
    "nn",
    "normalizer",
    "override_sdpa",
    "patch",
    "plot",
    "record",
    "scaled_dot_product_attention",
    "score",
    "steps",
    "theory",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> ModuleType:
    """Import these modules on first use: they load plotting libraries and models."""
    if name in ("models", "plot", "theory"):
        return import_module(f"regard.{name}")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
