"""The modules of transformers that the Hugging Face integration uses, imported when it is registered."""

from importlib import import_module
from typing import Any

from regard.errors import MissingError

modules: dict[str, Any] = {}  # looked up at each call, because torch.compile does not follow an import


def load(*names: str) -> None:
    """Import modules of transformers by name, so that mypy does not read the whole library."""
    for name in names:
        try:
            modules[name] = import_module(f"transformers.{name}")
        except ImportError as error:
            raise MissingError(
                f"regard.integrations.huggingface must have transformers 5; got: {error}. "
                "Install it with pip install 'regard[hf]'."
            ) from None
