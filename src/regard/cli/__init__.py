"""The command `regard`: one command is one public function, and one file here."""

from regard.cli.app import app
from regard.cli.cost import cost
from regard.cli.explain import explain
from regard.cli.heads import heads
from regard.cli.look import look
from regard.cli.mechanisms import mechanisms
from regard.cli.steps import steps
from regard.cli.theory import theory
from regard.cli.train import train

for _command in (look, steps, explain, cost, heads, mechanisms, theory, train):
    app.command()(_command)


def main() -> None:
    app()
