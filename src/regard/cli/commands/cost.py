"""`regard cost`: FLOPs and bytes of a model by sequence length and mechanism."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from regard import cost as cost_formulas
from regard.cli.app import JsonOption, exit_on_error, format_table, print_json, show_spinner
from regard.cli.model_sizes import MODEL_SIZES, ModelSizes
from regard.cli.rank_costs import RankSpeed, format_rank_costs, rank_cost_rows
from regard.errors import ArgumentError
from regard.explorer.cost_models import COST_MODELS, CostModel
from regard.plan.report import format_bytes
from regard.walkthrough.option_parser import parse_mask

MAX_SEQ_LEN = 2**24  # of a mechanism with a formula
MAX_MASKED_SEQ_LEN = 2**15  # of a mask whose pairs are counted
COST_HEADERS = (
    "mechanism",
    "tokens",
    "attention",
    "rest of the model",
    "attention share",
    "extra memory per layer",
    "KV cache",
)

MODELS_BY_NAME = {model.name: model for model in COST_MODELS}


def cost(
    model: Annotated[str, typer.Option(help=f"sizes to start from: {', '.join(MODEL_SIZES)}")] = "gpt2",
    seq_len: Annotated[list[int] | None, typer.Option(help="tokens; may be repeated")] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help=f"one of {', '.join(MODELS_BY_NAME)}, or a mask as in 'causal & sliding_window(512)'; may be repeated"
        ),
    ] = None,
    num_layers: Annotated[int | None, typer.Option(help="number of layers")] = None,
    embed_dim: Annotated[int | None, typer.Option(help="embedding dimension")] = None,
    num_heads: Annotated[int | None, typer.Option(help="number of query heads")] = None,
    num_kv_heads: Annotated[
        int | None, typer.Option(help="number of key-value heads; --num-heads by default, if it is set")
    ] = None,
    ffn_dim: Annotated[
        int | None,
        typer.Option(help="hidden dimension of the feed-forward part; 4 times --embed-dim by default, if it is set"),
    ] = None,
    gated: Annotated[bool | None, typer.Option("--gated/--no-gated", help="three or two feed-forward matrices")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="vocabulary size of the output head")] = None,
    training: Annotated[bool, typer.Option("--training", help="forward and backward: three times as much")] = False,
    max_world_size: Annotated[
        int | None, typer.Option(help="cost of attention alone over 1, 2, 4 ... up to this many ranks")
    ] = None,
    bandwidth: Annotated[float, typer.Option(help="bytes that a rank sends per second; with --max-world-size")] = 1e10,
    flops_per_second: Annotated[
        float, typer.Option(help="FLOPs that a rank computes per second; with --max-world-size")
    ] = 1e13,
    as_json: JsonOption = False,
) -> None:
    """Count the FLOPs and bytes of a model for one sequence, exactly, from its sizes.

    With --max-world-size, predict FLOPs, bytes sent, memory and time of attention over ranks, by method.
    """
    with exit_on_error():
        if model not in MODEL_SIZES:
            raise ArgumentError(
                f"model must be one of {', '.join(MODEL_SIZES)}; got {model!r}. Use --num-layers, --embed-dim and the "
                "other size options for other models."
            )
        overrides = dict(
            num_layers=num_layers,
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            ffn_dim=ffn_dim,
            has_gated_ffn=gated,
            vocab_size=vocab_size,
        )
        sizes = _override_sizes(MODEL_SIZES[model], overrides)
        lengths, mechanisms = seq_len or [512, 2048, 8192, 32768], mechanism or ["softmax", "causal"]
        _check_lengths(sizes, lengths)
        if max_world_size is not None:
            rank_rows = rank_cost_rows(
                sizes, seq_len or [131072], mechanisms, max_world_size, RankSpeed(flops_per_second, bandwidth), training
            )
            print_json(rank_rows) if as_json else typer.echo(format_rank_costs(rank_rows))
            return
        with show_spinner("counting"):
            rows = [_row(sizes, name, n, training) for name in mechanisms for n in lengths]
            crossovers = [_crossover(sizes, MODELS_BY_NAME[name]) for name in mechanisms if name in MODELS_BY_NAME]
    if as_json:
        print_json({"sizes": asdict(sizes), "training": training, "rows": rows, "crossovers": crossovers})
        return
    typer.echo(format_table(COST_HEADERS, [_format_row(row) for row in rows]))
    typer.echo("\n".join(["", *(crossover["text"] for crossover in crossovers)]).rstrip())


def _override_sizes(base: ModelSizes, overrides: dict[str, Any]) -> ModelSizes:
    """Return the sizes with overrides; num_kv_heads and ffn_dim follow num_heads and embed_dim."""
    values = {name: value for name, value in overrides.items() if value is not None}
    if "num_heads" in values:
        values.setdefault("num_kv_heads", values["num_heads"])
    if "embed_dim" in values:
        values.setdefault("ffn_dim", 4 * values["embed_dim"])
    return replace(base, **values)


def _check_lengths(sizes: ModelSizes, seq_lens: list[int]) -> None:
    sizes.non_attention(1)  # raises for inconsistent sizes
    for n in seq_lens:
        if not 1 <= n <= MAX_SEQ_LEN:
            raise ArgumentError(f"seq_len must be from 1 to {MAX_SEQ_LEN:,} tokens; got {n:,}.")


def _row(sizes: ModelSizes, name: str, seq_len: int, training: bool) -> dict[str, Any]:
    head_dim, factor = sizes.embed_dim // sizes.num_heads, 3 if training else 1
    if name in MODELS_BY_NAME:
        flops, extra_bytes = (
            MODELS_BY_NAME[name].flops(seq_len, head_dim, sizes.num_heads),
            4 * MODELS_BY_NAME[name].num_floats(seq_len, head_dim, sizes.num_heads),
        )
    else:
        flops, extra_bytes = _masked_flops(sizes, name, seq_len), 4 * sizes.num_heads * seq_len
    attention, non_attention = sizes.num_layers * flops, sizes.non_attention(seq_len).total
    return {
        "mechanism": name,
        "seq_len": seq_len,
        "attention_flops": factor * attention,
        "non_attention_flops": factor * non_attention,
        "attention_fraction": attention / (attention + non_attention),
        "layer_extra_bytes": extra_bytes,
        "kv_cache_bytes": cost_formulas.kv_cache_bytes(
            seq_len, num_layers=sizes.num_layers, num_kv_heads=sizes.num_kv_heads, head_dim=head_dim
        ),
    }


def _masked_flops(sizes: ModelSizes, name: str, seq_len: int) -> int:
    """Return the FLOPs of a layer's attention under a mask, from its number of visible pairs."""
    mask = parse_mask(name)
    if seq_len > MAX_MASKED_SEQ_LEN:
        raise ArgumentError(
            f"the pairs of a mask are counted one by one, for at most {MAX_MASKED_SEQ_LEN:,} tokens; got {seq_len:,} "
            f"for {name!r}. Use a mechanism with a formula: {', '.join(MODELS_BY_NAME)}."
        )
    pairs = round(mask.density(seq_len, num_heads=sizes.num_heads) * seq_len * seq_len)
    return cost_formulas.attention(
        seq_len, seq_len, sizes.embed_dim // sizes.num_heads, num_heads=sizes.num_heads, pairs=pairs
    ).total


