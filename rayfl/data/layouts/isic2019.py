"""ISIC 2019 (https://challenge.isic-archive.com/landing/2019/): BCN20000, HAM10000 and MSK together.

The centres are those of FLamby's Fed-ISIC2019 (Ogier du Terrail et al., 2022,
https://arxiv.org/abs/2210.04620): the collection is the start of an image's ``lesion_id``, and where
``HAM10000_metadata`` is there too, its column ``dataset`` divides HAM into four. Where FLamby's own file
``train_test_split`` is there, its columns ``center`` and ``fold`` decide, and only images it lists are used
(23,247); that split goes by centre, so a lesion may be on both sides. Otherwise all images are used, those
without a lesion_id under centre "unknown", and the test split is a fifth of the lesions, class by
class, the same every time.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files, Normalisation
from rayfl.data.layouts.common import is_image, look_up, number, open_source, outline, stem, table
from rayfl.data.layouts.source import Source
from rayfl.data.layouts.splitting import divide, held_out, official_test, split_of
from rayfl.errors import UserError

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
COUNTS = (4522, 12_875, 3323, 867, 2624, 239, 253, 628)
TEST_COUNTS = tuple(round(0.2 * count) for count in COUNTS)
CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
"""In FLamby's order."""

Row = dict[str, str]


def build_isic2019(config: DataConfig, source: Path | None) -> Built:
    """Groups are lesions where the metadata is there, domains are centres."""
    files = open_source(config, source, archives=("ISIC_2019_Training_Input*.zip",))
    truth = files.need("ISIC_2019_Training_GroundTruth.csv")
    rows = table(truth, files.read(truth), needed=("image", *CLASSES))
    metadata = _optional(files, "image", "ISIC_2019_Training_Metadata.csv")
    flamby = _optional(files, "image", "train_test_split", "train_test_split.csv")
    if flamby:
        rows = [row for row in rows if row["image"] in flamby]
    rows.sort(key=lambda row: row["image"])
    ids = [row["image"] for row in rows]
    images = {stem(name): name for name in reversed(files.names) if is_image(name)}
    lesions = [metadata.get(i, {}).get("lesion_id", "") for i in ids]
    # An image whose lesion isn't known is taken for the only one of it.
    units = [lesion or i for lesion, i in zip(lesions, ids, strict=True)]
    centres, centre_names = _centres(files, ids, lesions, flamby)
    samples = Files(
        names=look_up(images, ids, truth, files.path),
        labels=np.array([_label(row, truth) for row in rows], dtype=np.int64),
        domains=number(centres, centre_names, "centre") if centre_names else None,
        groups=number(units, sorted(set(units)), "lesion") if any(lesions) else None,
        read=files.read,
    )
    test = official_test([split_of(flamby[i]["fold"]) for i in ids]) if flamby else None
    if test is None:
        test = held_out(samples.labels, "isic2019-split", samples.groups)
    train_split, test_split = divide(samples, test)
    return Built(
        train=train_split,
        test=test_split,
        num_classes=len(CLASSES),
        class_names=CLASSES,
        domain_names=centre_names,
        non_benign=tuple(CLASSES.index(name) for name in ("MEL", "BCC", "AK", "SCC")),
    )


def _optional(files: Source, key: str, *endings: str) -> Mapping[str, Row]:
    """A table that need not be there, by its column ``key``."""
    name = files.find(*endings)
    return {row[key]: row for row in table(name, files.read(name), needed=(key,))} if name else {}


def _label(row: Row, truth: str) -> int:
    marked = [k for k, name in enumerate(CLASSES) if row[name] in ("1", "1.0")]
    if len(marked) != 1:
        raise UserError(f"{row['image']} in {truth} has {len(marked)} of the {len(CLASSES)} labels, not one")
    return marked[0]


def _centres(
    files: Source, ids: list[str], lesions: list[str], flamby: Mapping[str, Row]
) -> tuple[list[str], tuple[str, ...]]:
    """Each image's centre and the centres there are; none at all without any metadata."""
    if flamby:
        places = number([flamby[i]["center"] for i in ids], list(map(str, range(len(CENTRES)))), "centre")
        return [CENTRES[place] for place in places], CENTRES
    if not any(lesions):
        return [], ()
    ham = _optional(files, "image_id", "HAM10000_metadata", "HAM10000_metadata.csv", "HAM10000_metadata.tab")
    names = CENTRES if ham else ("BCN", "HAM", "MSK")

    def centre(image: str, lesion: str) -> str:
        # "MSK4_0011169" is of MSK.
        collection = lesion[:3]
        name = f"HAM_{ham[image]['dataset']}" if collection == "HAM" and image in ham else collection
        return name if name in names else "unknown"

    found = [centre(i, lesion) for i, lesion in zip(ids, lesions, strict=True)]
    return found, (*names, "unknown") if "unknown" in found else names


DATASETS = {
    "isic2019": DatasetInfo(
        build=build_isic2019,
        description="ISIC 2019, 25331 images of skin lesions, 8 classes, split by lesion; from your copy",
        remedy="get ISIC_2019_Training_Input.zip, ISIC_2019_Training_GroundTruth.csv and, for lesions and "
        "centres, ISIC_2019_Training_Metadata.csv and HAM10000_metadata from "
        "https://challenge.isic-archive.com/data/ into one folder (the source)",
        needs_source=True,
        # About: the split goes by lesions.
        outline=outline(np.subtract(COUNTS, TEST_COUNTS).tolist(), sum(TEST_COUNTS)),
        normalisation=Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        licence="CC BY-NC 4.0",
    ),
}
