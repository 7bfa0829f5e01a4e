"""How a metric is distributed over clients."""

from collections.abc import Sequence

import numpy as np


def over_clients(values: Sequence[float], name: str = "accuracy") -> dict[str, float]:
    """Mean, population std and mean of the worst tenth (at least one) of the clients' values."""
    if not values:
        return {}
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    worst = ordered[: max(1, len(ordered) // 10)]
    return {
        f"client/test_{name}_mean": float(ordered.mean()),
        f"client/test_{name}_std": float(ordered.std()),
        f"client/test_{name}_worst10": float(worst.mean()),
    }
