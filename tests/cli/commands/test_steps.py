"""`regard steps`: its inputs, options, formats and errors."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import regard
from regard import mask, normalizer, score
from regard.walkthrough.examples import get_example
from regard.walkthrough.steps import steps
from tests.cli.command import run_command

Q, K, V = "1 0; 0 2", "0.5 1; 1 1; 0 3", "1; 2; 4"
LISTS = ([[1.0, 0.0], [0.0, 2.0]], [[0.5, 1.0], [1.0, 1.0], [0.0, 3.0]], [[1.0], [2.0], [4.0]])

run_steps = partial(run_command, "steps")


def output(*arguments: str) -> torch.Tensor:
    code, stdout, stderr = run_steps(*arguments, "--json")
    assert code == 0, stderr
    return torch.tensor(json.loads(stdout)["stages"][-1]["values"], dtype=torch.float64)


def test_examples_are_selected_by_name() -> None:
    code, stdout, _ = run_steps("three-tokens")
    assert code == 0
    example = get_example("three-tokens")
    assert stdout.endswith(f"{steps(*example.inputs, tokens=example.tokens)}\n")
    assert "Errors in published versions:" in stdout and "0.4195, 0.2570, 0.3235" in stdout


def test_the_default_is_the_first_example() -> None:
    assert run_steps()[1] == run_steps("dog-ate-dinner")[1] != run_steps("three-tokens")[1]


def test_tensors_are_read_from_text() -> None:
    expected = steps(*LISTS)["output"].values
    assert torch.equal(output("--q", Q, "--k", K, "--v", V), expected)
    as_json = [json.dumps(x) for x in LISTS]
    assert torch.equal(output("--q", as_json[0], "--k", as_json[1], "--v", as_json[2]), expected)
    assert torch.equal(output("--q", "1, 0\n0, 2", "--k", "0.5,1;1,1;0,3;", "--v", V), expected)


def test_tensors_are_read_from_files(tmp_path: Path) -> None:
    expected = steps(*LISTS)["output"].values
    (tmp_path / "q.json").write_text(json.dumps(LISTS[0]))
    np.save(tmp_path / "k.npy", np.array(LISTS[1]))
    (tmp_path / "v.csv").write_text("1\n2\n4\n")
    names = [str(tmp_path / name) for name in ("q.json", "k.npy", "v.csv")]
    assert torch.equal(output("--q", names[0], "--k", names[1], "--v", names[2]), expected)
    file = str(tmp_path / "all.safetensors")
    save_file({name: torch.tensor(x, dtype=torch.float64) for name, x in zip("qkv", LISTS, strict=True)}, file)
    assert torch.equal(output("--q", f"{file}:q", "--k", f"{file}:k", "--v", f"{file}:v"), expected)


def test_keys_default_to_queries_and_values_to_keys() -> None:
    assert torch.equal(output("--q", K), steps(LISTS[1], LISTS[1], LISTS[1])["output"].values)
    assert torch.equal(output("--q", Q, "--k", K), steps(LISTS[0], LISTS[1], LISTS[1])["output"].values)


def test_tokens_are_projected_by_the_matrices() -> None:
    x, context, w = torch.tensor(LISTS[0]), torch.tensor(LISTS[1]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    expected = regard.attention(x.double() @ w.double(), context.double(), context.double())
    actual = output("--x", Q, "--context", K, "--w-q", "1 1; 0 1")
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "arguments, options",
    [
        (["--mask", "causal & sliding_window(2)"], {"mask": mask.causal() & mask.sliding_window(2)}),
        (["--mask", "causal", "--query-offset", "0"], {"mask": mask.causal(), "query_offset": 0}),
        (["--normalizer", "entmax(1.5)"], {"normalizer": normalizer.entmax(1.5)}),
        (["--score", "cosine(3)"], {"score": score.cosine(3)}),
        (["--scale", "0.25"], {"score": score.scaled_dot(0.25)}),
        (["--scale", "0"], {"score": score.scaled_dot(0.0)}),
        (["--scale", "1", "--temperature", "4"], {"score": score.scaled_dot(0.25)}),
        (["--dropout", "0.5", "--seed", "3"], {"dropout": 0.5, "seed": 3}),
    ],
)
def test_options_are_those_of_the_library(arguments: list[str], options: dict[str, Any]) -> None:
    actual = output("--q", Q, "--k", K, "--v", V, *arguments)
    torch.testing.assert_close(actual, steps(*LISTS, **options)["output"].values)


def test_batch_and_head_select_one_head(tmp_path: Path) -> None:
    q = np.random.default_rng(0).standard_normal((2, 3, 4, 2))
    np.save(tmp_path / "q.npy", q)
    actual = output("--q", str(tmp_path / "q.npy"), "--batch", "1", "--head", "2")
    torch.testing.assert_close(actual, torch.from_numpy(regard.attention(q, q, q))[1, 2])


def test_steps_are_printed_as_latex_and_code_and_written_as_html(tmp_path: Path) -> None:
    example = get_example("dog-ate-dinner")
    expected = steps(*example.inputs, tokens=example.tokens)
    assert run_steps("--latex")[1] == f"{expected.latex()}\n"
    assert run_steps("--code")[1] == f"{expected.code()}\n"
    assert run_steps("--digits", "6")[1].endswith(f"{expected.text(6)}\n")
    assert run_steps("--html", str(tmp_path / "page.html"))[0] == 0
    assert (tmp_path / "page.html").read_text(encoding="utf8") == expected.html()


def test_tokens_label_queries_and_keys() -> None:
    _, stdout, _ = run_steps(
        "--q", Q, "--k", K, "--v", V, "--tokens", "was ist", "--key-tokens", "what is it", "--json"
    )
    values = json.loads(stdout)
    assert (values["query_labels"], values["key_labels"]) == (["was", "ist"], ["what", "is", "it"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cat"], "an example must be one of dog-ate-dinner, three-tokens; got 'cat'"),
        (["dog-ate-dinner", "--q", Q], "got the example 'dog-ate-dinner' and --q"),
        (["--k", K, "--v", V], "--q is required with --k, --v. Add --q."),
        (["--w-q", Q, "--context", K], "--x is required with --context, --w-q. Add --x."),
        (["--q", Q, "--x", Q], "got --q and --x"),
        (["--q", Q, "--w-k", Q], "got --q and --w-k"),
        (["--json", "--latex"], "got more than one of --json, --latex, --code"),
        (["--q", Q, "--mask", ""], "a mask must be written as in 'causal & sliding_window(256)'; got ''"),
        (["--q", Q, "--temperature", "0"], "temperature must be greater than 0 and finite; got 0"),
        (["--q", "1 0; 0"], "--q must be a matrix with rows of equal length; got '1 0; 0'"),
        (["--q", "1 zero"], "--q must be rows of numbers, as in '1 0; 0 1'"),
        (["--q", "[[1, 2"], "--q must be valid JSON if it begins with '['"),
        (["--q", "[1, 2]"], "--q must have at least 2 dimensions, none of size 0; got '[1, 2]', of shape (2,)"),
        (["--q", "no such file.npy"], "got no such file.npy, which does not exist"),
        (["--q", Q, "--k", "1; 2"], "q and k must have the same head dimension; got q=2, k=1"),
        (["--q", Q, "--mask", "wide"], "'wide' is not a mask. Use causal"),
        (["--q", Q, "--normalizer", "entmax(3)"], "alpha must be from 1 (softmax) to 2 (sparsemax); got 3"),
        (["--q", Q, "--score", "dot", "--scale", "2"], "got 'dot' and scale=2"),
        (["--q", Q, "--temperature", "-1"], "temperature must be greater than 0 and finite; got -1"),
        (["--q", Q, "--head", "1"], "head from 0 to 0; got batch=0, head=1"),
        (["--q", Q, "--tokens", "a b c"], "tokens must be a list of 2 strings"),
        (
            ["--html", "no/such/folder/page.html"],
            "no/such/folder/page.html must be a file that can be written; got: No such file or directory",
        ),
    ],
)
def test_invalid_calls_exit_with_2(arguments: list[str], message: str) -> None:
    code, stdout, stderr = run_steps(*arguments)
    assert (code, stdout) == (2, "")
    assert message in stderr


def test_pickled_files_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    torch.save(torch.eye(2), tmp_path / "q.safetensors")
    for name, message in (("q.npy", "allow_pickle=False"), ("q.safetensors", "it is pickled")):
        code, _, stderr = run_steps("--q", str(tmp_path / name))
        assert code == 2 and message in stderr


def test_large_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "q.csv").open("wb") as file:
        file.truncate(2**24 + 1)
    code, _, stderr = run_steps("--q", str(tmp_path / "q.csv"))
    assert code == 2 and "at most 16,777,216 bytes" in stderr and "16,777,217" in stderr


def test_a_tensor_of_several_must_be_named(tmp_path: Path) -> None:
    file = str(tmp_path / "all.safetensors")
    save_file({"a": torch.eye(2), "b": torch.ones(2, 2)}, file)
    code, _, stderr = run_steps("--q", file)
    assert code == 2 and "one of a, b; got ''" in stderr


def test_large_inputs_exit_with_2(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.zeros((500, 2)))
    code, _, stderr = run_steps("--q", str(tmp_path / "q.npy"))
    assert code == 2 and "got scores of 500 x 500 = 250,000" in stderr
