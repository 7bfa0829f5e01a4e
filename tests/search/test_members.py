"""A member of a population in its process, with Tune's part played in this one."""

from pathlib import Path

import pytest
from tiny_search import search

from rayfl import runs, trials
from rayfl.search import members
from rayfl.search.members import MemberWork, last_state


def member(folder: Path, lr: float) -> MemberWork:
    (config,) = search(scheduler="pbt").configs({"algorithm.lr": lr})
    return MemberWork(0, [config], folder, {"global/val_accuracy": "max"}, {"algorithm.lr": lr})


def test_taken_up_again_it_tells_of_all_its_rounds(tmp_path: Path) -> None:
    """The driver may have died before it had written down what it heard of them. None is run again."""
    first = member(tmp_path, 0.1)
    told = [row for _ in range(2) for row in first.advance().reports["0-0"].rows]
    assert [row["round"] for row in told] == [0, 1, 2]
    first.save(tmp_path)
    first.close()
    again = member(tmp_path, 0.1)
    rows = again.advance().reports["0-0"].rows
    again.close()
    assert rows[:3] == told
    assert [row["round"] for row in rows] == [0, 1, 2, 3]


def test_of_a_state_that_was_given_it_tells_what_came_after_it(tmp_path: Path) -> None:
    """Under its own values; the rounds before were the other member's."""
    (tmp_path / "given").mkdir()
    first = member(tmp_path / "first", 0.1)
    first.advance()
    first.save(tmp_path / "given")
    first.close()
    moved = member(tmp_path / "second", 0.2)
    moved.load(tmp_path / "given")
    (row,) = moved.advance().reports["0-0"].rows
    moved.close()
    assert (row["round"], row["hp/algorithm.lr"]) == (2, 0.2)


def test_a_member_that_another_process_is_at_work_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that Ray gave up, or whose driver died, may still write its state."""
    monkeypatch.setattr(members, "WAIT_S", 0.0)
    work = member(tmp_path, 0.1)
    with runs.claim(tmp_path):
        step = work.advance()
        with pytest.raises(runs.Busy, match="another process is at work"):
            last_state(tmp_path)
    result = step.reports["0-0"].result
    assert result is not None
    assert (result.status, step.done) == (trials.BUSY, True)
    again = member(tmp_path, 0.1)
    assert again.advance().reports["0-0"].result is None
    with pytest.raises(runs.Busy), runs.claim(tmp_path):
        again.save(tmp_path)
    again.close()
    assert last_state(tmp_path) == ({"algorithm.lr": 0.1}, 1)
