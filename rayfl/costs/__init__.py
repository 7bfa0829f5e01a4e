"""What an experiment costs, from shapes alone: parameters, FLOPs, activations, bytes and client memory."""

from rayfl.costs.accounting import ACCOUNTINGS
from rayfl.costs.estimate import Estimate, estimate

__all__ = ["ACCOUNTINGS", "Estimate", "estimate"]
