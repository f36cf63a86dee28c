"""Distances over ranks. They are computed from one point amid all queries, so ranks must agree on it."""

from dataclasses import replace

import torch

from regard.distributed.peers import Peers
from regard.spec.score import Metric, centre_of
from regard.spec.spec import Question


def centred(question: Question, peers: Peers) -> Question:
    """The same question; a distance is measured from the same point on every rank."""
    score = question.score
    if not isinstance(score, Metric):
        return question
    with torch.no_grad():
        point = centre_of(question.q.double(), question.k.shape[1])
        empty = question.q.shape[2] == 0
        weight = torch.full((), 0.0 if empty else 1.0, dtype=torch.float64)
        middle = peers.summed(point * weight) / peers.summed(weight).clamp(min=1.0)
    return replace(question, score=replace(score, centre=middle))
