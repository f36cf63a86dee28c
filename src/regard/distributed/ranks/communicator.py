"""Communicator: sends tensors between the ranks of a process group and counts the bytes sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import torch
import torch.distributed as dist
from torch import Tensor

from regard.checks import describe
from regard.errors import RankError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(eq=False)
class Communicator:
    """The ranks of a process group.

    Attributes:
        group: the process group; None means all ranks.
        rank: index of this rank in the group.
        world_size: number of ranks in the group.
        bytes_sent: bytes of tensors that this rank has sent so far.
    """

    group: "dist.ProcessGroup | None"
    rank: int
    world_size: int
    bytes_sent: int = field(default=0)

    @classmethod
    def from_group(cls, group: "GroupLike | None" = None) -> "Communicator":
        """Return the communicator of a process group, of a one-dimensional device mesh, or of all ranks (None).

        A communicator is returned as it is, so that `bytes_sent` can count several calls.
        """
        if isinstance(group, Communicator):
            return group
        if not (dist.is_available() and dist.is_initialized()):
            raise RankError(
                "attention over ranks needs a process group; got none. Start the script with torchrun, and call "
                "torch.distributed.init_process_group('gloo') in it."
            )
        process_group: Any = _group_from_mesh(group) if hasattr(group, "get_group") else group
        if not _is_process_group(process_group):
            raise RankError(
                f"group must be a process group, a one-dimensional device mesh or None; got {describe(process_group)}."
            )
        if dist.get_rank(process_group) < 0:
            raise RankError(f"rank {dist.get_rank()} must be a member of the group it passes; got a group without it.")
        return cls(process_group, dist.get_rank(process_group), dist.get_world_size(process_group))

    def batch_isend_irecv(
        self, outgoing: Mapping[int, Sequence[Tensor]], incoming: Mapping[int, Sequence[Tensor]]
    ) -> "PendingTransfer":
        """Start sending `outgoing` tensors to ranks and receiving from ranks into the `incoming` tensors."""
        operations = []
        for rank, tensors in outgoing.items():
            for tensor in tensors:
                operations.append(dist.P2POp(dist.isend, tensor.contiguous(), group=self.group, group_peer=rank))
                self.bytes_sent += tensor.nbytes
        for rank, tensors in incoming.items():
            operations += [dist.P2POp(dist.irecv, t, group=self.group, group_peer=rank) for t in tensors]
        ranks = sorted({*outgoing, *incoming})
        operations = [operation for operation in operations if operation.tensor.numel()]
        try:
            works = dist.batch_isend_irecv(operations) if operations else []
        except RuntimeError as error:
            raise self.rank_error(ranks, error) from error
        return PendingTransfer(self, works, ranks, [operation.tensor for operation in operations])

    def all_to_all(self, outgoing: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send outgoing[r] to each rank r and return the received tensors; this rank's own is not copied."""
        local = outgoing[self.rank]
        received = [local if r == self.rank else local.new_empty(shape) for r, shape in enumerate(shapes)]
        other_ranks = [r for r in range(self.world_size) if r != self.rank]
        self.batch_isend_irecv({r: [outgoing[r]] for r in other_ranks}, {r: [received[r]] for r in other_ranks}).wait()
        return received

    def all_gather_ints(self, values: Sequence[int]) -> list[list[int]]:
        """Return the integers of every rank, indexed by rank; all ranks must pass equally many."""
        local = torch.tensor(values, dtype=torch.int64, device=self.device)
        gathered = [torch.empty_like(local) for _ in range(self.world_size)]
        try:
            dist.all_gather(gathered, local, group=self.group)
        except RuntimeError as error:
            raise self.rank_error(range(self.world_size), error) from error
        return [x.tolist() for x in gathered]

    def all_reduce(self, x: Tensor, op: "dist.ReduceOp.RedOpType | None" = None) -> Tensor:
        """Reduce a tensor over all ranks in place and return it; `op` defaults to `ReduceOp.SUM`."""
        try:
            dist.all_reduce(x, op or dist.ReduceOp.SUM, group=self.group)
        except RuntimeError as error:
            raise self.rank_error(range(self.world_size), error) from error
        return x

    @property
    def device(self) -> torch.device:
        """Device that tensors must be on to be sent: CUDA for NCCL, otherwise CPU."""
        return torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")

    def rank_error(self, ranks: Sequence[int], error: Exception) -> RankError:
        """Return the error for a failed transfer with `ranks`."""
        names = ", ".join(str(r) for r in ranks if r != self.rank)
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = message.partition("] ")[2].partition(". ")[0] or message  # without the source location in gloo
        return RankError(
            f"rank {self.rank} of {self.world_size} must receive a reply from rank {names}; got: {reason}. A rank has "
            "ended, or has not reached the same call within the group's timeout. Check the output of the other ranks."
        )


GroupLike: TypeAlias = Union[Communicator, "dist.ProcessGroup", "DeviceMesh"]


@dataclass(eq=False)
class PendingTransfer:
    """A transfer in progress; it keeps its tensors alive until `wait` returns."""

    comm: Communicator
    works: list[Any]
    ranks: Sequence[int]
    tensors: list[Tensor]

    def wait(self) -> None:
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            raise self.comm.rank_error(self.ranks, error) from error
        self.works, self.tensors = [], []


def _is_process_group(group: Any) -> bool:
    return group is None or group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, dist.ProcessGroup)


def _group_from_mesh(mesh: Any) -> Any:
    try:
        return mesh.get_group()
    except RuntimeError as error:
        raise RankError(f"group must be a one-dimensional device mesh; got {mesh}: {error}") from error
