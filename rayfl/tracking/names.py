"""What a run is called in MLflow: tags, params and metric names."""

import functools
import json
import os
import re
import subprocess
from importlib import metadata

from rayfl.config import ExperimentConfig, flatten
from rayfl.data import knobs

LONGEST_PARAM = 6000
"""MLflow's own limit; the artifact config.json holds values uncut."""
_LONGEST_NAME = 250


def run_tags(config: ExperimentConfig) -> dict[str, str]:
    """What a run is found by."""
    law = config.data.partition
    values = knobs(law)
    tags = {
        "method": config.algorithm.name,
        "dataset": config.data.name,
        "partition": f"{law.kind}.{law.scheme}" if "scheme" in values else law.kind,
        "seed": str(config.seed),
        "cell_hash": config.cell_hash,
        "rayfl_version": version(),
    }
    if "alpha" in values:
        tags["alpha"] = f"{law.alpha:g}"
    sha = git_sha(os.getcwd())
    if sha:
        tags["git_sha"] = sha
    return tags


def run_params(config: ExperimentConfig) -> dict[str, str]:
    """The resolved config by dotted path; long values are cut, visibly."""
    params = {}
    for key, value in flatten(config.to_dict()).items():
        text = value if isinstance(value, str) else json.dumps(value)
        params[key] = text if len(text) <= LONGEST_PARAM else text[: LONGEST_PARAM - 1] + "…"
    return params


def metric_name(name: str) -> str:
    """The nearest name that MLflow accepts."""
    clean = re.sub(r"[^\w\-. :/]", "_", name)
    parts = [part for part in clean.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[:_LONGEST_NAME] or "_"


def tag_name(name: str) -> str:
    """As much of a name as MLflow accepts."""
    return name[:_LONGEST_NAME]


def version() -> str:
    """rayfl's own."""
    return metadata.version("rayfl")


@functools.cache
def git_sha(folder: str) -> str | None:
    """The commit that a folder's repository is at, if it is in one."""
    try:
        found = subprocess.run(
            ["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def mlflow_status(status: str) -> str:
    """The nearest of MLflow's own statuses."""
    return {"FINISHED": "FINISHED", "KILLED": "KILLED", "STOPPED": "KILLED"}.get(status, "FAILED")
