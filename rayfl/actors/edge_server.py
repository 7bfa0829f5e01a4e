"""The actor that hosts edge servers."""

from rayfl.actors.shell import ShellActor
from rayfl.fleet_config import FleetConfig
from rayfl.machines import Need
from rayfl.room import server_need


class EdgeServerActor(ShellActor):
    """Hosts edge servers."""

    @staticmethod
    def resources(config: FleetConfig) -> Need:
        """What each such actor reserves."""
        return server_need(config)
