"""Choosing a backend: the first that supports the spec. The plan holds the reasons of the others."""

from dataclasses import dataclass, replace

import pytest
import torch

import regard
from regard import mask, normalizer
from regard.backends.registry import BACKENDS
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import CallSpec
from regard.errors import BackendError
from regard.plan.choose import Plan, choose_backend
from regard.plan.tiling import Tiling, call_coverage


@dataclass(eq=False)
class Stub:
    """A backend with the given reasons not to run."""

    name: str
    reasons: tuple[str, ...] = ()
    variant: str = ""
    stores_scores_on: tuple[str, ...] = ()

    def has_linear_memory(self, spec: CallSpec) -> bool:
        return spec.device not in self.stores_scores_on

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        return self.reasons

    def tiling(self, spec: CallSpec) -> Tiling:
        return Tiling(len(self.name), 8, 64)


def spec(**options: object) -> CallSpec:
    shape = (2, 4, 64, 16)
    return parse_call(AttentionCall(shape, shape, shape, **options)).spec  # type: ignore[arg-type]


FAST, SLOW, EXACT = Stub("fast"), Stub("slower"), Stub("exact", stores_scores_on=("cpu", "cuda"))
SHY = Stub("shy", ("it computes in float32", "it has no lookups"))


def test_first_supporting_backend_is_chosen() -> None:
    assert choose_backend(spec(), (FAST, SLOW)).backend == "fast"
    assert choose_backend(spec(), (SHY, SLOW, FAST)).backend == "slower"


def test_plan_has_the_tiling_and_memory_of_its_backend() -> None:
    plan = choose_backend(spec(), (SLOW, FAST, EXACT), "exact")
    assert plan.tiling == Tiling(5, 8, 64) and not plan.has_linear_memory
    assert choose_backend(spec(), (SLOW, FAST, EXACT)).has_linear_memory


def test_plan_has_the_reasons_of_every_backend() -> None:
    later = Stub("later", ("it does not support masks",))
    plan = choose_backend(spec(), (SHY, EXACT, FAST, later))
    assert plan.unsupported_reasons == {
        "shy": SHY.reasons,
        "fast": (),
        "later": ("it does not support masks",),
        "exact": ("it stores every score, so it runs only if it is requested by name",),
    }


def test_backend_that_runs_only_by_name_is_never_chosen_by_default() -> None:
    with pytest.raises(BackendError, match="no backend supports this call"):
        choose_backend(spec(), (SHY, EXACT))


def test_linear_memory_may_depend_on_the_device() -> None:
    gpu_only = Stub("there", stores_scores_on=("cpu",))
    assert choose_backend(spec(), (gpu_only, SLOW)).backend == "slower"
    assert choose_backend(replace(spec(), device="cuda"), (gpu_only, SLOW)).backend == "there"


def test_requested_backend_is_chosen_at_any_place_in_the_order() -> None:
    assert choose_backend(spec(), (FAST, SLOW, EXACT), "slower").backend == "slower"
    plan = choose_backend(spec(), (FAST, SLOW, EXACT), "exact")
    assert plan.backend == "exact" and plan.unsupported_reasons["exact"] == ()


def test_requested_backend_without_support_raises_error() -> None:
    with pytest.raises(
        BackendError,
        match=r"backend 'shy' does not support this call: it computes in float32; it has no lookups\. Leave backend=N",
    ):
        choose_backend(spec(), (SHY, FAST), "shy")


def test_unknown_backend_raises_error_with_the_known_names() -> None:
    with pytest.raises(BackendError, match=r"backend must be one of fast, slower, exact; got 'swift'\."):
        choose_backend(spec(), (FAST, SLOW, EXACT), "swift")


def test_error_without_any_supporting_backend_names_all_reasons() -> None:
    other = Stub("other", ("it does not support scores",))
    with pytest.raises(
        BackendError,
        match=r"shy: it computes in float32; shy: it has no lookups; other: it does not support scores\. Leave backend",
    ):
        choose_backend(spec(), (SHY, other))


