"""The center of the Gaussian score over ranks: distances are computed relative to one point on all ranks."""

from dataclasses import replace

import torch

from regard.call.spec import ParsedCall
from regard.distributed.ranks.communicator import Communicator
from regard.score import Gaussian, query_center


def synchronize_center(call: ParsedCall, comm: Communicator) -> ParsedCall:
    """Return the call with the center of a Gaussian score averaged over ranks; other calls are unchanged."""
    score = call.score
    if not isinstance(score, Gaussian):
        return call
    with torch.no_grad():
        local_center = query_center(call.q.double(), call.k.shape[1])
        has_queries = call.q.shape[2] > 0
        weight = torch.full((), float(has_queries), dtype=torch.float64)
        center = comm.all_reduce(local_center * weight) / comm.all_reduce(weight).clamp(min=1.0)
    return replace(call, score=replace(score, center=center))
