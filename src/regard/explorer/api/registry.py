"""All endpoints: the modules of this package declare them with `@endpoint`."""

from importlib import import_module
from pkgutil import iter_modules

from regard.explorer import api
from regard.explorer.api.endpoint import ENDPOINTS, SLOW_ENDPOINTS, dispatch

__all__ = ["ENDPOINTS", "SLOW_ENDPOINTS", "dispatch"]

for module in iter_modules(api.__path__):
    import_module(f"{api.__name__}.{module.name}")
