"""What can be said about FedSGA."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from rayfl.algorithms.sga.estimator import EstimatorConfig
from rayfl.errors import UserError
from rayfl.training import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class SGAConfig(TrainingConfig):
    """Knobs of adaptive depth, prompts and harmonisation."""

    candidates: tuple[str | int, ...] | None = None
    """The cuts p_1 < ... < p_K that clients choose from, by block name or number; by default up to three."""
    p_ref: Annotated[int, Ge(1)] | None = None
    """Which of them, from 1, is the reference depth (and the one of ``static``); by default the middle."""
    strategy: Literal["adaptive", "static", "random"] = "adaptive"
    """Depths by the estimator, all at p_ref, or drawn anew per client and round."""
    ablate: Literal["none", "all", "adapt", "suff_est", "harmon"] = "none"
    """Leave out: nothing; everything (joint SplitFed at p_ref); prompts; Gamma (a hand rule takes its place);
    projector, depth embedding and alignment loss."""
    rho: Annotated[float, Ge(0)] = 0.1
    """Safety margin of the policy (eq. 8): more is deeper."""
    beta: Annotated[float, Ge(0)] = 0.05
    """How much worse, relatively, the loss at p_1 may be than at p_ref to count as sufficient (eq. 7)."""
    calib_every: Annotated[int, Ge(1)] = 5
    """Rounds from one calibration to the next."""
    calib_offset: Annotated[int, Ge(0)] = 0
    """Calibrate in rounds t with t mod calib_every = calib_offset mod calib_every."""
    probe: Literal["end", "linear", "start"] = "end"
    """Losses that are compared: of the server's path after the round's training on a batch left out of it; of
    linear probes on the features; or of the server's path at the start, where both are the same function (its
    labels too serve from the next round on)."""
    num_prompts: Annotated[int, Ge(0)] = 4
    """Private prompts m per client."""
    cnn_prompt: Literal["attn", "add_mean", "pad", "none"] = "attn"
    """How prompts enter where there are no tokens: attended to per location after the first block, added as
    their mean, or added to a frame of pixels."""
    prompt_init_std: Annotated[float, Gt(0)] = 0.02
    """Spread of the initial prompts, the same for all clients."""
    prompt_lr_mult: Annotated[float, Ge(0)] = 1.0
    """Times lr: the prompts' rate."""
    eval_prompt: Literal["mean", "own", "none"] = "mean"
    """Prompts of the scored model: the clients' mean, each client's own (scored by clients), or zeros."""
    tau_m: Annotated[float, Gt(0)] = 0.5
    """Temperature of the prompts' contributions (eq. 2)."""
    score_reduce: Literal["mean_abs", "abs_of_mean"] = "mean_abs"
    """A prompt's score over the steps of a round."""
    score_norm: Literal["none", "max"] = "none"
    """Divide scores by the largest one before the softmax, which else is nearly uniform."""
    obs_norm: Literal["relative", "raw", "running_z", "cohort"] = "relative"
    """Drifts relative to the size of what drifts, as they are, standardised over all that were seen, or
    divided by the participants' mean (and alignment centred)."""
    obs_batches: Annotated[int, Ge(1)] = 1
    """The round's first batches that are observed."""
    phi_s: Literal["learned", "reuse_phi", "fixed_random"] = "learned"
    """The client's projection into the space of the prototypes: its own, trained; the server's projector for
    p_1, sent down every round; or its own as drawn."""
    phi_loss: Literal["cos", "contrastive"] = "cos"
    """What trains it."""
    phi_lr_mult: Annotated[float, Ge(0)] = 10.0
    """Times lr: its rate."""
    server_body: Literal["remaining", "none"] = "remaining"
    """Whether the server runs the rest of the backbone before it pools and projects."""
    server_reduce: Literal["block_mean", "mean", "sum"] = "block_mean"
    """A server block's gradient: the mean over clients that pass through it, over all present, or the sum."""
    server_bn: Literal["per_client", "merged"] = "per_client"
    """The server's forward pass: client by client, or once for all clients of one depth."""
    client_aggregation: Literal["blockwise", "none"] = "blockwise"
    """Average each block over all its copies, or leave clients their prefixes."""
    short_clients: Literal["cycle", "drop_out"] = "cycle"
    """Whether clients with few batches reshuffle and go on, or end early."""
    lambda_align: Annotated[float, Ge(0)] = 0.1
    """Weight of the alignment loss."""
    tau_a: Annotated[float, Gt(0)] = 0.5
    """Its temperature."""
    proto_momentum: Annotated[float, Ge(0), Le(1)] = 0.9
    """Momentum mu of the prototypes."""
    proto_update: Literal["round", "step"] = "round"
    """When prototypes move."""
    projector: Literal["ln_he", "plain"] = "ln_he"
    """LayerNorm, He initialisation and small embeddings, or torch's own initialisation without LayerNorm."""
    d_z: Annotated[int, Ge(1)] = 256
    """Size of the harmonised space."""
    d_hid: Annotated[int, Ge(1)] = 256
    """Hidden units of the projector."""
    d_e: Annotated[int, Ge(1)] = 32
    """Size of a depth embedding."""
    e_init_std: Annotated[float, Ge(0)] = 0.02
    """Spread of the initial depth embeddings."""
    estimator: EstimatorConfig = EstimatorConfig()
    """Gamma."""
    estimator_location: Literal["server", "client"] = "server"
    """Who works out sufficiency and depth: the fed server from what clients tell of themselves, or each
    client by parameters that come down every round; what it saw then goes up with its labels alone."""

    @property
    def harmonised(self) -> bool:
        """Whether the projector stands before the head."""
        return self.ablate not in ("all", "harmon")

    @property
    def align(self) -> float:
        """The weight of the alignment loss in this run."""
        return self.lambda_align if self.harmonised else 0.0

    @property
    def prompts(self) -> int:
        """How many prompts this run has."""
        return 0 if self.ablate in ("all", "adapt") else self.num_prompts

    @property
    def adaptive(self) -> bool:
        """Whether depths follow what is observed."""
        return self.strategy == "adaptive" and self.ablate != "all"

    @property
    def decided_by_clients(self) -> bool:
        """Whether each client works out its own depth."""
        return self.adaptive and self.estimator_location == "client"

    def calibrates(self, t: int) -> bool:
        """Whether round ``t`` asks for labels."""
        return self.adaptive and self.ablate != "suff_est" and (t - self.calib_offset) % self.calib_every == 0

    def reference(self, num_candidates: int) -> int:
        """The number of p_ref, from 1."""
        found = (num_candidates + 1) // 2 if self.p_ref is None else self.p_ref
        if found > num_candidates:
            raise UserError(f"algorithm.p_ref={found} must be one of {num_candidates} candidates, from 1 on")
        return found
