"""The actor that hosts clients, and the servers colocated with them."""

from rayfl.actors.shell import ShellActor
from rayfl.layout import FleetConfig


class ClientActor(ShellActor):
    """Hosts clients, and the servers colocated with them."""

    @staticmethod
    def resources(config: FleetConfig) -> dict[str, float]:
        """What each such actor reserves."""
        return {"num_cpus": config.cpus_per_actor, "num_gpus": config.gpus_per_actor}
