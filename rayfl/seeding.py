"""Randomness as a pure function of (seed, purpose, ids): never of history, host or finishing order."""

import hashlib

import numpy as np
import torch


def derive(seed: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed for one stream, equal in every process and on every platform."""
    text = "/".join([str(seed), purpose, *map(str, ids)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A torch generator of its own stream, e.g. ``generator(seed, "shuffle", t, client_id)``."""
    return torch.Generator().manual_seed(derive(seed, purpose, *ids))


def numpy_generator(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """The numpy counterpart of :func:`generator`; its stream is independent of torch's."""
    return np.random.default_rng(derive(seed, purpose, *ids))
