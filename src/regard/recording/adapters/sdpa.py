"""Adapter of `torch.nn.functional.scaled_dot_product_attention`."""

from functools import partial
from typing import Any

from torch import Tensor

from regard.integrations import torch_sdpa
from regard.recording.adapters.captured_call import CapturedCall


def adapt_sdpa(*args: Any, **kwargs: Any) -> CapturedCall:
    """Return the captured call for the arguments of `scaled_dot_product_attention`."""
    return CapturedCall(
        partial(torch_sdpa.sdpa_to_attention_kwargs, *args, **kwargs),
        "torch's scaled_dot_product_attention",
        extract_output=_identity,
        replace_output=_return_replacement,
    )


def _identity(output: Any) -> Tensor:
    result: Tensor = output
    return result


def _return_replacement(_: Any, output: Tensor) -> Tensor:
    return output
