"""Training: a `Task` provides model and data, a `Recipe` the hyperparameters, and a `Trainer` runs the steps.

The seed of the recipe and the step number determine all random numbers of a step. A checkpoint holds the parameters,
the optimizer state and the step number, and a resumed run is bitwise identical to an uninterrupted one.
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
from regard.errors import ArgumentError, LoadError
from regard.files.tensors_with_metadata import load_tensors_and_metadata, save_tensors_and_metadata
from regard.models.state_dict import load_state_dict

SCHEDULES = ("cosine", "inverse_sqrt", "constant")
MAX_SEED = 2**32 - 1
OPTIMIZER_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")
ParallelWrapper = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training run of `steps` steps.

    `seed` determines the initial parameters, the batches and the dropout. The learning rate rises linearly to `lr` over
    `warmup_steps`. Then `schedule` applies: "cosine" decays to a tenth of `lr`, "inverse_sqrt" decays with the inverse
    square root of the step, and "constant" does not decay. The optimizer is AdamW with `betas`; `weight_decay` applies
    to matrices only. Gradients are clipped to `max_grad_norm`. `label_smoothing` applies to the cross-entropy.
    """

    steps: int
    lr: float
    warmup_steps: int = 100
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    label_smoothing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}.")
        for name in ("steps", "warmup_steps", "seed"):
            if type(number := getattr(self, name)) is not int:
                raise ArgumentError(f"{name} must be an integer; got {number!r}.")
        for name in ("lr", "weight_decay", "max_grad_norm", "label_smoothing"):
            if type(number := getattr(self, name)) not in (int, float):
                raise ArgumentError(f"{name} must be a number; got {number!r}.")
        if self.steps < 1 or self.warmup_steps < 0:
            raise ArgumentError(
                f"steps must be at least 1 and warmup_steps at least 0; got {self.steps} and {self.warmup_steps}."
            )
        if not (isinstance(self.betas, tuple) and len(self.betas) == 2 and all(_is_fraction(b) for b in self.betas)):
            raise ArgumentError(f"betas must be two numbers from 0 to less than 1; got {self.betas!r}.")
        for name, number in (("lr", self.lr), ("max_grad_norm", self.max_grad_norm)):
            if not 0 < number < math.inf:
                raise ArgumentError(f"{name} must be a number above 0; got {number}.")
        if not 0 <= self.seed <= MAX_SEED:
            raise ArgumentError(f"seed must be from 0 to {MAX_SEED}; got {self.seed}.")
        if not 0 <= self.label_smoothing < 1:
            raise ArgumentError(f"label_smoothing must be from 0 to less than 1; got {self.label_smoothing}.")
        if not 0 <= self.weight_decay < math.inf:
            raise ArgumentError(f"weight_decay must be a finite number of at least 0; got {self.weight_decay}.")

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step; steps count from 0.

        >>> r = Recipe(steps=1000, lr=1.0, warmup_steps=100, schedule="inverse_sqrt")
        >>> [round(r.lr_at(step), 2) for step in (0, 49, 99, 399)]
        [0.01, 0.5, 1.0, 0.5]
        """
        t = step + 1
        if t <= self.warmup_steps:
            return self.lr * t / self.warmup_steps
        if self.schedule == "inverse_sqrt":
            return self.lr * math.sqrt(max(self.warmup_steps, 1) / t)
        if self.schedule == "constant":
            return self.lr
        progress = min((t - self.warmup_steps) / max(self.steps - self.warmup_steps, 1), 1.0)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * progress))


def _is_fraction(number: Any) -> bool:
    return type(number) in (int, float) and 0 <= number < 1


@dataclass(frozen=True)
class BatchResult:
    """The mean loss of a batch, the number of correct predictions and the number of targets."""

    loss: Tensor
    num_correct: int
    num_targets: int


class Task(Protocol):
    """Protocol of a training task: a model and its data.

    A task may also have `supports_context_parallel = True`, if processes can split its sequences (see
    `ContextParallelModel`); a `tokenizer`; and a `data_digest`, a hash of the data that checkpoints are compared by.
    """

    name: str
    recipe: Recipe

    def untrained_model(self) -> nn.Module:
        """Return the model before training."""

    def model_config(self) -> dict[str, Any]:
        """Return the configuration that is saved with the weights; the task's module rebuilds the model from it."""

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        """Return the result of one batch. All random numbers of the batch come from `generator`."""

    def test(self, model: nn.Module) -> dict[str, float]:
        """Return metrics on held-out data, by name."""


