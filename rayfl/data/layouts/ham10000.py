"""HAM10000 (Tschandl et al., 2018, https://doi.org/10.1038/sdata.2018.161): dermatoscopic images of moles.

One lesion may have several images; the test split is a fifth of the lesions, class by class, always the same.
"""

from pathlib import Path

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files, Normalisation
from rayfl.data.layouts.common import classes_of, is_image, look_up, number, open_source, outline, stem, table
from rayfl.data.layouts.splitting import divide, held_out

CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
COUNTS = (327, 514, 1099, 115, 1113, 6705, 142)
TEST_COUNTS = tuple(round(0.2 * count) for count in COUNTS)


def build_ham10000(config: DataConfig, source: Path | None) -> Built:
    """Groups are lesions; domains are the four collections, where the metadata names them."""
    files = open_source(config, source, archives=("HAM10000*.zip",))
    metadata = files.need("HAM10000_metadata", "HAM10000_metadata.csv", "HAM10000_metadata.tab")
    rows = table(metadata, files.read(metadata), needed=("lesion_id", "image_id", "dx"))
    # The split must not depend on the order of the file.
    rows.sort(key=lambda row: row["image_id"])
    images = {stem(name): name for name in reversed(files.names) if is_image(name)}
    names = look_up(images, [row["image_id"] for row in rows], metadata, files.path)
    labels = number([row["dx"] for row in rows], CLASSES, f"diagnosis in {metadata}")
    lesions = [row["lesion_id"] for row in rows]
    groups = number(lesions, sorted(set(lesions)), "lesion")
    domain_names: tuple[str, ...] = ()
    domains = None
    if "dataset" in rows[0]:
        collections = [row["dataset"] for row in rows]
        domain_names = tuple(classes_of(collections))
        domains = number(collections, domain_names, "collection")
    samples = Files(names=names, labels=labels, domains=domains, groups=groups, read=files.read)
    train, test = divide(samples, held_out(labels, "ham10000-split", groups))
    return Built(
        train=train,
        test=test,
        num_classes=len(CLASSES),
        class_names=CLASSES,
        domain_names=domain_names,
        non_benign=tuple(CLASSES.index(name) for name in ("akiec", "bcc", "mel")),
    )


DATASETS = {
    "ham10000": DatasetInfo(
        build=build_ham10000,
        description="HAM10000, 10015 images of skin lesions, 7 classes, split by lesion; from your copy",
        remedy="get HAM10000_metadata and HAM10000_images_part_1.zip and _part_2.zip from "
        "https://doi.org/10.7910/DVN/DBW86T into one folder (the source)",
        needs_source=True,
        # About: the split goes by lesions.
        outline=outline(np.subtract(COUNTS, TEST_COUNTS).tolist(), sum(TEST_COUNTS)),
        normalisation=Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        licence="CC BY-NC 4.0",
    ),
}
