# make demo: install, then a real sweep with its table.   make test: install, then every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rayfl needs Python 3.11 or newer, '$(PYTHON)' is older: make PYTHON=python3.12 setup" >&2; exit 2; }
	@echo "installing rayfl into $(VENV): some minutes without a word"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "done. Next: . $(VENV)/bin/activate, then: rayfl run splitfed_v1.digits"

demo: setup
	$(BIN)/rayfl sweep tune_configs/demo.yaml

# A file at a time per process in the second part: its tests share servers and clusters.
test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "not ray and not slow" -n 2 --dist worksteal
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "ray or slow" -n 2 --dist loadfile

clean:
	rm -rf $(VENV) rayfl-results
