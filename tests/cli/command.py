"""The command `regard`, run in this process."""

from typer.testing import CliRunner

from regard.cli import app


def run_command(*arguments: str) -> tuple[int, str, str]:
    """Run `regard` with these arguments; return the exit code, stdout and stderr."""
    result = CliRunner().invoke(app, list(arguments))
    # CliRunner also returns exit code 1 for an uncaught exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr
