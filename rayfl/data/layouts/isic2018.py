"""ISIC 2018 task 1 (Codella et al., 2019, https://arxiv.org/abs/1902.03368): the outline of a skin lesion."""

from pathlib import Path

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files, Normalisation, Outline
from rayfl.data.layouts.common import is_image, look_up, open_source, stem
from rayfl.data.layouts.source import Source
from rayfl.data.layouts.splitting import divide, held_out

INPUT = "ISIC2018_Task1-2_{}_Input"
TRUTH = "ISIC2018_Task1_{}_GroundTruth"


def build_isic2018(config: DataConfig, source: Path | None) -> Built:
    """The official test images are the test split, else the official validation images, else a fifth."""
    patterns = (INPUT.format("*") + ".zip", TRUTH.format("*") + ".zip")
    files = open_source(config, source, archives=patterns)
    train = _split(files, "Training")
    official = [_split(files, split) for split in ("Test", "Validation") if _has(files, split)]
    if official:
        test = official[0]
    else:
        train, test = divide(train, held_out(train.labels, "isic2018-split"))
    return Built(
        train=train,
        test=test,
        num_classes=1,
        class_names=("lesion",),
        task="segmentation",
    )


def _below(files: Source, folder: str) -> dict[str, str]:
    return {stem(n): n for n in files.names if f"/{folder}/" in f"/{n}" and is_image(n)}


def _has(files: Source, split: str) -> bool:
    return bool(_below(files, INPUT.format(split)) and _below(files, TRUTH.format(split)))


def _split(files: Source, split: str) -> Files:
    images, masks = _below(files, INPUT.format(split)), _below(files, TRUTH.format(split))
    for folder, found in ((INPUT, images), (TRUTH, masks)):
        if not found:
            raise FileNotFoundError(f"there are no images below {folder.format(split)} in {files.path}")
    ids = sorted(images)
    return Files(
        names=[images[i] for i in ids],
        labels=np.zeros(len(ids), dtype=np.int64),
        mask_names=look_up(
            masks, [f"{i}_segmentation" for i in ids], INPUT.format(split), TRUTH.format(split)
        ),
        read=files.read,
    )


def _outline(config: DataConfig) -> Outline:
    side = config.image_size or 224
    return Outline(shape=(3, side, side), class_counts=(2594,), num_test=1000, task="segmentation")


DATASETS = {
    "isic2018": DatasetInfo(
        build=build_isic2018,
        description="ISIC 2018 task 1, 2594 + 1000 skin lesions with their outlines; from your copy",
        remedy="get ISIC2018_Task1-2_Training_Input.zip and ISIC2018_Task1_Training_GroundTruth.zip (and the "
        "same of Test) from https://challenge.isic-archive.com/data/ into one folder (the source)",
        needs_source=True,
        outline=_outline,
        normalisation=Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        licence="see https://challenge.isic-archive.com/data/",
    ),
}
