"""MLflow: where runs are kept, and the one writer that keeps them. The only import of mlflow.

Names, tags and steps are those of the README; a round is logged once, whatever is repeated after a crash.
MLflow knows no diverged runs: they get its status FAILED and the tag ``status`` DIVERGED.
"""

from rayfl.tracking.address import is_server, shown, store_uri
from rayfl.tracking.names import LONGEST_PARAM, git_sha, metric_name, run_params, run_tags, version
from rayfl.tracking.observer import MLflowObserver
from rayfl.tracking.run_log import RunLog
from rayfl.tracking.store import Store, log_in, prepare

__all__ = [
    "LONGEST_PARAM",
    "MLflowObserver",
    "RunLog",
    "Store",
    "git_sha",
    "is_server",
    "log_in",
    "metric_name",
    "prepare",
    "run_params",
    "run_tags",
    "shown",
    "store_uri",
    "version",
]
