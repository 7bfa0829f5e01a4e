"""A CSV file that lists images with their labels, and where known their split, domain and group."""

from pathlib import Path, PurePosixPath

from rayfl.data.archives import is_archive
from rayfl.data.config import DataConfig
from rayfl.data.info import Built, DatasetInfo, Files
from rayfl.data.layouts.common import classes_of, downloads, look_up, number, table
from rayfl.data.layouts.source import Source
from rayfl.data.layouts.splitting import divide, held_out, official_test, require_training, split_of
from rayfl.errors import UserError

COLUMNS = {
    "image": ("path", "image", "file", "filename"),
    "label": ("label", "class", "target"),
    "split": ("split",),
    "domain": ("domain", "site", "centre", "center"),
    "group": ("group", "patient", "lesion", "patient_id", "lesion_id"),
}
"""What is read -> the columns that it is read from, the first that is there."""


def build_csv(config: DataConfig, source: Path | None) -> Built:
    """Classes in numerical order where all are numbers, else by name."""
    assert source is not None
    listed, files = _open(config, source)
    rows = table(listed, files.read(listed))
    columns = _columns(list(rows[0]), listed)

    def cells(column: str) -> list[str]:
        return [row[columns[column]] for row in rows]

    paths = [_relative(path, files.path, listed) for path in cells("image")]
    base = PurePosixPath(listed).parent
    found = {path: str(base / path) for path in paths if files.has(str(base / path))}
    class_names = classes_of(cells("label"))
    labels = number(cells("label"), class_names, "class")
    domain_names = classes_of(cells("domain")) if "domain" in columns else []
    groups = number(cells("group"), classes_of(cells("group")), "group") if "group" in columns else None
    samples = Files(
        names=look_up(found, paths, listed, files.path),
        labels=labels,
        domains=number(cells("domain"), domain_names, "domain") if domain_names else None,
        groups=groups,
        read=files.read,
    )
    test = official_test([split_of(s) for s in cells("split")]) if "split" in columns else None
    if test is None:
        test = held_out(labels, "csv-split", groups)
    train_split, test_split = divide(samples, test)
    require_training(train_split.labels, class_names, listed)
    return Built(
        train=train_split,
        test=test_split,
        num_classes=len(class_names),
        class_names=tuple(class_names),
        domain_names=tuple(domain_names),
    )


def _open(config: DataConfig, source: Path) -> tuple[str, Source]:
    """The name of the CSV file and the files around it."""
    inside = source if source.is_dir() or is_archive(source) else source.parent
    if inside != source and not source.exists():
        raise FileNotFoundError(f"{source} doesn't exist")
    files = Source(inside, downloads(config).with_name("unpacked"))
    if inside != source:
        return source.name, files
    tables = [name for name in files.names if name.lower().endswith((".csv", ".tsv"))]
    top = min((name.count("/") for name in tables), default=0)
    tables = [name for name in tables if name.count("/") == top]
    if len(tables) != 1:
        raise FileNotFoundError(f"{source} has {len(tables)} CSV files, not one: name the file itself")
    return tables[0], files


def _columns(header: list[str], listed: str) -> dict[str, str]:
    by_name = {column.lower(): column for column in header}
    columns = {
        what: next(by_name[name] for name in names if name in by_name)
        for what, names in COLUMNS.items()
        if any(name in by_name for name in names)
    }
    for what in ("image", "label"):
        if what not in columns:
            wanted = " or ".join(COLUMNS[what])
            raise UserError(f"{listed} lacks a column {wanted}: it has {', '.join(header)}")
    return columns


def _relative(path: str, folder: Path, listed: str) -> str:
    """Plain, below the CSV's folder. Raises UserError for a path elsewhere."""
    plain = PurePosixPath(path.replace("\\", "/"))
    if plain.is_absolute() and plain.is_relative_to(folder.absolute().as_posix()):
        plain = plain.relative_to(folder.absolute().as_posix())
    if plain.is_absolute() or ".." in plain.parts:
        raise UserError(
            f"{listed} lists {path}, outside its folder {folder}: write paths relative to the CSV"
        )
    return str(plain)


DATASETS = {
    "csv": DatasetInfo(
        build=build_csv,
        description="your images, listed with their labels in a CSV file",
        remedy="write a CSV file (the source) with the columns path and label (maybe split, domain, group) "
        "whose paths are relative to it",
        needs_source=True,
        licence="yours",
    ),
}
