# Two commands: `make run` shows the library at work, `make test` checks it. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin
# What `make run` needs; and all that checks need.
LIGHT := .venv/.light
INSTALLED := .venv/.installed
# Compiling what is never imported would take longer than installing it.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

# What one process has compiled the next one reads, whatever the environment says: a test starts many.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test bench check bits docs dist faults clean

run: $(LIGHT)
	$(BIN)/ipal run --dataset digits --html

# What compares bits is run once more in new processes with MKL's plainest kernels, which other processors get: what is
# bit-equal by construction is bit-equal there too.
BITS := tests/engine/test_bits.py tests/estimator/test_estimator.py tests/runs/test_resume.py
BITS += tests/closed_form/test_ridge.py tests/closed_form/test_sums.py
# Of these files, tests of bits that need no further process.
BITS += -k "(bits or ridge or sums or saved or mask or changes_nothing) and not (killed or machine or any_process)"

# The checks take one core: tests that compare bits take the other meanwhile.
test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 check bits
	$(BIN)/pytest

bits: $(INSTALLED)
	MKL_CBWR=COMPATIBLE $(BIN)/pytest $(BITS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Kills, full disks, damaged files, hostile requests: minutes to an hour. See docs/faults.md.
SEED ?= 0
faults: $(INSTALLED)
	$(BIN)/python -m faults $(PARTS) --seed $(SEED) $(if $(COUNT),--count $(COUNT)) $(if $(JOBS),--jobs $(JOBS))

# Minutes: all benchmarks, as one table. `make bench ARGS="-o here.json"`; see benchmarks/README.md.
bench: $(INSTALLED)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python benchmarks/bench.py $(ARGS)

docs: $(INSTALLED)
	$(BIN)/python scripts/equations.py > docs/equations.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html in a browser."

# Wheel and sdist in dist/, checked: their metadata, their files, and the first command in a fresh environment.
dist: $(LIGHT)
	$(INSTALL) -e '.[dist]'
	rm -rf dist
	$(BIN)/python -m build .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python scripts/check_dist.py dist

# The stamps are written last, so that an installation cut short is done again. A build of torch that is in .venv stays.
$(LIGHT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ipal needs Python 3.11 or later: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[html]'
	@touch $@

$(INSTALLED): $(LIGHT)
	$(INSTALL) -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
