"""The table of contents: every method by family."""

import importlib

from rayfl.algorithms.base import Algorithm
from rayfl.algorithms.besplit import BESplit
from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.fedproto import FedProto
from rayfl.algorithms.fedprox import FedProx
from rayfl.algorithms.fedsga import FedSGA
from rayfl.algorithms.hierfl import HierFL
from rayfl.algorithms.hsfl import HSFL
from rayfl.algorithms.hsfl_cl import HSFLCL
from rayfl.algorithms.hsfp import HSFP
from rayfl.algorithms.mergesfl import MergeSFL
from rayfl.algorithms.sl import SL
from rayfl.algorithms.splitfed_joint import SplitFedJoint
from rayfl.algorithms.splitfed_u import SplitFedU
from rayfl.algorithms.splitfed_v1 import SplitFedV1
from rayfl.algorithms.splitfed_v2 import SplitFedV2
from rayfl.algorithms.splitfed_v3 import SplitFedV3
from rayfl.errors import UserError
from rayfl.suggest import unknown

FAMILIES: dict[str, dict[str, type[Algorithm]]] = {
    "federated": {"fedavg": FedAvg, "fedprox": FedProx, "fedproto": FedProto},
    "hierarchical": {"hierfl": HierFL},
    "split": {
        "sl": SL,
        "splitfed_v1": SplitFedV1,
        "splitfed_v2": SplitFedV2,
        "splitfed_v3": SplitFedV3,
        "splitfed_u": SplitFedU,
        "splitfed_joint": SplitFedJoint,
        "mergesfl": MergeSFL,
        "fedsga": FedSGA,
        "besplit": BESplit,
    },
    "hierarchical split": {"hsfl": HSFL, "hsfl_cl": HSFLCL, "hsfp": HSFP},
}
COMING = frozenset(
    (
        *("fedbabu", "fedgh", "fedas", "fedmut", "mu_splitfed", "multisfl"),
        *("fedgen", "feddf", "heterosfl"),
        *("feddyn", "fed_moe", "fedrdn", "favd", "parallelsfl", "hasfl"),
    )
)
"""Methods of the papers' tables that rayfl doesn't have yet: sweeps pass them by."""
ALGORITHMS = {name: method for family in FAMILIES.values() for name, method in family.items()}

__all__ = ["ALGORITHMS", "COMING", "FAMILIES", "Algorithm", "find"]


def find(name: str) -> type[Algorithm]:
    """The method of a name: one of rayfl's, or ``my_module:MyMethod`` of the user's own."""
    if ":" not in name:
        if name in COMING:
            raise UserError(f"method '{name}' is not in rayfl yet: choose one with rayfl list methods")
        if name not in ALGORITHMS:
            raise unknown("method", name, ALGORITHMS, "a method of your own is module:Class")
        return ALGORITHMS[name]
    module, _, attribute = name.partition(":")
    try:
        method = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"no method '{attribute}' in a module '{module}': {error}") from error
    if not (isinstance(method, type) and issubclass(method, Algorithm)):
        raise UserError(f"'{name}' must be a subclass of rayfl.Algorithm, not {method!r}")
    return method
