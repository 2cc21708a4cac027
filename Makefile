# `make demo` and `make test` each set up all they need: python3 (3.11 or later, with venv) is enough.
# The environment lies in .venv; a stamp in it says what is installed, so that a second call installs nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CONFIG := configs/count_down.yaml
RUN    := runs/count_down
BENCHES := $(basename $(notdir $(wildcard tests/bench/[a-z]*.py)))

.PHONY: demo test test-all check format bench clean

demo: $(VENV)/demo.stamp
	$(BIN)/mintjax train $(CONFIG)
	@echo "Reward plot:  $(RUN)/plots/reward.png"
	@echo "Transcripts:  $(RUN)/transcripts/"

test: $(VENV)/develop.stamp
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

test-all: $(VENV)/develop.stamp
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal -m "wide or not wide"

check: $(VENV)/develop.stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python -m tests.layout build/layout
	$(BIN)/pyright --pythonpath $(BIN)/python --warnings
	cd build/layout && $(abspath $(BIN))/lint-imports --no-cache --no-logo $(abspath pyproject.toml)

format: $(VENV)/develop.stamp
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/develop.stamp
	@$(BIN)/mintjax bench --json
	@set -e; for bench in $(BENCHES); do $(BIN)/python -m tests.bench.$$bench; done

clean:
	rm -rf $(VENV) build

$(VENV)/develop.stamp: EXTRAS := [test,parity,compat,check]
$(VENV)/%.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.$(EXTRAS)'
	@touch $@
