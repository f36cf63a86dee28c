"""The modules of transformers that the integration uses; `register` imports them."""

from importlib import import_module
from typing import Any

from regard.errors import MissingDependencyError

modules: dict[str, Any] = {}  # looked up at each call, since torch.compile does not trace imports


def import_modules(*names: str) -> None:
    """Import modules of transformers by name, so that mypy does not analyze the whole library."""
    for name in names:
        try:
            modules[name] = import_module(f"transformers.{name}")
        except ImportError as error:
            raise MissingDependencyError(
                f"regard.integrations.huggingface needs transformers 5; got: {error}. "
                "Install it with pip install 'regard[hf]'."
            ) from None
