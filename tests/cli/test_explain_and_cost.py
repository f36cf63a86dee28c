"""`regard explain` and `regard cost`: from shapes and sizes alone."""

import json

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard import cost, mask, score, weigh
from regard.cli import app
from regard.cli.cost import SIZES


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.stdout, found.stderr


def test_a_plan_is_that_of_the_library() -> None:
    shape = (1, 16, 100_000, 64)
    plan = regard.explain(shape, shape, shape, mask=mask.causal() & mask.window(1000), score=score.alibi())
    code, printed, _ = run("explain", "1x16x100000x64", "--mask", "causal & window(1000)", "--score", "alibi")
    assert (code, printed) == (0, f"{plan}\n")


def test_machines_read_a_plan() -> None:
    _, printed, _ = run("explain", "1,8,256,64", "(1, 2, 512, 64)", "1x2x512x32", "--mask", "causal", "--json")
    found = json.loads(printed)
    plan = regard.explain((1, 8, 256, 64), (1, 2, 512, 64), (1, 2, 512, 32), mask=mask.causal())
    assert (found["engine"], found["formula"]) == (plan.engine, plan.spec.formula)
    assert (found["queries"], found["keys"], found["key_heads"], found["value_width"]) == (256, 512, 2, 32)
    assert found["cost"]["flops"] == plan.cost.flops and found["tiles"]["empty"] == plan.cover.counts["empty"]
    assert found["objections"]["reference"]


def test_a_plan_knows_the_weighing_the_start_and_dropout() -> None:
    one, other = (1, 1, 640, 16), (1, 1, 1280, 16)
    options = dict(mask=mask.causal(), start=0, weigh=weigh.sparsemax(), dropout=0.25)
    arguments = ["--mask", "causal", "--start", "0", "--weigh", "sparsemax", "--dropout", "0.25"]
    _, printed, _ = run("explain", "1x1x640x16", "1x1x1280x16", *arguments)
    assert printed == f"{regard.explain(one, other, other, **options)}\n"
    assert printed != f"{regard.explain(one, other, other, **(options | dict(start=None)))}\n"


