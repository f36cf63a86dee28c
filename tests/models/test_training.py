"""Training: schedules, exact resumption, checkpoints, curves and the train command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import ArgumentError, LoadError
from regard.files.tensors_with_metadata import load_tensors_and_metadata, save_tensors_and_metadata
from regard.models.state_dict import load_state_dict
from regard.models.tasks import get_task, task_names
from regard.models.tasks.dates import DatesTask, date_words, decode, encode, is_held_out, iso_characters
from regard.models.trained_model import load_trained
from regard.models.training import BatchResult, Recipe, Trainer, classification_result, curve_json, override_recipe
from regard.models.translation import Translator
from tests.cli.command import run_command


def test_inverse_sqrt_is_the_schedule_of_the_original_transformer() -> None:
    recipe = Recipe(steps=10_000, lr=512**-0.5 * 4000**-0.5, warmup_steps=4000, schedule="inverse_sqrt")
    for step in (0, 10, 3999, 4000, 9999):
        t = step + 1
        expected = 512**-0.5 * min(t**-0.5, t * 4000**-1.5)
        assert recipe.lr_at(step) == pytest.approx(expected, rel=1e-9)


def test_cosine_decays_to_a_tenth_and_constant_does_not_decay() -> None:
    cosine = Recipe(steps=1000, lr=2.0, warmup_steps=100)
    assert cosine.lr_at(99) == pytest.approx(2.0)
    assert cosine.lr_at(549) == pytest.approx(1.1)
    assert cosine.lr_at(999) == pytest.approx(0.2)
    assert Recipe(steps=1000, lr=2.0, warmup_steps=0, schedule="constant").lr_at(500) == 2.0


def test_label_smoothing_follows_its_formula() -> None:
    logits, target = torch.randn(5, 7), torch.tensor([0, 3, 6, 2, -100])
    result = classification_result(logits, target, label_smoothing=0.1)
    log_probs = logits.log_softmax(-1)[:4]
    expected = -(0.9 * log_probs.gather(1, target[:4, None]).mean() + 0.1 * log_probs.mean())
    torch.testing.assert_close(result.loss, expected)
    assert result.num_targets == 4
    assert result.num_correct == int((logits[:4].argmax(-1) == target[:4]).sum())


def _assert_same_parameters(trainer: Trainer, other: Trainer) -> None:
    other_state = other.model.state_dict()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, other_state[name]), name


def test_a_resumed_run_is_bitwise_identical(tmp_path: Path) -> None:
    recipe = override_recipe(DatesTask.recipe, {"steps": 8, "seed": 3})
    uninterrupted = Trainer(DatesTask(), recipe)
    reports = [uninterrupted.advance() for _ in range(8)]
    interrupted = Trainer(DatesTask(), recipe)
    for _ in range(5):
        interrupted.advance()
    interrupted.save(tmp_path / "checkpoint.safetensors")
    torch.manual_seed(99)  # the global random state must not matter
    torch.randn(3)
    resumed = Trainer.resume(DatesTask(), tmp_path / "checkpoint.safetensors")
    assert resumed.step == 5
    resumed_reports = [resumed.advance() for _ in range(3)]
    assert [report.loss for report in resumed_reports] == [report.loss for report in reports[5:]]
    _assert_same_parameters(uninterrupted, resumed)
    assert [report.loss for report in resumed.curve] == [report.loss for report in reports]


class TwoLayersTask:
    """A task whose second layer gets gradients only in even steps."""

    name, recipe = "two_layers", Recipe(steps=12, lr=0.1, warmup_steps=0)

    def untrained_model(self) -> nn.Module:
        return nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def model_config(self) -> dict[str, object]:
        return {}

    def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
        x = torch.randn(4, 3, generator=generator)
        first, second = model.children()
        return BatchResult((first(x) + (second(x) if step % 2 == 0 else 0)).square().mean(), 0, 1)

    def test(self, model: nn.Module) -> dict[str, float]:
        return {}


def test_every_parameter_resumes_with_its_own_step_count(tmp_path: Path) -> None:
    uninterrupted, interrupted = Trainer(TwoLayersTask()), Trainer(TwoLayersTask())
    path = tmp_path / "checkpoint.safetensors"
    for _ in range(12):
        uninterrupted.advance()
    for _ in range(5):
        interrupted.advance()
    interrupted.save(path)
    resumed = Trainer.resume(TwoLayersTask(), path)
    while not resumed.is_done:
        resumed.advance()
    _assert_same_parameters(uninterrupted, resumed)
    tensors, metadata = load_tensors_and_metadata(path)
    save_tensors_and_metadata(path, tensors | {"exp_avg_sq.1.bias": torch.zeros(1)}, metadata)
    with pytest.raises(LoadError, match=r"'exp_avg_sq\.1\.bias' must have shape \(3,\); got \(1,\)"):
        Trainer.resume(TwoLayersTask(), path)
    del tensors["exp_avg.0.weight"]
    save_tensors_and_metadata(path, tensors, metadata)
    with pytest.raises(LoadError, match=r"must also hold the tensor 'exp_avg\.0\.weight' to resume"):
        Trainer.resume(TwoLayersTask(), path)


def test_invalid_checkpoints_raise(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for metadata in ({}, {"recipe": {"steps": 3}}, {"recipe": {"steps": 3, "lr": 1.0, "betas": [0.9, 0.9], "new": 1}}):
        save_tensors_and_metadata(path, {"a": torch.zeros(1)}, {"task": "two_layers", **metadata})
        with pytest.raises(LoadError, match=r"must hold a checkpoint with recipe, step and curve: "):
            Trainer.resume(TwoLayersTask(), path)


def test_shared_parameters_are_saved_under_both_names(tmp_path: Path) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    model = nn.ModuleList([first, second])
    save_tensors_and_metadata(tmp_path / "x.safetensors", model.state_dict())
    tensors, _ = load_tensors_and_metadata(tmp_path / "x.safetensors")
    assert torch.equal(tensors["0.weight"], tensors["1.weight"])


def test_training_does_not_change_the_global_random_state() -> None:
    trainer = Trainer(DatesTask(), override_recipe(DatesTask.recipe, {"steps": 2}))
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    trainer.advance()
    torch.testing.assert_close(torch.randn(3), expected, rtol=0, atol=0)


def test_another_seed_gives_another_loss() -> None:
    first, second = (
        Trainer(DatesTask(), override_recipe(DatesTask.recipe, {"steps": 2, "seed": seed})) for seed in (0, 1)
    )
    assert first.advance().loss != second.advance().loss


def test_gradients_are_clipped() -> None:
    class LargeGradientTask:
        name = "large_gradient"
        recipe = Recipe(steps=3, lr=1.0, warmup_steps=0, schedule="constant", max_grad_norm=1e-3, weight_decay=0.0)

        def untrained_model(self) -> nn.Module:
            return nn.Linear(2, 2)

        def model_config(self) -> dict[str, object]:
            return {}

        def training_step(self, model: nn.Module, step: int, generator: torch.Generator, recipe: Recipe) -> BatchResult:
            return BatchResult(1e6 * model(torch.ones(1, 2)).sum(), 0, 1)

        def test(self, model: nn.Module) -> dict[str, float]:
            return {}

    trainer = Trainer(LargeGradientTask())
    trainer.advance()
    norm = sum(float((p.grad**2).sum()) for p in trainer.model.parameters() if p.grad is not None) ** 0.5
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_a_checkpoint_of_another_task_raises(tmp_path: Path) -> None:
    save_tensors_and_metadata(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {"task": "language"})
    with pytest.raises(LoadError, match=r"must be a checkpoint of the task 'dates'; got the task 'language'"):
        Trainer.resume(DatesTask(), tmp_path / "x.safetensors")


def test_mismatched_tensors_raise_and_change_nothing(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    for tensors, message in (
        ({"weight": torch.ones(2, 3)}, r"must hold the tensor 'bias' of shape \(2,\)"),
        ({"weight": torch.ones(2, 3), "bias": torch.ones(3)}, r"'bias' must have shape \(2,\); got \(3,\)"),
        (
            {"weight": torch.ones(2, 3), "bias": torch.ones(2), "more": torch.ones(1)},
            r"holds the tensor 'more', which this model does not have \(unexpected tensors: 1\)",
        ),
    ):
        with pytest.raises(LoadError, match=message):
            load_state_dict(model, tensors, tmp_path)
        assert torch.equal(model.weight, before)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_tensors_and_metadata(path, {"a": torch.arange(3)}, {"number": 1.5})
    program = f"""
