"""A real MLflow server with its login, over SQLite and over PostgreSQL: everything arrives, nothing leaks."""

import json
import os
from pathlib import Path

import pytest
from relay import Relay
from servers import READER, WRITER, Server
from small_run import At, config, stop, whole

import rayfl
from rayfl import runs, tracking
from rayfl.cli import main
from rayfl.config import SweepConfig
from rayfl.tracking.client import library

pytestmark = pytest.mark.slow


def test_a_run_arrives_whole_and_is_resumed_into(
    each_server: Server, bare: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rounds once each, params, tags and status; files through the server, equal to the local ones."""
    with pytest.raises(KeyboardInterrupt):
        runs.execute(config(3), bare, observers=[At(round_2=stop)])
    first = json.loads((bare / "cells" / config(3).cell_hash / "run.json").read_text())
    assert first["uri"] == each_server.uri
    result = runs.execute(config(3), bare, resume=True)
    assert result.run_id == first["run_id"]
    with library() as mlflow:
        client = mlflow.MlflowClient(each_server.uri)
        run = client.get_run(result.run_id)
        assert run.data.tags["status"] == "FINISHED"
        assert run.data.tags["weights_sha256"] == result.weights_sha256
        assert run.data.params["algorithm.lr"] == "0.05"
        assert whole(client, result)
        assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
        folder = bare / "cells" / result.cell_hash
        for file in ("config.json", "ledger.parquet", "confusion.csv", "clients.csv"):
            fetched = client.download_artifacts(result.run_id, file, str(bare))
            assert Path(fetched).read_bytes() == (folder / file).read_bytes()
        assert {entry.path for entry in client.list_artifacts(result.run_id)} >= {"picture.png"}
    assert capfd.readouterr().out == ""
    password = each_server.passwords[WRITER].encode()
    assert not any(password in path.read_bytes() for path in bare.rglob("*") if path.is_file())


@pytest.mark.ray
def test_a_sweep_arrives_whole(each_server: Server, bare: Path, ray_cluster: None) -> None:
    """Two cells in workers, below one parent; issued again, with one value more, only the third runs."""
    for seeds in ((0, 1), (0, 1, 2)):
        plan = SweepConfig(name="seeds", preset=str(preset(bare)), grid={"seed": seeds})
        frame = rayfl.sweep(plan, out=bare)
        assert list(frame["status"]) == ["FINISHED"] * len(seeds)
    store = tracking.prepare(each_server.uri, "rayfl")
    with library():
        parents = [run for run in store.find(sweep="seeds") if run.info.status == "FINISHED"]
        assert len(parents) == 1
        children = store.children(parents[0].info.run_id)
        assert len(children) == 3
        for key, run_id in children.items():
            stored = runs.load(runs.cell_folder(bare, key))
            assert stored is not None
            assert stored.result.run_id == run_id
            assert whole(store.client, stored.result)


def preset(folder: Path, **fleet: object) -> Path:
    """The small run as a file."""
    plain = config(2).to_dict()
    plain["fleet"].update(fleet)
    path = folder / "small.yaml"
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.ray
def test_workers_never_touch_the_store(
    server: Server, bare: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay before the server notes the process behind each connection: it is this one, always. Nor does a
    worker that has not heard of the server make a store of its own."""
    with Relay(server.port) as relay:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{relay.port}")
        spread = preset(bare, kind="ray", client_actors=2, cpus_per_actor=0.5)
        assert rayfl.run(spread, out=bare / "run").status == "FINISHED"
        assert relay.processes == {os.getpid()}
        plan = SweepConfig(name="pids", preset=str(preset(bare)), grid={"seed": (5, 6)})
        assert list(rayfl.sweep(plan, out=bare / "sweep")["status"]) == ["FINISHED"] * 2
        assert relay.processes == {os.getpid()}
    assert not list(bare.rglob("mlflow.db"))


def refused(capsys: pytest.CaptureFixture[str], bare: Path, *settings: str) -> str:
    """What ``rayfl run`` says when it refuses to start."""
    assert main(["run", str(preset(bare)), "--out", str(bare), "--quiet", *settings]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert not list(bare.glob("cells/*/result.json"))
    return said.err


def test_a_login_that_is_missing_or_wrong(
    server: Server, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong-password")
    said = refused(capsys, bare)
    assert f"refuses the login of '{WRITER}'" in said
    assert "wrong-password" not in said
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_USERNAME"):
        monkeypatch.delenv(name)
    assert "wants a login: set MLFLOW_TRACKING_USERNAME" in refused(capsys, bare)
    address = server.uri.replace("://", f"://{WRITER}:wrong-password@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert "wrong-password" not in refused(capsys, bare)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("wrong-password", server.passwords[WRITER]))
    result = runs.execute(config(1), bare)
    folder = bare / "cells" / result.cell_hash
    assert (
        json.loads((folder / "run.json").read_text())["uri"] == f"http://{WRITER}:***@127.0.0.1:{server.port}"
    )
    assert capsys.readouterr().out == ""


def test_who_may_only_read_hears_of_it_at_the_start(
    server: Server, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking.prepare(server.uri, "rayfl")
    for name, value in server.login(READER).items():
        monkeypatch.setenv(name, value)
    assert f"'{READER}' may not write to the MLflow experiment 'rayfl'" in refused(capsys, bare)


def test_a_wrong_path_or_protocol(
    server: Server, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{server.uri}/nothing/here")
    assert "check the path /nothing/here" in refused(capsys, bare)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri.replace("http:", "https:"))
    assert "check http or https" in refused(capsys, bare)
