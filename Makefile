# Two commands: `make demo` trains ARM on real digits, `make test` checks everything.
# `make results` makes the MNIST tables of docs/results.md, `make tenth` those for a tenth of CIFAR10, and `make validation`
# the runs by which settings were chosen (DATA=folder). All three make only what is missing, and resume if they were stopped.
# `make torture MINUTES=5` keeps killing runs and damaging what they saved for that long, and fails if one of them ends
# differently from an undisturbed run.
# `make docs` builds the documentation site in its own environment, without torch: site/index.html opens from disk.
# `make test-package` builds sdist and wheel, installs the wheel elsewhere and tries it, in a minute.
# `make test-onnx` also installs what `autorecall export` needs, and tests what it writes.
# `make test-ray` also installs Ray, and tests a cluster of two nodes on this machine, in three minutes.
# `make test-report` tests the page of `autorecall report`, also in a browser if there is one (apt-get install chromium).
# `make test-tensorboard`, `make test-examples` and `make test-avalanche` test what needs TensorBoard, Lightning and timm, and
# Avalanche, respectively; the last one uses its own environment, .venv-avalanche.
# `make fuzz MINUTES=5` draws new examples for the fuzz tests for that long, different ones every time.
# All of them set up their environment (.venv but for two) from lock files with exact versions, and do so again only when
# those, pyproject.toml or the C sources change.

SUITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
  if $$name -c '$(SUITS)' 2>/dev/null; then echo $$name; break; fi; done)
# One that was named has an environment of its own.
VENV := .venv$(if $(filter command,$(firstword $(origin PYTHON))),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin

MINUTES ?= 5

# Tests start many processes, which would compile the package each time, and pytest would rewrite every assertion again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test docs test-package test-onnx test-ray test-report test-tensorboard test-examples test-avalanche torture \
  fuzz results tenth validation clean

demo: $(VENV)/.installed
	$(BIN)/autorecall run

# Tests of several threads run beside other tests, so that threads had better not wait for long: see commands/process.py.
test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	GOMP_SPINCOUNT=10000 $(BIN)/pytest -n auto --dist worksteal

docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

test-package: $(VENV)/.installed-dev
	$(BIN)/python scripts/try_package.py

test-onnx: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.31.1
	$(BIN)/pytest tests/commands/test_export.py

test-ray: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check ray==2.60.0
	$(BIN)/pytest tests/integrations/test_ray.py

test-report: $(VENV)/.installed-dev
	$(BIN)/pytest -rs tests/commands/report

test-tensorboard: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check tensorboard==2.21.0
	$(BIN)/pytest tests/integrations/test_tensorboard.py

test-examples: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check lightning==2.6.6 timm==1.0.31
	$(BIN)/pytest tests/test_examples.py

# The torchvision of package registries is for CUDA; without its dependencies it leaves a torch for the CPU alone.
test-avalanche: .venv-avalanche/.installed
	.venv-avalanche/bin/pytest tests/integrations/test_avalanche.py

torture: $(VENV)/.installed
	$(BIN)/python scripts/torture.py --minutes $(MINUTES)

fuzz: $(VENV)/.installed-dev
	$(BIN)/python scripts/fuzzing.py --minutes $(MINUTES)

results: $(VENV)/.installed
	$(BIN)/autorecall reproduce mnist order --jobs 2

tenth: $(VENV)/.installed
	$(BIN)/autorecall reproduce cifar10 distillation ablation --fraction 0.1 --seeds 3 --jobs 2 $(DATA:%=--data %)

validation: $(VENV)/.installed
	$(BIN)/autorecall reproduce choices --jobs 2 $(DATA:%=--data %)

clean:
	rm -rf $(VENV) .venv-avalanche .venv-docs site

$(BIN)/python .venv-docs/bin/python:
	@test -n "$(PYTHON)" || { \
	  echo "autorecall needs Python 3.11, 3.12 or 3.13 and found none: install one, or name yours with make PYTHON=..."; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "there is no '$(PYTHON)': name another with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c '$(SUITS)' || { \
	  echo "autorecall's lock files are for Python 3.11 to 3.13 but '$(PYTHON)' is another: name one with make PYTHON=..."; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "'$(PYTHON)' cannot make virtual environments: install its venv package (python3.11-venv on Debian)"; exit 1; }
	$(PYTHON) -m venv $(@:%/bin/python=%)

$(VENV)/.installed: requirements.lock pyproject.toml src/autorecall/recall/_kernels.c src/autorecall/recall/_winograd.c | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv-avalanche/.installed: requirements-avalanche.lock requirements.lock pyproject.toml | $(BIN)/python
	$(PYTHON) -m venv .venv-avalanche
	.venv-avalanche/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -r requirements.lock
	.venv-avalanche/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --no-deps -r requirements-avalanche.lock
	.venv-avalanche/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

.venv-docs/.installed: requirements-docs.lock | .venv-docs/bin/python
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	@touch $@
