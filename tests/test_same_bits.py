"""What makes products of matrices the same to the last bit, wherever their operands lie in memory."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("users", "found"), [(None, "AUTO,STRICT"), ("COMPATIBLE", "COMPATIBLE")])
def test_mkl_is_told_before_its_first_product(users: str | None, found: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    if users is not None:
        environment["MKL_CBWR"] = users
    script = "import os, sys, rayfl; print(os.environ['MKL_CBWR'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout == f"{found} False\n", done.stderr
