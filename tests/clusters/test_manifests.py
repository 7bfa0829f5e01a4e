"""The files that start clusters: as far as they can be held to something without a cloud."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PINNED = {
    name: pinned
    for name, _, pinned in (line.partition("==") for line in (ROOT / "constraints.txt").read_text().split())
}


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_cluster_yaml_is_what_ray_up_takes() -> None:
    """Ray's own schema, after Ray's own defaults for this provider."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(read("cluster.yaml"))
    validate_config(config)
    assert config["head_node_type"] == "head"
    assert config["available_node_types"]["gpu"]["max_workers"] == 4
    assert config["docker"]["worker_image"].endswith("-gpu")


def test_images_have_the_ray_that_rayfl_is_known_to_work_with() -> None:
    images = [read("cluster.yaml")["docker"][key] for key in ("image", "worker_image")] + [
        container["image"] for name in MANIFESTS for container in containers(cluster_spec(name))
    ]
    assert len(images) == 6
    for image in images:
        assert PINNED["ray"] in image, image
        assert "latest" not in image
    assert PINNED["ray"] == version("ray")


MANIFESTS = {"clusters/kuberay-raycluster.yaml": "RayCluster", "clusters/kuberay-rayjob.yaml": "RayJob"}


def cluster_spec(name: str) -> Any:
    spec = read(name)["spec"]
    return spec.get("rayClusterSpec", spec)


def containers(spec: Any) -> list[Any]:
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_fields_of_its_kind(name: str) -> None:
    """The names that KubeRay 1.7's definitions of these kinds have on these levels."""
    manifest, spec = read(name), cluster_spec(name)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", MANIFESTS[name])
    assert set(spec) <= {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert spec["rayVersion"] == PINNED["ray"]
    assert set(spec["headGroupSpec"]) == {"rayStartParams", "template"}
    for group in spec["workerGroupSpecs"]:
        assert set(group) == {
            "groupName",
            "replicas",
            "minReplicas",
            "maxReplicas",
            "rayStartParams",
            "template",
        }
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for container in containers(spec):
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/shared", "/dev/shm"}
        assert container["resources"]["limits"] == container["resources"]["requests"]


def test_the_job_of_a_manifest_is_a_command_of_rayfl() -> None:
    import shlex

    from rayfl import cli

    python, module, name, *arguments = shlex.split(read("clusters/kuberay-rayjob.yaml")["spec"]["entrypoint"])
    assert (python, module, name) == ("python", "-m", "rayfl")
    assert cli.parse(arguments).out.startswith("/shared/")


@pytest.mark.parametrize("name", [*MANIFESTS, "cluster.yaml", "clusters/slurm.sh"])
def test_no_secret_is_written_down(name: str) -> None:
    text = (ROOT / name).read_text().lower()
    assert "password" not in text
    for line in text.splitlines():
        assert "auth_token=" not in line or "secrets.token_hex" in line


@pytest.mark.parametrize("script", sorted((ROOT / "clusters").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)
