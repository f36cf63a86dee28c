"""The ranks that answer together: who they are, and how they hand each other tensors. What is sent is counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from regard.checks import describe
from regard.errors import RankError


@dataclass(eq=False)
class Peers:
    """The ranks of a group, counted from 0 in it; `sent` is how many bytes of tensors this one has sent."""

    group: Any
    rank: int
    count: int
    sent: int = field(default=0)

    @classmethod
    def of(cls, group: Any = None) -> "Peers":
        """Of a process group, a device mesh of one dimension, or None: all ranks there are. Peers stay who they are, so
        that what several calls send can be counted together."""
        if isinstance(group, Peers):
            return group
        if not (dist.is_available() and dist.is_initialized()):
            raise RankError(
                "a process group must be there before ranks can work together; got none. Start the script with "
                "torchrun, and call torch.distributed.init_process_group('gloo') in it."
            )
        if hasattr(group, "get_group"):
            group = _group_of(group)
        if not _is_group(group):
            raise RankError(
                f"group must be a process group, a device mesh of one dimension or None; got {describe(group)}."
            )
        if dist.get_rank(group) < 0:
            raise RankError(f"rank {dist.get_rank()} must belong to the group it calls with; got a group without it.")
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def start(self, outgoing: Mapping[int, Sequence[Tensor]], incoming: Mapping[int, Sequence[Tensor]]) -> "Pending":
        """Begins to send tensors to ranks and to receive others from ranks, into the tensors given."""
        operations = []
        for rank, tensors in outgoing.items():
            for tensor in tensors:
                operations.append(dist.P2POp(dist.isend, tensor.contiguous(), group=self.group, group_peer=rank))
                self.sent += tensor.nbytes
        for rank, tensors in incoming.items():
            operations += [dist.P2POp(dist.irecv, t, group=self.group, group_peer=rank) for t in tensors]
        ranks = sorted({*outgoing, *incoming})
        operations = [o for o in operations if o.tensor.numel()]
        try:
            works = dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            raise self.lost(ranks, error) from error
        return Pending(self, works, ranks, [o.tensor for o in operations])

    def exchange(self, outgoing: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """One tensor to each rank, and one of these shapes from each; this one's own stays as it is."""
        own = outgoing[self.rank]
        received = [own if r == self.rank else own.new_empty(shape) for r, shape in enumerate(shapes)]
        others = [r for r in range(self.count) if r != self.rank]
        self.start({r: [outgoing[r]] for r in others}, {r: [received[r]] for r in others}).wait()
        return received

    def every(self, numbers: Sequence[int]) -> list[list[int]]:
        """The same count of whole numbers from every rank, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.count)]
        try:
            dist.all_gather(found, own, group=self.group)
        except RuntimeError as error:
            raise self.lost(range(self.count), error) from error
        return [x.tolist() for x in found]

    def summed(self, x: Tensor, operation: Any = None) -> Tensor:
        """The sum of a tensor over all ranks, or what another operation of torch.distributed makes of it; in place."""
        try:
            dist.all_reduce(x, operation or dist.ReduceOp.SUM, group=self.group)
        except RuntimeError as error:
            raise self.lost(range(self.count), error) from error
        return x

    @property
    def device(self) -> torch.device:
        """Where small numbers must lie to be sent."""
        kind = "cuda" if dist.get_backend(self.group) == "nccl" else "cpu"
        return torch.device(kind)

    def lost(self, ranks: Sequence[int], error: Exception) -> RankError:
        """What to say when somebody does not answer."""
        names = ", ".join(str(r) for r in ranks if r != self.rank)
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = told.partition("] ")[2].partition(". ")[0] or told  # without the place in gloo's own source
        return RankError(
            f"rank {self.rank} of {self.count} must be answered by rank {names}; got: {reason}. A rank has ended, or "
            "has not come to the same call within the group's timeout: look at what the others printed."
        )


@dataclass(eq=False)
class Pending:
    """What is under way. The tensors live until it has arrived."""

    peers: Peers
    works: list[Any]
    ranks: Sequence[int]
    tensors: list[Tensor]

    def wait(self) -> None:
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            raise self.peers.lost(self.ranks, error) from error
        self.works, self.tensors = [], []


def _is_group(group: Any) -> bool:
    return group is None or group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, dist.ProcessGroup)


def _group_of(mesh: Any) -> Any:
    try:
        return mesh.get_group()
    except RuntimeError as problem:
        raise RankError(f"group must be a device mesh of one dimension; got {mesh}: {problem}") from problem
