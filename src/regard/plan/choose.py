"""Choose the backend of a spec: the first that supports it. The plan explains why the others do not run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from regard.backends.protocol import Backend
from regard.cache import memoize
from regard.call.spec import CallSpec
from regard.checks import describe
from regard.errors import BackendError
from regard.expr.tile_coverage import TileCoverage
from regard.plan.report import CostEstimate, estimate_cost, format_plan
from regard.plan.tiling import Tiling, static_call_coverage

EXPLICIT_ONLY_REASON = "it stores every score, so it runs only if it is requested by name"
_FIX = "Leave backend=None to let another backend run it, or change the call."


@dataclass(frozen=True)
class Plan:
    """How a call runs: the backend, its tiles, and why the other backends do not run. Print it to read it.

    Attributes:
        spec: The shapes, dtype, mask, score and normalizer of the call.
        backend: The name of the backend. In the result of a call it is the backend that ran.
        tiling: The tile sizes.
        has_linear_memory: Whether the backend needs O(n) memory.
        variant: The build of the backend, such as its instruction set.
    """

    spec: CallSpec
    backend: str
    tiling: Tiling
    has_linear_memory: bool
    variant: str = ""
    candidates: tuple[Backend, ...] = field(default=(), repr=False)  # the backends among which this one was chosen
    is_requested: bool = False  # by name
    fallback_reasons: Mapping[str, str] = field(default_factory=dict, hash=False)  # of backends that failed on the data
    known_coverage: TileCoverage | None = field(default=None, compare=False, repr=False)

    @cached_property
    def unsupported_reasons(self) -> Mapping[str, tuple[str, ...]]:
        """For each backend, why it does not run the call; empty if it could."""
        reasons = {b.name: _reasons(b, self.spec, self.is_requested) for b in self.candidates}
        reasons |= {name: (reason,) for name, reason in self.fallback_reasons.items()}
        return MappingProxyType(reasons)

    @property
    def coverage(self) -> TileCoverage | None:
        """The nonempty tiles of the mask; None if they depend on tensors that the plan does not have."""
        return self.known_coverage or static_call_coverage(self.spec, self.tiling)

    @property
    def cost(self) -> CostEstimate:
        """The predicted floating-point operations, bytes moved and extra memory."""
        return estimate_cost(self.spec, self.tiling, self.has_linear_memory, self.coverage)

    def with_coverage(self, coverage: TileCoverage) -> "Plan":
        """Return the plan with the nonempty tiles of the mask."""
        return replace(self, known_coverage=coverage)

    def after_fallback(self, backend: Backend, reason: str) -> "Plan":
        """The plan of a call that ran on `backend` because the planned backend did not support the data."""
        return replace(
            self,
            backend=backend.name,
            tiling=backend.tiling(self.spec),
            has_linear_memory=backend.has_linear_memory(self.spec),
            variant=backend.variant,
            fallback_reasons={**self.fallback_reasons, self.backend: reason},
        )

    def report(self, debug: bool = False) -> str:
        """Return the plan as text; with `debug`, also the sizes of regard's caches."""
        return format_plan(
            self.spec,
            self.backend,
            self.variant,
            self.tiling,
            self.unsupported_reasons,
            self.cost,
            self.coverage,
            debug,
        )

    def __str__(self) -> str:
        return self.report()


def choose_backend(spec: CallSpec, backends: Sequence[Backend], name: str | None = None) -> Plan:
    """Plan a spec on the backend with this name, or on the first of `backends` that supports it.

    A backend that stores every score is chosen only by name. A backend chosen by name must support the spec, else a
    BackendError is raised. If only the data of a call turn out to be unsupported, the backend's fallback runs, and the
    plan of the result says so.
    """
    if name is not None and not isinstance(name, str):  # other types may not be hashable
        raise BackendError(f"backend must be one of {', '.join(b.name for b in backends)}; got {describe(name)}.")
    plan = _choose(spec, tuple(backends), name)
    return plan if plan.spec is spec else replace(plan, spec=spec)  # an equal spec may have another formula text


@memoize(512)
def _choose(spec: CallSpec, backends: tuple[Backend, ...], name: str | None) -> Plan:
    candidates = [b for b in backends if name in (None, b.name)]
    if not candidates:
        raise BackendError(f"backend must be one of {', '.join(b.name for b in backends)}; got {name!r}.")
    for chosen in candidates:
        if not _reasons(chosen, spec, name is not None):
            linear = chosen.has_linear_memory(spec)
            return Plan(spec, chosen.name, chosen.tiling(spec), linear, chosen.variant, backends, name is not None)
    if name is not None:
        raise BackendError(
            f"backend {name!r} does not support this call: {'; '.join(candidates[0].unsupported_reasons(spec))}. {_FIX}"
        )
    reasons = "; ".join(f"{b.name}: {reason}" for b in backends for reason in _reasons(b, spec, False))
    raise BackendError(f"no backend supports this call: {reasons}. {_FIX}")


def _reasons(backend: Backend, spec: CallSpec, is_requested: bool) -> tuple[str, ...]:
    """Why a backend does not run a spec."""
    reasons = backend.unsupported_reasons(spec)
    return reasons if is_requested or backend.has_linear_memory(spec) else (EXPLICIT_ONLY_REASON, *reasons)
