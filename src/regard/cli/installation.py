"""Facts about an installation of regard: versions, the compiled core, threads, optional packages, one timed call.

Nothing is printed here; `regard doctor` prints the facts.
"""

import os
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from regard import mask
from regard.attention import attention
from regard.backends.native import abi
from regard.backends.native.backend import builds
from regard.backends.native.missing_core import CORE_FIX, core_error
from regard.backends.registry import NATIVE

USER_EXTRAS = ("plot", "models", "explorer", "hf", "train", "bench")  # all extras except the tools of development
TESTED_MACHINE = "x86_64"
TIMED_SHAPE = (1, 8, 1024, 64)  # batch, heads, tokens, head_dim
MAX_TIMED_ROUNDS, MIN_TIMED_ROUNDS, TIMED_SECONDS = 21, 3, 1.0
MAX_DIFFERENCE = 1e-4  # between two float32 kernels on standard normal inputs; it is usually about 1e-6

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]*)\])?\s*(?P<range>[^;]*)(;.*extra\s*==\s*.(?P<extra>\w+))?"
)
_PYTHON_CLASSIFIER = re.compile(r"Programming Language :: Python :: (?P<release>3\.\d+)")
_CLAUSE = re.compile(r"(>=|<=|==|<|>)\s*([\d.]+)")


@dataclass(frozen=True)
class Package:
    """A package that regard needs, or can use.

    Attributes:
        name: The name of the distribution.
        version: The installed version; None if it is not installed.
        supported: The range of versions that regard supports, as in ">=2.9,<2.16"; "" for any.
        is_supported: Whether the installed version is in the range; None if the package is not installed.
    """

    name: str
    version: str | None
    supported: str
    is_supported: bool | None


@dataclass(frozen=True)
class Extra:
    """An optional part of regard: its packages, and the command that installs them."""

    name: str
    packages: tuple[Package, ...]
    install_command: str

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(package.name for package in self.packages if package.version is None)


@dataclass(frozen=True)
class Core:
    """The compiled core.

    Attributes:
        is_built: Whether regard uses it.
        error: Why it could not be built or loaded; "" if it is used, or if no build was tried.
        fix: How to get a core that is used; "" if the error says it, or if there is none.
        path: Its file; None if there is none.
        instruction_set: The instruction set of its kernels; None if it is not used.
        available_instruction_sets: Those that it has and this processor can run, the fastest first.
        thread_runtime: Where its threads come from: "GNU OpenMP", "LLVM OpenMP" or "thread pool"; None without a core.
    """

    is_built: bool
    error: str
    fix: str
    path: str | None
    instruction_set: str | None
    available_instruction_sets: tuple[str, ...]
    thread_runtime: str | None


@dataclass(frozen=True)
class TimedCall:
    """Causal attention in float32, timed beside torch's `scaled_dot_product_attention` on the same inputs.

    Attributes:
        shape: The shape of q, k and v.
        rounds: How often both were called, one after the other.
        regard_ms: The median time of regard in milliseconds.
        torch_ms: The median time of torch in milliseconds.
        max_difference: The largest absolute difference of the outputs.
    """

    shape: tuple[int, ...]
    rounds: int
    regard_ms: float
    torch_ms: float
    max_difference: float

    @property
    def speedup(self) -> float:
        """The time of torch divided by the time of regard."""
        return self.torch_ms / self.regard_ms


@dataclass(frozen=True)
class Installation:
    """All facts about an installation. `problems` are errors; `warnings` are worth knowing."""

    regard_version: str | None
    regard_path: str
    python: Package
    tested_python: tuple[str, ...]
    required: tuple[Package, ...]
    system: str
    processor: str
    num_cpus: int
    core: Core
    torch_threads: int
    extras: tuple[Extra, ...]
    timed_call: TimedCall

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes the installation unhealthy, with the fix."""
        problems = []
        if self.core.error:
            problems.append(f"The compiled core is not used: {self.core.error.rstrip('.')}. {self.core.fix}".rstrip())
        if not self.timed_call.max_difference <= MAX_DIFFERENCE:
            problems.append(
                f"The output of regard must be within {MAX_DIFFERENCE:g} of torch's; the largest difference is "
                f"{self.timed_call.max_difference:.3g}. Install regard again."
            )
        return tuple(problems)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may cause trouble, and how to fix it."""
        messages = []
        installed = {p.name: p for p in (self.python, *self.required, *(p for e in self.extras for p in e.packages))}
        for package in installed.values():
            if package.is_supported is False:
                fix = f" Use pip install '{package.name}{package.supported}'." if package is not self.python else ""
                messages.append(f"{package.name} must be {package.supported}; got {package.version}.{fix}")
        python_release = ".".join((self.python.version or "").split(".")[:2])
        if self.tested_python and python_release not in self.tested_python:
            messages.append(f"Python {python_release} is not tested; {', '.join(self.tested_python)} are.")
        if not self.system.startswith("Linux") or not self.system.endswith(TESTED_MACHINE):
            messages.append(f"{self.system} is not tested; Linux on {TESTED_MACHINE} is.")
        if self.regard_version is None:
            messages.append("regard runs from a folder without package metadata. Use pip install to see all checks.")
        if not self.core.is_built and not self.core.error:
            messages.append(
                "regard was installed without building its core, so calls on the CPU run on torch operations."
            )
        return tuple(messages)


