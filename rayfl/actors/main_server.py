"""The actor that hosts the main server or one shard of it."""

from rayfl.actors.shell import ShellActor
from rayfl.layout import FleetConfig


class MainServerActor(ShellActor):
    """Hosts the main server or one shard of it."""

    @staticmethod
    def resources(config: FleetConfig) -> dict[str, float]:
        """What each such actor reserves."""
        return {"num_cpus": config.cpus_per_server, "num_gpus": config.gpus_per_server}
