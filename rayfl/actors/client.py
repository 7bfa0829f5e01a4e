"""The actor that hosts clients, and the servers colocated with them."""

from rayfl.actors.shell import ShellActor
from rayfl.fleet_config import FleetConfig
from rayfl.machines import Need
from rayfl.room import client_need


class ClientActor(ShellActor):
    """Hosts clients, and the servers colocated with them."""

    @staticmethod
    def resources(config: FleetConfig) -> Need:
        """What each such actor reserves."""
        return client_need(config)
