"""Recordings, sessions and explorers of one layer with random inputs, for tests."""

from typing import Any

import torch
from torch import Tensor

from regard.explorer.explorer import Explorer
from regard.explorer.session import Session
from regard.explorer.session_from_recording import session_from_recording
from regard.recording.recorded_call import copy_call
from regard.recording.recording import Recording


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_recording(
    n_q: int,
    n_k: int,
    *,
    num_heads: int = 2,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    batch_size: int = 1,
    **options: Any,
) -> Recording:
    """Return a recording of one layer, called with random inputs and these options of `attention`."""
    recording = Recording()
    q = 2 * randn(batch_size, num_heads, n_q, head_dim)
    k, v = (randn(batch_size, num_kv_heads, n_k, head_dim, seed=seed) for seed in (1, 2))
    arguments = {"q": q, "k": k, "v": v, **options}
    recording.get_or_add_layer("layer.0", 0, None).add(copy_call(arguments, None, lambda tensor: tensor, "test"))
    return recording


def make_session(n_q: int, n_k: int, **options: Any) -> Session:
    return session_from_recording(make_recording(n_q, n_k, **options))


def make_explorer(n_q: int, n_k: int, **options: Any) -> Explorer:
    return Explorer(make_session(n_q, n_k, **options))
