"""One folder per class: any tree ``<class>/...`` or ``{train,val,test}/<class>/...``, and ImageNet."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rayfl.data.archives import ENDINGS, is_archive
from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files, Normalisation
from rayfl.data.layouts.common import is_image, number, open_source, outline
from rayfl.data.layouts.source import Source
from rayfl.data.layouts.splitting import SPLITS, divide, held_out, official_test, require_training
from rayfl.data.sampling import even
from rayfl.errors import UserError


def build_imagefolder(config: DataConfig, source: Path | None) -> Built:
    """Classes in the order of their names. Without a folder test or val, a fifth of each is held out."""
    if source is not None and source.is_dir():
        inside = sorted(source.iterdir())
        # The folder that holds nothing but the archive stands for it.
        source = inside[0] if len(inside) == 1 and is_archive(inside[0]) else source
    return read_tree(open_source(config, source), "imagefolder-split")


def build_imagenet(config: DataConfig, source: Path | None) -> Built:
    """The official validation images are the test split."""
    files = open_source(config, source)
    first = next((n for n in files.names if "/train/" in f"/{n}" and is_image(n)), None)
    if first is None or not any("/val/" in f"/{n}" and is_image(n) for n in files.names):
        missing = "train" if first is None else "val"
        raise FileNotFoundError(f"there is no folder {missing} with class folders of images in {files.path}")
    base = f"/{first}".partition("/train/")[0].removeprefix("/")
    return read_tree(files, "imagenet-split", base + "/" if base else "", only=("train", "val"))


def read_tree(files: Source, purpose: str, base: str = "", only: Sequence[str] = ()) -> Built:
    """The classes below ``base``, in its folders ``only`` where any are named."""
    base = base or _wrapping(files)
    images = [name for name in files.names if name.startswith(base) and is_image(name)]
    tops = {_parts(name, base)[0] for name in images}
    if not tops:
        raise FileNotFoundError(f"there are no images in {files.path}")
    depth = 2 if only or _are_splits(tops, files) else 1
    names, splits, classes = [], [], []
    for name in images:
        parts = _parts(name, base)
        if only and parts[0] not in only:
            continue
        if len(parts) <= depth:
            raise UserError(f"image {name} in {files.path} lies in no class folder: move it into one")
        names.append(name)
        splits.append(SPLITS[parts[0].lower()] if depth == 2 else "train")
        # One string for all images of a class, of which there may be millions.
        classes.append(sys.intern(parts[depth - 1]))
    class_names = sorted(set(classes) | _listed_classes(files, base, depth, only))
    samples = Files(names=names, labels=number(classes, class_names, "class"), read=files.read)
    test = official_test(splits)
    if test is None:
        test = held_out(samples.labels, purpose)
    train_split, test_split = divide(samples, test)
    require_training(train_split.labels, class_names, files.path)
    return Built(
        train=train_split, test=test_split, num_classes=len(class_names), class_names=tuple(class_names)
    )


def _parts(name: str, base: str) -> list[str]:
    return name.removeprefix(base).split("/")


def _wrapping(files: Source) -> str:
    """The one folder around everything, as archives often have it, or nothing."""
    tops = {name.partition("/")[0] for name in files.names if is_image(name)}
    nested = all("/" in name for name in files.names if is_image(name))
    top = next(iter(tops), "")
    deep = any(name.count("/") > 1 for name in files.names if name.startswith(f"{top}/"))
    return f"{top}/" if len(tops) == 1 and nested and deep and top.lower() not in SPLITS else ""


def _are_splits(tops: set[str], files: Source) -> bool:
    """Whether the first folders are splits, not classes ("train" alone may be a kind of vehicle)."""
    named = {top for top in tops if top.lower() in SPLITS}
    others = sorted(tops - named)
    if len({SPLITS[top.lower()] for top in named}) > 1 and others:
        raise UserError(
            f"{files.path} has {others[0]} beside the folders {', '.join(sorted(named))}: move it elsewhere"
        )
    return bool(named) and not others


def _listed_classes(files: Source, base: str, depth: int, only: Sequence[str]) -> set[str]:
    """Class folders, those without images among them."""
    parts = [_parts(folder, base) for folder in files.folders if folder.startswith(base)]
    return {p[-1] for p in parts if len(p) == depth and (depth == 1 or p[0].lower() in (only or SPLITS))}


DATASETS = {
    "imagefolder": DatasetInfo(
        build=build_imagefolder,
        description="your images, a folder per class, with or without train/val/test above",
        remedy=f"put images into <class>/<image> or {{train,test}}/<class>/<image> below one folder or "
        f"archive ({', '.join(ENDINGS)}; the source)",
        needs_source=True,
        licence="yours",
    ),
    "imagenet": DatasetInfo(
        build=build_imagenet,
        description="ImageNet-1K (ILSVRC 2012), 1281167 + 50000 photographs, 1000 classes; from your copy",
        remedy="get ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org, unpack "
        "them to train/<wnid>/*.JPEG and val/<wnid>/*.JPEG in one folder (the source)",
        needs_source=True,
        # Classes have 732 to 1300 images; which has how many is known only from the files.
        outline=outline(even(1_281_167, 1000).tolist(), 50_000),
        normalisation=Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        licence="ImageNet's terms: non-commercial research and education",
    ),
}
