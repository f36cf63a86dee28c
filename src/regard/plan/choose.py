"""Which engine answers a spec: the first without objections; the others' objections are kept and shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from regard.checks import describe
from regard.errors import EngineError
from regard.plan.blocks import Tiles, blocks_without_data
from regard.plan.report import Estimate, estimate, report
from regard.spec.regions import Cover
from regard.spec.spec import Spec

ONLY_BY_NAME = "it keeps every pair in memory, so it runs only when asked for by name"


class Candidate(Protocol):
    """What planning needs to know of an engine."""

    name: str
    variant: str

    def linear_memory(self, spec: Spec) -> bool: ...

    def objections(self, spec: Spec) -> tuple[str, ...]: ...

    def tiles(self, spec: Spec) -> Tiles: ...


@dataclass(frozen=True)
class Plan:
    """How a spec is answered: the engine, its tiles, and why the other engines were passed over.

    `objections` has a tuple of sentences for every engine that is known; an empty one means it could. `cost` is
    predicted from the spec and, where it is known, the mask's cover. Print a plan to read it.
    """

    spec: Spec
    engine: str
    tiles: Tiles
    linear_memory: bool
    objections: Mapping[str, tuple[str, ...]] = field(hash=False)
    variant: str = ""  # which build of the engine
    found: Cover | None = field(default=None, compare=False, repr=False)

    @property
    def cover(self) -> Cover | None:
        """Which tiles the mask leaves; None where that depends on data the plan was made without."""
        return self.found or blocks_without_data(self.spec, self.tiles)

    @property
    def cost(self) -> Estimate:
        """Predicted floating-point operations, bytes moved and peak extra memory."""
        return estimate(self.spec, self.tiles, self.linear_memory, self.cover)

    def covering(self, found: Cover) -> "Plan":
        """The same plan, knowing which tiles the mask leaves."""
        return replace(self, found=found)

    def __str__(self) -> str:
        return report(self.spec, self.engine, self.variant, self.tiles, self.objections, self.cost, self.cover)


def choose(spec: Spec, engines: Sequence[Candidate], name: str | None = None) -> Plan:
    """The first of `engines` without an objection wins. One asked for by `name` never falls back.

    An engine that would keep every pair in memory runs only when asked for.
    """
    if name is not None and not isinstance(name, str):  # anything else may not be hashable
        raise EngineError(f"engine must be one of {', '.join(e.name for e in engines)}; got {describe(name)}.")
    chosen, objections = _chosen(spec, tuple(engines), name)
    return Plan(spec, chosen.name, chosen.tiles(spec), chosen.linear_memory(spec), objections, chosen.variant)


@lru_cache(maxsize=512)
def _chosen(
    spec: Spec, engines: tuple[Candidate, ...], name: str | None
) -> tuple[Candidate, Mapping[str, tuple[str, ...]]]:
    """The engine, and every engine's objections."""
    known = {e.name: e for e in engines}
    if name is not None and name not in known:
        raise EngineError(f"engine must be one of {', '.join(known)}; got {name!r}.")
    objections = {e.name: e.objections(spec) for e in known.values()}
    if name is not None:
        if objections[name]:
            raise EngineError(
                _sentence(f"engine {name!r} must be able to answer this, and it objects", {name: objections[name]})
            )
        chosen = known[name]
    else:
        for e in engines:
            if not e.linear_memory(spec):
                objections[e.name] = (ONLY_BY_NAME, *objections[e.name])
        willing = [e for e in engines if not objections[e.name]]
        if not willing:
            raise EngineError(_sentence("some engine must be able to answer this, and all object", objections))
        chosen = willing[0]
    return chosen, MappingProxyType(objections)


def _sentence(what: str, objections: Mapping[str, tuple[str, ...]]) -> str:
    reasons = "; ".join(f"{name}: {reason}" for name, reasons in objections.items() for reason in reasons)
    return f"{what}; got {reasons}. Leave engine=None to let another engine take it, or change the call."
