"""The command line interface `regard`. Each command is one module of `regard.cli.commands`."""

from regard.cli.app import app
from regard.cli.commands.cost import cost
from regard.cli.commands.doctor import doctor
from regard.cli.commands.explain import explain
from regard.cli.commands.explore import explore
from regard.cli.commands.heads import heads
from regard.cli.commands.mechanisms import mechanisms
from regard.cli.commands.steps import steps
from regard.cli.commands.theory import theory
from regard.cli.commands.train import train

for _command in (explore, steps, explain, cost, heads, mechanisms, theory, train, doctor):
    app.command()(_command)


def main() -> None:
    """Run the command line interface."""
    app()
