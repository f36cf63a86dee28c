"""Values as JSON: tensors and arrays become lists, NaN and infinities become None."""

import math
from typing import Any

import numpy as np
from torch import Tensor


def to_json_value(value: Any) -> Any:
    """Convert a value to JSON values: NaN and infinities become None, arrays become lists."""
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, Tensor | np.ndarray):
        return to_json_value(value.tolist())
    if isinstance(value, np.generic):
        return to_json_value(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
