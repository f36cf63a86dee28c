"""The calls of one module on a tape. Calls that go on where the last one ended, as in generation, are one matrix."""

from functools import cached_property

from regard.errors import SpecError
from regard.inside.chain import Chain
from regard.inside.joined import Apart, joined
from regard.inside.take import Take
from regard.result import Attended


class Layer:
    """A module that attends: its path in the model, its number among such modules, and what it was asked.

    `heads` are the numbers of those that were kept.
    """

    def __init__(self, path: str, number: int, heads: list[int] | None) -> None:
        self.path, self.number = path, number
        self.chains: list[Chain] = []
        self._chosen = heads

    @property
    def takes(self) -> list[Take]:
        return [take for chain in self.chains for take in chain.takes]

    @property
    def heads(self) -> list[int]:
        return list(range(self.chains[0].takes[0].q.shape[1])) if self._chosen is None else self._chosen

    def add(self, take: Take) -> int:
        """Keeps a call; the bytes that it takes. Keys and values that the last one had are kept once."""
        self.__dict__.pop("take", None)
        forgotten = self.chains[-1].forgotten(take) if self.chains else None
        if forgotten is not None:
            return self.chains[-1].add(take, forgotten)
        self.chains.append(Chain.of(take))
        return take.q.nbytes + take.k.nbytes + take.v.nbytes

    @cached_property
    def take(self) -> Take:
        """All calls as one."""
        if len(self.takes) == 1:
            return self.takes[0]
        try:
            return joined(self.chains)
        except Apart:
            raise SpecError(
                f"the calls of a layer must go on where the last one ended, as in generation, to be one matrix; "
                f"{self.path} was called {len(self.takes)} times with other keys or rules. Take them one by one: "
                f"tape.calls({self.number})."
            ) from None

    @property
    def attended(self) -> Attended:
        """All calls as one, kept open."""
        return self.take.attended
