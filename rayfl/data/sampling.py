"""Random draws built on uniform numbers alone.

numpy keeps the stream of its bit generators fixed but not that of its distributions, and its ``dirichlet``
gives NaN as alpha goes to 0. A partition must outlive a numpy release, so the few laws it needs are written
out here, and Dirichlet weights stay in log space, where alpha -> 0 is a plain one-hot.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def permutation(rng: np.random.Generator, count: int) -> Ints:
    """A random order of ``range(count)``, int64 [count]."""
    return np.argsort(rng.random(count), kind="stable").astype(np.int64)


def subset(rng: np.random.Generator, count: int, size: int) -> Ints:
    """``size`` different numbers below ``count`` in random order, int64 [size]."""
    return permutation(rng, count)[:size]


def normals(rng: np.random.Generator, count: int) -> Floats:
    """Standard normals by Box and Muller (1958), float64 [count]."""
    pairs = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log1p(-rng.random(pairs)))
    angle = 2.0 * np.pi * rng.random(pairs)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def log_gamma(rng: np.random.Generator, alpha: Floats) -> Floats:
    """Logs of Gamma(alpha, 1) draws, of alpha's shape (Marsaglia and Tsang, 2000); finite for every alpha."""
    # Beyond these bounds the law is a one-hot or a constant in every digit that float64 has.
    shape = np.clip(alpha.ravel(), 1e-200, 1e12)
    d = shape + 2.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    result = np.empty_like(shape)
    pending = np.arange(shape.size)
    while pending.size:
        x = normals(rng, pending.size)
        log_u = np.log1p(-rng.random(pending.size))
        base = 1.0 + c[pending] * x
        cube = np.maximum(base, 1e-300) ** 3
        log_cube = 3.0 * np.log(np.maximum(base, 1e-300))
        accepted = (base > 0) & (log_u < 0.5 * x * x + d[pending] * (1.0 - cube + log_cube))
        result[pending[accepted]] = (np.log(d[pending]) + log_cube)[accepted]
        pending = pending[~accepted]
    # Gamma(alpha) = Gamma(alpha + 1) * U^(1/alpha)
    result += np.log1p(-rng.random(shape.size)) / shape
    return result.reshape(alpha.shape)


def shares(log_weights: Floats, allowed: npt.NDArray[np.bool_] | None = None) -> Floats:
    """Weights that sum to 1 over the last axis, float64 of the same shape, 0 where not ``allowed``.

    Relative weights are compared in log space, so a row whose every allowed weight underflows still has its
    largest.
    """
    logs = log_weights if allowed is None else np.where(allowed, log_weights, -np.inf)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float64)


def even(total: int, parts: int) -> Ints:
    """``total`` cut into ``parts`` sizes that differ by at most one, the larger first, int64 [parts]."""
    sizes = np.full(parts, total // parts, dtype=np.int64)
    sizes[: total % parts] += 1
    return sizes


def cut(total: int, weights: Floats) -> Ints:
    """``total`` cut in proportion to ``weights`` by rounding the running sum down, int64 [len(weights)]."""
    running = np.cumsum(weights)
    # The last running sum is 1 exactly, or rounding would hand a sample to a client of weight 0.
    bounds: Ints = np.floor(running / running[-1] * total).astype(np.int64)
    return np.asarray(np.diff(bounds, prepend=0), dtype=np.int64)


def apportion(total: int, weights: Floats, rng: np.random.Generator) -> Ints:
    """``total`` divided like ``weights`` by largest remainder, ties at random, int64 [len(weights)]."""
    exact = weights / weights.sum() * total
    counts: Ints = np.floor(exact).astype(np.int64)
    order = permutation(rng, len(weights))
    # Rounded, so that remainders equal on paper are equal here as well.
    remainder = np.round(exact - counts, 9)[order]
    winners = order[np.argsort(-remainder, kind="stable")][: total - int(counts.sum())]
    counts[winners] += 1
    return counts


def stratified(rng: np.random.Generator, labels: npt.NDArray[np.int64], total: int) -> Ints:
    """``total`` random rows, ascending int64, in the class mix of ``labels`` [N] to within one a class."""
    class_sizes = np.bincount(labels)
    wanted = apportion(total, class_sizes.astype(np.float64), rng) if total else np.zeros_like(class_sizes)
    order = permutation(rng, len(labels))
    by_class = np.split(order[np.argsort(labels[order], kind="stable")], np.cumsum(class_sizes)[:-1])
    return np.sort(np.concatenate([rows[:w] for rows, w in zip(by_class, wanted, strict=True)]))
