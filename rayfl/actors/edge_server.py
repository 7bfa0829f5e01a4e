"""The actor that hosts edge servers."""

from rayfl.actors.shell import ShellActor
from rayfl.layout import FleetConfig


class EdgeServerActor(ShellActor):
    """Hosts edge servers."""

    @staticmethod
    def resources(config: FleetConfig) -> dict[str, float]:
        """What each such actor reserves."""
        return {"num_cpus": config.cpus_per_server, "num_gpus": 0.0}