def test_a_plan_knows_the_dtype_and_the_engine_asked_for() -> None:
    _, printed, _ = run("explain", "8x64x16", "--dtype", "float64", "--engine", "tiled", "--json")
    found = json.loads(printed)
    assert (found["dtype"], found["engine"]) == ("float64", "tiled")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["1x-2"], "the shape of q must be whole numbers, as in 1x16x4096x64; got '1x-2'"),
        (["axb"], "got 'axb'"),
        (["8"], "at least 2 dimensions, (length, width); got shape (8,)"),
        (["4x4", "4x5"], "q and k must have the same width; got q=4, k=5"),
        (["4x4", "--dtype", "int8"], "dtype must be one of float32, bfloat16, float16, float64; got 'int8'"),
        (["4x4", "--engine", "steam"], "got 'steam'"),
        (["4x4", "--weigh", "soft"], "'soft' is none"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(arguments: list[str], message: str) -> None:
    code, printed, said = run("explain", *arguments)
    assert (code, printed) == (2, "")
    assert message in said


def costs(*arguments: str) -> dict:
    code, printed, said = run("cost", *arguments, "--json")
    assert code == 0, said
    return json.loads(printed)


def test_costs_are_those_of_the_formulas() -> None:
    (row,) = costs("--length", "1024", "--mechanism", "causal")["rows"]
    layer = cost.layer(1024, 768, heads=12, pairs=cost.causal_pairs(1024, 1024))
    model = 12 * layer + cost.vocabulary(1024, 768, entries=50257)
    assert row["attention_flops"] == model.attention and row["rest_flops"] == model.rest
    assert row["attention_share"] == pytest.approx(model.attention / model.total)
    assert row["cache_bytes"] == cost.cache(1024, layers=12, key_heads=12, head_width=64)
    (trained,) = costs("--length", "1024", "--mechanism", "causal", "--training")["rows"]
    assert trained["attention_flops"] == cost.training(model).attention
    assert trained["rest_flops"] == cost.training(model).rest


@pytest.mark.parametrize(
    "arguments, times",
    [
        (["--mechanism", "softmax"], 6),
        (["--mechanism", "causal"], 12),
        (["--mechanism", "softmax", "--gated"], 8),
        (["--mechanism", "softmax", "--feed-forward", "0"], 2),
    ],
)
def test_attention_overtakes_a_layer_where_the_mathematics_says(arguments: list[str], times: int) -> None:
    (found,) = costs(*arguments)["crossings"]
    diagonal = 1 if "causal" in arguments else 0  # n (n + 1) / 2 pairs: one token earlier than n² / 2
    assert found["length"] == times * 768 - diagonal


def test_any_mask_can_be_counted() -> None:
    one, other = costs("--mechanism", "causal", "--mechanism", "causal & prefix(9999)", "--length", "700")["rows"]
    assert one["attention_flops"] == other["attention_flops"]
    (near,) = costs("--mechanism", "window(3) & causal", "--length", "700", "--layers", "1")["rows"]
    assert near["attention_flops"] == cost.attention(700, 700, 64, heads=12, pairs=3 * 700 - 3).total


def test_grouped_keys_make_projections_and_cache_smaller() -> None:
    sizes = SIZES["llama-3-8b"]
    (row,) = costs("--model", "llama-3-8b", "--length", "4096", "--mechanism", "softmax")["rows"]
    layer = cost.layer(4096, 4096, heads=32, key_heads=8, feed_forward=14336, gated=True)
    assert row["rest_flops"] == 32 * layer.rest + cost.vocabulary(4096, 4096, sizes.vocabulary).rest
    assert row["cache_bytes"] == 512 * 2**20


def test_people_read_a_table() -> None:
    code, printed, _ = run("cost", "--length", "512", "--mechanism", "softmax", "--mechanism", "linear")
    lines = printed.splitlines()
    assert code == 0 and lines[0].split()[:2] == ["mechanism", "tokens"]
    assert len({len(line) for line in lines[:3]}) == 1
    assert "6 times the width" in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model", "gpt9"], "a model must be one of gpt2,"),
        (["--width", "100"], "width must be a multiple of heads; got width=100, heads=12"),
        (["--heads", "12", "--key-heads", "5"], "heads must be a multiple of key_heads; got heads=12, key_heads=5"),
        (["--length", "0"], "from 1 to 16,777,216 tokens; got 0"),
        (["--mechanism", "magic"], "'magic' is none"),
        (["--mechanism", "window(2)", "--length", "50000"], "for at most 32,768 tokens; got 50,000"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arguments: list[str], message: str) -> None:
    code, printed, said = run("cost", *arguments)
    assert (code, printed) == (2, "")
    assert message in said


def test_the_sizes_of_known_models_have_their_published_numbers_of_parameters() -> None:
    gpt2 = SIZES["gpt2"]
    assert cost.gpt2_parameters(layers=gpt2.layers, width=gpt2.width, vocabulary=gpt2.vocabulary) == 124_439_808
    matrices = {name: size.rest(1).total // 2 for name, size in SIZES.items()}
    # without the looked-up embedding, which is as large as the output head of these; norms are left out
    embedded = {name: matrices[name] + SIZES[name].vocabulary * SIZES[name].width for name in SIZES}
    for name, billions in (("llama-2-7b", 6.738), ("llama-3-8b", 8.030), ("mistral-7b", 7.242)):
        assert embedded[name] / 1e9 == pytest.approx(billions, abs=2e-3)


def test_torch_counts_the_same_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    n, width, heads = 64, 96, 6
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True).train()
    with FlopCounterMode(display=False) as counted:
        layer(torch.randn(1, n, width))
    (row,) = costs(
        "--layers",
        "1",
        "--width",
        "96",
        "--heads",
        "6",
        "--vocabulary",
        "0",
        "--length",
        "64",
        "--mechanism",
        "softmax",
    )["rows"]
    assert counted.get_total_flops() == row["attention_flops"] + row["rest_flops"]
