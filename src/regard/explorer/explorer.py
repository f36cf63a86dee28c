"""All that is shown, by number, with the models that may read more. `questions.ask` answers questions about it."""

import secrets
import threading
from typing import Any, cast

from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.packing import Answer
from regard.explorer.shown import Shown, Told
from regard.explorer.sources import SHIPPED, Model, Writing, of_name

SHOWN = 16  # texts of the history: each holds a recording
HISTORY_BYTES = 2 * 2**30  # of their recordings


class Explorer:
    """All that is shown, by number. Any number of threads may ask about it.

    `models` are those that may read texts, besides the shipped ones.
    """

    def __init__(self, *shown: Shown, models: tuple[str, ...] = ()) -> None:
        self.shown: dict[int, Shown] = dict(enumerate(shown))
        self.models = tuple(dict.fromkeys((*SHIPPED, *models)))
        self.session = secrets.token_hex(8)  # numbers of another session are about other texts
        self.running = threading.Lock()  # one model runs at a time: recordings would wait for each other anyway
        self.timed: list[dict[str, Any]] = []  # what was measured on this machine, so that a file can show it
        self.outcomes: dict[str, Answer] = {}  # of experiments that were run, likewise, by what was asked
        self._next = len(shown)
        self._lock = threading.Lock()
        self._progress: dict[str, tuple[str, float | None]] = {}

    def find(self, asked: Asked, key: str = "shown") -> Shown:
        """The thing that a question is about."""
        number = asked.whole(key, 0, 10**9, 0)
        found = self.shown.get(number)
        if found is None:
            known = ", ".join(map(str, self.shown)) or "nothing"
            raise SpecError(f"{key} must be the number of something that is shown, {known}; got {number}.")
        return found

    def add(self, shown: Shown) -> int:
        """Adds a text to the history and returns its number. The oldest ones but the first go where there are too many,
        or too large ones."""
        with self._lock:
            number = self._next
            self._next += 1
            self.shown[number] = shown
            for old in list(self.shown)[1:-1]:
                if len(self.shown) <= SHOWN and sum(each.nbytes for each in self.shown.values()) <= HISTORY_BYTES:
                    break
                self.shown.pop(old).forget()
        return number

    def model(self, name: str) -> Model:
        """A model that may be chosen: the shipped ones, and those named when the explorer was started."""
        if name not in self.models:
            raise SpecError(
                f"a model must be one of {', '.join(self.models)}; got {name[:80]!r}. Others are named when the "
                "explorer is started."
            )
        return of_name(name)

    def writer(self, shown: Shown) -> Writing | None:
        """The model that can go on with a text; None if there is none."""
        if shown.ids is None or shown.model not in self.models:
            return None
        model = of_name(shown.model)
        return cast(Writing, model) if hasattr(model, "begun") else None

    def tell(self, asked: Asked) -> Told:
        """Says how far a long question is, to who asks for its progress."""
        name = asked.text("progress", 64, "")

        def told(text: str, share: float | None) -> None:
            if name:
                self._progress[name] = (text, share)

        return told

    def over(self, asked: Asked) -> None:
        """Forgets how far a question was."""
        self._progress.pop(asked.text("progress", 64, ""), None)

    def progress(self, name: str) -> tuple[str, float | None]:
        return self._progress.get(name, ("", None))
