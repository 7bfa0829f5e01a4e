"""Small datasets in each official layout; see ``encoders`` for what their images show."""

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from encoders import encoded, idx, pack, photograph_and_mask, pixels, put, put_table, python2_pickle

from rayfl.data.info import Built

Build = Callable[[str, Path | None], Built]
"""The fixture ``build``: a dataset's name and source to what its reader returns."""

WNIDS = ("n01443537", "n02123045", "n01629819", "n03544143")
HAM_CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
ISIC_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")


def mnist(path: Path) -> None:
    """40 + 20 digits, packed as they are downloaded."""
    for split, count in (("train", 40), ("t10k", 20)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.stack([pixels(int(k), size=28)[:, :, 0] for k in labels])
        put(path / f"{split}-images-idx3-ubyte.gz", gzip.compress(idx(images)))
        put(path / f"{split}-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))


def batch(count: int, classes: int) -> dict[str, Any]:
    """A batch of CIFAR: rows of 1024 red, 1024 green, 1024 blue."""
    labels = [k % classes for k in range(count)]
    data = np.stack([pixels(k, i, size=32).transpose(2, 0, 1).reshape(-1) for i, k in enumerate(labels)])
    return {"data": data, "labels": labels}


def cifar10(path: Path) -> None:
    """5 x 10 + 10 images, unpacked."""
    folder = path / "cifar-10-batches-py"
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        put(folder / name, python2_pickle(batch(10, 10)))
    put(folder / "batches.meta", python2_pickle({"label_names": [f"kind{k}" for k in range(10)]}))


def cifar100(path: Path) -> None:
    """40 + 10 images of 5 fine and 2 coarse classes, in the archive."""
    files = {"meta": {"fine_label_names": [f"fine{k}" for k in range(5)], "coarse_label_names": ["a", "b"]}}
    for name, count in (("train", 40), ("test", 10)):
        content = batch(count, 5)
        fine = content.pop("labels")
        files[name] = {**content, "fine_labels": fine, "coarse_labels": [k // 3 for k in fine]}
    path.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path / "cifar-100-python.tar.gz", "w:gz") as archive:
        for name, value in files.items():
            content = python2_pickle(value)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def tiny_imagenet(path: Path, packed: bool = True) -> None:
    """4 classes, 8 + 3 images each, some of them grey; labels in the order of WordNet ids."""
    folder = path / "work" / "tiny-imagenet-200" if packed else path / "tiny-imagenet-200"
    put(folder / "wnids.txt", "\n".join(WNIDS) + "\n")
    words = ["goldfish, Carassius auratus", "tabby, tabby cat", "salamander", "goldfish"]
    put(folder / "words.txt", "".join(f"{w}\t{t}\n" for w, t in zip(WNIDS, words, strict=True)))
    lines = []
    for k, wnid in enumerate(sorted(WNIDS)):
        for i in range(8):
            mode = "L" if i == 0 else "RGB"
            name = f"{wnid}_{i}.JPEG"
            put(folder / "train" / wnid / "images" / name, encoded(k, i, size=64, mode=mode))
        put(folder / "train" / wnid / f"{wnid}_boxes.txt", f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
        for i in range(3):
            name = f"val_{3 * k + i}.JPEG"
            put(folder / "val" / "images" / name, encoded(k, i, size=64))
            lines.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
    put(folder / "val" / "val_annotations.txt", "".join(lines))
    put(folder / "test" / "images" / "test_0.JPEG", encoded(0, size=64))
    if packed:
        pack(path / "tiny-imagenet-200.zip", path / "work")
        shutil.rmtree(path / "work")


def domainnet(path: Path) -> None:
    """3 classes in 2 of the six domains, one packed and one unpacked; 5 + 2 images of each."""
    for domain, packed in (("clipart", True), ("sketch", False)):
        folder = path / f"{domain}-work" if packed else path
        lists: dict[str, list[str]] = {"train": [], "test": []}
        for k, name in enumerate(("aircraft_carrier", "airplane", "alarm_clock")):
            for i in range(7):
                image = f"{domain}/{name}/{domain}_{k:03}_{i:06}.jpg"
                put(folder / image, encoded(k, i))
                lists["train" if i < 5 else "test"].append(f"{image} {k}\n")
        for split, lines in lists.items():
            put(path / f"{domain}_{split}.txt", "".join(lines))
        if packed:
            pack(path / f"{domain}.zip", folder)
            shutil.rmtree(folder)


def ham10000(path: Path, order: int = 1) -> None:
    """7 classes, 6 lesions each, every other lesion with two images: 63 in all, half of them packed."""
    rows = []
    for k, name in enumerate(HAM_CLASSES):
        for lesion in range(6):
            for image in range(1 + lesion % 2):
                number = 100 * k + 10 * lesion + image
                collection = ("vidir_modern", "rosendahl")[lesion % 2]
                rows.append(
                    (
                        f"HAM_{10 * k + lesion:07}",
                        f"ISIC_{number:07}",
                        name,
                        "histo",
                        50,
                        "male",
                        "ear",
                        collection,
                    )
                )
                part = "HAM10000_images_part_1" if k < 4 else "part_2"
                put(path / part / f"ISIC_{number:07}.jpg", encoded(k, number, size=24))
    header = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset")
    put_table(path / "HAM10000_metadata", header, rows[::order])
    pack(path / "HAM10000_images_part_2.zip", path / "part_2")
    for file in (path / "part_2").iterdir():
        file.unlink()
    (path / "part_2").rmdir()


def isic2019(path: Path) -> None:
    """8 classes, 5 lesions each, every other one with two images, from three collections, some unknown."""
    truth, metadata, ham = [], [], []
    for k in range(8):
        for lesion in range(5):
            collection = ("BCN", "HAM", "MSK4", "HAM", "")[lesion]
            for image in range(1 + lesion % 2):
                name = f"ISIC_{100 * k + 10 * lesion + image:07}" + ("_downsampled" if lesion == 2 else "")
                truth.append((name, *(float(c == k) for c in range(8)), 0.0))
                lesion_id = f"{collection}_{10 * k + lesion:07}" if collection else ""
                metadata.append((name, 50, "torso", lesion_id, "male"))
                if collection == "HAM":
                    where = ("vidir_molemax", "vienna_dias")[lesion // 2]
                    ham.append((lesion_id, name, "nv", "histo", 50, "male", "ear", where))
                put(path / "work" / "ISIC_2019_Training_Input" / f"{name}.jpg", encoded(k, lesion, size=24))
    put_table(path / "ISIC_2019_Training_GroundTruth.csv", ("image", *ISIC_CLASSES, "UNK"), truth)
    header = ("image", "age_approx", "anatom_site_general", "lesion_id", "sex")
    put_table(path / "ISIC_2019_Training_Metadata.csv", header, metadata)
    header = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset")
    put_table(path / "HAM10000_metadata", header, ham)
    pack(path / "ISIC_2019_Training_Input.zip", path / "work")
    shutil.rmtree(path / "work")


def isic2018(path: Path, splits: tuple[str, ...] = ("Training", "Test")) -> None:
    """20 images with their masks per split."""
    for s, split in enumerate(splits):
        for i in range(20):
            name = f"ISIC_{1000 * s + i:07}"
            image, mask = photograph_and_mask(i)
            put(path / f"ISIC2018_Task1-2_{split}_Input" / f"{name}.jpg", image)
            put(path / f"ISIC2018_Task1_{split}_GroundTruth" / f"{name}_segmentation.png", mask)
        put(path / f"ISIC2018_Task1-2_{split}_Input" / "LICENSE.txt", "terms")


def imagenet(path: Path) -> None:
    """4 classes, 8 + 3 images each."""
    for k, wnid in enumerate(sorted(WNIDS)):
        for split, count in (("train", 8), ("val", 3)):
            for i in range(count):
                put(path / split / wnid / f"{wnid}_{i}.JPEG", encoded(k, i, size=40))


def imagefolder(path: Path) -> None:
    """3 classes of 10 images, without a test split."""
    for k, name in enumerate(("ant", "bee", "cat")):
        for i in range(10):
            put(path / name / f"{i}.png", encoded(k, i, kind="PNG"))


def csv_table(path: Path) -> None:
    """3 classes of 10 images, with split, site and patient."""
    rows = []
    for k, name in enumerate(("high", "low", "mid")):
        for i in range(10):
            put(path / "images" / f"{name}{i}.png", encoded(k, i, kind="PNG"))
            split = "test" if i > 7 else "val" if i > 6 else "train"
            rows.append((f"images/{name}{i}.png", name, split, f"site{i % 2}", f"p{i // 2}"))
    put_table(path / "labels.csv", ("path", "label", "split", "site", "patient"), rows)


def npz(path: Path) -> None:
    """4 classes as MedMNIST has them: labels [N, 1], three splits of colour images."""
    arrays = {}
    for split, count in (("train", 32), ("val", 8), ("test", 12)):
        labels = np.arange(count) % 4
        arrays[f"{split}_images"] = np.stack([pixels(int(k), i, size=28) for i, k in enumerate(labels)])
        arrays[f"{split}_labels"] = labels[:, None].astype(np.uint8)
    path.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path / "minimnist.npz", **arrays)


def parquet(path: Path) -> None:
    """3 classes as the hub has them: two shards for training, one for test, a few row groups each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["zebra", "yak", "ox"]
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    (path / "data").mkdir(parents=True, exist_ok=True)
    for shard, count in (
        ("train-00000-of-00002", 15),
        ("train-00001-of-00002", 12),
        ("test-00000-of-00001", 9),
    ):
        labels = [i % 3 for i in range(count)]
        images = [{"bytes": encoded(k, i, kind="PNG"), "path": f"{i}.png"} for i, k in enumerate(labels)]
        table = pa.table({"image": images, "label": pa.array(labels, pa.int64())})
        table = table.replace_schema_metadata(metadata)
        pq.write_table(table, path / "data" / f"{shard}.parquet", row_group_size=5)


MINIATURES: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "fashion_mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "imagenet": imagenet,
    "domainnet": domainnet,
    "ham10000": ham10000,
    "isic2019": isic2019,
    "isic2018": isic2018,
    "imagefolder": imagefolder,
    "csv": csv_table,
    "npz": npz,
    "parquet": parquet,
}
"""Dataset -> writes a small one below a folder, which is then its source."""