@runtime_checkable
class ContextParallelModel(Protocol):
    """Protocol of a model that several processes run together, such as `regard.distributed.ContextParallel`.

    Each process holds a shard of every sequence; the outputs are those of its shard.
    """

    def shard(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return this process's shard of x, whose dimension `dim` has an entry per token."""

    def sum_over_ranks(self, value: float) -> float:
        """Return the sum of a number over all processes."""

    def sum_gradients(self) -> None:
        """Sum the gradients over all processes."""


@dataclass(frozen=True)
class StepReport:
    """The metrics of one training step."""

    step: int
    loss: float
    accuracy: float
    lr: float
    seconds: float


class Trainer:
    """Trains the model of a task: `advance` runs a step, `save` writes a checkpoint, `resume` continues from it.

    `recipe` defaults to the recipe of the task. With `parallel_wrapper`, which maps the model to a
    `ContextParallelModel`, several processes train the model together.

    >>> from regard.models.tasks import get_task
    >>> trainer = Trainer(get_task("karate"))
    >>> trainer.advance().step, trainer.step
    (0, 1)
    """

    def __init__(
        self, task: Task, recipe: Recipe | None = None, *, parallel_wrapper: ParallelWrapper | None = None
    ) -> None:
        self.task = task
        self.recipe = task.recipe if recipe is None else recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            self.model = task.untrained_model()
        self._parallel_model = None if parallel_wrapper is None else _check_parallel(task, parallel_wrapper(self.model))
        self.step = 0
        self.curve: list[StepReport] = []
        self._optimizer = self._make_optimizer()

    def _make_optimizer(self) -> AdamW:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        betas = float(self.recipe.betas[0]), float(self.recipe.betas[1])
        return AdamW(groups, lr=self.recipe.lr, betas=betas, eps=1e-9, fused=True)

    @property
    def is_done(self) -> bool:
        """Whether all steps of the recipe are done."""
        return self.step >= self.recipe.steps

    def advance(self) -> StepReport:
        """Run one training step and return its metrics."""
        start_time = time.perf_counter()
        lr = self.recipe.lr_at(self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        step_seed = self.recipe.seed * 1_000_003 + self.step
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step_seed)
            generator = torch.Generator().manual_seed(step_seed + 500_000_000_000)
            model: Any = self._parallel_model or self.model
            result = self.task.training_step(model, self.step, generator, self.recipe)
            if self._parallel_model is not None:
                result = _all_reduce_result(result, self._parallel_model)
            self._optimizer.zero_grad()
            result.loss.backward()
        if self._parallel_model is not None:
            self._parallel_model.sum_gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_grad_norm)
        self._optimizer.step()
        loss = float(result.loss.detach())
        if self._parallel_model is not None:
            loss = self._parallel_model.sum_over_ranks(loss)
        if not math.isfinite(loss):
            raise ArgumentError(
                f"the loss must be finite; got {loss} at step {self.step}. Use an lr below {self.recipe.lr:g}."
            )
        report = StepReport(
            self.step, loss, result.num_correct / max(result.num_targets, 1), lr, time.perf_counter() - start_time
        )
        self.step += 1
        self.curve.append(report)
        return report

    def any_rank(self, condition: bool) -> bool:
        """Return whether the condition holds in any process, so that all processes stop together."""
        return condition if self._parallel_model is None else self._parallel_model.sum_over_ranks(float(condition)) > 0

    def test(self) -> dict[str, float]:
        """Return the metrics of the task on held-out data."""
        self.model.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(self.recipe.seed)
            return self.task.test(self.model)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: parameters, optimizer state, step number and curve."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            if parameter in self._optimizer.state:
                tensors |= {f"{kind}.{name}": self._optimizer.state[parameter][kind] for kind in OPTIMIZER_STATE_KEYS}
        metadata = {
            "task": self.task.name,
            "step": self.step,
            "recipe": asdict(self.recipe),
            "data_digest": _data_digest(self.task),
            "curve": [[r.step, r.loss, r.accuracy, r.lr, r.seconds] for r in self.curve],
        }
        save_tensors_and_metadata(path, tensors, metadata)

    @classmethod
    def resume(
        cls,
        task: Task,
        path: str | Path,
        recipe: Recipe | None = None,
        *,
        parallel_wrapper: ParallelWrapper | None = None,
    ) -> "Trainer":
        """Return a trainer that continues from the checkpoint `path` of `task`.

        `recipe` replaces the recipe of the checkpoint, for example to change the number of steps. `parallel_wrapper` is
        that of `Trainer`.
        """
        tensors, metadata = load_tensors_and_metadata(path, require_checksum=True)
        if metadata.get("task") != task.name:
            got = repr(metadata.get("task"))[:60]
            raise LoadError(f"{path} must be a checkpoint of the task {task.name!r}; got the task {got}.")
        if metadata.get("data_digest") != _data_digest(task):
            raise LoadError(
                f"{path} must continue with the data it was trained on; got other data. Pass the same --data, "
                "--from-scratch to start again, or another --out."
            )
        try:
            saved = metadata["recipe"]
            saved_recipe = Recipe(**{**saved, "betas": tuple(saved["betas"])})
            step, curve = _parse_step(metadata["step"]), [_parse_step_report(row) for row in metadata["curve"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{path} must hold a checkpoint with recipe, step and curve: {error}") from None
        trainer = cls(task, saved_recipe if recipe is None else recipe, parallel_wrapper=parallel_wrapper)
        load_state_dict(trainer.model, _with_prefix(tensors, "model."), path)
        trainer.step, trainer.curve = step, curve
        trainer._load_optimizer_state({kind: _with_prefix(tensors, f"{kind}.") for kind in OPTIMIZER_STATE_KEYS}, path)
        return trainer

    def _load_optimizer_state(self, optimizer_state: dict[str, dict[str, Tensor]], path: str | Path) -> None:
        """Restore the optimizer state of each parameter that has one."""
        for name, parameter in self.model.named_parameters():
            state = {
                kind: optimizer_state[kind][name] for kind in OPTIMIZER_STATE_KEYS if name in optimizer_state[kind]
            }
            for kind in OPTIMIZER_STATE_KEYS if state else ():
                shape = () if kind == "step" else tuple(parameter.shape)
                if kind not in state:
                    raise LoadError(f"{path} must also hold the tensor '{kind}.{name}' to resume; it does not.")
                if (got := tuple(state[kind].shape)) != shape:
                    raise LoadError(f"'{kind}.{name}' must have shape {shape}; got {got} in {path}.")
                if not state[kind].is_floating_point():
                    raise LoadError(f"'{kind}.{name}' must hold floats; got {state[kind].dtype} in {path}.")
            if state:
                self._optimizer.state[parameter] = state


def _parse_step(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a step must be an integer of at least 0; got {str(value)[:40]}")
    return value


def _parse_step_report(row: Any) -> StepReport:
    step, *numbers = row
    if len(numbers) != 4 or not all(type(number) in (int, float) for number in numbers):
        raise ValueError(f"a row of the curve must be a step and four numbers; got {str(row)[:60]}")
    return StepReport(_parse_step(step), *map(float, numbers))


def _data_digest(task: Task) -> str | None:
    return getattr(task, "data_digest", None)


def _check_parallel(task: Task, model: nn.Module) -> ContextParallelModel:
    """Return the model; raise if the task does not support context parallelism."""
    if not getattr(task, "supports_context_parallel", False):
        raise ArgumentError(f"the task {task.name!r} does not support context parallelism. Omit --world-size.")
    assert isinstance(model, ContextParallelModel)
    return model


def _all_reduce_result(result: BatchResult, parallel_model: ContextParallelModel) -> BatchResult:
    """Return the counts of all processes and this process's share of the loss; the shares sum to the mean loss."""
    num_targets = parallel_model.sum_over_ranks(result.num_targets)
    return BatchResult(
        result.loss * (result.num_targets / max(num_targets, 1.0)),
        round(parallel_model.sum_over_ranks(result.num_correct)),
        round(num_targets),
    )


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def override_recipe(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """Return the recipe with its fields replaced by the `overrides` that are not None.

    If `overrides` sets steps but not warmup_steps, warmup_steps becomes at most a tenth of the steps.

    >>> override_recipe(Recipe(steps=1000, lr=0.01), {"steps": 50, "lr": None}).warmup_steps
    5
    """
    fields = {name: value for name, value in overrides.items() if value is not None}
    if "steps" in fields:
        fields = {"warmup_steps": min(recipe.warmup_steps, -(-fields["steps"] // 10)), **fields}
    return replace(recipe, **fields)


@check_types
def classification_result(
    logits: Tensor, target: Tensor, label_smoothing: float, ignore_index: int = -100
) -> BatchResult:
    """Return the mean cross-entropy of logits (..., classes) and target (...), and the number of correct predictions.

    Targets equal to `ignore_index` do not count.

    >>> result = classification_result(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), 0.0)
    >>> result.num_correct, result.num_targets
    (1, 2)
    """
    checks.probability(label_smoothing, "label_smoothing")
    checks.tensor(logits, "logits", dtype_kind="floats")
    checks.tensor(target, "target", dtype_kind="integers")
    if logits.dim() < 2 or logits.shape[:-1] != target.shape or not logits.shape[-1]:
        raise ArgumentError(
            f"logits must be (..., classes) and target (...); got {tuple(logits.shape)} and {tuple(target.shape)}."
        )
    classes = target[target != ignore_index]
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < logits.shape[-1]:
        raise ArgumentError(
            f"target must hold classes from 0 to {logits.shape[-1] - 1}, or {ignore_index} to ignore; got "
            f"{int(classes.min())} to {int(classes.max())}."
        )
    flat_logits, flat_target = logits.flatten(0, -2), target.flatten()
    is_counted = flat_target != ignore_index
    num_targets = int(is_counted.sum())
    total_loss = nn.functional.cross_entropy(
        flat_logits, flat_target, label_smoothing=label_smoothing, ignore_index=ignore_index, reduction="sum"
    )
    num_correct = int(((flat_logits.detach().argmax(-1) == flat_target) & is_counted).sum())
    return BatchResult(total_loss / max(num_targets, 1), num_correct, num_targets)


MAX_CURVE_POINTS = 200


def curve_json(trainer: Trainer, results: dict[str, float]) -> str:
    """Return the training curve and the test results as JSON; the curve has at most `MAX_CURVE_POINTS` points.

    A point is the mean over consecutive steps.
    """
    group_size = -(-len(trainer.curve) // MAX_CURVE_POINTS)
    groups = [trainer.curve[start : start + group_size] for start in range(0, len(trainer.curve), group_size)]
    points = [
        [
            group[-1].step + 1,
            round(sum(report.loss for report in group) / len(group), 4),
            round(sum(report.accuracy for report in group) / len(group), 4),
        ]
        for group in groups
    ]
    report = {
        "task": trainer.task.name,
        "recipe": asdict(trainer.recipe),
        "num_parameters": sum(p.numel() for p in trainer.model.parameters()),
        "seconds": round(sum(r.seconds for r in trainer.curve)),
        "results": {name: round(number, 4) for name, number in results.items()},
        "curve": points,
    }
    lines = json.dumps(report, indent=1)
    return re.sub(r"\[\s+([^\[\]]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", lines) + "\n"
