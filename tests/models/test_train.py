"""Training: schedules, exact resumption, what is written down. The tasks' results are in docs/training."""

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
from regard.errors import LoadError, SpecError
from regard.models.store import fit, read, write
from regard.models.tasks import names, task
from regard.models.tasks.dates import DatesTask, decode, encode, is_held_out, said, written
from regard.models.train import Outcome, Recipe, Training, answers, changed, curve_json
from regard.models.trained import trained
from regard.models.translation import Translator


def test_the_original_schedule_is_the_published_formula() -> None:
    recipe = Recipe(steps=10_000, rate=512**-0.5 * 4000**-0.5, warmup=4000, schedule="original")
    for step in (0, 10, 3999, 4000, 9999):
        t = step + 1
        expected = 512**-0.5 * min(t**-0.5, t * 4000**-1.5)
        assert recipe.rate_at(step) == pytest.approx(expected, rel=1e-9)


def test_cosine_falls_to_a_tenth_and_constant_stays() -> None:
    cosine = Recipe(steps=1000, rate=2.0, warmup=100)
    assert cosine.rate_at(99) == pytest.approx(2.0)
    assert cosine.rate_at(549) == pytest.approx(1.1)
    assert cosine.rate_at(999) == pytest.approx(0.2)
    assert Recipe(steps=1000, rate=2.0, warmup=0, schedule="constant").rate_at(500) == 2.0


def test_label_smoothing_spreads_probability() -> None:
    logits, right = torch.randn(5, 7), torch.tensor([0, 3, 6, 2, -100])
    found = answers(logits, right, smoothing=0.1)
    log = logits.log_softmax(-1)[:4]
    expected = -(0.9 * log.gather(1, right[:4, None]).mean() + 0.1 * log.mean())
    torch.testing.assert_close(found.loss, expected)
    assert found.of == 4
    assert found.right == int((logits[:4].argmax(-1) == right[:4]).sum())


def _state(training: Training) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in training.model.state_dict().items()}


def test_going_on_from_a_checkpoint_gives_the_same_bits(tmp_path: Path) -> None:
    recipe = changed(DatesTask.recipe, {"steps": 8, "seed": 3})
    whole = Training(DatesTask(), recipe)
    reports = [whole.advance() for _ in range(8)]
    half = Training(DatesTask(), recipe)
    for _ in range(5):
        half.advance()
    half.save(tmp_path / "half.safetensors")
    torch.manual_seed(99)  # nothing outside may matter
    torch.randn(3)
    rest = Training.resume(DatesTask(), tmp_path / "half.safetensors")
    assert rest.step == 5
    later = [rest.advance() for _ in range(3)]
    assert [r.loss for r in later] == [r.loss for r in reports[5:]]
    for name, value in _state(whole).items():
        assert torch.equal(value, rest.model.state_dict()[name]), name
    assert [r.loss for r in rest.curve] == [r.loss for r in reports]


class Halves:
    """A task in which one half of the model learns in even steps alone."""

    name, recipe = "halves", Recipe(steps=12, rate=0.1, warmup=0)

    def model(self) -> nn.Module:
        return nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def words(self) -> dict[str, object]:
        return {}

    def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
        x = torch.randn(4, 3, generator=draw)
        one, two = model.children()
        return Outcome((one(x) + (two(x) if step % 2 == 0 else 0)).square().mean(), 0, 1)

    def test(self, model: nn.Module) -> dict[str, float]:
        return {}


