"""Recording: a model runs as it always does, and what its attention was asked is kept."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BudgetError, SpecError, TraceError
from regard.inside import arguments
from regard.inside.calls import Answered, heard
from regard.inside.running import Running, eagerly, is_meant
from regard.inside.take import taken
from regard.inside.tape import Tape
from regard.inside.told import Heard
from regard.weights import byte_count

Which = int | str | Iterable[int | str]


@contextmanager
def record(
    model: nn.Module,
    *,
    layers: Which | None = None,
    heads: Iterable[int] | None = None,
    budget: str | float = "2GB",
) -> Iterator[Tape]:
    """Inside, every call of attention that the model makes is kept: q, k, v and what was asked, not the weights.

    `layers` are numbers in the order in which modules first attend, or paths of modules; `heads` numbers of heads;
    None is all of them. What does not fit into `budget` bytes is left out, and `tape.dropped` says so. The model's
    outputs stay what they are. What is read from the tape is computed then.

    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2).eval()
    >>> with record(model) as tape:
    ...     y = model(torch.randn(1, 10, 16))
    >>> tape[1].weights[0, 3].sum(-1).allclose(torch.ones(10))
    True
    """
    if not isinstance(model, nn.Module):
        raise SpecError(f"record must be given a torch.nn.Module; got {type(model).__name__}.")
    recorder = _Recorder(model, layers, heads, byte_count(budget), budget)
    with eagerly(model), recorder.running.followed(), heard(model, recorder.hear):
        yield recorder.tape
    recorder.check()


class _Recorder:
    def __init__(self, model: nn.Module, layers: Any, heads: Any, budget: int, said: Any) -> None:
        self.running = Running(model)
        self.wanted = None if layers is None else arguments.layer_names(layers)
        self.heads = None if heads is None else arguments.wholes(heads, "heads", 0)
        if self.heads is not None and (not self.heads or len(set(self.heads)) != len(self.heads)):
            raise SpecError(f"heads must name at least one head, each once, or be None for all; got {self.heads}.")
        self.budget, self.said, self.used = budget, said, 0
        self.kept: dict[Any, tuple[Tensor, Tensor]] = {}  # tensors of masks and rules, and their copies
        self.tape = Tape()

    def hear(self, call: Heard) -> Answered | None:
        path, number = self.running.place(call)
        if not self._is_wanted(number, path):
            return None
        try:
            with torch.no_grad():
                take = taken(call.ask(), self.heads, self._copied, call.source)
        except TraceError as error:
            self.tape.dropped.append(f"layer {number}, {path}: what it asks cannot be kept: {error}")
            return None
        needed = sum(x.nbytes for x in (take.q, take.k, take.v))
        self._check_budget(needed, take.q.shape[1], path)
        if self.used + needed + self._mask_bytes() > self.budget:
            self.tape.dropped.append(
                f"layer {number}, {path}: {needed:,} bytes beyond the budget of {self.said}, of which "
                f"{self.used:,} are used. Record fewer layers or heads, or give a larger budget."
            )
            return None
        layer = self.tape.layer(path, number, self.heads)
        self.used += layer.add(take)

        def follow(gradient: Tensor) -> None:
            by_head = gradient.detach().reshape(take.q.shape[0], -1, take.q.shape[2], gradient.shape[-1])
            take.gradient = by_head if self.heads is None else by_head[:, self.heads]

        def answered(output: Any) -> Any:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(follow)
            return output

        return answered

    def _is_wanted(self, number: int, path: str) -> bool:
        return self.wanted is None or any(is_meant(wanted, number, path) for wanted in self.wanted)

    def _copied(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor that a mask or a rule looks things up in; the same one while nobody changes it."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._version)
        if key not in self.kept:  # the tensor is kept with its copy, so that no other can take its place in memory
            self.kept[key] = (tensor, tensor.detach().clone())
        return self.kept[key][1]

    def _mask_bytes(self) -> int:
        return sum(copy.nbytes for _, copy in self.kept.values())

    def _check_budget(self, needed: int, heads: int, path: str) -> None:
        if needed // max(heads, 1) > self.budget:
            raise BudgetError(
                f"the budget must hold at least one head; one of {path} takes {needed // heads:,} bytes, and the "
                f"budget is {self.said}. Give budget={-(-needed // heads)} or more, or a shorter text."
            )

    def check(self) -> None:
        """Whether there is what was asked for."""
        if not self.running.seen:
            raise SpecError(
                f"{self.running.kind} must call attention while it is recorded; no call was heard. Run the model "
                "inside the `with`. A model that computes softmax(q k') itself cannot be heard: let it call "
                "torch.nn.functional.scaled_dot_product_attention or regard.attention."
            )
        missing = [w for w in self.wanted or () if not any(is_meant(w, n, p) for p, n in self.running.seen.items())]
        if missing:
            known = ", ".join(f"{number} ({path})" for path, number in self.running.seen.items())
            raise SpecError(f"layers must be among those that attended: {known}; got {missing[0]!r}.")
