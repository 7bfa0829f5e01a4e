"""The table of datasets.

To add one: write a builder that returns its two splits, and give it a row in one of the tables joined here.
A builder runs once per store folder, under a lock; nothing it needs is imported before that.
"""

from rayfl.data import bundled, synthetic
from rayfl.data.info import DatasetInfo
from rayfl.data.layouts import LAYOUTS

DATASETS: dict[str, DatasetInfo] = {**bundled.DATASETS, **synthetic.DATASETS, **LAYOUTS}
"""Name -> how it is made."""
