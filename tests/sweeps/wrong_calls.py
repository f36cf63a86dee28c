"""The sweep over wrong calls: runs them, judges the outcomes, and reports them.

Counts for each function and every internal error, for the part of the table whose names contain one of the words:

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
    ("regard.Tape.", "which"): "-1",
    ("regard.Tape.", "layers"): "-1|list of -1",
    ("regard.Tape.", "of"): "-1|list of -1",
    ("regard.Tape.related", "special"): "list of -1",
    ("regard.inside.patch.shifted", "by"): "-1",
    ("regard.models.train.answers", "ignore"): "-1",
    ("regard.models.translation.Translator", "positions"): "list of None",
    ("regard.", "progress"): "type",
    ("regard.", "evicted"): "type",
    ("regard.draw.", "times"): "list of -1|list of nan",
    ("regard.draw.", "by_query"): "list of -1|list of nan",
    ("regard.draw.Series", "x"): "list of -1|list of nan",
    ("regard.draw.Series", "y"): "list of -1|list of nan",
}
KINDS = ("refused", "accepted", "memory", "internal", "slow", "crash")


@dataclass(frozen=True)
class Judged:
    """A wrong call, its outcome, and whether it accepts in silence a value that nobody means."""

    wrong: WrongCall
    outcome: Outcome
    suspicious: bool

    @property
    def internal(self) -> bool:
        """Also an allocation that fails, unless the argument itself was huge."""
        kind = self.outcome.kind
        return kind in ("internal", "crash") or (kind == "memory" and self.wrong.label not in HUGE)


def sweep(wrong: Sequence[WrongCall], calls: dict[str, ValidCall]) -> list[Judged]:
    results = outcomes([(one.call, one.argument, one.label) for one in wrong])
    return [
        Judged(one, outcome, outcome.kind == "accepted" and suspicious(calls[one.call], one))
        for one, outcome in zip(wrong, results, strict=True)
    ]


def suspicious(call: ValidCall, wrong: WrongCall) -> bool:
    """Whether an accepted value is one that nobody means, and that nobody has reviewed for this argument."""
    reviewed = [labels for (name, argument), labels in REVIEWED.items() if _is_named(wrong, name, argument)]
    accepted = "|".join([call.accepts.get(wrong.argument, ""), *reviewed]).split("|")
    if wrong.label not in SUSPICIOUS or wrong.label in accepted:
        return False
    parameters = inspect.signature(call.function()).parameters
    many = next((p.name for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)), "")
    annotation = str(parameters[wrong.argument if wrong.argument in parameters else many].annotation)
    is_text = "str" in annotation and wrong.label in ("x", "list of strings")
    is_number = "float" in annotation and wrong.label in ("-1", "-2.5")
    # seeds may be negative; so may a position, of a query before the first key, and an index, from the end
    is_place = wrong.argument in ("seed", "start", "index", "axis", "dim", "at") and wrong.label in ("-1", "list of -1")
    return not (is_text or is_number or is_place)


README_MODULES = ("mask", "score", "weigh", "measure")  # README.md lists every function of these
README_NAMES = (
    "attention", "attend", "explain", "steps", "compare", "record", "patch", "merge", "scaled_dot_product_attention",
    "replacing_sdpa", "mechanisms", "engines", "Weights",
)  # fmt: skip


def in_readme(name: str) -> bool:
    """Whether README.md shows the function: there no internal error is allowed."""
    part = name.removeprefix("regard.").split(".")[0]
    return part in README_MODULES + README_NAMES


def _is_named(wrong: WrongCall, name: str, argument: str) -> bool:
    return wrong.call.startswith(name) and wrong.argument == argument


def sample(wrong: Sequence[WrongCall], count: int, seed: int = 0) -> list[WrongCall]:
    """A seeded sample in the order of the table."""
    chosen = sorted(random.Random(seed).sample(range(len(wrong)), min(count, len(wrong))))
    return [wrong[place] for place in chosen]


def report(judged: Iterable[Judged], *, every: bool = True) -> str:
    """Counts for each function, the worst last, then each fault."""
    judged = list(judged)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in judged:
        counts[one.wrong.call][one.outcome.kind] += 1
        counts[one.wrong.call]["suspicious"] += one.suspicious
    lines = ["refused accepted memory internal slow crash odd"]
    for name, count in sorted(counts.items(), key=lambda item: item[1]["internal"] + item[1]["suspicious"]):
        row = " ".join(f"{count[kind]:{len(kind)}d}" for kind in KINDS)
        lines.append(f"{row} {count['suspicious']:3d}  {name}")
    if every:
        lines += [
            f"{one.outcome.kind:9s} {one.wrong}: {one.outcome.error} {one.outcome.seconds or ''}"
            for one in judged
            if one.internal or one.outcome.kind in ("memory", "slow")
        ]
        lines += [f"odd       {one.wrong}" for one in judged if one.suspicious]
    total = Counter(one.outcome.kind for one in judged)
    return "\n".join([*lines, f"{len(judged)} wrong calls: {dict(total)}, odd {sum(one.suspicious for one in judged)}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names; none is the whole table")
    parser.add_argument("--packages", nargs="*", default=PACKAGES, help="files of tests/sweeps/valid_calls")
    parser.add_argument("--short", action="store_true", help="counts alone")
    options = parser.parse_args()
    calls = table(options.packages)
    chosen = [call for name, call in calls.items() if not options.names or any(part in name for part in options.names)]
    print(report(sweep(list(wrong_calls(chosen)), calls), every=not options.short))


if __name__ == "__main__":
    main()
