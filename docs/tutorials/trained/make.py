"""Write the models and clips of the tutorials, after `make data`, `regard train digits` and `regard train speech`.

`.venv/bin/python docs/tutorials/trained/make.py [runs] [data]` takes the folders of the runs and of the data.
"""

import sys
from pathlib import Path

import numpy as np

from regard.files.tensors_with_metadata import (
    load_tensors_and_metadata,
    save_tensors_and_metadata,
)
from regard.models.tasks.speech import clips, load_or_synthesize

HERE = Path(__file__).parent
VOICES = ("f1", "zac", "RicishayMax")  # held out
ACCENT = "en-us"


def main(runs: Path, data: Path) -> None:
    for name in ("digits", "speech"):
        tensors, metadata = load_tensors_and_metadata(
            runs / name / "model.safetensors"
        )
        halves = {key: tensor.half() for key, tensor in tensors.items()}
        save_tensors_and_metadata(
            HERE / f"{name}.safetensors", halves, metadata
        )
    waveforms = {
        f"{voice}_{clip.digit}": waveform.numpy()
        for voice in VOICES
        for clip, waveform in zip(
            clips(voice), load_or_synthesize(voice, data), strict=True
        )
        if clip.accent == ACCENT
    }
    np.savez_compressed(HERE / "spoken-digits.npz", **waveforms)


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:]]
    main(*(folders or (Path("runs"), Path("data"))))
