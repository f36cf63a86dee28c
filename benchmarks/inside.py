"""Looking inside at length: a decoder of 12 layers and 12 heads reads 16,384 tokens, plainly and while it is recorded.
Its attention is torch's own kernel.

    python -m benchmarks.inside [--tokens 16384]

Prints the seconds of the plain pass, of the recorded one and of `tape.heads()`, the peak of the process's memory, and
what all weights would take. Each is run in a process of its own; the ratio is of recorded pass and table to plain pass.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

import regard
from benchmarks.models import in_layers, sdpa
from regard.models.language import LanguageModel
from regard.nn import Design

LAYERS, HEADS, WIDTH, VOCABULARY = 12, 12, 64, 512


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(what: str, n: int) -> dict[str, float]:
    """Seconds and the peak of memory beyond the model and its tokens, in this process."""
    torch.manual_seed(0)
    design = Design(width=HEADS * WIDTH, heads=HEADS)
    model = LanguageModel(VOCABULARY, layers=LAYERS, design=design, position=None).eval()
    tokens = torch.randint(VOCABULARY, (1, n))
    before, found = peak(), {}
    with torch.no_grad(), in_layers(sdpa):
        begin = time.perf_counter()
        if what == "plain":
            model(tokens)
        else:
            with regard.record(model, budget="4GB") as tape:
                model(tokens)
            tape.tokens = [str(token) for token in tokens[0].tolist()]
            found["recorded"] = time.perf_counter() - begin
            heads = tape.heads()
            assert len(heads) == LAYERS * HEADS and not tape.dropped
    return {**found, "seconds": time.perf_counter() - begin, "bytes": peak() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--only", choices=["plain", "inside"])
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(measured(asked.only, asked.tokens)))
        return
    found = {}
    for what in ("plain", "inside"):
        command = [sys.executable, "-m", "benchmarks.inside", "--only", what, "--tokens", str(asked.tokens)]
        found[what] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    plain, inside = found["plain"], found["inside"]
    table = inside["seconds"] - inside["recorded"]
    print(f"{asked.tokens:,} tokens, {LAYERS} layers of {HEADS} heads, {torch.get_num_threads()} threads")
    print(f"plain pass       {plain['seconds']:8.1f} s   {plain['bytes'] / 1e9:6.2f} GB")
    print(f"recorded pass    {inside['recorded']:8.1f} s")
    print(f"tape.heads()     {table:8.1f} s   {inside['bytes'] / 1e9:6.2f} GB, with the recording")
    print(f"together         {inside['seconds'] / plain['seconds']:8.2f} times the plain pass")
    print(f"all weights would take {LAYERS * HEADS * asked.tokens**2 * 4 / 1e9:,.0f} GB")


if __name__ == "__main__":
    main()