def test_each_parameter_goes_on_with_its_own_number_of_steps(tmp_path: Path) -> None:
    whole, half, path = Training(Halves()), Training(Halves()), tmp_path / "half.safetensors"
    for _ in range(12):
        whole.advance()
    for _ in range(5):
        half.advance()
    half.save(path)
    rest = Training.resume(Halves(), path)
    while not rest.is_over:
        rest.advance()
    assert all(torch.equal(value, rest.model.state_dict()[name]) for name, value in _state(whole).items())
    tensors, words = read(path)
    write(path, tensors | {"exp_avg_sq.1.bias": torch.zeros(1)}, words)
    with pytest.raises(LoadError, match=r"'exp_avg_sq\.1\.bias' must have shape \(3,\); got \(1,\)"):
        Training.resume(Halves(), path)
    del tensors["exp_avg.0.weight"]
    write(path, tensors, words)
    with pytest.raises(LoadError, match=r"must hold 'exp_avg\.0\.weight' as well, to go on"):
        Training.resume(Halves(), path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for words in ({}, {"recipe": {"steps": 3}}, {"recipe": {"steps": 3, "rate": 1.0, "betas": [0.9, 0.9], "new": 1}}):
        write(path, {"a": torch.zeros(1)}, {"task": "halves", **words})
        with pytest.raises(LoadError, match=r"must be a checkpoint, with recipe, step and curve; it is not"):
            Training.resume(Halves(), path)


def test_what_a_model_shares_is_written_for_both(tmp_path: Path) -> None:
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    two.weight = one.weight
    shared = nn.ModuleList([one, two])
    write(tmp_path / "x.safetensors", shared.state_dict())
    tensors, _ = read(tmp_path / "x.safetensors")
    assert torch.equal(tensors["0.weight"], tensors["1.weight"])


def test_training_leaves_the_callers_random_numbers_alone() -> None:
    training = Training(DatesTask(), changed(DatesTask.recipe, {"steps": 2}))
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    training.advance()
    torch.testing.assert_close(torch.randn(3), expected, rtol=0, atol=0)


def test_another_seed_trains_another_model() -> None:
    one, two = (Training(DatesTask(), changed(DatesTask.recipe, {"steps": 2, "seed": seed})) for seed in (0, 1))
    assert one.advance().loss != two.advance().loss


def test_gradients_are_clipped() -> None:
    class Steep:
        name, recipe = "steep", Recipe(steps=3, rate=1.0, warmup=0, schedule="constant", clip=1e-3, decay=0.0)

        def model(self) -> nn.Module:
            return nn.Linear(2, 2)

        def words(self) -> dict[str, object]:
            return {}

        def outcome(self, model: nn.Module, step: int, draw: torch.Generator, recipe: Recipe) -> Outcome:
            return Outcome(1e6 * model(torch.ones(1, 2)).sum(), 0, 1)

        def test(self, model: nn.Module) -> dict[str, float]:
            return {}

    training = Training(Steep())
    training.advance()
    norm = sum(float((p.grad**2).sum()) for p in training.model.parameters() if p.grad is not None) ** 0.5
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {"task": "language"})
    with pytest.raises(LoadError, match=r"must be a checkpoint of 'dates'; got one of 'language'"):
        Training.resume(DatesTask(), tmp_path / "x.safetensors")


