"""The tensors that a function uses without receiving them: find them, and substitute others for them."""

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


class SubstituteTensors(TorchFunctionMode):
    """Replaces the tensors that a function closes over."""

    def __init__(self, sources: tuple[Tensor, ...], replacements: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._replacements = {
            id(source): replacement for source, replacement in zip(sources, replacements, strict=True)
        }

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda x: self._replacements.get(id(x), x), (args, kwargs or {}))
        return function(*args, **kwargs)


class FindCapturedTensors(TorchFunctionMode):
    """Collects the float tensors that a computation uses and did not compute."""

    def __init__(self, *intermediates: Tensor) -> None:
        super().__init__()
        self.sources: list[Tensor] = []
        self._intermediates = list(intermediates)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves((args, kwargs)):
            is_recorded = any(x is other for other in (*self._intermediates, *self.sources))
            if isinstance(x, Tensor) and x.is_floating_point() and not is_recorded:
                self.sources.append(x)
        self._intermediates.extend(x for x in tree_leaves(result) if isinstance(x, Tensor))
        return result
