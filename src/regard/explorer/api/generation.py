"""The endpoint that generates a continuation: each new token with its probability and the most likely tokens."""

from typing import Any

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.explorer.api.endpoint import slow_endpoint
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.explorer.session import ProgressReporter, Session
from regard.explorer.text_models.registry import GenerativeTextModel, check_length
from regard.nn.generation import Sampler

MAX_CONTINUATION_TOKENS = 256  # per request
NUM_TOP_TOKENS = 5  # listed for each new token


@slow_endpoint
def generate(explorer: Explorer, params: Params) -> Payload:
    """Generate tokens after a text and add the session of the longer text."""
    session = explorer.find_session(params)
    max_new_tokens = params.integer("max_new_tokens", 1, MAX_CONTINUATION_TOKENS, 20)
    temperature = params.number("temperature", 0.0, 10.0, 0.0)
    seed = params.integer("seed", 0, 2**31 - 1, 0)
    model = explorer.generative_model(session)
    if model is None or session.token_ids is None:
        raise ArgumentError(
            f"a text can be continued only by a causal language model; got {session.model or 'a recording'}."
        )
    check_length(model.name, len(session.token_ids) + max_new_tokens, model.max_tokens)
    with explorer.model_lock:
        report = explorer.progress_callback(params)
        continued = continue_text(model, session, max_new_tokens, temperature, seed, report)
    return Payload({"id": explorer.add(continued), "first_position": len(session.token_ids)})


def continue_text(
    model: GenerativeTextModel,
    session: Session,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    progress: ProgressReporter,
) -> Session:
    """Return the session of the text and `max_new_tokens` new tokens, with the probabilities of each step."""
    assert session.token_ids is not None
    ids, new = list(session.token_ids), list(session.token_ids)
    decoder = model.start_decoding()
    steps: list[dict[str, Any]] = []
    sampler = Sampler(temperature=temperature or 1.0, seed=seed)
    with torch.no_grad():
        for n in range(max_new_tokens):
            progress(f"token {n + 1} of {max_new_tokens}", n / max_new_tokens)
            logits = decoder.next_token_logits(new)
            token_id = int(sampler(logits[None])[0]) if temperature else int(logits.argmax())
            probabilities = sampler.probabilities(logits[None])[0]
            steps.append({"position": len(ids), **_step_prediction(model, probabilities, token_id)})
            ids, new = [*ids, token_id], [token_id]
    progress("recording the longer text", None)
    continued = model.record_tokens(ids, _decoded_text(model, session, ids))
    labels = continued.texts[0].labels
    for step in steps:
        step["text"] = labels[step["position"]]
    continued.generation = {"first_position": len(session.token_ids), "steps": steps}
    return continued


def _decoded_text(model: GenerativeTextModel, session: Session, token_ids: list[int]) -> str:
    """Return the input text with the new tokens, decoded together because a character may span several tokens."""
    assert session.token_ids is not None
    prompt, decoded = model.decode(session.token_ids), model.decode(token_ids)
    if session.text is None or not decoded.startswith(prompt):
        return decoded
    return session.text + decoded[len(prompt) :]


def _step_prediction(model: GenerativeTextModel, probabilities: Tensor, token_id: int) -> dict[str, Any]:
    likely = probabilities.topk(min(NUM_TOP_TOKENS, len(probabilities)))
    names = [model.token_texts([token]).names[0] for token in likely.indices.tolist()]
    return {
        "probability": float(probabilities[token_id]),
        "top_tokens": [[name, probability] for name, probability in zip(names, likely.values.tolist(), strict=True)],
    }
