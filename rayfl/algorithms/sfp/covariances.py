"""Whole covariances of features, as what is sent of them: the lower triangle, row by row."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rayfl.errors import UserError

MOST_FEATURES = 1024
"""Half a million numbers per class, and a root that takes a fraction of a second."""


def check(num_features: int, block: str) -> None:
    """Raises UserError where too many features leave a block of that name."""
    if num_features > MOST_FEATURES:
        raise UserError(
            f"algorithm.covariance=full takes up to {MOST_FEATURES} features, {num_features} leave block "
            f"'{block}': use algorithm.covariance=low_rank, or algorithm.proto_space=vector"
        )


def triangle(features: Tensor) -> Tensor:
    """Of features [n, *S], D numbers each: the population's covariance, [D (D + 1) / 2]."""
    centred = (features - features.mean(0)).flatten(1).double()
    rows, columns = _places(centred.shape[1], centred.device)
    return (centred.T @ centred / len(centred))[rows, columns].to(features)


def join(counts: Sequence[int], means: Tensor, triangles: Tensor, mean: Tensor) -> Tensor:
    """That of a union, whose ``mean`` [*S] is known, of its parts' ``means`` [k, *S] and ``triangles``
    [k, D (D + 1) / 2]: the law of total covariance."""
    apart = (means - mean).flatten(1)
    rows, columns = _places(apart.shape[1], apart.device)
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    joined: Tensor = torch.tensordot(
        weights.to(triangles), triangles + apart[:, rows] * apart[:, columns], dims=1
    )
    return joined


def root(triangle: Tensor, num_features: int, eps: float) -> Tensor:
    """[D, D] float64, symmetric, whose square is the covariance with ``eps`` added to its diagonal."""
    whole = triangle.new_zeros(num_features, num_features, dtype=torch.float64)
    rows, columns = _places(num_features, triangle.device)
    whole[rows, columns] = triangle.double()
    # Reads the lower triangle alone. Fewer samples than features, and rounding, leave some values below 0.
    values, vectors = torch.linalg.eigh(whole)
    result: Tensor = vectors * (values.clamp_min(0) + eps).sqrt() @ vectors.T
    return result


def _places(size: int, device: torch.device) -> Tensor:
    """Rows and columns, [2, D (D + 1) / 2]."""
    return torch.tril_indices(size, size, device=device)
