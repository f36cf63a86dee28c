"""Makes the pictures of the course again: `.venv/bin/python docs/theory/make.py [NAME ...]`; all without a name."""

import sys
from pathlib import Path

from regard.theory import experiment, experiments

HERE = Path(__file__).parent
LARGEST = 150_000  # bytes of a picture


def main(names):
    for each in map(experiment, names) if names else experiments():
        outcome = each.run()
        assert outcome.agrees, str(outcome)
        path = HERE / f"{each.name}.png"
        outcome.picture().savefig(path, dpi=80, metadata={"Software": None})
        size = path.stat().st_size
        assert size <= LARGEST, f"{path.name} must be at most {LARGEST:,} bytes; got {size:,}."


if __name__ == "__main__":
    main(sys.argv[1:])
