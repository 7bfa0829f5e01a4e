"""Tiny-ImageNet (Stanford CS231n): 200 classes of ImageNet at 64x64.

Its validation images are the test split: the labels of its own test images were never published.
"""

from collections import Counter
from pathlib import Path

from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files, Normalisation
from rayfl.data.layouts.common import is_image, look_up, number, open_source, outline, text
from rayfl.data.layouts.splitting import require_training
from rayfl.data.sampling import Ints
from rayfl.errors import UserError


def build_tiny_imagenet(config: DataConfig, source: Path | None) -> Built:
    """Classes are numbered in the order of their WordNet ids, as ImageNet's are."""
    files = open_source(config, source, archives=("tiny-imagenet*.zip",))
    listed = files.need("wnids.txt")
    base = listed.removesuffix("wnids.txt")
    wnids = sorted(text(listed, files.read(listed)).split())
    class_names = _class_names(text("words.txt", files.read(files.need("words.txt"))), wnids)

    train = [n for n in files.names if n.startswith(f"{base}train/") and "/images/" in n and is_image(n)]
    train_wnids = [name.removeprefix(f"{base}train/").split("/")[0] for name in train]
    train_labels = number(train_wnids, wnids, "class folder of train")
    require_training(train_labels, wnids, f"{files.path} ({base}train)")

    annotations = f"{base}val/val_annotations.txt"
    rows = text(annotations, files.read(files.need(annotations))).splitlines()
    pairs = [tuple(row.split("\t")[:2]) for row in rows if row.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise UserError(f"{annotations} in {files.path} isn't 'image <tab> class <tab> box': get it again")
    images = {n.rsplit("/", 1)[1]: n for n in files.names if n.startswith(f"{base}val/images/")}
    test = look_up(images, [image for image, _ in pairs], annotations, f"{base}val/images of {files.path}")

    def split(names: list[str], labels: Ints) -> Files:
        return Files(names=names, labels=labels, read=files.read, shape=(3, 64, 64))

    return Built(
        train=split(train, train_labels),
        test=split(test, number([wnid for _, wnid in pairs], wnids, f"class in {annotations}")),
        num_classes=len(wnids),
        class_names=class_names,
    )


def _class_names(words: str, wnids: list[str]) -> tuple[str, ...]:
    """The first word for each id, with the id where two ids have the same."""
    lines = (line.split("\t") for line in words.splitlines())
    first = {line[0]: line[1].split(",")[0].strip() for line in lines if len(line) > 1}
    names = [first.get(wnid, wnid) for wnid in wnids]
    counts = Counter(names)
    return tuple(n if counts[n] == 1 else f"{n} ({wnid})" for n, wnid in zip(names, wnids, strict=True))


DATASETS = {
    "tiny_imagenet": DatasetInfo(
        build=build_tiny_imagenet,
        description="Tiny-ImageNet, 100000 + 10000 photographs 3x64x64, 200 classes; from your copy",
        remedy="get http://cs231n.stanford.edu/tiny-imagenet-200.zip (the source is that file, or the folder "
        "in it)",
        needs_source=True,
        outline=outline([500] * 200, 10_000, side=64),
        normalisation=Normalisation(mean=(0.4802, 0.4481, 0.3975), std=(0.2770, 0.2691, 0.2821)),
        licence="ImageNet's terms: non-commercial research and education",
    ),
}
