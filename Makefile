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

# Name and about how many minutes it takes on two cores; all of them, an hour and a half.
BENCHES := fold:1 simulate:1 scrape:2 snapshot:2 storage:3 memory_growth:3 overhead:4 straggler:5 noticing:5 restart:12 goodput:65

bench: $(READY)  ## every claim about speed, each beside what it is compared with
	@failed=; for bench in $(BENCHES); do \
		name=$${bench%%:*}; \
		printf '\n== python -m benchmarks.%s, about %s min\n' "$$name" "$${bench##*:}"; \
		$(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "missed what they claim:$$failed"; exit 1; fi

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
