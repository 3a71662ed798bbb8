# Two commands do everything: `make demo` and `make test`. Each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATAFLOW := .venv-dataflow
DOCS := .venv-docs
TRACKERS := build/trackers
CONFIG := $(if $(CORPUS),configs/text_folder.toml,configs/demo.toml)
# CORPUS goes through the shell as a variable, and as a TOML literal: names of folders have spaces and quotes.
SETTINGS := $(if $(CORPUS),--set "corpus.sources.0.path='''$$CORPUS'''") $(if $(STEPS),--set pretrain.steps=$(STEPS))

# DeepSpeed must not compile anything while it is installed.
export DS_BUILD_OPS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Compiling every module takes longer than installing it; Python compiles what is imported by itself.
# Debian 12's pip would install what comes as source without a record of its files, which the demo reads.
PIP_OPTIONS := -q --no-compile --use-pep517 -c constraints.txt

# Many tests wait for a program of one thread; those of one file share ports and stay together.
PARALLEL := -n 2 --dist loadfile

.PHONY: help setup setup-dev demo test test-ci test-all test-dataflow test-trackers fuzz schedules cuts check format docs bench clean

help: ## what can be done
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

setup: $(VENV)/.installed ## create .venv and install the pinned packages

setup-dev: $(VENV)/.installed-dev ## the same, and what tests and checks want

demo: $(VENV)/.installed ## the whole job on your Python library's documentation, or CORPUS=folder; STEPS=2000 is short
	$(BIN)/cloze run $(CONFIG) $(SETTINGS)

test: $(VENV)/.installed-dev ## the tests, under 10 minutes on 2 cores
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not gpu"

test-ci: ## all tests that need no GPU but the longest, and the share of lines they reach
test-all: ## those too
test-ci: MARKS := not gpu and not long
test-all: MARKS := not gpu
test-ci test-all: $(VENV)/.installed-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL) -m "$(MARKS)"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

schedules: $(VENV)/.installed-dev ## 200 seeded schedules of starts, kills and continued runs, and 20 of real stages
	CLOZE_SCHEDULES=200 CLOZE_REAL_SCHEDULES=20 $(BIN)/python -m pytest tests/test_schedules.py

cuts: $(VENV)/.installed-dev ## train every cut of a batch over ranks, ZeRO stages and token budgets; CI does a sixth
	CLOZE_ALL_CUTS=1 $(BIN)/python -m pytest -k no_cut_changes_the_losses tests/model/training/test_ranks.py

fuzz: $(VENV)/.installed-dev ## damage what readers read, 20,000 times each; CI does it for a minute
	CLOZE_FUZZ_EXAMPLES=20000 $(BIN)/python -m pytest -q tests/test_fuzz.py

test-dataflow: $(DATAFLOW)/.installed ## translate the graphs for Dataflow, offline, in an environment of its own
	$(DATAFLOW)/bin/python -m pytest -W default tests/pipeline/runner/test_beam.py tests/pipeline/shuffle/test_beam_group_by_key.py -k dataflow

test-trackers: $(TRACKERS)/.installed ## log to the real MLflow and Weights & Biases, which `dev` leaves out
	PYTHONPATH=$(abspath $(TRACKERS)) $(BIN)/python -m pytest tests/model/training/monitoring/test_trackers.py

check: $(VENV)/.installed-dev ## lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## let ruff mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DOCS)/.installed ## the documentation as a site, in build/site; broken pages are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev ## the benchmarks that need no peer's checkout
	$(BIN)/python -m benchmarks

clean: ## remove the environments and caches; runs stay
	rm -rf $(VENV) $(DATAFLOW) $(DOCS) $(TRACKERS) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cloze needs Python 3.11 or newer; make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	# torch first and alone: so pip takes the build this machine offers, and never a second one
	$(BIN)/pip install $(PIP_OPTIONS) torch
	$(BIN)/pip install $(PIP_OPTIONS) -e '.[pipeline,model,flows,demo]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install $(PIP_OPTIONS) -e '.[pipeline,model,flows,demo,dev]'
	touch $@

# Beam imports Google's packages wherever they are, so everything else stays free of them.
$(DATAFLOW)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DATAFLOW)
	$(DATAFLOW)/bin/pip install $(PIP_OPTIONS) -e '.[pipeline,dataflow]' hypothesis psutil pytest
	touch $@

# Beside .venv, not in it: DeepSpeed imports MLflow wherever it finds it.
$(TRACKERS)/.installed: $(VENV)/.installed-dev
	$(BIN)/pip install $(PIP_OPTIONS) --target $(TRACKERS) --upgrade mlflow-skinny sqlalchemy wandb
	touch $@

# Reads the code as syntax, so it needs none of what the code needs.
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install $(PIP_OPTIONS) -e '.[docs]'
	touch $@
