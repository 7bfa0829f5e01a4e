"""What can be said about the parts of BESplit."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from rayfl.algorithms.splitfed_v1 import SplitConfig
from rayfl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class EvidenceConfig:
    """The evidential head, its loss and what counts as uncertain."""

    act: Literal["exp", "softplus", "relu"] = "exp"
    """What makes evidence of a logit. To be 99 % sure of one of ten classes takes a logit of 6.8 under exp,
    of 890 under the others."""
    max: Annotated[float, Gt(0)] = 1e4
    """Most evidence per class. At it only gradients that lower evidence pass."""
    loss: Literal["digamma", "mse", "log"] = "digamma"
    """Expected cross-entropy, expected squared error, or negative log of the marginal likelihood."""
    lambda_kl: Annotated[float, Ge(0)] = 0.01
    """Weight of the KL term, which takes evidence from wrong classes."""
    kl_anneal: Annotated[int, Ge(0)] = 10
    """Rounds over which that weight rises to its full size."""
    correct_evidence: bool = False
    """Also push up the true class's logit, in proportion to vacuity: without evidence there's no gradient."""
    aleatoric: Literal["expected_entropy", "dissonance"] = "expected_entropy"
    """The uncertainty that lies in the data."""
    epistemic: Literal["vacuity", "mutual_information"] = "vacuity"
    """The uncertainty that lies in the model."""


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """The client state records of the main server."""

    eta: Annotated[float, Gt(0), Le(1)] = 0.1
    """Rate of the moving averages."""
    update: Literal["batch", "round"] = "batch"
    """Once per batch, or once per round from the round's means."""
    ttl: Annotated[int, Ge(1)] | None = 10
    """Rounds that a record outlives its client's last participation; null for ever."""


@dataclass(frozen=True, kw_only=True)
class ContributionConfig:
    """Evidence-aware aggregation (EA): what a client's weights count in the averages."""

    ablate: Literal["none", "off", "no_concentration", "no_penalty", "no_aleatoric", "no_epistemic"] = "none"
    """Leave out: nothing; everything (participants count alike); concentration; the penalty for uncertainty;
    either part of it."""
    ec: Literal["diag_share", "neg_entropy", "gini"] = "diag_share"
    """Concentration of a class's evidence: the share of the true class, one minus normalised entropy, or the
    normalised sum of squared shares. The last two don't ask whether the class is the right one."""
    ec_prior: Literal["all", "observed", "local"] = "all"
    """Mean over all classes, where those a client lacks count 0, over those it has, or by its label mix."""
    penalty: Literal["exp", "product", "inverse", "fedevi"] = "exp"
    """exp(-g_a u_a - g_e u_e), (1 - u_a)^g_a (1 - u_e)^g_e, 1 / (1 + g_a u_a + g_e u_e), or FedEvi's
    u_e^g_e / u_a^g_a."""
    g_a: Annotated[float, Ge(0)] = 1.0
    """How much aleatoric uncertainty counts in it."""
    g_e: Annotated[float, Ge(0)] = 1.0
    """How much epistemic uncertainty counts in it."""
    sharp: Annotated[float, Ge(0)] = 1.0
    """Exponent of concentration times penalty."""
    w_min: Annotated[float, Gt(0), Le(1)] = 1e-3
    """Least score, as a share of the largest."""
    w_ema: Annotated[float, Ge(0), Lt(1)] = 0.0
    """How much of a client's last weight stays."""


