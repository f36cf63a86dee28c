"""Adapter of `torch.nn.attention.flex_attention.flex_attention`."""

from typing import Any

from torch import Tensor

from regard import mask, score
from regard.recording.adapters.captured_call import CapturedCall


def adapt_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    **_: Any,
) -> CapturedCall:
    """Return the captured call for the arguments of `flex_attention`."""

    def make_arguments() -> dict[str, Any]:
        scaled = score.scaled_dot(scale)
        return {
            "q": query,
            "k": key,
            "v": value,
            "score": scaled if score_mod is None else scaled.then(score_mod),
            "mask": None if block_mask is None else mask.from_function(block_mask.mask_mod),
        }

    return CapturedCall(
        make_arguments, "flex_attention", extract_output=_extract_output, replace_output=_replace_output
    )


def _extract_output(result: Any) -> Tensor:
    """Return the output of `flex_attention`, whose result is a tuple if it also returns the log-sum-exp."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


def _replace_output(result: Any, output: Tensor) -> Any:
    return (output, *result[1:]) if isinstance(result, tuple) else output