def _crossover(sizes: ModelSizes, cost_model: CostModel) -> dict[str, Any]:
    """Return the first length at which attention takes as many FLOPs as the rest of a layer."""
    head_dim, name = sizes.embed_dim // sizes.num_heads, cost_model.name

    def dominates(n: int) -> bool:
        return cost_model.flops(n, head_dim, sizes.num_heads) >= sizes.layer_non_attention(n).total

    if not dominates(MAX_SEQ_LEN):
        text = f"{name}: attention stays below the rest of a layer up to {MAX_SEQ_LEN:,} tokens"
        return {"mechanism": name, "seq_len": None, "text": text}
    low, high = 0, MAX_SEQ_LEN
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if dominates(middle) else (middle, high)
    times = f"{high / sizes.embed_dim:.4g} times embed_dim"
    text = f"{name}: attention takes as much as the rest of a layer from {high:,} tokens on, {times}"
    return {"mechanism": name, "seq_len": high, "text": text}


def _format_row(row: dict[str, Any]) -> list[str]:
    return [
        row["mechanism"],
        f"{row['seq_len']:,}",
        _format_flops(row["attention_flops"]),
        _format_flops(row["non_attention_flops"]),
        f"{row['attention_fraction']:.1%}",
        format_bytes(row["layer_extra_bytes"]),
        format_bytes(row["kv_cache_bytes"]),
    ]


def _format_flops(number: int) -> str:
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.4g} {prefix}FLOP"
    return f"{number:,} FLOP"
