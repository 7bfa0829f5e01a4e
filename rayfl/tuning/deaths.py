"""Why a trial broke, as far as Tune knows."""

import re
from typing import Any

_ALIKE = "connection error code 2"
"""All that Ray says of a process that was killed, that crashed, or that the kernel ended for its memory."""


def reason(trial: Any) -> str:
    """What happened last to a trial of Tune's, in a few words."""
    text = str(trial.get_error() or "").rpartition("Failure # ")[2]
    lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
    if not lines or _ALIKE in text:
        return "its process died (killed, crashed, or out of memory)"
    if "running low on memory" in text:
        return "its process died (ended by Ray, for want of memory on its machine)"
    if "node has died" in text:
        return "its node died"
    detail = re.search(r"Worker exit detail: (.*)", text)
    if detail:
        return f"its process died ({detail[1].strip()[:200]})"
    return f"it broke ({lines[-1][:200]})"
