"""The trained model that comes with the package: a translator of dates.

How it was trained, on what, and how well it does: `docs/training/dates.md`.
"""

from functools import cache
from pathlib import Path

from regard.models.store import fit, read, write
from regard.models.tasks import dates
from regard.models.train import Training
from regard.models.translation import Translator

WEIGHTS = Path(__file__).parent / "weights"


@cache
def translator() -> Translator:
    """A translator of dates in words into numbers; words are those of `regard.models.tasks.dates`.

    >>> import torch
    >>> from regard.models.tasks.dates import decode, encode
    >>> from regard.nn import generate
    >>> source, _ = encode(["the twenty first of march nineteen eighty four".split()], "source")
    >>> decode(generate(translator().reading(source), torch.tensor([[1]]), most=11)[0].tolist())
    '1984-03-21'
    """
    path = WEIGHTS / "dates.safetensors"
    tensors, words = read(path)
    model = dates.made(words)
    fit(model, tensors, path)
    return model.eval()


def ship(training: Training, path: Path, *, half: bool = False) -> None:
    """The weights alone, as they come with the package; `half` keeps them in 16 bits."""
    state = training.model.state_dict()
    tensors = {name: t.half() if half and t.is_floating_point() else t for name, t in state.items()}
    write(path, tensors, {"task": training.task.name, **training.task.words()})
