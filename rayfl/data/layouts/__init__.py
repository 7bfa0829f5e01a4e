"""Readers of the layouts in which datasets come: official ones by name, and one's own by format."""

from rayfl.data.info import DatasetInfo
from rayfl.data.layouts import (
    cifar,
    csv_table,
    domainnet,
    ham10000,
    imagefolder,
    isic2018,
    isic2019,
    mnist,
    npz,
    parquet,
    tiny_imagenet,
)

LAYOUTS: dict[str, DatasetInfo] = {
    **mnist.DATASETS,
    **cifar.DATASETS,
    **tiny_imagenet.DATASETS,
    **imagefolder.DATASETS,
    **domainnet.DATASETS,
    **ham10000.DATASETS,
    **isic2019.DATASETS,
    **isic2018.DATASETS,
    **csv_table.DATASETS,
    **npz.DATASETS,
    **parquet.DATASETS,
}
"""Name -> how it is read."""

__all__ = ["LAYOUTS"]
