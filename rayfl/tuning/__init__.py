"""Ray Tune as the scheduler of sweeps and searches. The only import of ray.tune.

``trial`` is what runs in a trial's process, ``cells`` hands the cells of a sweep to Tune, ``samples`` the
samples of a search as they are drawn, ``population`` the members of one (pbt); ``quiet`` keeps Tune quiet.

Cells keep their own results and checkpoints (see rayfl.runs), so Tune's snapshots of an experiment are not
used: a re-issued sweep or search looks at the folders and runs what is left. The driver alone writes to
MLflow and ends cells; a trial's process trains, checkpoints and sends each round's numbers.
"""

from rayfl.tuning.cells import run_trials
from rayfl.tuning.quiet import kept_signals

__all__ = ["kept_signals", "run_trials"]
