"""Adapter of `eager_attention_forward` in the model files of Hugging Face transformers."""

from functools import partial
from typing import Any

from torch import Tensor

from regard.integrations.huggingface import attention_interface
from regard.recording.adapters.captured_call import CapturedCall


def adapt_huggingface_eager(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **kwargs: Any
) -> CapturedCall:
    """Return the captured call for the arguments of `eager_attention_forward`."""
    kwargs |= dict(zip(("scaling", "dropout"), args, strict=False))
    kwargs.pop("dropout", None)
    # without a mask the eager function masks nothing, even if its layer is causal
    kwargs["is_causal"] = False
    return CapturedCall(
        partial(
            attention_interface.huggingface_to_attention_kwargs, module, query, key, value, attention_mask, **kwargs
        ),
        "Hugging Face's eager attention",
        extract_output=lambda result: result[0].transpose(1, 2),
        replace_output=lambda result, output: (output.transpose(1, 2).contiguous(), *result[1:]),
    )
