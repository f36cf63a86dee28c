"""Puts trained models into the package: `python tools/ship.py dates language`, after `regard train` of the same names.

Weights go beside the code, curves into docs/training. The language model is kept in 16 bits, with its vocabulary.
"""

import shutil
import sys
from pathlib import Path

from regard.models.shipped import WEIGHTS
from regard.models.tasks import task
from regard.models.tasks.language import LanguageTask
from regard.models.train import Training
from regard.models.trained import write_trained


def main(names: list[str], runs: Path = Path("runs"), data: Path = Path("data")) -> None:
    for name in names:
        learned = task(name, data)
        training = Training.resume(learned, runs / name / "checkpoint.safetensors")
        write_trained(training, WEIGHTS / f"{name}.safetensors", half=isinstance(learned, LanguageTask))
        curve = runs / name / "curve.json"
        if curve.exists():
            shutil.copy(curve, Path("docs/training") / f"{name}.json")
        print(f"{name}: {training.step} steps, {(WEIGHTS / f'{name}.safetensors').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
