"""What is known of a path before it is used."""

import os
from pathlib import Path

import pytest

from rayfl import places


def test_the_nearest_that_exists(tmp_path: Path) -> None:
    assert places.nearest(tmp_path) == tmp_path
    assert places.nearest(tmp_path / "a" / "b") == tmp_path


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").touch(mode=0o755)
    assert not places.can_write(tmp_path / "a" / "b")
    assert places.obstacle(tmp_path / "a" / "b") == f"'{tmp_path}/a' is not a folder"
    assert places.can_write(tmp_path / "c" / "d")


def test_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the answer of the system is put in its place."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not places.can_write(tmp_path)
    assert places.obstacle(tmp_path) == f"'{tmp_path}' belongs to {tmp_path.owner()}"


MOUNTS = """\
23 22 0:40 / {home} rw,relatime shared:1 - nfs4 server:/home rw
24 23 0:41 / {home}/local\\040disk rw,relatime - xfs /dev/vdb rw
25 22 0:42 / {home}/ssh rw - fuse.sshfs me@there:/ rw
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
"""


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ("", "nfs4"),
        ("/missing/folder", "nfs4"),
        ("/local disk/x", None),
        ("/ssh", "fuse.sshfs"),
        ("/..", None),
    ],
)
def test_network_file_systems(
    inside: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in ("local disk", "ssh"):
        (home / name).mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(home=home))
    monkeypatch.setattr(places, "_MOUNTS", mounts)
    assert places.network_file_system(Path(os.path.normpath(f"{home}{inside}"))) == kind