def test_plans_of_equal_specs_are_equal() -> None:
    one, other = (choose_backend(spec(mask=mask.causal()), (FAST, SLOW)) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    assert choose_backend(spec(mask=mask.causal()), (SLOW,)) != one
    assert choose_backend(spec(), (FAST, SLOW)) != one


def test_equal_specs_have_equal_plans_on_the_backends_of_regard() -> None:
    one, other = (
        spec(mask=mask.causal() & mask.sliding_window(n), score=lambda s, b, h, i, j: s + i - j) for n in (3, 3)
    )
    plans = []
    for equal in (one, other):
        regard.clear_caches()  # plans are memoized, so the second would be the first
        plans.append(choose_backend(equal, BACKENDS))

    assert one is not other and plans[0] is not plans[1]
    assert plans[0] == plans[1] and hash(plans[0]) == hash(plans[1]) and str(plans[0]) == str(plans[1])
    assert choose_backend(other, BACKENDS) is plans[1]
    assert choose_backend(spec(mask=mask.causal() & mask.sliding_window(4)), BACKENDS) != plans[0]


def test_plan_is_a_pure_function_of_the_spec() -> None:
    """A plan depends on no tensor, clock or state, so plans can be memoized."""
    plans = {choose_backend(spec(mask=mask.sliding_window(n)), (FAST,)) for n in (3, 4, 3, 4, 3)}
    assert len(plans) == 2


def test_plan_has_the_coverage_of_a_mask_without_tensors() -> None:
    plan = choose_backend(spec(mask=mask.causal()), (Stub("12345678"),))
    assert plan.coverage is not None and plan.coverage.tile_counts == {"empty": 28, "partial": 8, "full": 28}
    assert choose_backend(spec(mask=mask.padding([3, 4])), (FAST,)).coverage is None


def test_plan_with_coverage_counts_its_tiles() -> None:
    shape = (2, 4, 64, 16)
    call = parse_call(AttentionCall(shape, shape, shape, mask=mask.padding([8, 64])))
    plan = choose_backend(call.spec, (Stub("12345678"),))
    assert plan.cost.visited_pairs == plan.cost.pairs
    planned = plan.with_coverage(call_coverage(call.spec, call.captured_tensors(), call.query_offset, plan.tiling))
    assert planned.coverage is not None and planned.cost.visited_pairs == 4 * 64 * (8 + 64)
    assert planned == plan  # coverage is not compared


def test_empty_coverage_costs_nothing() -> None:
    shape = (2, 4, 64, 16)
    call = parse_call(AttentionCall(shape, shape, shape, mask=mask.padding([0, 0])))
    plan = choose_backend(call.spec, (FAST,))
    planned = plan.with_coverage(call_coverage(call.spec, call.captured_tensors(), call.query_offset, plan.tiling))
    assert planned.coverage is not None and planned.coverage.tile_counts["empty"] == 2 * 16 * 8
    assert planned.cost.visited_pairs == 0 and planned.cost.flops == 0


def test_explain_returns_the_plan_of_the_call() -> None:
    shape = (1, 2, 300, 8)
    plan = regard.explain(shape, shape, shape, mask=mask.causal())
    assert (
        isinstance(plan, Plan)
        and plan.backend in regard.available_backends()
        and not plan.unsupported_reasons[plan.backend]
    )
    q = torch.randn(shape)
    result_plan = regard.attention_with_weights(q, q, q, mask=mask.causal()).plan
    assert (result_plan.backend, result_plan.tiling) == (plan.backend, plan.tiling)


def test_explain_computes_nothing() -> None:
    shape = (1, 64, 1_000_000, 128)  # the matrix of scores would have 64 trillion entries
    plan = regard.explain(shape, shape, shape, mask=mask.causal() & mask.sliding_window(512))
    assert plan.cost.pairs == 64 * 10**12 and plan.cost.visited_pairs < plan.cost.pairs / 500


def test_a_plan_has_the_formula_of_its_own_call() -> None:
    x = torch.randn(1, 2, 4, 8)
    formulas = {"softmax": None, "sink softmax": normalizer.sink(), "5-step sinkhorn": normalizer.sinkhorn(5)}
    for name, chosen in formulas.items():  # the plans of these calls are equal otherwise, and cached
        assert str(regard.explain(x, x, x, normalizer=chosen)).startswith(f"formula  o = {name}(q·k / √d) v")
