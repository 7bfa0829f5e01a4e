"""DomainNet (Peng et al., 2019, https://arxiv.org/abs/1812.01754): 345 classes in six styles.

Train and test are the official lists, ``<domain>_train.txt`` and ``<domain>_test.txt``.
"""

import logging
from pathlib import Path

import numpy as np

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files, Normalisation
from rayfl.data.layouts.common import is_image, look_up, open_source, outline, text
from rayfl.data.layouts.source import Source
from rayfl.data.sampling import even
from rayfl.errors import UserError

log = logging.getLogger("rayfl.data")

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
NUM_CLASSES = 345


def build_domainnet(config: DataConfig, source: Path | None) -> Built:
    """The domains that are there, each with the number it has among all six."""
    files = open_source(config, source, archives=tuple(f"{domain}.zip" for domain in DOMAINS))
    # domain/class/image, wherever the archive or the user has put it.
    images = {"/".join(name.split("/")[-3:]): name for name in files.names if is_image(name)}
    present = {path.split("/")[0] for path in images}
    there = [domain for domain in DOMAINS if domain in present]
    if not there:
        raise FileNotFoundError(f"there are no images domain/class/image in {files.path}")
    if len(there) < len(DOMAINS):
        log.warning("DomainNet in %s has %s of six domains: %s", files.path, len(there), ", ".join(there))
    classes: dict[int, str] = {}
    train, test = (_split(files, there, split, images, classes) for split in ("train", "test"))
    num_classes = max(classes) + 1
    return Built(
        train=train,
        test=test,
        num_classes=num_classes,
        class_names=tuple(classes.get(k, f"class {k}") for k in range(num_classes)),
        domain_names=DOMAINS,
    )


def _split(
    files: Source, there: list[str], split: str, images: dict[str, str], classes: dict[int, str]
) -> Files:
    names: list[str] = []
    labels: list[int] = []
    domains: list[int] = []
    for domain in there:
        listed = files.need(f"{domain}_{split}.txt")
        paths = []
        for number, line in enumerate(text(listed, files.read(listed)).splitlines(), start=1):
            if line.strip():
                path, label = _entry(line, f"line {number} of {listed}")
                paths.append(path)
                labels.append(label)
                if classes.setdefault(label, path.split("/")[1]) != path.split("/")[1]:
                    raise UserError(
                        f"line {number} of {listed} gives {path} the label {label}, which is "
                        f"'{classes[label]}' elsewhere: get the lists again"
                    )
        if not paths:
            raise UserError(f"{listed} in {files.path} lists no images: get it again")
        names += look_up(images, paths, listed, files.path)
        domains += [DOMAINS.index(domain)] * len(paths)
    return Files(
        names=names,
        labels=np.array(labels, dtype=np.int64),
        domains=np.array(domains, dtype=np.int64),
        read=files.read,
    )


def _entry(line: str, where: str) -> tuple[str, int]:
    """``domain/class/image.jpg label``."""
    path, _, label = line.strip().rpartition(" ")
    if not label.isdecimal() or path.count("/") != 2:
        raise UserError(f"{where} isn't 'domain/class/image label': {line.strip()!r}")
    if int(label) >= NUM_CLASSES:
        raise UserError(f"{where} has the unknown label {label}: DomainNet's are 0 to {NUM_CLASSES - 1}")
    return path, int(label)


DATASETS = {
    "domainnet": DatasetInfo(
        build=build_domainnet,
        description="DomainNet, 409832 + 176743 images, 345 classes in 6 domains; from your copy",
        remedy="get each domain's .zip, _train.txt and _test.txt (for clipart and painting the cleaned "
        "version) from http://ai.bu.edu/M3SDA/ into one folder (the source)",
        needs_source=True,
        # Classes are uneven; how uneven is known only from the lists.
        outline=outline(even(409_832, NUM_CLASSES).tolist(), 176_743),
        normalisation=Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        licence="non-commercial research and education, by its fair-use notice",
    ),
}
