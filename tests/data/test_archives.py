"""Folders and archives look alike, and nothing outside them is read or written."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rayfl.data.layouts.source import Source
from rayfl.errors import UserError

FILES = {"a/one.txt": b"1" * 3000, "a/b/two.txt": b"2" * 3000, "three.txt": b"3"}


def make_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
        archive.writestr("__MACOSX/a/one.txt", b"litter")
        archive.writestr("a/._one.txt", b"litter")
        archive.writestr("empty/", b"")
    return path


def add(
    tar: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = ""
) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(content), kind, to
    tar.addfile(member, io.BytesIO(content))


def make_tar(path: Path) -> Path:
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in FILES.items():
            add(tar, f"./{name}", content)
        add(tar, "empty", kind=tarfile.DIRTYPE)
    return path


def make_folder(path: Path) -> Path:
    for name, content in {**FILES, ".hidden/x": b"", "a/.DS_Store": b""}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    (path / "empty").mkdir()
    return path


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.zip", make_zip),
        ("x.tar", make_tar),
        ("x.tar.gz", make_tar),
        ("x.tgz", make_tar),
        ("x", make_folder),
    ],
)
def test_folder_and_archives_hold_the_same(name: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    source = Source(make(tmp_path / name), tmp_path / "scratch")
    assert source.names == sorted(FILES)
    assert source.folders == ["a", "a/b", "empty"]
    assert {name: source.read(name) for name in source.names} == FILES
    assert source.has("a/one.txt")
    assert not source.has("a/none.txt")
    assert source.find("two.txt") == "a/b/two.txt"
    assert source.find("wo.txt") is None
    with pytest.raises(FileNotFoundError, match=r"there is no nine\.txt or ten\.txt in .*x"):
        source.need("nine.txt", "ten.txt")


def test_the_nearest_file_is_found(tmp_path: Path) -> None:
    for name in ("z/list.txt", "a/b/list.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert Source(tmp_path, tmp_path).find("list.txt") == "z/list.txt"


def test_archives_in_a_folder_are_seen_as_folders(tmp_path: Path) -> None:
    make_zip(tmp_path / "one.zip")
    make_tar(tmp_path / "two.tar.gz")
    (tmp_path / "other.zip").write_bytes(b"no archive at all, and not asked for")
    (tmp_path / "loose.txt").write_bytes(b"loose")
    source = Source(tmp_path, tmp_path / "scratch", archives=("one.zip", "t*.tar.gz"))
    assert source.read("one/a/one.txt") == source.read("two/a/one.txt") == FILES["a/one.txt"]
    assert source.read("loose.txt") == b"loose"
    assert source.has("two/three.txt")


def test_an_archive_beside_its_folder_is_left_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "one")
    (tmp_path / "one.zip").write_bytes(b"half a download")
    assert Source(tmp_path, tmp_path, archives=("*.zip",)).read("one/three.txt") == b"3"


def test_what_was_unpacked_is_removed(tmp_path: Path) -> None:
    source = Source(make_tar(tmp_path / "x.tar.gz"), tmp_path / "scratch")
    assert len(list((tmp_path / "scratch").iterdir())) == 1
    del source
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "C:/evil.txt", "..\\evil.txt"]
)
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_members_that_point_outside_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "inner" / f"x.{kind}"
    path.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"evil")
    else:
        with tarfile.open(path, "w:gz") as tar:
            add(tar, name, b"evil")
    with pytest.raises(UserError, match="points outside") as error:
        Source(path, tmp_path / "inner" / "scratch")
    assert str(path) in str(error.value)
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        add(tar, "good.txt", b"good")
        add(tar, "link", kind=kind, to="good.txt")
    with pytest.raises(UserError, match="'link' is a link or a device"):
        Source(tmp_path / "x.tar", tmp_path / "scratch")


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("link")
    member.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(UserError, match="'link' is a link"):
        Source(tmp_path / "x.zip", tmp_path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tar.xz"])
def test_an_archive_cut_off_is_named(name: str, tmp_path: Path) -> None:
    path = (make_zip if name.endswith("zip") else make_tar)(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: 2000 if name == "x.tar" else len(content) // 2])
    with pytest.raises(OSError, match=r"x\..* is damaged or cut off \(.*\); get it again"):
        Source(path, tmp_path / "scratch")


def test_a_tar_with_a_wrong_checksum_is_named(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar.gz")
    path.write_bytes(path.read_bytes()[:-8] + b"12345678")
    with pytest.raises(OSError, match=r"x\.tar\.gz is damaged or cut off \(CRC"):
        Source(path, tmp_path / "scratch")


def test_a_member_with_a_wrong_checksum_is_not_returned(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "x.zip")
    path.write_bytes(path.read_bytes().replace(FILES["a/one.txt"], b"1" * 2999 + b"0"))
    source = Source(path, tmp_path)
    assert source.read("three.txt") == b"3"
    with pytest.raises(OSError, match=r"x\.zip is damaged .*CRC"):
        source.read("a/one.txt")


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.rar").write_bytes(b"")
    with pytest.raises(OSError, match="neither a folder nor an archive"):
        Source(tmp_path / "x.rar", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none doesn't exist"):
        Source(tmp_path / "none", tmp_path)


def test_links_on_disk_are_followed_once(tmp_path: Path) -> None:
    """Someone's folder may link to another disk, or by mistake to itself."""
    make_folder(tmp_path / "far")
    (tmp_path / "here").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "here" / "train")
    os.symlink(tmp_path / "far", tmp_path / "here" / "val")
    os.symlink(tmp_path, tmp_path / "here" / "loop")
    names = Source(tmp_path / "here", tmp_path).names
    assert names == sorted(f"{place}/{name}" for place in ("train", "val") for name in FILES)
