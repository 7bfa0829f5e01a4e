"""What can't be searched, refused before anything starts."""

from rayfl import algorithms
from rayfl.config import ExperimentConfig
from rayfl.costs.plan import make_plan
from rayfl.errors import UserError
from rayfl.metrics.names import reported
from rayfl.search.config import SearchConfig
from rayfl.suggest import unknown

_BELONG = {
    "grace_rounds": ("asha", "median"),
    "reduction_factor": ("asha", "hyperband"),
    "perturb_every": ("pbt",),
    "quantile": ("pbt",),
    "resample": ("pbt",),
}
"""Which schedulers have a knob."""


def check_search(search: SearchConfig) -> None:
    """Refuse what can't be searched so, with what to do instead."""
    _check_scheduler(search)
    _check_sampler(search)
    if search.scheduler == "pbt":
        _check_population(search)
    kinds: dict[object, ExperimentConfig] = {}
    for sample in search.space().examples():
        for config in search.configs(sample):
            kinds.setdefault((config.algorithm.name, config.data.name, config.model.bn), config)
            _check_validation(config)
    for config in kinds.values():
        _check_metrics(search, config)


def _check_scheduler(search: SearchConfig) -> None:
    scheduler = search.scheduler
    for knob, owners in _BELONG.items():
        if getattr(search, knob) is not None and scheduler not in owners:
            raise UserError(
                f"{knob} is a knob of {' and '.join(owners)}, got scheduler={scheduler}: leave it out"
            )
    if len(search.metric) > 1 and scheduler != "none":
        raise UserError(
            f"a scheduler goes by one metric, got {' and '.join(search.metric)}: use scheduler=none"
        )
    if scheduler != "none" and "rounds" in search.search:
        raise UserError(
            f"{scheduler} gives trials more or fewer rounds itself: take 'rounds' out of the search"
        )
    rounds = search.configs({})[0].rounds
    if (search.grace_rounds or 1) > max(rounds, 1):
        raise UserError(f"grace_rounds={search.grace_rounds} is more than rounds={rounds}: lower it")
    if scheduler in ("hyperband", "pbt") and search.max_concurrent is not None:
        raise UserError(
            f"under {scheduler} trials take turns on what there is, got max_concurrent="
            f"{search.max_concurrent}: leave it out, or have each reserve more (train.threads)"
        )
    fleet = search.configs({})[0].fleet
    if fleet.kind == "ray" and len(search.seeds) > 1:
        raise UserError(
            f"the seeds of a trial share a process, got {len(search.seeds)} with fleet.kind=ray: use one "
            f"seed, or fleet.kind=local"
        )


def _check_sampler(search: SearchConfig) -> None:
    domains = search.search
    if search.warm_start == search.name:
        raise UserError(f"warm_start={search.name} is this search itself, which goes on anyway: leave it out")
    if search.drawn_by == "grid":
        for path, domain in domains.items():
            if not domain.finite:
                raise UserError(
                    f"a grid needs values that can be counted, '{path}' is {domain.kind}: use choice, "
                    f"quniform or randint, or another sampler"
                )
    if search.drawn_by == "cmaes":
        odd = [path for path, d in domains.items() if d.kind == "choice" or d.when]
        if odd or len(domains) < 2 or len(search.metric) > 1:
            what = f"'{odd[0]}' is a choice or has a when" if odd else "there is one number"
            if len(search.metric) > 1:
                what = "there are several"
            raise UserError(f"cmaes wants two numbers or more and one metric, {what}: use sampler=tpe")


def _check_population(search: SearchConfig) -> None:
    if search.drawn_by != "random":
        raise UserError(f"pbt draws its members at random, got sampler={search.sampler}: leave it out")
    if search.warm_start is not None:
        raise UserError("pbt learns from its own members, got warm_start too: leave it out")
    first = search.configs({})[0]
    method = algorithms.find(first.algorithm.name)
    for path, domain in search.search.items():
        if domain.when:
            raise UserError(f"pbt moves all values at any time, '{path}' has a when: leave it out")
        if not path.startswith("algorithm.") or not domain.numeric:
            raise UserError(
                f"pbt changes numbers of the method while it runs, got '{path}' ({domain.kind}): search it "
                f"with another scheduler"
            )
    forms = set()
    for sample in search.space().examples():
        config = search.configs(sample)[0]
        if config.algorithm.name != first.algorithm.name:
            raise UserError("pbt can't change the method: take algorithm.name out of the search")
        blueprint = make_plan(config).blueprint
        parts = method.cut(config.algorithm, blueprint.model())
        forms.add(tuple((role, tuple(part.state_dict())) for role, part in parts.items()))
    if len(forms) > 1:
        raise UserError("pbt can't move the cut of a model that is being trained: take it out of the search")


def _check_validation(config: ExperimentConfig) -> None:
    if config.data.val_fraction == 0:
        raise UserError(
            "a search chooses on validation rows, got data.val_fraction=0: set it to e.g. 0.1 (test rows are "
            "for the chosen one)"
        )
    personal = (
        algorithms.find(config.algorithm.name).is_personal(config.algorithm) or config.model.bn == "local"
    )
    if personal:
        raise UserError(
            f"personal models ({config.algorithm.name}, model.bn={config.model.bn}) are not scored on "
            f"validation rows, which a search chooses on: sweep over the values instead"
        )


def _check_metrics(search: SearchConfig, config: ExperimentConfig) -> None:
    names = reported(config)
    headline = next(name for name in names if name in ("global/val_accuracy", "global/val_dice"))
    for metric in search.metric:
        if "test" in metric or metric.startswith("final/"):
            own = metric.replace("test", "val")
            better = own if own in names else headline
            raise UserError(f"'{metric}' is of the test rows, which must not choose: use metric={better}")
        if metric not in names:
            allowed = [name for name in names if "test" not in name]
            raise unknown("metric", metric, allowed, f"of {config.algorithm.name}")