def inspect_installation() -> Installation:
    """Return all facts about this installation. It takes about a second, for the timed call."""
    project = _project_metadata()
    requirements = project.requirements or tuple(_requirement(name) for name in ("torch", "numpy"))
    in_extra = {extra: [r for r in requirements if r["extra"] == extra] for extra in ("", *USER_EXTRAS)}
    return Installation(
        regard_version=project.version,
        regard_path=str(Path(__file__).parents[1]),
        python=_package("python", platform.python_version(), project.python_range),
        tested_python=project.tested_python,
        required=tuple(_package(r["name"], _version(r["name"]), r["range"]) for r in in_extra[""]),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor_name(),
        num_cpus=os.cpu_count() or 1,
        core=inspect_core(),
        torch_threads=torch.get_num_threads(),
        extras=tuple(_extra(name, in_extra) for name in USER_EXTRAS if in_extra[name]),
        timed_call=time_attention(),
    )


def inspect_core() -> Core:
    """Return the state of the compiled core."""
    path = abi.core_file()
    return Core(
        is_built=abi.core is not None,
        error=core_error(),
        fix=CORE_FIX if core_error() else "",
        path=None if path is None else str(path),
        instruction_set=NATIVE.variant or None,
        available_instruction_sets=tuple(build.name for build in builds()),
        thread_runtime=None if abi.core is None else abi.core.thread_runtime(),
    )


def time_attention() -> TimedCall:
    """Time a causal call of regard beside torch's, in about a second."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, *TIMED_SHAPE, generator=generator).unbind()
    causal = mask.causal()
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: attention(q, k, v, mask=causal),
        lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    start = time.perf_counter()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing core is one of the facts
        ours, theirs = (call() for call in calls)  # also the first calls, which fill caches
        seconds: tuple[list[float], list[float]] = ([], [])
        while len(seconds[0]) < MAX_TIMED_ROUNDS:
            if len(seconds[0]) >= MIN_TIMED_ROUNDS and time.perf_counter() - start > TIMED_SECONDS:
                break
            first = len(seconds[0]) % 2  # they take turns in being first
            for n in (first, 1 - first):
                before = time.perf_counter()
                calls[n]()
                seconds[n].append(time.perf_counter() - before)
    difference = float((ours - theirs).abs().max())
    return TimedCall(TIMED_SHAPE, len(seconds[0]), 1e3 * median(seconds[0]), 1e3 * median(seconds[1]), difference)


def is_in_range(installed: str, supported: str) -> bool:
    """Whether a version is in a range such as ">=2.9,<3". Suffixes of a version, as in "2.13.0+cpu", are ignored.

    >>> is_in_range("2.13.0+cpu", ">=2.9,<3"), is_in_range("3.0", ">=2.9,<3")
    (True, False)
    """
    number = _numbers(installed)
    for operator, bound in _CLAUSE.findall(supported):
        limit = _numbers(bound)
        width = max(len(number), len(limit))
        a, b = (x + (0,) * (width - len(x)) for x in (number, limit))
        if not {">=": a >= b, "<=": a <= b, "==": a == b, "<": a < b, ">": a > b}[operator]:
            return False
    return True


def processor_name() -> str:
    """The name of the processor, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf8", errors="replace").splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _numbers(version_text: str) -> tuple[int, ...]:
    parts = (re.match(r"\d+", part) for part in version_text.split("+")[0].split("."))
    return tuple(int(match[0]) for match in takewhile(bool, parts) if match)


class ProjectMetadata(NamedTuple):
    """What the package metadata of regard say; empty if there are none."""

    version: str | None = None
    python_range: str = ""
    tested_python: tuple[str, ...] = ()
    requirements: tuple[dict[str, str], ...] = ()


def _project_metadata() -> ProjectMetadata:
    try:
        fields = metadata("regard")
    except PackageNotFoundError:
        return ProjectMetadata()
    classifiers = (_PYTHON_CLASSIFIER.fullmatch(line) for line in fields.get_all("Classifier") or [])
    requirements = (_REQUIREMENT.match(line) for line in fields.get_all("Requires-Dist") or [])
    return ProjectMetadata(
        fields["Version"],
        fields["Requires-Python"] or "",
        tuple(match["release"] for match in classifiers if match),
        tuple({name: value or "" for name, value in match.groupdict().items()} for match in requirements if match),
    )


def _requirement(name: str) -> dict[str, str]:
    return {"name": name, "extras": "", "range": "", "extra": ""}


def _extra(name: str, in_extra: Mapping[str, Iterable[Mapping[str, str]]]) -> Extra:
    packages = {p.name: p for p in _packages_of_extra(name, in_extra)}
    return Extra(name, tuple(packages.values()), f"pip install 'regard[{name}]'")


def _packages_of_extra(name: str, in_extra: Mapping[str, Iterable[Mapping[str, str]]]) -> Iterable[Package]:
    """The packages of an extra, including those of the extras that it names, as in regard[plot,models]."""
    for requirement in in_extra[name]:
        if requirement["name"] == "regard":
            for inner in requirement["extras"].split(","):
                yield from _packages_of_extra(inner.strip(), in_extra)
        else:
            yield _package(requirement["name"], _version(requirement["name"]), requirement["range"])


def _package(name: str, installed: str | None, supported: str) -> Package:
    ordered = ",".join(sorted(supported.replace(" ", "").split(","), reverse=True))  # ">=2.9,<3", as in pyproject.toml
    return Package(name, installed, ordered, None if installed is None else is_in_range(installed, ordered))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
