"""Make the pictures of figures.md with its code: `.venv/bin/python docs/how-to/figures/make.py [folder]`."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parent / "figures.md").read_text(encoding="utf8")
PICTURES = re.findall(r"\]\(figures/([\w.]+)\)", PAGE)
CODE = re.findall(r"^```python\n(?!>>> )(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def main(folder):
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the code writes there
        try:
            exec("\n".join(CODE), {"__name__": "__main__"})
        finally:
            os.chdir(before)
        for name in PICTURES:
            shutil.copy(Path(scratch) / name, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