@dataclass(frozen=True, kw_only=True)
class PairingConfig:
    """Bias-compensated collaboration (BCC): who pairs, how much is exchanged, and how."""

    mode: Literal["loss_mix", "swap", "feature_mixup", "off"] = "loss_mix"
    """Each sample counts to both server-side models, 1 - rho and rho; to either one, by lot; features of the
    same class are mixed (labels aren't); or nobody pairs."""
    match_scope: Literal["step", "round"] = "step"
    """Pair those whose batches are there at a step, or once per round: then a client whose partner has no
    batch left goes on alone."""
    warmup: Annotated[int, Ge(0)] = 1
    """First rounds without pairs; in the first one nothing is known."""
    bn: Literal["joint", "separate"] = "joint"
    """Whether a server-side model passes own and borrowed samples in one batch or in two."""
    scale: bool = True
    """Weigh borrowed samples by the ratio of the two batches' sizes."""
    rho_mode: Literal["classwise", "scalar"] = "classwise"
    """A fraction for each class, or one for all."""
    rho_max: Annotated[float, Ge(0), Le(1)] = 0.5
    """Largest fraction exchanged; 0 for none."""
    rho_tie: Literal["min", "mid", "max"] = "min"
    """Which of several best fractions."""
    tie_tol: Annotated[float, Ge(0), Le(1)] = 0.0
    """Weights that differ by less, relatively, count as equal."""
    bias_threshold: Literal["noise", "fixed", "mean"] = "noise"
    """Biased is whose label mix is farther from the global one than: ``zeta`` and what sampling noise
    explains; ``zeta``; or the mean client."""
    zeta: Annotated[float, Ge(0)] = 0.2
    """Least L1 distance that is a bias."""
    noise: Annotated[float, Ge(0)] = 1.5
    """How many times the expected distance of a sample from its own distribution is still noise."""
    g_min: Annotated[float, Ge(0)] = 1e-6
    """Pairs that gain no more stay apart."""


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Dual-teacher distillation (DTD) of a client's auxiliary model."""

    enabled: bool = True
    """Whether clients have one. It changes no bit of the global model."""
    aux_pool: Literal["4x4", "gap"] = "4x4"
    """Its features: means over a grid of cells of the client-side model's last maps, or over whole maps."""
    teacher: Literal["global_frozen", "current"] = "global_frozen"
    """Whose evidence it learns from: of the round's first server-side model, or of the client's replica as it
    is, which costs no pass of its own."""
    wa_sync: Literal["none", "fedavg"] = "none"
    """Whether auxiliary models stay with their clients or are averaged like client-side models."""
    lambda_c: Annotated[float, Ge(0)] = 0.2
    """Weight of the feature teacher, the client-side model."""
    lambda_g: Annotated[float, Ge(0)] = 0.3
    """Weight of the evidence teacher, the global model."""
    combine: Literal["additive", "convex"] = "additive"
    """Whether the evidential loss keeps its weight of 1 beside them, or has what they leave of it."""
    feature: Literal["cosine", "sp", "rkd_d"] = "cosine"
    """What of two batches of features is compared: cosines, rows of inner products, or relative distances."""
    relation_centre: bool = True
    """Take the batch mean off before: features after a ReLU have cosines near 1 with each other."""
    evidence: Literal["dirichlet_kl_unit", "dirichlet_kl", "mean_kl", "evidence_softmax", "evidence_mse"] = (
        "dirichlet_kl_unit"
    )
    """How two evidences are compared: KL of Dirichlets, per unit of the teacher's strength or whole, KL of
    softmaxes of ln alpha or of evidence, or squared difference."""
    tau: Annotated[float, Gt(0)] = 5.0
    """Temperature of both evidences."""

    @property
    def asks(self) -> bool:
        """Whether anybody learns from the evidence teacher."""
        return self.enabled and self.lambda_g > 0

    def __post_init__(self) -> None:
        """Raises UserError where the teachers leave nothing."""
        if self.combine == "convex" and self.lambda_c + self.lambda_g > 1:
            raise UserError(
                f"algorithm.dtd.combine=convex wants lambda_c + lambda_g of at most 1, they are "
                f"{self.lambda_c} and {self.lambda_g}: lower them, or set combine=additive"
            )


@dataclass(frozen=True, kw_only=True)
class BESConfig(SplitConfig):
    """Knobs of evidential aggregation, calibration by pairs, and local auxiliary models."""

    loss: Literal["edl", "ce"] = "edl"
    """Evidential loss, or softmax cross-entropy of the same logits."""
    evidence: EvidenceConfig = EvidenceConfig()
    """The head."""
    csr: RecordConfig = RecordConfig()
    """Client state records."""
    ea: ContributionConfig = ContributionConfig()
    """Weights of the averages."""
    bcc: PairingConfig = PairingConfig()
    """Pairs."""
    dtd: DistillationConfig = DistillationConfig()
    """Auxiliary models."""
    a_eval: Literal["local", "global", "both"] = "both"
    """Score auxiliary models on their clients' own test rows, on all, or on both."""
    weights: Literal["size", "batch", "uniform"] = "uniform"
    """What a participant's share of an average goes by beside its evidence."""
