# CI runs the same targets. `make train` and `make test` need nothing but Python 3.11+, pip and git.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help train test lint bench results keep-results restore-results soak peers peers-torchrl peers-d3rlpy docs release clean
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp an extra: installed again only when what is asked for has changed.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[$*]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

train: $(VENV)/.installed-train  ## install and train ERL on embedded data, about a minute
	$(BIN)/lakepond train erl --preset demo

# What pip cannot bring: a browser and an Azure server. Their tests are skipped, saying so, where it fails.
$(VENV)/.tools: tests/tools.sh
	sh tests/tools.sh
	@mkdir -p $(VENV) && touch $@

test: $(VENV)/.installed-test $(VENV)/.installed-lint $(VENV)/.installed-docs $(VENV)/.tools  ## all that CI runs; ARGS='tests/rows -x' runs a part
	$(MAKE) --no-print-directory lint docs
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)  # a file at a time; three, because many tests wait

lint: $(VENV)/.installed-lint  ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The peers bring torch and much else, so they live in a venv of their own.
.venv-bench/.installed: pyproject.toml benchmarks/constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c benchmarks/constraints.txt torch==2.13.0
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c benchmarks/constraints.txt -e '.[bench]'
	@touch $@

bench: .venv-bench/.installed  ## speed beside other libraries, in a venv of its own
	.venv-bench/bin/python -m benchmarks $(ARGS)

# The long ones. Each resumes where it was stopped; their pages under docs/results name the command and the machine.
# `make keep-results` copies their small result files from runs/ to the folders `runs` in docs/results; those that are there
# are copied back first, and their runs are not repeated. RATES: the learning rates that the tuning gives the five main arms, in the order of MAIN.
GAMES  = --first-seed 100 --hidden 256 128 --games Breakout Freeway SpaceInvaders Asterix
MAIN   = single-epochs single-fresh single-lake mixture mixture-acts
rate   = $(foreach arm,$(2),$(arm)=$(word $(1),$(RATES)))
results: $(VENV)/.installed-test restore-results  ## the long experiments of docs/results; resumable
	$(BIN)/lakepond train erl --preset eigen2 --out runs/eigen2 $(if $(wildcard runs/eigen2/config.json),--resume)
	$(BIN)/python -m benchmarks.market_study --folder runs/market --page docs/results/erl.md
	for rate in 0.00025 0.0005 0.001; do $(BIN)/lakepond compare --folder runs/tuning-$$rate --learning-rate $$rate --games Breakout Freeway \
	  --env-steps 1000000 --first-seed 90 --seeds 1 --hidden 256 128 --arms $(MAIN) || exit; done
ifdef RATES
	$(BIN)/lakepond compare --folder runs/mixture-5m --report docs/results/mixture.md $(GAMES) --env-steps 5000000 --seeds 5 --arms $(MAIN) \
	  --rates $(foreach number,1 2 3 4 5,$(call rate,$(number),$(word $(number),$(MAIN))))
	$(BIN)/lakepond compare --folder runs/mixture-5m --only-report --baseline single-fresh --report runs/mixture-5m/fresh.md
	$(BIN)/lakepond compare --folder runs/mixture-controls $(GAMES) Seaquest --env-steps 1000000 --seeds 3 \
	  --arms $(MAIN) single single-epochs-4 clone-best apart single-resets live \
	  --rates $(foreach number,1 2 3 4 5,$(call rate,$(number),$(word $(number),$(MAIN)))) \
	  $(call rate,1,single single-epochs-4) $(call rate,4,clone-best apart single-resets live)
else
	@echo "Choose the learning rates as docs/results/mixture.md says: make results RATES='0.0005 0.0005 0.0005 0.0005 0.0005'"
endif

keep = mkdir -p docs/results/$(1)/runs && cd runs && find . -regex './$(2)/\(.*/\)?\(result\|settings\)\.json' -exec cp --parents {} ../docs/results/$(1)/runs/ \;
keep-results:  ## copy the results of finished runs of the study and the comparisons to docs/results, to be committed
	$(call keep,erl,market)
	$(call keep,mixture,\(tuning\|mixture\|history\)-[^/]*)

restore-results:  ## copy them back to runs/, except those that are there already
	mkdir -p runs
	for kept in docs/results/*/runs; do tar -c -C $$kept . | tar -x -C runs --skip-old-files || exit; done

# Every fault drill at length, one to two hours; started again it skips what has held. Writes docs/results/faults.md.
soak: $(VENV)/.installed-test $(VENV)/.tools  ## every fault drill at length; ARGS='--only signals' runs a part
	PYTHONPATH=tests $(BIN)/python -m faults $(ARGS)

# The tests of other libraries with lakepond's classes in the place of theirs. Writes docs/results/peers.md.
peers: $(VENV)/.installed-test  ## other libraries' test suites with lakepond's classes
	PYTHONPATH=tests $(BIN)/python -m peers $(ARGS)

# With SOURCE=CHECKOUT, a checkout of TorchRL: its source distribution has no tests. Needs a C++ compiler.
peers-torchrl: $(VENV)/.installed-test  ## the same for TorchRL; SOURCE=CHECKOUT
	PYTHONPATH=tests $(BIN)/python -m peers torchrl torchrl_storages --source $(SOURCE)

# d3rlpy pins an older Gymnasium, so the tests of its adapter have a venv of their own. With SOURCE=CHECKOUT, a
# checkout of d3rlpy 2.8.1 (its source distribution has no tests), its own tests are run as well.
.venv-d3rlpy/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-d3rlpy
	.venv-d3rlpy/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-d3rlpy/bin/python -m pip install --quiet --disable-pip-version-check d3rlpy==2.8.1 pytest -e .
	@touch $@

peers-d3rlpy: .venv-d3rlpy/.installed  ## the same for d3rlpy; SOURCE=CHECKOUT
	.venv-d3rlpy/bin/python -m pytest -q --noconftest -c /dev/null --rootdir . tests/peers/d3rlpy_adapter.py
	$(if $(SOURCE),PYTHONPATH=tests .venv-d3rlpy/bin/python -m peers d3rlpy --source $(SOURCE))

docs: $(VENV)/.installed-docs  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Changelog section, version, wheel and sdist, each tried in a fresh venv; commits, tags and uploads nothing.
release: | $(BIN)/python  ## prepare a release; VERSION=0.2.0
	$(PIP) hatchling
	$(BIN)/python .ci/release.py $(VERSION)

clean:  ## remove everything that was built
	rm -rf $(VENV) .venv-bench .venv-d3rlpy .cache build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
