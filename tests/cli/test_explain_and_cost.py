"""`regard explain` and `regard cost`: plans and costs from shapes and sizes alone."""

import json

import pytest
import torch

import regard
from regard import cost, mask, normalizer, score
from regard.cli.commands.cost import MODEL_SIZES
from tests.cli.command import run_command


def test_explain_prints_the_plan_of_the_library() -> None:
    shape = (1, 16, 100_000, 64)
    plan = regard.explain(shape, shape, shape, mask=mask.causal() & mask.sliding_window(1000), score=score.alibi())
    code, stdout, _ = run_command(
        "explain", "1x16x100000x64", "--mask", "causal & sliding_window(1000)", "--score", "alibi"
    )
    assert (code, stdout) == (0, f"{plan}\n")


def test_explain_prints_json() -> None:
    _, stdout, _ = run_command("explain", "1,8,256,64", "(1, 2, 512, 64)", "1x2x512x32", "--mask", "causal", "--json")
    values = json.loads(stdout)
    plan = regard.explain((1, 8, 256, 64), (1, 2, 512, 64), (1, 2, 512, 32), mask=mask.causal())
    assert (values["backend"], values["formula"]) == (plan.backend, plan.spec.formula)
    assert (values["n_q"], values["n_k"], values["num_kv_heads"], values["v_head_dim"]) == (256, 512, 2, 32)
    assert values["cost"]["flops"] == plan.cost.flops and values["tiles"]["empty"] == plan.coverage.tile_counts["empty"]
    assert values["unsupported_reasons"]["reference"]


def test_explain_passes_normalizer_query_offset_and_dropout() -> None:
    q, k = (1, 1, 640, 16), (1, 1, 1280, 16)
    options = dict(mask=mask.causal(), query_offset=0, normalizer=normalizer.sparsemax(), dropout=0.25)
    arguments = ["--mask", "causal", "--query-offset", "0", "--normalizer", "sparsemax", "--dropout", "0.25"]
    _, stdout, _ = run_command("explain", "1x1x640x16", "1x1x1280x16", *arguments)
    assert stdout == f"{regard.explain(q, k, k, **options)}\n"
    assert stdout != f"{regard.explain(q, k, k, **(options | dict(query_offset=None)))}\n"


def test_explain_passes_dtype_and_backend() -> None:
    _, stdout, _ = run_command("explain", "8x64x16", "--dtype", "float64", "--backend", "tiled", "--json")
    values = json.loads(stdout)
    assert (values["dtype"], values["backend"]) == ("float64", "tiled")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["1x-2"], "the shape of q must be integers, as in 1x16x4096x64; got '1x-2'"),
        (["axb"], "got 'axb'"),
        (["8"], "got shape (8,)"),
        (["4x4", "4x5"], "q and k must have the same head dimension; got q=4, k=5"),
        (["4x4", "--dtype", "int8"], "dtype must be one of float32, bfloat16, float16, float64; got 'int8'"),
        (["4x4", "--backend", "steam"], "got 'steam'"),
        (["4x4", "--normalizer", "soft"], "'soft' is not a normalizer"),
    ],
)
def test_invalid_calls_of_explain_exit_with_2(arguments: list[str], message: str) -> None:
    code, stdout, stderr = run_command("explain", *arguments)
    assert (code, stdout) == (2, "")
    assert message in stderr


def costs(*arguments: str) -> dict:
    code, stdout, stderr = run_command("cost", *arguments, "--json")
    assert code == 0, stderr
    return json.loads(stdout)


def test_costs_are_those_of_regard_cost() -> None:
    (row,) = costs("--seq-len", "1024", "--mechanism", "causal")["rows"]
    layer = cost.layer(1024, 768, num_heads=12, pairs=cost.causal_pairs(1024, 1024))
    model = 12 * layer + cost.lm_head(1024, 768, vocab_size=50257)
    assert row["attention_flops"] == model.attention and row["non_attention_flops"] == model.non_attention
    assert row["attention_fraction"] == pytest.approx(model.attention / model.total)
    assert row["kv_cache_bytes"] == cost.kv_cache_bytes(1024, num_layers=12, num_kv_heads=12, head_dim=64)
    (trained,) = costs("--seq-len", "1024", "--mechanism", "causal", "--training")["rows"]
    assert trained["attention_flops"] == cost.training(model).attention
    assert trained["non_attention_flops"] == cost.training(model).non_attention


