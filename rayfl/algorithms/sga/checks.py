"""What of FedSGA's options can't be had together."""

from rayfl.algorithms.sga.config import SGAConfig
from rayfl.errors import UserError


def check_location(config: SGAConfig) -> None:
    """Raises UserError where clients would decide by what only the server knows."""
    if config.decided_by_clients and config.obs_norm in ("cohort", "running_z"):
        raise UserError(
            f"algorithm.obs_norm={config.obs_norm} compares a client with others, which "
            f"estimator_location=client can't: take obs_norm=relative or raw, or estimator_location=server"
        )


def check_projector(config: SGAConfig, block: str, channels: int, pooled: int) -> None:
    """Raises UserError where the server's projector takes ``pooled`` channels and block p_1 has others."""
    if config.phi_s == "reuse_phi" and config.server_body == "remaining" and channels != pooled:
        raise UserError(
            f"algorithm.phi_s=reuse_phi puts what is pooled at p_1 into the server's projector, which takes "
            f"{pooled} channels, got {channels} from block '{block}': take server_body=none, candidates "
            f"from a block of {pooled} channels on, or phi_s=learned"
        )
