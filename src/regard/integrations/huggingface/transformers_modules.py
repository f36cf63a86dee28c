"""The modules of transformers that the integration uses; `register` imports them."""

from importlib import import_module
from typing import Any

from regard.errors import MissingDependencyError, UnsupportedVersionError

OLDEST_TRANSFORMERS = (5, 4)  # older ones call masks with other arguments
modules: dict[str, Any] = {}  # looked up at each call, since torch.compile does not trace imports


def import_modules(*names: str) -> None:
    """Import modules of transformers by name, so that mypy does not analyze the whole library."""
    oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
    needed = f"regard.integrations.huggingface needs transformers {oldest} or newer"
    try:
        version: str = import_module("transformers").__version__
        if tuple(int(number) for number in version.split(".")[:2]) < OLDEST_TRANSFORMERS:
            raise UnsupportedVersionError(f"{needed}; got {version}. Use pip install 'regard[hf]'.")
        modules.update({name: import_module(f"transformers.{name}") for name in names})
    except UnsupportedVersionError:
        raise
    except ImportError as error:
        raise MissingDependencyError(f"{needed}; got: {error}. Install it with pip install 'regard[hf]'.") from None
