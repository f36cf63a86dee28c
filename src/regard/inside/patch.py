"""Running a model with some heads changed: left out, averaged, or looking elsewhere. What depends on them shows.

A change is a function from a head, as it is in one call, to what the head is to answer instead.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import attention
from regard.errors import SpecError
from regard.heard import unheard
from regard.inside import arguments
from regard.inside.calls import Answered, heard
from regard.inside.running import Running, eagerly, is_meant
from regard.inside.take import Take, four_dimensional
from regard.inside.told import Heard


@dataclass(frozen=True, eq=False)
class Head:
    """One head in one call: q, k, v and what was asked, and its answer (batch, 1, n_q, width)."""

    take: Take
    output: Tensor


Change = Callable[[Head], Tensor]
MAX_SHIFT = 2**31


def zero(head: Head) -> Tensor:
    """Nothing."""
    return torch.zeros_like(head.output)


def mean(head: Head) -> Tensor:
    """For every query the mean of its answers over all queries."""
    return head.output.mean(-2, keepdim=True).expand_as(head.output)


def uniform(head: Head) -> Tensor:
    """The mean of all values that a query may see."""
    take = head.take
    return _asked(
        torch.zeros_like(take.q), take.k, take.v, {"mask": take.options["mask"], "start": take.options["start"]}
    )


def shifted(by: int) -> Change:
    """Weights as they are, on keys `by` places further on; what would fall beyond the end is lost."""
    by = arguments.whole(by, "by", -MAX_SHIFT, MAX_SHIFT)

    def change(head: Head) -> Tensor:
        v = head.take.v.roll(-by, dims=2)
        v[:, :, slice(-by, None) if by > 0 else slice(0, -by)] = 0.0
        return _asked(head.take.q, head.take.k, v if by else head.take.v, head.take.options)

    return change


def looking(**options: Any) -> Change:
    """Another score, mask or weighing, as in `regard.attention`; what is not named stays."""
    return lambda head: _asked(head.take.q, head.take.k, head.take.v, {**head.take.options, **options})


def weights(given: Tensor) -> Change:
    """These weights, (n_q, n_k) or with batch and head before them."""
    arguments.tensor(given, "weights", 2)

    def change(head: Head) -> Tensor:
        shape = (*head.output.shape[:3], head.take.k.shape[2])
        try:
            rows = given.to(head.take.v.dtype).expand(shape)
        except RuntimeError:
            raise SpecError(f"weights must fit {shape}; got shape {tuple(given.shape)}.") from None
        return rows @ head.take.v

    return change


def _asked(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> Tensor:
    with unheard():
        return attention(q, k, v, **options)  # type: ignore[no-any-return]  # tensors in, tensor out


def _checked(changes: Any) -> dict[tuple[int | str, int], Change]:
    """The changes, if they are functions by (layer, head)."""
    if not isinstance(changes, Mapping) or not all(isinstance(key, tuple) and len(key) == 2 for key in changes):
        raise SpecError(
            f"changes must be functions by (layer, head), {{(0, 3): zero}}; got {arguments.short(changes)}."
        )
    return {
        (arguments.layer_name(layer), arguments.whole(head, "a head", 0)): arguments.function(change, "a change")
        for (layer, head), change in changes.items()
    }


def _changed(change: Change, head: Head) -> Tensor:
    output = change(head)
    if not isinstance(output, Tensor) or output.shape != head.output.shape:
        raise SpecError(
            f"a change must return a tensor of shape {tuple(head.output.shape)}; got {arguments.short(output)}."
        )
    return output


@contextmanager
def patch(model: nn.Module, changes: Mapping[tuple[int | str, int], Change]) -> Iterator[None]:
    """Inside, the model runs with the heads (layer, head) changed; layers are named as in `record`.

    >>> from regard.inside.patch import zero
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    >>> x = torch.randn(1, 10, 16)
    >>> with torch.no_grad(), patch(model, {(1, 3): zero}):
    ...     y = model(x)
    >>> torch.allclose(y, model(x))
    False
    """
    if not isinstance(model, nn.Module):
        raise SpecError(f"patch must be given a torch.nn.Module; got {arguments.short(model)}.")
    changes = _checked(changes)
    running, done = Running(model), set()

    def hear(call: Heard) -> Answered | None:
        path, number = running.place(call)
        here = {key: change for key, change in changes.items() if is_meant(key[0], number, path)}
        if not here:
            return None
        if call.put is None and call.source != "regard":
            raise SpecError(f"{path} must hand out its answer by head to be changed; {call.source} does not. {_REMEDY}")

        def answered(output: Tensor) -> Tensor:
            q, k, v, options = four_dimensional(call.ask())
            whole, changed = Take(q, k, v, options, None, call.source), output.clone()
            heads = changed.view(*q.shape[:3], output.shape[-1])
            for (layer, head), change in here.items():
                if not 0 <= head < q.shape[1]:
                    raise SpecError(f"heads of {path} must be from 0 to {q.shape[1] - 1}; got {head}.")
                of_keys = head // (q.shape[1] // k.shape[1])
                one = Take(
                    q[:, head : head + 1],
                    k[:, of_keys : of_keys + 1],
                    v[:, of_keys : of_keys + 1],
                    whole.rewritten({"h": [head]}),
                    None,
                    call.source,
                )
                heads[:, head : head + 1] = _changed(change, Head(one, heads[:, head : head + 1].clone()))
                done.add((layer, head))
            return changed

        return answered

    with eagerly(model), running.followed(), heard(model, hear, fused=False):
        yield
    missing = [key for key in changes if key not in done]
    if missing:
        known = ", ".join(f"{number} ({path})" for path, number in running.seen.items()) or "none"
        raise SpecError(f"layers to change must be among those that attended: {known}; got {missing[0][0]!r}.")


_REMEDY = "Call it with need_weights=False."
