"""The private names of torch that regard uses, and the check that the installed torch has them.

Private names may change in any version of torch. `regard/__init__.py` runs the check before other modules use them.
"""

from importlib import import_module
from operator import attrgetter

import torch

from regard.errors import UnsupportedVersionError

TESTED_TORCH = ("2.9", "2.15")  # the oldest and the newest version; pyproject.toml has the same range

# by the module that is imported; the test of this file compares the table with the source of regard
PRIVATE_NAMES: dict[str, tuple[str, ...]] = {
    "torch": ("Tensor._base", "Tensor._is_zerotensor", "Tensor._make_wrapper_subclass", "Tensor._version"),
    "torch._C": (
        "DispatchKey",
        "DispatchKeySet",
        "_AutoDispatchBelowAutograd",
        "_ForceDispatchKeyGuard",
        "_are_functorch_transforms_active",
        "_disabled_torch_function_impl",
        "_dispatch_tls_local_exclude_set",
        "_dispatch_tls_local_include_set",
        "_functorch.is_functorch_wrapped_tensor",
        "_get_function_stack_at",
        "_get_tracing_state",
        "_len_torch_dispatch_stack",
        "_len_torch_function_stack",
    ),
    "torch._functorch.utils": ("enable_single_level_autograd_function",),
    "torch._higher_order_ops.flex_attention": ("flex_attention",),
    "torch.autograd.forward_ad": ("_current_level",),
    "torch.autograd.function": ("_SingleLevelFunction",),
    "torch.utils._pytree": ("tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_unflatten"),
}


def check_private_names() -> None:
    """Raise `UnsupportedVersionError` if the installed torch does not have all of `PRIVATE_NAMES`."""
    missing = [
        f"{module}.{name}" for module, names in PRIVATE_NAMES.items() for name in names if not _has(module, name)
    ]
    if missing:
        oldest, newest = TESTED_TORCH
        raise UnsupportedVersionError(
            f"regard needs private names of torch that torch {torch.__version__} does not have: {', '.join(missing)}. "
            f"It is tested with torch {oldest} to {newest}. Use pip install 'torch>={oldest},<={newest}'."
        )


def _has(module: str, name: str) -> bool:
    try:
        attrgetter(name)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
