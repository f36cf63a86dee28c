"""Choosing an engine: the first without an objection; what the others said is kept."""

from dataclasses import dataclass, replace

import pytest
import torch

import regard
from regard import mask
from regard.errors import EngineError
from regard.plan.blocks import Tiles, blocks
from regard.plan.choose import Plan, choose
from regard.spec.read import read
from regard.spec.spec import Spec


@dataclass(eq=False)
class Stub:
    """An engine that says what it is told to."""

    name: str
    reasons: tuple[str, ...] = ()
    variant: str = ""
    keeps_pairs_on: tuple[str, ...] = ()

    def linear_memory(self, spec: Spec) -> bool:
        return spec.device not in self.keeps_pairs_on

    def objections(self, spec: Spec) -> tuple[str, ...]:
        return self.reasons

    def tiles(self, spec: Spec) -> Tiles:
        return Tiles(len(self.name), 8, 64)


def spec(**options: object) -> Spec:
    shape = (2, 4, 64, 16)
    return read(shape, shape, shape, **options).spec  # type: ignore[arg-type]


FAST, SLOW, EXACT = Stub("fast"), Stub("slower"), Stub("exact", keeps_pairs_on=("cpu", "cuda"))
SHY = Stub("shy", ("dtype is float64, and this engine knows float32", "the mask looks something up"))


def test_the_first_engine_without_an_objection_is_chosen() -> None:
    assert choose(spec(), (FAST, SLOW)).engine == "fast"
    assert choose(spec(), (SHY, SLOW, FAST)).engine == "slower"


def test_the_plan_takes_the_tiles_and_the_memory_of_the_engine() -> None:
    plan = choose(spec(), (SLOW, FAST, EXACT), "exact")
    assert plan.tiles == Tiles(5, 8, 64) and not plan.linear_memory
    assert choose(spec(), (SLOW, FAST, EXACT)).linear_memory


def test_every_engines_objections_are_kept_also_those_that_come_after() -> None:
    later = Stub("later", ("it is too late",))
    plan = choose(spec(), (SHY, EXACT, FAST, later))
    assert plan.objections == {
        "shy": SHY.reasons,
        "fast": (),
        "later": ("it is too late",),
        "exact": ("it keeps every pair in memory, so it runs only when asked for by name",),
    }


def test_an_engine_that_runs_by_name_only_is_never_fallen_back_to() -> None:
    with pytest.raises(EngineError, match="some engine must be able to answer this, and all object"):
        choose(spec(), (SHY, EXACT))


def test_an_engine_may_keep_every_pair_on_one_device_and_not_on_another() -> None:
    there = Stub("there", keeps_pairs_on=("cpu",))
    assert choose(spec(), (there, SLOW)).engine == "slower"
    assert choose(replace(spec(), device="cuda"), (there, SLOW)).engine == "there"


def test_an_engine_asked_for_by_name_runs_whatever_its_place() -> None:
    assert choose(spec(), (FAST, SLOW, EXACT), "slower").engine == "slower"
    plan = choose(spec(), (FAST, SLOW, EXACT), "exact")
    assert plan.engine == "exact" and plan.objections["exact"] == ()


def test_an_engine_asked_for_by_name_never_falls_back() -> None:
    with pytest.raises(
        EngineError,
        match=r"engine 'shy' must be able to answer this, and it objects; got shy: dtype is float64, and this engine "
        r"knows float32; shy: the mask looks something up\. Leave engine=None",
    ):
        choose(spec(), (SHY, FAST), "shy")


def test_an_engine_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(EngineError, match=r"engine must be one of fast, slower, exact; got 'swift'\."):
        choose(spec(), (FAST, SLOW, EXACT), "swift")


def test_all_objections_are_told_if_nobody_can() -> None:
    other = Stub("other", ("it has no time",))
    with pytest.raises(EngineError, match=r"shy: dtype is float64.*; shy: the mask .*; other: it has no time\."):
        choose(spec(), (SHY, other))


def test_plans_of_equal_questions_are_equal() -> None:
    one, other = (choose(spec(mask=mask.causal()), (FAST, SLOW)) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    assert choose(spec(mask=mask.causal()), (SLOW,)) != one
    assert choose(spec(), (FAST, SLOW)) != one


def test_a_plan_is_a_pure_function_of_the_spec() -> None:
    """No tensor, no clock, no state: plans may be kept."""
    plans = {choose(spec(mask=mask.window(n)), (FAST,)) for n in (3, 4, 3, 4, 3)}
    assert len(plans) == 2


def test_a_plan_knows_the_tiles_of_a_mask_without_data() -> None:
    plan = choose(spec(mask=mask.causal()), (Stub("12345678"),))
    assert plan.cover is not None and plan.cover.counts == {"empty": 28, "partial": 8, "full": 28}
    assert choose(spec(mask=mask.padding([3, 4])), (FAST,)).cover is None


def test_a_plan_told_the_tiles_of_its_mask_counts_with_them() -> None:
    shape = (2, 4, 64, 16)
    asked = read(shape, shape, shape, mask=mask.padding([8, 64]))
    plan = choose(asked.spec, (Stub("12345678"),))
    assert plan.cost.visited == plan.cost.pairs
    told = plan.covering(blocks(asked.spec, asked.captured(), asked.start, plan.tiles))
    assert told.cover is not None and told.cost.visited == 4 * 64 * (8 + 64)
    assert told == plan  # what is found does not make another plan


def test_a_cover_in_which_nothing_is_seen_is_a_cover() -> None:
    shape = (2, 4, 64, 16)
    asked = read(shape, shape, shape, mask=mask.padding([0, 0]))
    plan = choose(asked.spec, (FAST,))
    told = plan.covering(blocks(asked.spec, asked.captured(), asked.start, plan.tiles))
    assert told.cover is not None and told.cover.counts["empty"] == 2 * 16 * 8
    assert told.cost.visited == 0 and told.cost.flops == 0


def test_explain_hands_out_the_plan_that_attention_follows() -> None:
    shape = (1, 2, 300, 8)
    plan = regard.explain(shape, shape, shape, mask=mask.causal())
    assert isinstance(plan, Plan) and plan.engine in regard.engines() and not plan.objections[plan.engine]
    q = torch.randn(shape)
    followed = regard.attend(q, q, q, mask=mask.causal()).plan
    assert (followed.engine, followed.tiles) == (plan.engine, plan.tiles)


def test_explain_computes_nothing() -> None:
    shape = (1, 64, 1_000_000, 128)  # a matrix of scores would have 64 million million entries
    plan = regard.explain(shape, shape, shape, mask=mask.causal() & mask.window(512))
    assert plan.cost.pairs == 64 * 10**12 and plan.cost.visited < plan.cost.pairs / 500
