"""Looking inside at length: a decoder of 12 layers and 12 heads reads 16,384 tokens, plainly and while it is recorded.
Its attention is torch's own kernel.

    python -m benchmarks.inside [--tokens 16384]

Prints the seconds of the plain pass, of the recorded one and of `tape.heads()`, the peak of the process's memory, and
what all weights would take, and writes them to benchmarks/results/inside.json. The plain pass runs before and after the
recorded one, each in a process of its own; the ratio is of recorded pass and table to the mean of both plain passes.
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
from benchmarks.run import RESULTS, machine
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
    plain, inside, again = (_run(what, asked.tokens) for what in ("plain", "inside", "plain"))
    seconds = (plain["seconds"] + again["seconds"]) / 2
    figures = {
        "tokens": asked.tokens,
        "threads": torch.get_num_threads(),
        "plain": [plain["seconds"], again["seconds"]],
        "recorded": inside["recorded"],
        "heads": inside["seconds"] - inside["recorded"],
        "times": inside["seconds"] / seconds,
        "bytes_plain": plain["bytes"],
        "bytes": inside["bytes"],
        "bytes_of_all_weights": LAYERS * HEADS * asked.tokens**2 * 4,
    }
    (RESULTS / "inside.json").write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
    print(f"{asked.tokens:,} tokens, {LAYERS} layers of {HEADS} heads, {torch.get_num_threads()} threads")
    print(f"plain pass       {seconds:8.1f} s   {plain['bytes'] / 1e9:6.2f} GB")
    print(f"recorded pass    {inside['recorded']:8.1f} s")
    print(f"tape.heads()     {figures['heads']:8.1f} s   {inside['bytes'] / 1e9:6.2f} GB, with the recording")
    print(f"together         {figures['times']:8.2f} times the plain pass")
    print(f"all weights would take {figures['bytes_of_all_weights'] / 1e9:,.0f} GB")


def _run(what: str, tokens: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.inside", "--only", what, "--tokens", str(tokens)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


if __name__ == "__main__":
    main()
