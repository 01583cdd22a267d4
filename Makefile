# Every command sets up what it needs: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# One thread a process unless a run says otherwise: ranks share the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test check lint types arrows bench dashboards clean

demo: $(READY)  ## the main job under kills, beside its twin without
	$(BIN)/python examples/demo.py

# Many tests start real processes and wait for them, so two run beside each other; a busy machine can miss
# a deadline: what failed is tried once more, alone and in the open, and has to pass then.
test: $(READY)  ## all tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal || $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

check: lint types arrows test  ## what CI runs

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

arrows: $(READY)
	$(BIN)/lint-imports

bench: $(READY)  ## every claim about speed, each beside what it is compared with
	$(BIN)/python -m benchmarks.fold
	$(BIN)/python -m benchmarks.scrape
	$(BIN)/python -m benchmarks.restart
	$(BIN)/python -m benchmarks.noticing
	$(BIN)/python -m benchmarks.simulate
	$(BIN)/python -m benchmarks.storage
	$(BIN)/python -m benchmarks.straggler
	$(BIN)/python -m benchmarks.snapshot
	$(BIN)/python -m benchmarks.memory_growth
	$(BIN)/python -m benchmarks.overhead

dashboards: $(READY)  ## what Grafana loads: built, held against its types and a live Prometheus, drawn
	$(BIN)/python -m dashboards.build
	$(BIN)/python -m dashboards.checks

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv, without a word for a minute or two: torch is large"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
