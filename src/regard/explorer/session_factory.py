"""Create an explorer from a text, a recording, or an example."""

from regard.explorer.explorer import Explorer
from regard.explorer.session_from_recording import session_from_recording
from regard.explorer.text_models.registry import load_text_model
from regard.recording.recording import Recording


def create_explorer(source: str | Recording | None = None, *, model: str = "language") -> Explorer:
    """Return an explorer with one session.

    `source` is a text that `model` runs on, a recording, or None for the example text of the model. The page can run
    the models "language", "dates" and `model` on other texts, and no other model.

    >>> create_explorer("the twenty first of march nineteen eighty four", model="dates").sessions[0].title
    'the twenty first of march nineteen eighty four → 1984-03-21'
    """
    if isinstance(source, Recording):
        return Explorer(session_from_recording(source))
    text_model = load_text_model(model)
    text = text_model.example_text if source is None else source
    return Explorer(text_model.record_text(text), models=(model,))
