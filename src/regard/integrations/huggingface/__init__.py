"""Hugging Face transformers on regard: `register()` adds the attention implementation "regard".

Needs transformers: `pip install '.[hf]'` in the repository.
"""

from regard.integrations.huggingface.attention_interface import register

__all__ = ["register"]


def __dir__() -> list[str]:
    return sorted(__all__)
