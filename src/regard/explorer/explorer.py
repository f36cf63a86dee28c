"""The state of the explorer: sessions by id, models, timings and results of experiments."""

import secrets
import threading
from typing import Any, cast

from regard.errors import ArgumentError
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.session import ProgressReporter, Session
from regard.explorer.text_models.registry import BUILTIN_MODELS, GenerativeTextModel, TextModel, load_text_model

MAX_SESSIONS = 16
MAX_HISTORY_BYTES = 2 * 2**30  # recordings of all sessions


class Explorer:
    """The sessions of the explorer, by id. Thread-safe.

    `models` are the names of models that the page may run, besides the bundled ones. `api.registry.dispatch` handles
    the requests of the page.
    """

    def __init__(self, *sessions: Session, models: tuple[str, ...] = ()) -> None:
        self.sessions: dict[int, Session] = dict(enumerate(sessions))
        self.models = tuple(dict.fromkeys((*BUILTIN_MODELS, *models)))
        self.server_id = secrets.token_hex(8)  # session ids are valid for one server only
        self.model_lock = threading.Lock()  # models run one at a time
        self.timings: list[dict[str, Any]] = []  # exported files contain them
        self.experiment_results: dict[str, Payload] = {}  # by parameters as JSON; exported files contain them
        self._next_id = len(sessions)
        self._lock = threading.Lock()
        self._progress: dict[str, tuple[str, float | None]] = {}

    def find_session(self, params: Params, key: str = "session") -> Session:
        """Return the session whose id is the parameter `key`."""
        session_id = params.integer(key, 0, 10**9, 0)
        session = self.sessions.get(session_id)
        if session is None:
            ids = ", ".join(map(str, self.sessions)) or "none"
            raise ArgumentError(f"{key} must be the id of a session ({ids}); got {session_id}.")
        return session

    def add(self, session: Session) -> int:
        """Add a session and return its id.

        If there are too many sessions or their recordings are too large, remove the oldest ones except the first.
        """
        with self._lock:
            session_id = self._next_id
            self._next_id += 1
            self.sessions[session_id] = session
            for old_id in list(self.sessions)[1:-1]:
                nbytes = sum(session.nbytes for session in self.sessions.values())
                if len(self.sessions) <= MAX_SESSIONS and nbytes <= MAX_HISTORY_BYTES:
                    break
                self.sessions.pop(old_id).clear_cache()
        return session_id

    def model(self, name: str) -> TextModel:
        """Return a model by name: a bundled one, or one that the explorer was started with."""
        if name not in self.models:
            raise ArgumentError(
                f"a model must be one of {', '.join(self.models)}; got {name[:80]!r}. To use another model, start the "
                "explorer with it."
            )
        return load_text_model(name)

    def generative_model(self, session: Session) -> GenerativeTextModel | None:
        """Return the model of a session if it can continue the text, else None."""
        if session.token_ids is None or session.model not in self.models:
            return None
        model = load_text_model(session.model)
        return cast(GenerativeTextModel, model) if hasattr(model, "start_decoding") else None

    def progress_callback(self, params: Params) -> ProgressReporter:
        """Return a callback that stores the progress of a request for the endpoint `progress`."""
        progress_id = params.text("progress_id", 64, "")

        def report(text: str, fraction: float | None) -> None:
            if progress_id:
                self._progress[progress_id] = (text, fraction)

        return report

    def clear_progress(self, params: Params) -> None:
        """Remove the stored progress of a request."""
        self._progress.pop(params.text("progress_id", 64, ""), None)

    def progress(self, progress_id: str) -> tuple[str, float | None]:
        return self._progress.get(progress_id, ("", None))
