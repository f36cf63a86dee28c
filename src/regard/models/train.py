"""Training: a task says what is learned and from what, a recipe how, and a `Training` does it, step by step.

Everything random in a step follows from the recipe's seed and the number of the step alone. So a checkpoint is the
parameters, what the optimiser remembers of them and the number of steps; who goes on from it gets the same bits as who
never stopped.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from regard import checks
from regard.argument_types import check_types
from regard.errors import LoadError, SpecError
from regard.models.store import fit, read, write

SCHEDULES = ("cosine", "original", "constant")
LARGEST_SEED = 2**32 - 1
REMEMBERED = ("step", "exp_avg", "exp_avg_sq")  # of each parameter, by the optimiser
Spreading = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    `rate` is the highest learning rate. It rises to it over `warmup` steps; then "cosine" lets it fall to a tenth along
    half a wave, "original" with the square root of the steps (as in the first transformer), "constant" not at all.
    `decay` pulls matrices towards 0, `clip` is the longest gradient, `smoothing` the probability that is spread over
    wrong answers.
    """

    steps: int
    rate: float
    warmup: int = 100
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.01
    clip: float = 1.0
    smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise SpecError(f"schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}.")
        for name in ("steps", "warmup", "seed"):
            if type(number := getattr(self, name)) is not int:
                raise SpecError(f"{name} must be a whole number; got {number!r}.")
        for name in ("rate", "decay", "clip", "smoothing"):
            if type(number := getattr(self, name)) not in (int, float):
                raise SpecError(f"{name} must be a number; got {number!r}.")
        if self.steps < 1 or self.warmup < 0:
            raise SpecError(f"steps must be at least 1 and warmup 0; got {self.steps} and {self.warmup}.")
        if not (isinstance(self.betas, tuple) and len(self.betas) == 2 and all(_is_share(b) for b in self.betas)):
            raise SpecError(f"betas must be two numbers from 0 to less than 1; got {self.betas!r}.")
        for name, number in (("rate", self.rate), ("clip", self.clip)):
            if not 0 < number < math.inf:
                raise SpecError(f"{name} must be a number above 0; got {number}.")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise SpecError(f"seed must be from 0 to {LARGEST_SEED}; got {self.seed}.")
        if not 0 <= self.smoothing < 1:
            raise SpecError(f"smoothing must be from 0 to less than 1; got {self.smoothing}.")
        if not 0 <= self.decay < math.inf:
            raise SpecError(f"decay must be a number from 0 on; got {self.decay}.")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step; the first one is step 0.

        >>> r = Recipe(steps=1000, rate=1.0, warmup=100, schedule="original")
        >>> [round(r.rate_at(step), 2) for step in (0, 49, 99, 399)]
        [0.01, 0.5, 1.0, 0.5]
        """
        t = step + 1
        if t <= self.warmup:
            return self.rate * t / self.warmup
        if self.schedule == "original":
            return self.rate * math.sqrt(max(self.warmup, 1) / t)
        if self.schedule == "constant":
            return self.rate
        way = min((t - self.warmup) / max(self.steps - self.warmup, 1), 1.0)
        return self.rate * (0.55 + 0.45 * math.cos(math.pi * way))


def _is_share(number: Any) -> bool:
    return type(number) in (int, float) and 0 <= number < 1


@dataclass(frozen=True)
class Outcome:
    """What a batch gave: the loss to follow downhill, and how many of its answers were right, of how many."""

    loss: Tensor
    right: int
    of: int


class Task(Protocol):
    """What is learned, and from what.

    It may also have `divides = True`, if processes can share its texts (see `Spread`); `tokens`, its vocabulary; and a
    `digest`, a word that is another one for other data, where people bring their own.
    """

    name: str
    recipe: Recipe

    def model(self) -> nn.Module:
        """A model that has learned nothing yet."""

    def words(self) -> dict[str, Any]:
        """What its file of weights says about it; `model` of the task can be made from that."""

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        """The loss on the batch of a step. All that is random about the batch comes from `draw`."""

    def test(self, model: nn.Module) -> dict[str, float]:
        """How good it is on what it was not trained on, by name."""


@runtime_checkable
class Spread(Protocol):
    """A model that several processes run together, each with a part of every text, as
    `regard.distributed.SequenceParallel` is. What it gives, and what a task counts, is that of this process alone."""

    def own(self, x: Tensor, dim: int = 1) -> Tensor:
        """This process's part of something that has an entry a token."""

    def total(self, number: float) -> float:
        """The sum of a number over all processes."""

    def sum_gradients(self) -> None:
        """Gives every process the sum of all gradients."""


