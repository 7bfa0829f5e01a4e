"""The actor that hosts the fed server."""

from rayfl.actors.shell import ShellActor
from rayfl.fleet_config import FleetConfig
from rayfl.machines import Need
from rayfl.room import server_need


class FedServerActor(ShellActor):
    """Hosts the fed server."""

    @staticmethod
    def resources(config: FleetConfig) -> Need:
        """What each such actor reserves."""
        return server_need(config)
