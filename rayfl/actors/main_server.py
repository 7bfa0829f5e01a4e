"""The actor that hosts the main server or one shard of it."""

from rayfl.actors.shell import ShellActor
from rayfl.fleet_config import FleetConfig
from rayfl.machines import Need
from rayfl.room import server_need


class MainServerActor(ShellActor):
    """Hosts the main server or one shard of it."""

    @staticmethod
    def resources(config: FleetConfig) -> Need:
        """What each such actor reserves."""
        return server_need(config, config.gpus_per_server)