@dataclass(frozen=True)
class Report:
    """A step that was taken."""

    step: int
    loss: float
    accuracy: float
    rate: float
    seconds: float


class Training:
    """A model on its way. `advance` takes a step; `save` and `resume` stop and go on exactly.

    While it runs, nothing else may change the model. With `spread` several processes train it together: it turns the
    model into what each of them runs, a `Spread`.
    """

    def __init__(self, task: Task, recipe: Recipe | None = None, *, spread: Spreading | None = None) -> None:
        self.task = task
        self.recipe = task.recipe if recipe is None else recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            self.model = task.model()
        self._spread = None if spread is None else _divided(task, spread(self.model))
        self.step = 0
        self.curve: list[Report] = []
        self._optimizer = self._made_optimizer()

    def _made_optimizer(self) -> AdamW:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.recipe.decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        betas = float(self.recipe.betas[0]), float(self.recipe.betas[1])
        return AdamW(groups, lr=self.recipe.rate, betas=betas, eps=1e-9, fused=True)

    @property
    def is_over(self) -> bool:
        return self.step >= self.recipe.steps

    def advance(self) -> Report:
        """One step downhill."""
        begin = time.perf_counter()
        rate = self.recipe.rate_at(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        number = self.recipe.seed * 1_000_003 + self.step
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            draw = torch.Generator().manual_seed(number + 500_000_000_000)
            runs: Any = self._spread or self.model
            outcome = self.task.outcome(runs, self.step, draw, self.recipe)
            if self._spread is not None:
                outcome = _of_all(outcome, self._spread)
            self._optimizer.zero_grad()
            outcome.loss.backward()
        if self._spread is not None:
            self._spread.sum_gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self._optimizer.step()
        loss = float(outcome.loss.detach())
        if self._spread is not None:
            loss = self._spread.total(loss)
        if not math.isfinite(loss):
            raise SpecError(
                f"the loss must stay a number; got {loss} at step {self.step}. Use a rate below {self.recipe.rate:g}."
            )
        report = Report(self.step, loss, outcome.right / max(outcome.of, 1), rate, time.perf_counter() - begin)
        self.step += 1
        self.curve.append(report)
        return report

    def any_rank(self, here: bool) -> bool:
        """Whether something is so in one of the processes that train together: they stop as one."""
        return here if self._spread is None else self._spread.total(float(here)) > 0

    def test(self) -> dict[str, float]:
        """What the task measures on what was held out."""
        self.model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self.recipe.seed)
            return self.task.test(self.model)

    def save(self, path: str | Path) -> None:
        """Everything that is needed to go on."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            if parameter in self._optimizer.state:
                tensors |= {f"{kind}.{name}": self._optimizer.state[parameter][kind] for kind in REMEMBERED}
        words = {
            "task": self.task.name,
            "step": self.step,
            "recipe": asdict(self.recipe),
            "digest": _digest(self.task),
            "curve": [[r.step, r.loss, r.accuracy, r.rate, r.seconds] for r in self.curve],
        }
        write(path, tensors, words)

    @classmethod
    def resume(
        cls, task: Task, path: str | Path, recipe: Recipe | None = None, *, spread: Spreading | None = None
    ) -> "Training":
        """A training that goes on where `save` left it; another recipe may say how many steps are left."""
        tensors, words = read(path, verified=True)
        if words.get("task") != task.name:
            got = repr(words.get("task"))[:60]
            raise LoadError(f"{path} must be a checkpoint of {task.name!r}; got one of {got}.")
        if words.get("digest") != _digest(task):
            raise LoadError(
                f"{path} was begun on other data than this, and can only go on with the same. Give --data as before, "
                "--fresh to begin anew, or another --out."
            )
        try:
            saved = words["recipe"]
            known = Recipe(**{**saved, "betas": tuple(saved["betas"])})
            step, curve = _step(words["step"]), [_report(row) for row in words["curve"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{path} must be a checkpoint, with recipe, step and curve; it is not ({error}).") from None
        made = cls(task, known if recipe is None else recipe, spread=spread)
        fit(made.model, _part(tensors, "model."), path)
        made.step, made.curve = step, curve
        made._remember({kind: _part(tensors, f"{kind}.") for kind in REMEMBERED}, path)
        return made

    def _remember(self, kept: dict[str, dict[str, Tensor]], path: str | Path) -> None:
        """Gives the optimiser what it knew of each parameter that has had a gradient."""
        for name, parameter in self.model.named_parameters():
            found = {kind: kept[kind][name] for kind in REMEMBERED if name in kept[kind]}
            for kind in REMEMBERED if found else ():
                shape = () if kind == "step" else tuple(parameter.shape)
                if kind not in found:
                    raise LoadError(f"{path} must hold '{kind}.{name}' as well, to go on; it does not.")
                if (got := tuple(found[kind].shape)) != shape:
                    raise LoadError(f"'{kind}.{name}' must have shape {shape}; got {got} in {path}.")
                if not found[kind].is_floating_point():
                    raise LoadError(f"'{kind}.{name}' must hold floats; got {found[kind].dtype} in {path}.")
            if found:
                self._optimizer.state[parameter] = found


def _step(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"a step must be a whole number from 0, not {str(number)[:40]}")
    return number


def _report(row: Any) -> Report:
    step, *numbers = row
    if len(numbers) != 4 or not all(type(number) in (int, float) for number in numbers):
        raise ValueError(f"a row of the curve must be a step and four numbers, not {str(row)[:60]}")
    return Report(_step(step), *map(float, numbers))


def _digest(task: Task) -> str | None:
    return getattr(task, "digest", None)


def _divided(task: Task, model: nn.Module) -> Spread:
    """The model that processes run together, for a task whose texts can be divided."""
    if not getattr(task, "divides", False):
        raise SpecError(
            f"texts of {task.name!r} cannot be divided among processes; train it in one. Leave out --ranks."
        )
    assert isinstance(model, Spread)
    return model


def _of_all(outcome: Outcome, spread: Spread) -> Outcome:
    """This process's part of the loss and of the counts of all: losses add up to the mean over all answers."""
    of = spread.total(outcome.of)
    return Outcome(outcome.loss * (outcome.of / max(of, 1.0)), round(spread.total(outcome.right)), round(of))


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def changed(recipe: Recipe, wanted: Mapping[str, Any]) -> Recipe:
    """The same recipe but for what is wanted by name; None leaves things as they are. With other steps the warm-up
    takes a tenth of them at most, unless it is wanted itself.

    >>> changed(Recipe(steps=1000, rate=0.01), {"steps": 50, "rate": None}).warmup
    5
    """
    given = {name: value for name, value in wanted.items() if value is not None}
    if "steps" in given:
        given = {"warmup": min(recipe.warmup, -(-given["steps"] // 10)), **given}
    return replace(recipe, **given)


@check_types
def answers(logits: Tensor, target: Tensor, smoothing: float, ignore: int = -100) -> Outcome:
    """Cross-entropy of logits (..., classes) with the right classes (...), and how often the likeliest is right."""
    checks.probability(smoothing, "smoothing")
    checks.tensor(logits, "logits", dtype="floats")
    checks.tensor(target, "target", dtype="integers")
    if logits.dim() < 2 or logits.shape[:-1] != target.shape or not logits.shape[-1]:
        raise SpecError(
            f"logits must be (..., classes) and target (...); got {tuple(logits.shape)} and {tuple(target.shape)}."
        )
    classes = target[target != ignore]
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < logits.shape[-1]:
        got = f"{int(classes.min())} to {int(classes.max())}"
        raise SpecError(f"target must hold classes from 0 to {logits.shape[-1] - 1}, or {ignore} for none; got {got}.")
    flat, right = logits.flatten(0, -2), target.flatten()
    counts = right != ignore
    of = int(counts.sum())
    total = nn.functional.cross_entropy(flat, right, label_smoothing=smoothing, ignore_index=ignore, reduction="sum")
    return Outcome(total / max(of, 1), int(((flat.detach().argmax(-1) == right) & counts).sum()), of)


POINTS = 200  # of a curve that is written down


def curve_json(training: Training, results: dict[str, float]) -> str:
    """How a training went, in at most `POINTS` means of neighbouring steps, and what the test said."""
    size = -(-len(training.curve) // POINTS)
    groups = [training.curve[begin : begin + size] for begin in range(0, len(training.curve), size)]
    points = [
        [g[-1].step + 1, round(sum(r.loss for r in g) / len(g), 4), round(sum(r.accuracy for r in g) / len(g), 4)]
        for g in groups
    ]
    found = {
        "task": training.task.name,
        "recipe": asdict(training.recipe),
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "seconds": round(sum(r.seconds for r in training.curve)),
        "results": {name: round(number, 4) for name, number in results.items()},
        "step, loss, accuracy": points,
    }
    lines = json.dumps(found, indent=1)
    return re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", lines) + "\n"