def test_weights_that_do_not_fit_are_refused_by_name_and_change_nothing(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    for tensors, message in (
        ({"weight": torch.ones(2, 3)}, r"must hold 'bias', of shape \(2,\)"),
        ({"weight": torch.ones(2, 3), "bias": torch.ones(3)}, r"'bias' must have shape \(2,\); got \(3,\)"),
        ({"weight": torch.ones(2, 3), "bias": torch.ones(2), "more": torch.ones(1)}, "holds 'more'"),
    ):
        with pytest.raises(LoadError, match=message):
            fit(model, tensors, tmp_path)
        assert torch.equal(model.weight, before)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"a": torch.arange(3)}, {"number": 1.5})
    program = f"""
import resource, torch
from regard.errors import SaveError
from regard.models.store import write
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write({str(path)!r}, {{"a": torch.arange(50_000)}})
except SaveError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{path} must be a file that can be written; got: File too large. Free some space")
    tensors, words = read(path)
    assert tensors["a"].tolist() == [0, 1, 2]
    assert words == {"number": 1.5}
    assert list(tmp_path.iterdir()) == [path]


def test_recipes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SpecError, match=r"schedule must be one of cosine, original, constant; got 'linear'"):
        Recipe(steps=1, rate=1.0, schedule="linear")
    with pytest.raises(SpecError, match=r"steps must be at least 1 and warmup 0; got 0 and 100"):
        Recipe(steps=0, rate=1.0)
    for name in ("rate", "clip"):
        for number in (0.0, -1.0, torch.inf, torch.nan):
            with pytest.raises(SpecError, match=rf"{name} must be a number above 0; got {number}"):
                Recipe(**{"steps": 1, "rate": 1.0, name: number})
    with pytest.raises(SpecError, match=r"smoothing must be from 0 to less than 1; got 1.0"):
        Recipe(steps=1, rate=1.0, smoothing=1.0)
    for seed in (-1, 2**32):
        with pytest.raises(SpecError, match=rf"seed must be from 0 to 4294967295; got {seed}"):
            Recipe(steps=1, rate=1.0, seed=seed)
    with pytest.raises(SpecError, match=r"decay must be a number from 0 on; got -0.1"):
        Recipe(steps=1, rate=1.0, decay=-0.1)
    with pytest.raises(SpecError, match=r"the task must be one of .*; got 'wonder'"):
        task("wonder")


def test_what_is_wanted_replaces_what_a_recipe_says() -> None:
    recipe = Recipe(steps=1000, rate=0.1, warmup=200)
    assert changed(recipe, {"steps": None, "rate": None}) == recipe
    assert changed(recipe, {"steps": 50, "seed": 3}) == Recipe(steps=50, rate=0.1, warmup=5, seed=3)
    assert changed(recipe, {"steps": 50, "warmup": 40}) == Recipe(steps=50, rate=0.1, warmup=40)
    wanted = {"schedule": "original", "smoothing": 0.1, "clip": 2.0, "decay": 0.0, "rate": 0.2}
    assert changed(recipe, wanted) == Recipe(steps=1000, warmup=200, **wanted)


def test_a_loss_that_is_no_number_ends_it() -> None:
    training = Training(DatesTask(), changed(DatesTask.recipe, {"steps": 3}))
    with torch.no_grad():
        training.model.target_embedding.weight.fill_(torch.nan)
    with pytest.raises(SpecError, match=r"the loss must stay a number; got nan at step 0"):
        training.advance()


def test_a_curve_is_written_in_few_points() -> None:
    training = Training(DatesTask(), changed(DatesTask.recipe, {"steps": 2}))
    training.advance()
    training.advance()
    found = json.loads(curve_json(training, {"exact": 0.5}))
    assert found["results"] == {"exact": 0.5}
    assert [point[0] for point in found["step, loss, accuracy"]] == [1, 2]
    assert found["parameters"] == sum(p.numel() for p in training.model.parameters())


def _regard(*words: str) -> list[str]:
    return [sys.executable, "-m", "regard.cli", *words]


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = _regard("train", "dates", "--steps", "40", "--out", "run", "--every", "1")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not checkpoint.exists() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors.decode()
    assert b"stopped and saved after" in errors
    _, words = read(checkpoint)
    assert 0 < words["step"] < 40
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300, check=True)
    assert f"going on after step {words['step']}".encode() in again.stdout
    assert json.loads((tmp_path / "run" / "curve.json").read_text())["results"]["tested"] > 0
    found = trained(tmp_path / "run")
    assert found.task == "dates"
    assert isinstance(found.model, Translator)
    other = subprocess.run([*command, "--rate", "0.5"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert other.returncode == 2
    assert "was begun with rate 0.002, and can only go on so; got rate 0.5. Give the same options" in other.stderr


def test_the_command_refuses_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    for words, message in (
        (("train", "wonder"), "the task must be one of"),
        (("train", "language", "--data", "nothing"), "Run make data"),
        (
            ("train", "dates", "--out", "taken/run"),
            "--out must be a folder that can be written into; got taken/run: Not a",
        ),
        (("train", "dates", "--rate", "0"), "rate must be a number above 0; got 0.0"),
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_recipe_is_changed_by_options_and_lines_tell_how_it_goes_where_no_bar_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["regard.cli.train"], "BETWEEN_LINES", 0.0)
    options = {"rate": "0.001", "warmup": "1", "schedule": "constant", "smoothing": "0.2", "clip": "2", "decay": "0.3"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = CliRunner().invoke(app, ["train", "dates", "--steps", "2", *words])
    assert done.exit_code == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "loss" in line]
    assert [line[line.index("step") :] for line in lines] == ["step 1 of 2", "step 2 of 2"]
    recipe = json.loads((tmp_path / "runs" / "dates" / "curve.json").read_text())["recipe"]
    assert {name: recipe[name] for name in options} == {
        "rate": 0.001,
        "warmup": 1,
        "schedule": "constant",
        "smoothing": 0.2,
        "clip": 2.0,
        "decay": 0.3,
    }


def test_every_task_has_a_name() -> None:
    assert {"language", "dates"} <= set(names())


def test_days_in_words_have_one_meaning() -> None:
    days, held = DatesTask().days
    assert not set(days) & set(held)
    assert not any(is_held_out(day) for day in days)
    assert 0.08 < len(held) / (len(days) + len(held)) < 0.12
    meanings: dict[tuple[str, ...], set[str]] = {}
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(len(days), (3000,), generator=generator).tolist():
        ways = torch.randint(60, (6,), generator=generator).tolist()
        meanings.setdefault(tuple(said(days[place], ways)), set()).add("".join(written(days[place])))
    assert all(len(found) == 1 for found in meanings.values())


def test_dates_go_into_tokens_and_back() -> None:
    day = DatesTask().days[0][0]
    tokens, lengths = encode([written(day), written(day)[:4]], "target")
    assert lengths.tolist() == [10, 4]
    assert decode(tokens[0].tolist()) == day.isoformat()
