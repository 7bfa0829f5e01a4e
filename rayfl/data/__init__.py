"""Datasets, their store, and the laws that divide them over clients."""

from rayfl.data.config import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.data.datasets import DATASETS, Built, DatasetInfo, Split
from rayfl.data.partition import Partition, Statistics, load_partition, partition, save_partition
from rayfl.data.picture import describe, draw_partition
from rayfl.data.schemes import SCHEMES
from rayfl.data.splits import FederatedData, load
from rayfl.data.store import Dataset, open_dataset

__all__ = [
    "DATASETS",
    "SCHEMES",
    "Built",
    "DataConfig",
    "Dataset",
    "DatasetInfo",
    "FederatedData",
    "Partition",
    "PartitionConfig",
    "Split",
    "Statistics",
    "SyntheticConfig",
    "describe",
    "draw_partition",
    "load",
    "load_partition",
    "open_dataset",
    "partition",
    "save_partition",
]
