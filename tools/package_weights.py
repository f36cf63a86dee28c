"""Copy trained models into the package, after `regard train`: `python tools/package_weights.py dates language`.

Weights are written to src/regard/models/weights, and curves to docs/training. The language model is written in float16,
with its tokenizer.
"""

import shutil
import sys
from pathlib import Path

from regard.models.bundled import WEIGHTS_DIR
from regard.models.tasks import get_task
from regard.models.tasks.language import LanguageTask
from regard.models.trained_model import save_trained
from regard.models.training import Trainer


def main(names: list[str], runs: Path = Path("runs"), data: Path = Path("data")) -> None:
    for name in names:
        task = get_task(name, data)
        trainer = Trainer.resume(task, runs / name / "checkpoint.safetensors")
        save_trained(trainer, WEIGHTS_DIR / f"{name}.safetensors", half_precision=isinstance(task, LanguageTask))
        curve = runs / name / "curve.json"
        if curve.exists():
            shutil.copy(curve, Path("docs/training") / f"{name}.json")
        print(f"{name}: {trainer.step} steps, {(WEIGHTS_DIR / f'{name}.safetensors').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
