"""The tokenizer of the bundled language model, as a tokenizer of transformers."""

from typing import Any

from regard.models import bundled


def bundled_tokenizer() -> Any:
    """Return the byte-level tokenizer of the bundled language model, which has 4096 tokens."""
    import transformers  # the tests are skipped without it

    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(bundled.WEIGHTS_DIR / "language.tokenizer.json"))