import resource, torch
from regard.errors import SaveError
from regard.files.tensors_with_metadata import save_tensors_and_metadata
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_tensors_and_metadata({str(path)!r}, {{"a": torch.arange(50_000)}})
except SaveError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.startswith(f"{path} must be a file that can be written; got: File too large. Free some space")
    tensors, metadata = load_tensors_and_metadata(path)
    assert tensors["a"].tolist() == [0, 1, 2]
    assert metadata == {"number": 1.5}
    assert list(tmp_path.iterdir()) == [path]


def test_invalid_recipes_raise() -> None:
    with pytest.raises(ArgumentError, match=r"schedule must be one of cosine, inverse_sqrt, constant; got 'linear'"):
        Recipe(steps=1, lr=1.0, schedule="linear")
    with pytest.raises(ArgumentError, match=r"steps must be at least 1 and warmup_steps at least 0; got 0 and 100"):
        Recipe(steps=0, lr=1.0)
    for name in ("lr", "max_grad_norm"):
        for number in (0.0, -1.0, torch.inf, torch.nan):
            with pytest.raises(ArgumentError, match=rf"{name} must be a number above 0; got {number}"):
                Recipe(**{"steps": 1, "lr": 1.0, name: number})
    with pytest.raises(ArgumentError, match=r"label_smoothing must be from 0 to less than 1; got 1.0"):
        Recipe(steps=1, lr=1.0, label_smoothing=1.0)
    for seed in (-1, 2**32):
        with pytest.raises(ArgumentError, match=rf"seed must be from 0 to 4294967295; got {seed}"):
            Recipe(steps=1, lr=1.0, seed=seed)
    with pytest.raises(ArgumentError, match=r"weight_decay must be a finite number of at least 0; got -0.1"):
        Recipe(steps=1, lr=1.0, weight_decay=-0.1)
    with pytest.raises(ArgumentError, match=r"the task must be one of .*; got 'wonder'"):
        get_task("wonder")


