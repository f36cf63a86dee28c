"""The examples of docs/architecture.md, put into the files that its table names, run everywhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "regard"
NEW_NAMES = {
    "mask.py": ["lookahead"],
    "expr/score_modifier.py": ["log_distance"],
    "score.py": ["RmsDot", "rms_dot"],
    "normalizer.py": ["SquaredRelu", "squared_relu"],
}
PRELUDE = """
import math
import torch
import regard
from regard import mask, normalizer, score
q, k, v = torch.randn(3, 1, 2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
slopes = torch.tensor([0.5, 1.0], dtype=torch.float64)
distance = (torch.arange(7)[:, None] - torch.arange(7)).abs()
bias = -slopes[:, None, None] * torch.log1p(distance)
visible = torch.ones(7, 7, dtype=torch.bool).tril(1)
scores = torch.where(visible, q @ k.mT / 2, -math.inf)
units = [x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k)]
EXAMPLES = {
    "mask": (dict(mask=mask.lookahead(1)), torch.softmax(scores, -1) @ v),
    "score modifier": (dict(score=score.log_distance(slopes)), torch.softmax(q @ k.mT / 2 + bias, -1) @ v),
    "score": (dict(score=score.rms_dot()), torch.softmax(units[0] @ units[1].mT / 2, -1) @ v),
    "normalizer": (dict(normalizer=normalizer.squared_relu()), torch.relu(q @ k.mT / 2).square() / 7 @ v),
    "all": (
        dict(mask=mask.lookahead(1), normalizer=normalizer.squared_relu(),
             score=score.rms_dot().then(score.log_distance(slopes))),
        torch.where(visible, torch.relu(units[0] @ units[1].mT / 2 + bias).square() / 7, 0.0) @ v,
    ),
}
"""
CHECKS = {
    "attention": """
for options, expected in EXAMPLES.values():
    for backend in ("tiled", "reference", None):
        torch.testing.assert_close(regard.attention(q, k, v, **options, backend=backend), expected)
    if "normalizer" not in options:
        single = regard.attention(q.float(), k.float(), v.float(), **options, backend="native")
        torch.testing.assert_close(single, expected.float())
""",
    "examples": """
import doctest
finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
for function in (mask.lookahead, score.log_distance, score.rms_dot, normalizer.squared_relu):
    (example,) = finder.find(function, globs={"torch": torch, function.__name__: function})
    assert example.examples, f"{function.__name__} has no example"
    runner.run(example)
assert not runner.summarize().failed
""",
    "gradients": """
for options, _ in EXAMPLES.values():
    inputs = [x[:, :, :5].clone().requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *qkv: regard.attention(*qkv, **options, backend="tiled"), inputs)
""",
    "a graph": """
for options, expected in EXAMPLES.values():
    compiled = torch.compile(lambda q, k, v: regard.attention(q, k, v, **options), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), expected)
""",
    "steps": """
names = {"mask": "visible", "score modifier": "log_distance", "score": "rms of k", "normalizer": "positive"}
for key, (options, expected) in EXAMPLES.items():
    steps = regard.steps(q, k, v, **options)
    assert key == "all" or names[key] in steps.names, steps.names
    torch.testing.assert_close(steps["output"].tensor, expected)
    program = {}
    exec(steps.at(0, 1).code(), program)
    torch.testing.assert_close(program["output"], expected[0, 1])
weights = regard.steps(q, k, v, **EXAMPLES["normalizer"][0])["weights"]
assert weights.code == "weights = positive.square() / 7"
""",
    "a backend": """
backend = regard.available_backends()[-1]
assert backend == "blockwise"
for options, expected in EXAMPLES.values():
    torch.testing.assert_close(regard.attention(q, k, v, **options, backend=backend), expected)
inputs = [x.clone().requires_grad_() for x in (q, k, v)]
assert torch.autograd.gradcheck(lambda *qkv: regard.attention(*qkv, mask=mask.causal(), backend=backend), inputs)
try:
    regard.attention(q.half(), k.half(), v.half(), backend=backend)
except regard.errors.BackendError as error:
    assert "it supports float32 and float64, not torch.float16" in str(error)
else:
    raise AssertionError("a call in half precision must raise")
""",
    "the command line": """
