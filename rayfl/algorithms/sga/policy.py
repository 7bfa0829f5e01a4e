"""From sufficiency to depth: the policy Psi of FedSGA, eq. 8."""

import math


def depth(sufficiency: float, rho: float, num_candidates: int) -> int:
    """The number k of the candidate cut, from 1: ``ceil(K (1 - r + rho))`` within 1..K.

    ``sufficiency`` r in [0, 1]; more of it never deepens, a larger margin ``rho`` never makes shallower.
    """
    # Less a hair: 3 * (1 - 0.7667 + 0.1) must not become 2 by rounding.
    k = math.ceil(num_candidates * (1 - sufficiency + rho) - 1e-9)
    return min(num_candidates, max(1, k))
