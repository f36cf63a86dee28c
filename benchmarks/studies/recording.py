"""Recording a long sequence: a decoder of 12 layers with 12 heads reads 16,384 tokens, unrecorded and recorded.

    python -m benchmarks.studies.recording [--tokens 16384]

The attention is torch's kernel. Prints the seconds of the plain pass, of the recorded pass and of `head_table()`, the
peak memory of the process, and the size of all weights, and writes them to benchmarks/results/recording.json. The plain
pass runs before and after the recorded one, each in its own process. The ratio is that of the recorded pass and the
table to the mean of both plain passes.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

import regard
from benchmarks.baselines.models import override_layer_attention, sdpa_for_layers
from benchmarks.run import RESULTS, machine_info
from regard.models.language import LanguageModel
from regard.nn import BlockConfig

NUM_LAYERS, NUM_HEADS, HEAD_DIM, VOCAB_SIZE = 12, 12, 64, 512


def peak_rss() -> int:
    """Return the peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_pass(mode: str, n: int) -> dict[str, float]:
    """Return seconds, and the peak memory beyond the model and its tokens, of a pass in this process."""
    torch.manual_seed(0)
    block_config = BlockConfig(embed_dim=NUM_HEADS * HEAD_DIM, num_heads=NUM_HEADS)
    model = LanguageModel(VOCAB_SIZE, num_layers=NUM_LAYERS, block_config=block_config, position_encoding=None).eval()
    tokens = torch.randint(VOCAB_SIZE, (1, n))
    rss_before, results = peak_rss(), {}
    with torch.no_grad(), override_layer_attention(sdpa_for_layers):
        start = time.perf_counter()
        if mode == "plain":
            model(tokens)
        else:
            with regard.record(model, budget="4GB") as tape:
                model(tokens)
            tape.tokens = [str(token) for token in tokens[0].tolist()]
            results["recorded"] = time.perf_counter() - start
            heads = tape.head_table()
            assert len(heads) == NUM_LAYERS * NUM_HEADS and not tape.dropped_calls
    return {**results, "seconds": time.perf_counter() - start, "bytes": peak_rss() - rss_before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--only", choices=["plain", "recorded"])
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure_pass(args.only, args.tokens)))
        return
    plain, recorded, plain_again = (_run(mode, args.tokens) for mode in ("plain", "recorded", "plain"))
    seconds = (plain["seconds"] + plain_again["seconds"]) / 2
    figures = {
        "tokens": args.tokens,
        "threads": torch.get_num_threads(),
        "plain": [plain["seconds"], plain_again["seconds"]],
        "recorded": recorded["recorded"],
        "heads": recorded["seconds"] - recorded["recorded"],
        "times": recorded["seconds"] / seconds,
        "bytes_plain": plain["bytes"],
        "bytes": recorded["bytes"],
        "bytes_of_all_weights": NUM_LAYERS * NUM_HEADS * args.tokens**2 * 4,
    }
    (RESULTS / "recording.json").write_text(json.dumps({"machine": machine_info(), **figures}, indent=1) + "\n")
    print(f"{args.tokens:,} tokens, {NUM_LAYERS} layers of {NUM_HEADS} heads, {torch.get_num_threads()} threads")
    print(f"plain pass       {seconds:8.1f} s   {plain['bytes'] / 1e9:6.2f} GB")
    print(f"recorded pass    {recorded['recorded']:8.1f} s")
    print(f"head_table()     {figures['heads']:8.1f} s   {recorded['bytes'] / 1e9:6.2f} GB, with the recording")
    print(f"together         {figures['times']:8.2f} times the plain pass")
    print(f"all weights would take {figures['bytes_of_all_weights'] / 1e9:,.0f} GB")


def _run(mode: str, tokens: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.studies.recording", "--only", mode, "--tokens", str(tokens)]
    results: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return results


if __name__ == "__main__":
    main()
