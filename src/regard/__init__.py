"""regard: attention as one exact definition, planned, explained, differentiable, in linear memory.

The way of a call: `attention` reads a question (`spec`), decides how to answer it (`plan`), lets an engine compute
it (`engine`) and hands it back (`result`). Masks, scores, weighings and measures are in the modules of those names.
"""

from importlib import import_module
from types import ModuleType

from regard import cost, distributed, errors, measure, nn
from regard import operators as operators  # graphs need them registered
from regard.attention import attend, attention, engines, explain
from regard.engine.merge import merge
from regard.explorer import look
from regard.inside.patch import patch
from regard.inside.record import record
from regard.inside.tape import Tape, load_tape
from regard.integrations.torch_sdpa import replacing_sdpa, scaled_dot_product_attention
from regard.mechanism.catalogue import mechanisms
from regard.mechanism.compare import compare
from regard.packed import attention_packed
from regard.plan.recent import clear_caches
from regard.result import Attended
from regard.spec import feature, mask, score, weigh
from regard.worked.steps import Steps, steps

__all__ = [
    "Attended",
    "Steps",
    "Tape",
    "attend",
    "attention",
    "attention_packed",
    "clear_caches",
    "compare",
    "cost",
    "distributed",
    "engines",
    "errors",
    "explain",
    "feature",
    "load_tape",
    "look",
    "mask",
    "measure",
    "mechanisms",
    "merge",
    "nn",
    "patch",
    "record",
    "replacing_sdpa",
    "scaled_dot_product_attention",
    "score",
    "steps",
    "theory",
    "weigh",
]


def __getattr__(name: str) -> ModuleType:
    """`regard.theory` draws; it is imported when somebody asks for it, and `regard.draw` with it."""
    if name == "theory":
        return import_module("regard.theory")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
