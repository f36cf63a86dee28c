"""Integrations with other libraries: PyTorch's SDPA, Hugging Face transformers and ONNX."""

__all__ = [
    "huggingface",
    "onnx",
    "torch_sdpa",
]


def __dir__() -> list[str]:
    return sorted(__all__)
