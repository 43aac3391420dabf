# Two commands: `make demo` trains ARM on real digits, `make test` checks everything.
# `make results` makes the MNIST tables of docs/results.md, `make tenth` its table of a tenth of CIFAR10, `make validation`
# what settings were chosen by (DATA=folder). From nothing their runs take about two, six and one hours; they skip what has
# been run, and go on where they were stopped.
# `make torture MINUTES=5` kills runs and damages what they saved, as often as it can in that time, and fails if one of
# them ends otherwise than undisturbed.
# `make fuzz MINUTES=5` draws examples for the fuzz tests in that time, other ones every time.
# All of them set up .venv from a lock file with exact versions, and do so again only when the lock file changes.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

MINUTES ?= 5

# The sizes of MNIST's classes less the validation images: the published streams of ARM are cut from all of it.
POOL := 5627 6405 5660 5824 5550 5150 5622 5952 5558 5652

.PHONY: demo test torture fuzz results tenth validation clean

demo: $(VENV)/.installed
	$(BIN)/autorecall run

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

torture: $(VENV)/.installed
	$(BIN)/python scripts/torture.py --minutes $(MINUTES)

fuzz: $(VENV)/.installed-dev
	$(BIN)/python scripts/fuzzing.py --minutes $(MINUTES)

# The four rows that came first were run with all threads, the others with one: that is part of what a run belongs to.
results: $(VENV)/.installed
	@for seed in 0 1 2 3 4; do for row in $$($(BIN)/autorecall list mnist); do \
	  case $$row in */naive|*/stationary|*/lwf|*/arm) threads= ;; *) threads="--threads 1" ;; esac; \
	  $(BIN)/autorecall run $$row --seed $$seed --out results $$threads || exit; done; done
	@for seed in 0 1 2 3 4; do for method in naive lwf adi arm gen gen-mir; do \
	  $(BIN)/autorecall run mnist/$$method --seed $$seed --out results/published-order --threads 1 \
	  --stream.class-pool $(POOL) || exit; done; done
	$(BIN)/autorecall show results --markdown

# Generative replay takes so long on natural images that a fiftieth must do.
tenth: $(VENV)/.installed
	@for row in $$($(BIN)/autorecall list cifar10); do \
	  case $$row in */gen|*/gen-mir) part="0.02 --out results/fiftieth" ;; *) part="0.1 --out results/tenth" ;; esac; \
	  $(BIN)/autorecall run $$row --fraction $$part --threads 1 $(DATA:%=--data %) || exit; done
	$(BIN)/autorecall show results --markdown

validation: $(VENV)/.installed
	@run() { folder=$$1; shift; \
	  $(BIN)/autorecall run "$$@" --split val --out results/validation/$$folder --threads 1 $(DATA:%=--data %); }; set -e; \
	gem() { run gem-$$1-$$2 cifar10/gem --fraction 0.1 --learner.learning-rate $$1 --learner.margin $$2; }; \
	for rate in 0.01 0.03 0.1; do gem $$rate 0; done; for margin in 0.5 1; do gem 0.03 $$margin; done; \
	for rate in 0.03 0.1 0.3; do run icarl-$$rate cifar10/icarl --fraction 0.1 --learner.learning-rate $$rate; done; \
	slda() { run slda-$$2-$$3 $$1/slda --network.width $$2 --learner.shrinkage $$3 --fraction $$4; }; \
	for width in 2 5 10 20 40 80; do slda mnist $$width 0.01 1; done; \
	for shrinkage in 0.0001 0.001 0.03 0.1; do slda mnist 20 $$shrinkage 1; done; \
	for width in 5 10 20 40 80; do slda cifar10 $$width 0.01 0.3; done; \
	for width in 20 50 100; do slda miniimagenet $$width 0.01 1; done
	$(BIN)/autorecall show results/validation --markdown

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "autorecall needs Python 3.11 and found no '$(PYTHON)': install it, or name yours with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "autorecall's lock file is for Python 3.11 but '$(PYTHON)' is another: name one with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv package (python3.11-venv on Debian)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.lock pyproject.toml src/autorecall/recall/_kernels.c | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@
