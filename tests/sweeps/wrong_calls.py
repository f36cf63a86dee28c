"""Run the wrong calls, classify their outcomes and report them.

This prints counts for each function, and every internal error, of the calls whose names contain one of the arguments:

    python -m tests.sweeps.wrong_calls regard.score regard.mask
"""

import argparse
import inspect
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.sweeps.calls import PACKAGES, WrongCall, table, wrong_calls
from tests.sweeps.valid_calls.table import ValidCall
from tests.sweeps.worker import Outcome, outcomes
from tests.sweeps.wrong_values import SUSPICIOUS

MAX_INTERNAL = 0.01
HUGE = ("10**9", "2**40", "2**70", "list of huge", "huge", "inf")
# Odd values that were reviewed for an argument of many calls: -1 is the last layer, a class can be called like a
# function, and data may hold any number.
REVIEWED = {
    ("regard.Recording.", "layer"): "-1",
    ("regard.Recording.", "index_or_name"): "-1",
    ("regard.Recording.", "layers"): "-1|list of -1",
    ("regard.Recording.", "positions"): "-1|list of -1",
    ("regard.Recording.", "position"): "-1|list of -1",
    ("regard.Recording.relation_accuracy", "special_words"): "list of -1",
    ("regard.recording.patching.shift_attention", "offset"): "-1",
    ("regard.models.training.answers", "ignore"): "-1",
    ("regard.models.translation.Translator", "positions"): "list of None",
    ("regard.", "progress"): "type",
    ("regard.", "evicted"): "type",
    ("regard.plot.", "times"): "list of -1|list of nan",
    ("regard.plot.", "error_by_query"): "list of -1|list of nan",
    ("regard.plot.Series", "x"): "list of -1|list of nan",
    ("regard.plot.Series", "y"): "list of -1|list of nan",
}
KINDS = ("refused", "accepted", "memory", "internal", "slow", "crash")


@dataclass(frozen=True)
class Judged:
    """A wrong call, its outcome, and whether it silently accepted a value that is surely a mistake."""

    wrong: WrongCall
    outcome: Outcome
    suspicious: bool

    @property
    def internal(self) -> bool:
        """Whether the call crashed, raised an internal error, or failed to allocate memory for an ordinary argument."""
        kind = self.outcome.kind
        return kind in ("internal", "crash") or (kind == "memory" and self.wrong.label not in HUGE)


def sweep(wrong: Sequence[WrongCall], calls: dict[str, ValidCall]) -> list[Judged]:
    results = outcomes([(call.call, call.argument, call.label) for call in wrong])
    return [
        Judged(call, outcome, outcome.kind == "accepted" and suspicious(calls[call.call], call))
        for call, outcome in zip(wrong, results, strict=True)
    ]


def suspicious(call: ValidCall, wrong: WrongCall) -> bool:
    """Return whether an accepted value is surely a mistake and not reviewed for this argument."""
    reviewed = [labels for (name, argument), labels in REVIEWED.items() if _is_named(wrong, name, argument)]
    accepted = "|".join([call.accepts.get(wrong.argument, ""), *reviewed]).split("|")
    if wrong.label not in SUSPICIOUS or wrong.label in accepted:
        return False
    parameters = inspect.signature(call.function()).parameters
    variadic = next((p.name for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)), "")
    annotation = str(parameters[wrong.argument if wrong.argument in parameters else variadic].annotation)
    is_text = "str" in annotation and wrong.label in ("x", "list of strings")
    is_number = "float" in annotation and wrong.label in ("-1", "-2.5")
    # seeds may be negative; so may the position of a query before the first key, and an index from the end
    is_index = wrong.argument in ("seed", "query_offset", "index", "axis", "dim", "position") and wrong.label in (
        "-1",
        "list of -1",
    )
    return not (is_text or is_number or is_index)


MAIN_MODULES = ("mask", "score", "normalizer", "measure")  # the modules of a call's options
MAIN_NAMES = (
    "attention", "attention_varlen", "attention_with_weights", "available_backends", "compare", "explain",
    "merge_states", "override_sdpa", "patch", "record", "scaled_dot_product_attention", "steps", "weights",
)  # fmt: skip


def is_main_function(name: str) -> bool:
    """Return whether the function is one of the main functions, which must not raise internal errors."""
    part = name.removeprefix("regard.").split(".")[0]
    return part in MAIN_MODULES + MAIN_NAMES


def _is_named(wrong: WrongCall, name: str, argument: str) -> bool:
    return wrong.call.startswith(name) and wrong.argument == argument


def sample(wrong: Sequence[WrongCall], count: int, seed: int = 0) -> list[WrongCall]:
    """Return a seeded sample in the order of the table."""
    indices = sorted(random.Random(seed).sample(range(len(wrong)), min(count, len(wrong))))
    return [wrong[index] for index in indices]


def report(judged: Iterable[Judged], *, list_faults: bool = True) -> str:
    """Return the counts of each function, the worst last, then every fault."""
    judged = list(judged)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in judged:
        counts[result.wrong.call][result.outcome.kind] += 1
        counts[result.wrong.call]["suspicious"] += result.suspicious
    lines = ["refused accepted memory internal slow crash odd"]
    for name, count in sorted(counts.items(), key=lambda item: item[1]["internal"] + item[1]["suspicious"]):
        row = " ".join(f"{count[kind]:{len(kind)}d}" for kind in KINDS)
        lines.append(f"{row} {count['suspicious']:3d}  {name}")
    if list_faults:
        lines += [
            f"{result.outcome.kind:9s} {result.wrong}: {result.outcome.error} {result.outcome.seconds or ''}"
            for result in judged
            if result.internal or result.outcome.kind in ("memory", "slow")
        ]
        lines += [f"odd       {result.wrong}" for result in judged if result.suspicious]
    total = Counter(result.outcome.kind for result in judged)
    return "\n".join(
        [*lines, f"{len(judged)} wrong calls: {dict(total)}, odd {sum(result.suspicious for result in judged)}"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names; the default is the whole table")
    parser.add_argument("--packages", nargs="*", default=PACKAGES, help="files of tests/sweeps/valid_calls")
    parser.add_argument("--short", action="store_true", help="counts alone")
    options = parser.parse_args()
    calls = table(options.packages)
    selected = [
        call for name, call in calls.items() if not options.names or any(part in name for part in options.names)
    ]
    print(report(sweep(list(wrong_calls(selected)), calls), list_faults=not options.short))


if __name__ == "__main__":
    main()