def test_overrides_replace_fields_of_a_recipe() -> None:
    recipe = Recipe(steps=1000, lr=0.1, warmup_steps=200)
    assert override_recipe(recipe, {"steps": None, "lr": None}) == recipe
    assert override_recipe(recipe, {"steps": 50, "seed": 3}) == Recipe(steps=50, lr=0.1, warmup_steps=5, seed=3)
    assert override_recipe(recipe, {"steps": 50, "warmup_steps": 40}) == Recipe(steps=50, lr=0.1, warmup_steps=40)
    overrides = {
        "schedule": "inverse_sqrt",
        "label_smoothing": 0.1,
        "max_grad_norm": 2.0,
        "weight_decay": 0.0,
        "lr": 0.2,
    }
    assert override_recipe(recipe, overrides) == Recipe(steps=1000, warmup_steps=200, **overrides)


def test_a_nonfinite_loss_raises() -> None:
    trainer = Trainer(DatesTask(), override_recipe(DatesTask.recipe, {"steps": 3}))
    with torch.no_grad():
        trainer.model.target_embedding.weight.fill_(torch.nan)
    with pytest.raises(ArgumentError, match=r"the loss must be finite; got nan at step 0"):
        trainer.advance()


def test_curve_json_has_results_and_points() -> None:
    trainer = Trainer(DatesTask(), override_recipe(DatesTask.recipe, {"steps": 2}))
    trainer.advance()
    trainer.advance()
    report = json.loads(curve_json(trainer, {"exact_match": 0.5}))
    assert report["results"] == {"exact_match": 0.5}
    assert [point[0] for point in report["curve"]] == [1, 2]
    assert report["num_parameters"] == sum(p.numel() for p in trainer.model.parameters())


