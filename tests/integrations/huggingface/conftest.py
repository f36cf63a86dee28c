"""The tests in this folder run with attn_implementation="regard" registered in transformers."""

import pytest

from regard.integrations.huggingface import attention_interface


@pytest.fixture(autouse=True, scope="module")
def _register_attention() -> None:
    attention_interface.register()
