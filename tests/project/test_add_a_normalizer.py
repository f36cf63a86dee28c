"""A normalizer is declared in one file: the example of docs/architecture.md, in `normalizer.py`, runs everywhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "regard"
IMPORTS = "from regard.normalizers.streaming import StreamingNormalizer\n"
PRELUDE = """
import torch
import regard
from regard import mask, normalizer
q, k, v = torch.randn(3, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
weights = torch.relu(q @ k.T / 2).square().tril() / 7
options = dict(normalizer=normalizer.squared_relu(), mask=mask.causal())
"""
CHECKS = {
    "attention": """
for backend in ("tiled", "reference", None):
    torch.testing.assert_close(regard.attention(q, k, v, **options, backend=backend), weights @ v)
""",
    "gradients": """
q, k, v = (x[:5].clone().requires_grad_() for x in (q, k, v))
assert torch.autograd.gradcheck(lambda *qkv: regard.attention(*qkv, **options, backend="tiled"), (q, k, v))
""",
    "inside a graph": """
compiled = torch.compile(lambda q, k, v: regard.attention(q, k, v, **options), fullgraph=True, backend="aot_eager")
torch.testing.assert_close(compiled(q, k, v), weights @ v)
""",
    "steps": """
steps = regard.steps(q, k, v, **options)
assert steps.names[-4:] == ["masked", "positive", "weights", "output"]
torch.testing.assert_close(steps["weights"].values, weights)
assert steps["weights"].code == "weights = positive.square() / 7"
program = {}
exec(steps.code(), program)
torch.testing.assert_close(program["output"], weights @ v)
""",
    "the command line": """
from typer.testing import CliRunner
from regard.cli import app
result = CliRunner().invoke(app, ["steps", "three-tokens", "--normalizer", "squared_relu"])
assert result.exit_code == 0, result.output
assert "weights: the square, divided by the number of keys" in result.output
""",
    "the page": """
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
assert "squared_relu" in dispatch(Explorer(), "walkthrough_examples").values["normalizers"]
templates = dispatch(Explorer(), "stage_templates").values
assert list(templates["stages"]["squared_relu"])[-3:] == ["positive", "weights", "output"]
assert templates["normalizers"]["squared_relu"]["rules"] == [
    {"name": "positive", "variable": "positive", "tree": ["relu", "scores"]},
    {"name": "weights", "variable": "weights", "tree": ["div", ["square", "positive"], "n_k"]},
]
""",
    "the catalog": """
card = regard.mechanisms.catalog().find("squared ReLU")
assert card.family == "normalizers" and "2202.10447" in card.paper
exec(card.example)
""",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package that shares every file with regard except `normalizer.py`, with the new normalizer."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "regard").mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in ("normalizer.py", "__pycache__"):
            (folder / "regard" / path.name).symlink_to(path)
    document = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    (declaration,) = (
        block for block in re.findall("```python\n(.*?)```", document, re.S) if "def squared_relu" in block
    )
    source = (PACKAGE / "normalizer.py").read_text(encoding="utf8")
    source = source.replace('    "softmax",\n', '    "softmax",\n    "squared_relu",\n', 1)
    (folder / "regard" / "normalizer.py").write_text(f"{source}\n\n{IMPORTS}\n\n{declaration}", encoding="utf8")
    return folder


@pytest.mark.parametrize("check", CHECKS)
def test_a_normalizer_declared_in_one_file_runs_everywhere(package: Path, check: str) -> None:
    script = f"{PRELUDE}assert normalizer.__file__.startswith({str(package)!r})\n{CHECKS[check]}"
    environment = {**os.environ, "PYTHONPATH": str(package)}
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=package, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