def _regard(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "regard.cli", *arguments]


@pytest.mark.long
def test_ctrl_c_saves_a_checkpoint_and_the_same_command_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _regard("train", "dates", "--steps", "40", "--out", "run", "--save-steps", "1")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors.decode()
    assert b"saved after" in errors
    _, metadata = load_tensors_and_metadata(checkpoint)
    assert 0 < metadata["step"] < 40
    resumed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300, check=True)
    assert f"resuming after step {metadata['step']}".encode() in resumed.stdout
    assert json.loads((tmp_path / "run" / "curve.json").read_text())["results"]["num_tested"] > 0
    trained = load_trained(tmp_path / "run")
    assert trained.task == "dates"
    assert isinstance(trained.model, Translator)
    monkeypatch.chdir(tmp_path)
    code, _, errors = run_command(*command[3:], "--lr", "0.5")
    assert code == 2
    assert "must be resumed with lr 0.002; got lr 0.5. Use the same options" in errors


def test_invalid_commands_print_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    for arguments, message in (
        (("train", "wonder"), "the task must be one of"),
        (("train", "language", "--data", "nothing"), "Run make data"),
        (
            ("train", "dates", "--out", "taken/run"),
            "--out must be a writable folder; got taken/run: Not a",
        ),
        (("train", "dates", "--lr", "0"), "lr must be a number above 0; got 0.0"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_options_change_the_recipe_and_progress_is_logged_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["regard.cli.commands.train"], "LOG_INTERVAL_S", 0.0)
    options = {
        "lr": "0.001",
        "warmup_steps": "1",
        "schedule": "constant",
        "label_smoothing": "0.2",
        "max_grad_norm": "2",
        "weight_decay": "0.3",
    }
    arguments = [argument for name, value in options.items() for argument in (f"--{name.replace('_', '-')}", value)]
    result = CliRunner().invoke(app, ["train", "dates", "--steps", "2", *arguments])
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "loss" in line]
    assert [line[line.index("step") :] for line in lines] == ["step 1 of 2", "step 2 of 2"]
    recipe = json.loads((tmp_path / "runs" / "dates" / "curve.json").read_text())["recipe"]
    assert {name: recipe[name] for name in options} == {
        "lr": 0.001,
        "warmup_steps": 1,
        "schedule": "constant",
        "label_smoothing": 0.2,
        "max_grad_norm": 2.0,
        "weight_decay": 0.3,
    }


def test_task_names_include_the_bundled_tasks() -> None:
    assert {"language", "dates"} <= set(task_names())


def test_a_date_phrase_has_one_meaning() -> None:
    train, test = DatesTask().splits
    assert not set(train) & set(test)
    assert not any(is_held_out(day) for day in train)
    assert 0.08 < len(test) / (len(train) + len(test)) < 0.12
    meanings: dict[tuple[str, ...], set[str]] = {}
    generator = torch.Generator().manual_seed(0)
    for index in torch.randint(len(train), (3000,), generator=generator).tolist():
        variants = torch.randint(60, (6,), generator=generator).tolist()
        phrase = tuple(date_words(train[index], variants))
        meanings.setdefault(phrase, set()).add("".join(iso_characters(train[index])))
    assert all(len(dates) == 1 for dates in meanings.values())


def test_dates_are_encoded_and_decoded() -> None:
    day = DatesTask().splits[0][0]
    tokens, lengths = encode([iso_characters(day), iso_characters(day)[:4]], "target")
    assert lengths.tolist() == [10, 4]
    assert decode(tokens[0].tolist()) == day.isoformat()
