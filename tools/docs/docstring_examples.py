"""A Griffe extension: the examples of a docstring become fenced blocks, which Markdown would read as quotations."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)[^ \n].*|\n(?P=indent) +\S.*)*", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Fence the examples in every docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(docstring: str) -> str:
    """Put each run of lines that starts with a prompt into a fenced block, up to the next empty line."""
    return EXAMPLE.sub(lambda match: f"{match['indent']}```pycon\n{match[0]}\n{match['indent']}```", docstring)
