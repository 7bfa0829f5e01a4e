"""Datasets, their store, and the laws that divide them over clients."""

from rayfl.data.card import markdown as card_markdown
from rayfl.data.card import read as read_card
from rayfl.data.catalogue import check_name, damage, locate
from rayfl.data.config import DataConfig, PartitionConfig, SyntheticConfig
from rayfl.data.dataset import Dataset
from rayfl.data.datasets import DATASETS
from rayfl.data.divide import partition
from rayfl.data.edge_map import EDGE_MAPS
from rayfl.data.info import Built, DatasetInfo, Files, Labels, Normalisation, Outline, Split
from rayfl.data.outline import outline
from rayfl.data.overview import overview, unprepared
from rayfl.data.partition import Partition
from rayfl.data.partition_file import load_partition, save_partition
from rayfl.data.picture import check_picture, describe, draw_partition
from rayfl.data.prepare import prepare
from rayfl.data.schemes import SCHEMES, knobs, named
from rayfl.data.splits import FederatedData, federate, load
from rayfl.data.statistics import Statistics
from rayfl.data.store import open_dataset

__all__ = [
    "DATASETS",
    "EDGE_MAPS",
    "SCHEMES",
    "Built",
    "DataConfig",
    "Dataset",
    "DatasetInfo",
    "FederatedData",
    "Files",
    "Labels",
    "Normalisation",
    "Outline",
    "Partition",
    "PartitionConfig",
    "Split",
    "Statistics",
    "SyntheticConfig",
    "card_markdown",
    "check_name",
    "check_picture",
    "damage",
    "describe",
    "draw_partition",
    "federate",
    "knobs",
    "load",
    "load_partition",
    "locate",
    "named",
    "open_dataset",
    "outline",
    "overview",
    "partition",
    "prepare",
    "read_card",
    "save_partition",
    "unprepared",
]
