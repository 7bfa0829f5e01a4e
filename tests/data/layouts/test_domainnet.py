"""DomainNet: official lists, domains numbered the same whichever are there."""

import shutil
from pathlib import Path

import pytest
from encoders import put
from miniatures import Build, domainnet

from rayfl.errors import UserError


def test_domains_keep_their_numbers(tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture) -> None:
    domainnet(tmp_path)
    built = build("domainnet", tmp_path)
    assert built.train.domains is not None
    assert built.train.domains.tolist() == [0] * 15 + [5] * 15
    assert built.domain_names == ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    assert built.class_names == ("aircraft_carrier", "airplane", "alarm_clock")
    assert "2 of six domains: clipart, sketch" in caplog.text


def test_lists_of_absent_domains_are_no_trouble(tmp_path: Path, build: Build) -> None:
    domainnet(tmp_path)
    (tmp_path / "clipart.zip").unlink()
    built = build("domainnet", tmp_path)
    assert built.train.domains is not None
    assert set(built.train.domains) == {5}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sketch/airplane/x.jpg", "line 16 of sketch_train.txt isn't 'domain/class/image label'"),
        ("sketch/airplane/x.jpg one", "isn't 'domain/class/image label': 'sketch/airplane/x.jpg one'"),
        ("../sketch/airplane/x.jpg 1", "isn't 'domain/class/image label'"),
        ("sketch/airplane/x.jpg 345", "has the unknown label 345: DomainNet's are 0 to 344"),
        ("sketch/airplane/x.jpg 2", "the label 2, which is 'alarm_clock' elsewhere"),
    ],
)
def test_wrong_lines(line: str, message: str, tmp_path: Path, build: Build) -> None:
    domainnet(tmp_path)
    listed = tmp_path / "sketch_train.txt"
    put(listed, listed.read_text() + line + "\n")
    with pytest.raises(UserError, match=message):
        build("domainnet", tmp_path)


def test_missing_files(tmp_path: Path, build: Build) -> None:
    domainnet(tmp_path)
    image = tmp_path / "sketch" / "airplane" / "sketch_001_000003.jpg"
    image.unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 15 images listed in sketch_train\.txt .*001_000003"):
        build("domainnet", tmp_path)
    put(image, b"")
    put(tmp_path / "sketch_test.txt", "\n")
    with pytest.raises(UserError, match=r"sketch_test\.txt .* lists no images"):
        build("domainnet", tmp_path)
    (tmp_path / "sketch_test.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no sketch_test\.txt"):
        build("domainnet", tmp_path)
    shutil.rmtree(tmp_path / "sketch")
    (tmp_path / "clipart.zip").unlink()
    with pytest.raises(FileNotFoundError, match="there are no images domain/class/image"):
        build("domainnet", tmp_path)
