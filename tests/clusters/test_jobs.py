"""Ray's Jobs API, of which a head that behaves badly is left."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import ray.job_submission

from rayfl.clusters.head import Head
from rayfl.clusters.jobs import Jobs
from rayfl.errors import RunFailed

NOBODY = RuntimeError("Request failed with status code 500: No available agent to submit job, please try")


class FakeClient:
    """Ray's client of a head that answers as it is told, and then with a job's name."""

    answers: list[Exception]

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        pass

    def submit_job(self, **job: Any) -> str:
        if self.answers:
            raise self.answers.pop(0)
        return "raysubmit_1"

    def list_jobs(self) -> list[Any]:
        about = {"rayfl_command": "rayfl run x", "rayfl_out": "/shared/out"}
        status = SimpleNamespace(value="PENDING")
        times = {"start_time": 1000, "end_time": None}
        return [SimpleNamespace(submission_id="raysubmit_1", metadata=about, status=status, **times)]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", FakeClient)
    return Jobs(Head("http://head:8265", "2.60.0"))


def submit(jobs: Jobs) -> str:
    return jobs.submit("true", {}, {}, command="rayfl run x", out="/shared/out", python="python").id


def test_a_head_that_has_just_started_is_asked_again(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    """And it is said once that this takes a while."""
    FakeClient.answers = [NOBODY] * 9
    with caplog.at_level(logging.WARNING):
        assert submit(jobs) == "raysubmit_1"
    assert caplog.text.count("takes no jobs yet") == 1


def test_a_head_whose_agent_never_comes_up_is_given_up_with_the_likely_reason(jobs: Jobs) -> None:
    FakeClient.answers = [NOBODY] * 100
    with pytest.raises(RunFailed, match=r"takes no jobs: .*port 52365.*--dashboard-agent-listen-port=52366"):
        submit(jobs)
    assert len(FakeClient.answers) == 90


def test_any_other_refusal_is_passed_on_at_once_in_one_line(jobs: Jobs) -> None:
    FakeClient.answers = [RuntimeError("Request failed:\n  the disk is full"), NOBODY]
    with pytest.raises(RunFailed, match=r"head:8265 did not do it: Request failed: the disk is full$"):
        submit(jobs)
    assert FakeClient.answers == [NOBODY]