from typer.testing import CliRunner
from regard.cli import app
options = ["--mask", "lookahead(1)", "--score", "rms_dot.then(log_distance([1]))", "--normalizer", "squared_relu"]
result = CliRunner().invoke(app, ["steps", "three-tokens", *options])
assert result.exit_code == 0, result.output
for text in ("minus a slope times the logarithm", "a mean square of 1", "the square, divided by the number of keys"):
    assert text in " ".join(result.output.split()), result.output
""",
    "the page": """
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
choices = dispatch(Explorer(), "walkthrough_examples").values
assert "lookahead(1)" in choices["masks"] and "squared_relu" in choices["normalizers"]
templates = dispatch(Explorer(), "stage_templates").values
assert list(templates["stages"]["squared_relu"])[-3:] == ["positive", "weights", "output"]
assert templates["masks"]["lookahead(1)"]
assert templates["normalizers"]["squared_relu"]["stage_specs"] == [
    {"name": "positive", "variable": "positive", "tree": ["relu", "scores"]},
    {"name": "weights", "variable": "weights", "tree": ["div", ["square", "positive"], "n_k"]},
]
""",
    "the catalog": """
entry = regard.mechanisms.catalog().find("squared ReLU")
assert entry.family == "normalizers" and "2202.10447" in entry.paper
exec(entry.example)
""",
}

RUN_CHECKS = """
import json, sys, traceback
assert normalizer.__file__.startswith(PACKAGE)
errors = {}
for name, code in json.load(sys.stdin).items():
    try:
        exec(code, dict(globals()))
        errors[name] = ""
    except BaseException:
        errors[name] = traceback.format_exc()
print(json.dumps(errors))
"""


def documented_code(names: list[str]) -> str:
    """The blocks of the page that define these names; its imports come first."""
    document = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    blocks = re.findall("```python\n(.*?)```", document, re.S)
    defining = [b for b in blocks if any(re.search(rf"^(def|class) {name}\b", b, re.M) for name in names)]
    assert defining, names
    return "\n\n".join(defining)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of regard in which the files of the table have the code of the page."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "regard"
    for source, target in (
        (PACKAGE, copy),
        (PACKAGE / "expr", copy / "expr"),
        (PACKAGE / "backends", copy / "backends"),
    ):
        target.mkdir()
        for path in source.iterdir():
            if path.name not in ("__pycache__", "expr", "backends"):
                (target / path.name).symlink_to(path)
    (copy / "backends" / "blockwise.py").write_text(documented_code(["BlockwiseBackend"]), encoding="utf8")
    registry = (PACKAGE / "backends" / "registry.py").read_text(encoding="utf8")
    registry = registry.replace("    ReferenceBackend(),\n", "    ReferenceBackend(),\n    BlockwiseBackend(),\n")
    registry = registry.replace(
        "from regard.plan", "from regard.backends.blockwise import BlockwiseBackend\nfrom regard.plan", 1
    )
    (copy / "backends" / "registry.py").unlink()
    (copy / "backends" / "registry.py").write_text(registry, encoding="utf8")
    for file, names in NEW_NAMES.items():
        source = (PACKAGE / file).read_text(encoding="utf8")
        public = "".join(f'    "{name}",\n' for name in [*names, *(["log_distance"] if file == "score.py" else [])])
        source = source.replace("__all__ = [\n", f"__all__ = [\n{public}", 1)
        own_import = rf"^from regard\.{file[:-3].replace('/', '.')} import .*\n"  # of the module itself
        code = re.sub(own_import, "", documented_code(names), flags=re.M)
        if file == "score.py":
            source = source.replace("    alibi,\n", "    alibi,\n    log_distance,\n", 1)
        if file == "normalizer.py":
            code = f"from regard.normalizers.streaming import StreamingNormalizer\n{code}"
        (copy / file).unlink()
        (copy / file).write_text(f"{source}\n\n{code}", encoding="utf8")
    return folder


@pytest.fixture(scope="module")
def errors(package: Path) -> dict[str, str]:
    """The errors of the checks by name, from one process that runs them all."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    script = PRELUDE + RUN_CHECKS.replace("PACKAGE", repr(str(package)))
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=package,
        env=environment,
        input=json.dumps(CHECKS),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    output: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    return output


@pytest.mark.parametrize("check", CHECKS)
def test_the_examples_run_in_the_files_of_the_table(errors: dict[str, str], check: str) -> None:
    assert errors[check] == ""