@pytest.mark.parametrize(
    "arguments, times",
    [
        (["--mechanism", "softmax"], 6),
        (["--mechanism", "causal"], 12),
        (["--mechanism", "softmax", "--gated"], 8),
        (["--mechanism", "softmax", "--ffn-dim", "0"], 2),
    ],
)
def test_the_crossover_is_where_the_formula_says(arguments: list[str], times: int) -> None:
    (crossover,) = costs(*arguments)["crossovers"]
    diagonal = 1 if "causal" in arguments else 0  # n (n + 1) / 2 pairs: one token earlier than n² / 2
    assert crossover["seq_len"] == times * 768 - diagonal


def test_the_pairs_of_any_mask_are_counted() -> None:
    causal, masked = costs("--mechanism", "causal", "--mechanism", "causal & prefix(9999)", "--seq-len", "700")["rows"]
    assert causal["attention_flops"] == masked["attention_flops"]
    (window,) = costs("--mechanism", "sliding_window(3) & causal", "--seq-len", "700", "--num-layers", "1")["rows"]
    assert window["attention_flops"] == cost.attention(700, 700, 64, num_heads=12, pairs=3 * 700 - 3).total


def test_grouped_query_attention_reduces_projections_and_cache() -> None:
    sizes = MODEL_SIZES["llama-3-8b"]
    (row,) = costs("--model", "llama-3-8b", "--seq-len", "4096", "--mechanism", "softmax")["rows"]
    layer = cost.layer(4096, 4096, num_heads=32, num_kv_heads=8, ffn_dim=14336, gated=True)
    assert (
        row["non_attention_flops"]
        == 32 * layer.non_attention + cost.lm_head(4096, 4096, sizes.vocab_size).non_attention
    )
    assert row["kv_cache_bytes"] == 512 * 2**20


def test_cost_prints_an_aligned_table() -> None:
    code, stdout, _ = run_command("cost", "--seq-len", "512", "--mechanism", "softmax", "--mechanism", "linear")
    lines = stdout.splitlines()
    assert code == 0 and lines[0].split()[:2] == ["mechanism", "tokens"]
    assert len({len(line) for line in lines[:3]}) == 1
    assert "6 times embed_dim" in stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "gpt9"], "model must be one of gpt2,"),
        (["--embed-dim", "100"], "got embed_dim=100, num_heads=12"),
        (
            ["--num-heads", "12", "--num-kv-heads", "5"],
            "got num_heads=12, num_kv_heads=5",
        ),
        (["--seq-len", "0"], "from 1 to 16,777,216 tokens; got 0"),
        (["--mechanism", "magic"], "'magic' is not a mask"),
        (["--mechanism", "sliding_window(2)", "--seq-len", "50000"], "for at most 32,768 tokens; got 50,000"),
    ],
)
def test_invalid_sizes_exit_with_2(arguments: list[str], message: str) -> None:
    code, stdout, stderr = run_command("cost", *arguments)
    assert (code, stdout) == (2, "")
    assert message in stderr


def test_model_sizes_have_their_published_numbers_of_parameters() -> None:
    gpt2 = MODEL_SIZES["gpt2"]
    assert (
        cost.gpt2_parameters(num_layers=gpt2.num_layers, embed_dim=gpt2.embed_dim, vocab_size=gpt2.vocab_size)
        == 124_439_808
    )
    matrices = {name: size.non_attention(1).total // 2 for name, size in MODEL_SIZES.items()}
    # the input embedding is as large as the output head of these models; norms are not counted
    num_parameters = {
        name: matrices[name] + MODEL_SIZES[name].vocab_size * MODEL_SIZES[name].embed_dim for name in MODEL_SIZES
    }
    for name, billions in (("llama-2-7b", 6.738), ("llama-3-8b", 8.030), ("mistral-7b", 7.242)):
        assert num_parameters[name] / 1e9 == pytest.approx(billions, abs=2e-3)


def test_flops_equal_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    n, embed_dim, num_heads = 64, 96, 6
    layer = torch.nn.TransformerEncoderLayer(embed_dim, num_heads, 4 * embed_dim, batch_first=True).train()
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, n, embed_dim))
    (row,) = costs(
        "--num-layers",
        "1",
        "--embed-dim",
        "96",
        "--num-heads",
        "6",
        "--vocab-size",
        "0",
        "--seq-len",
        "64",
        "--mechanism",
        "softmax",
    )["rows"]
    assert counter.get_total_flops() == row["attention_flops"] + row["non_attention_flops"]
