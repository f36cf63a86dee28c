"""`regard steps`: numbers from everywhere they may come from, and what is said to what is wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import regard
from regard import mask, score, weigh
from regard.cli import app
from regard.worked.examples import example
from regard.worked.steps import steps

Q, K, V = "1 0; 0 2", "0.5 1; 1 1; 0 3", "1; 2; 4"
LISTS = ([[1.0, 0.0], [0.0, 2.0]], [[0.5, 1.0], [1.0, 1.0], [0.0, 3.0]], [[1.0], [2.0], [4.0]])


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["steps", *arguments])
    return found.exit_code, found.stdout, found.stderr


def output(*arguments: str) -> torch.Tensor:
    code, printed, said = run(*arguments, "--json")
    assert code == 0, said
    return torch.tensor(json.loads(printed)["stages"][-1]["values"], dtype=torch.float64)


def test_an_example_is_worked_by_its_name() -> None:
    code, printed, _ = run("three-tokens")
    assert code == 0
    chosen = example("three-tokens")
    assert printed.endswith(f"{steps(*chosen.inputs, tokens=chosen.words)}\n")
    assert "Worked wrongly elsewhere:" in printed and "0.4195, 0.2570, 0.3235" in printed


def test_without_anything_the_first_example_is_worked() -> None:
    assert run()[1] == run("dog-ate-dinner")[1] != run("three-tokens")[1]


def test_numbers_are_read_from_text() -> None:
    expected = steps(*LISTS)["output"].values
    assert torch.equal(output("--q", Q, "--k", K, "--v", V), expected)
    as_json = [json.dumps(x) for x in LISTS]
    assert torch.equal(output("--q", as_json[0], "--k", as_json[1], "--v", as_json[2]), expected)
    assert torch.equal(output("--q", "1, 0\n0, 2", "--k", "0.5,1;1,1;0,3;", "--v", V), expected)


def test_numbers_are_read_from_files(tmp_path: Path) -> None:
    expected = steps(*LISTS)["output"].values
    (tmp_path / "q.json").write_text(json.dumps(LISTS[0]))
    np.save(tmp_path / "k.npy", np.array(LISTS[1]))
    (tmp_path / "v.csv").write_text("1\n2\n4\n")
    names = [str(tmp_path / name) for name in ("q.json", "k.npy", "v.csv")]
    assert torch.equal(output("--q", names[0], "--k", names[1], "--v", names[2]), expected)
    file = str(tmp_path / "all.safetensors")
    save_file({name: torch.tensor(x, dtype=torch.float64) for name, x in zip("qkv", LISTS, strict=True)}, file)
    assert torch.equal(output("--q", f"{file}:q", "--k", f"{file}:k", "--v", f"{file}:v"), expected)


def test_keys_are_the_queries_and_values_the_keys_unless_given() -> None:
    assert torch.equal(output("--q", K), steps(LISTS[1], LISTS[1], LISTS[1])["output"].values)
    assert torch.equal(output("--q", Q, "--k", K), steps(LISTS[0], LISTS[1], LISTS[1])["output"].values)


def test_tokens_are_turned_by_the_matrices_that_are_given() -> None:
    x, context, w = torch.tensor(LISTS[0]), torch.tensor(LISTS[1]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    expected = regard.attention(x.double() @ w.double(), context.double(), context.double())
    found = output("--x", Q, "--context", K, "--w-q", "1 1; 0 1")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "arguments, options",
    [
        (["--mask", "causal & window(2)"], {"mask": mask.causal() & mask.window(2)}),
        (["--mask", "causal", "--start", "0"], {"mask": mask.causal(), "start": 0}),
        (["--weigh", "entmax(1.5)"], {"weigh": weigh.entmax(1.5)}),
        (["--score", "cosine(3)"], {"score": score.cosine(3)}),
        (["--scale", "0.25"], {"score": score.scaled_dot(0.25)}),
        (["--scale", "0"], {"score": score.scaled_dot(0.0)}),
        (["--scale", "1", "--temperature", "4"], {"score": score.scaled_dot(0.25)}),
        (["--dropout", "0.5", "--seed", "3"], {"dropout": 0.5, "seed": 3}),
    ],
)
def test_options_mean_what_they_mean_to_the_library(arguments: list[str], options: dict[str, Any]) -> None:
    found = output("--q", Q, "--k", K, "--v", V, *arguments)
    torch.testing.assert_close(found, steps(*LISTS, **options)["output"].values)


def test_one_of_several_heads_is_shown(tmp_path: Path) -> None:
    q = np.random.default_rng(0).standard_normal((2, 3, 4, 2))
    np.save(tmp_path / "q.npy", q)
    found = output("--q", str(tmp_path / "q.npy"), "--batch", "1", "--head", "2")
    torch.testing.assert_close(found, torch.from_numpy(regard.attention(q, q, q))[1, 2])


def test_it_is_written_as_latex_code_and_a_page(tmp_path: Path) -> None:
    chosen = example("dog-ate-dinner")
    found = steps(*chosen.inputs, tokens=chosen.words)
    assert run("--latex")[1] == f"{found.latex()}\n"
    assert run("--code")[1] == f"{found.code()}\n"
    assert run("--digits", "6")[1].endswith(f"{found.text(6)}\n")
    assert run("--html", str(tmp_path / "page.html"))[0] == 0
    assert (tmp_path / "page.html").read_text(encoding="utf8") == found.html()


def test_rows_have_the_names_that_are_given() -> None:
    _, printed, _ = run("--q", Q, "--k", K, "--v", V, "--tokens", "was ist", "--key-tokens", "what is it", "--json")
    found = json.loads(printed)
    assert (found["queries"], found["keys"]) == (["was", "ist"], ["what", "is", "it"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cat"], "an example must be one of dog-ate-dinner, three-tokens; got 'cat'"),
        (["dog-ate-dinner", "--q", Q], "got the example 'dog-ate-dinner' and --q"),
        (["--k", K, "--v", V], "steps must know what asks; got --k, --v without --q"),
        (["--w-q", Q, "--context", K], "steps must know what asks; got --context, --w-q without --x"),
        (["--q", Q, "--x", Q], "got --q and --x"),
        (["--q", Q, "--w-k", Q], "got --q and --w-k"),
        (["--json", "--latex"], "got more than one of --json, --latex, --code"),
        (["--q", Q, "--mask", ""], "a mask must be named as in 'causal & window(256)'; got ''"),
        (["--q", Q, "--temperature", "0"], "temperature must be greater than 0 and finite; got 0"),
        (["--q", "1 0; 0"], "--q must be a matrix, all rows alike; got '1 0; 0'"),
        (["--q", "1 zero"], "--q must be rows of numbers, as in '1 0; 0 1'"),
        (["--q", "[[1, 2"], "--q must be JSON where it begins with '['"),
        (["--q", "[1, 2]"], "--q must have rows and columns; got '[1, 2]', of shape (2,)"),
        (["--q", "no such file.npy"], "got no such file.npy, which is not there"),
        (["--q", Q, "--k", "1; 2"], "q and k must have the same width; got q=2, k=1"),
        (["--q", Q, "--mask", "wide"], "'wide' is none. Known are causal"),
        (["--q", Q, "--weigh", "entmax(3)"], "alpha must be from 1 (softmax) to 2 (sparsemax); got 3"),
        (["--q", Q, "--score", "dot", "--scale", "2"], "got 'dot' and scale=2"),
        (["--q", Q, "--temperature", "-1"], "temperature must be greater than 0 and finite; got -1"),
        (["--q", Q, "--head", "1"], "head from 0 to 0; got batch=0, head=1"),
        (["--q", Q, "--tokens", "a b c"], "tokens must be a list of 2 names"),
        (
            ["--html", "no/such/folder/page.html"],
            "no/such/folder/page.html must be a file that can be written; got: No such file or directory",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments: list[str], message: str) -> None:
    code, printed, said = run(*arguments)
    assert (code, printed) == (2, "")
    assert message in said


def test_what_is_pickled_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    torch.save(torch.eye(2), tmp_path / "q.safetensors")
    for name, message in (("q.npy", "allow_pickle=False"), ("q.safetensors", "it is pickled")):
        code, _, said = run("--q", str(tmp_path / name))
        assert code == 2 and message in said


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "q.csv").open("wb") as file:
        file.truncate(2**24 + 1)
    code, _, said = run("--q", str(tmp_path / "q.csv"))
    assert code == 2 and "at most 16,777,216 bytes" in said and "16,777,217" in said


def test_an_unnamed_tensor_is_asked_for_by_name(tmp_path: Path) -> None:
    file = str(tmp_path / "all.safetensors")
    save_file({"a": torch.eye(2), "b": torch.ones(2, 2)}, file)
    code, _, said = run("--q", file)
    assert code == 2 and "one of a, b; got ''" in said


def test_what_is_too_long_to_be_read_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.zeros((500, 2)))
    code, _, said = run("--q", str(tmp_path / "q.npy"))
    assert code == 2 and "got scores of 500 x 500 = 250,000" in said
