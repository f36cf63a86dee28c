"""A cold causal call runs code in at most 20 files, which docs/architecture.md lists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.backends.native.backend import builds

ROOT = Path(__file__).parents[2]
TRACE = """
import json, sys
import torch
import regard
from regard import mask

q = torch.randn(1, 4, 64, 16)
files = {}

def record(frame, event, argument):
    path = frame.f_code.co_filename.replace("\\\\", "/")
    if event == "call" and "/regard/" in path:
        files.setdefault(path.rpartition("/regard/")[2])

sys.setprofile(record)
regard.attention(q, q, q, mask=mask.causal())
sys.setprofile(None)
print(json.dumps(list(files)))
"""


@pytest.mark.skipif(not builds(), reason="the native backend is not built")
def test_a_cold_causal_call_runs_the_documented_files() -> None:
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=True)
    files = json.loads(done.stdout)
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    section = page.partition("### The files of one call")[2].partition("```text")[2].partition("```")[0]
    documented = re.findall(r"[\w/]+\.py", section)

    assert len(files) <= 20, files
    assert sorted(documented) == sorted(files)
