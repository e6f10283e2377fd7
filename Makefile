# Every target needs only python3 (3.11 or newer) and make; the rest is installed here, pinned by uv.lock.
# Another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
# A shim of pyenv answers only for the version that is selected: look where pyenv keeps the interpreters, too.
INTERPRETER := $(shell $(PYTHON) -c 'import sys; print(sys.executable)' 2>/dev/null || ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/*/bin/$(PYTHON) 2>/dev/null | tail -n 1)
UV_VERSION := 0.13.8
# The tool that installs lives beside what it installs, so that nothing outside this folder changes.
TOOLS := .venv-uv
UV := $(TOOLS)/bin/uv
VERSION := $(if $(INTERPRETER),$(shell $(INTERPRETER) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
VENV := $(if $(filter 3.11,$(VERSION)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
export UV_PROJECT_ENVIRONMENT := $(VENV)
unexport VIRTUAL_ENV
# Tests start hundreds of processes: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Tests run the newest kubectl that the registries have; see tools/kubectl.py.
TEST_ARGS ?= -n 2
E2E_TESTS ?= tests/e2e

.DEFAULT_GOAL := help
.PHONY: help ready demo up test programs e2e chaos contract lint manifests image sbom audit bench peers fresh clean

help: ## Show this list
	@grep -hE '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 10

$(UV):
	@$(INTERPRETER) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpuslice needs Python 3.11 or newer; choose one with PYTHON=..." >&2; exit 1; }
	@$(INTERPRETER) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.ready: $(UV) pyproject.toml uv.lock
	@test -n "$(INTERPRETER)" || { echo "there is no $(PYTHON) here; choose another with PYTHON=..." >&2; exit 1; }
	@$(UV) sync --quiet --frozen --no-python-downloads --python $(INTERPRETER)
	@touch $@

ready: $(VENV)/.ready ## Install what the others need

demo: $(VENV)/.ready ## Start a cluster in one process, share its GPUs, check what happened, end
	@$(BIN)/python -m gpuslice.cli.demo

up: $(VENV)/.ready ## Start a cluster and keep it up for kubectl (Ctrl-C ends it)
	@$(BIN)/gpuslice up --cluster examples/clusters/laptop.yaml

test: $(VENV)/.ready ## Run the tests
	@KUBECTL="$$($(TOOLS)/bin/python tools/kubectl.py)" HELM="$$($(TOOLS)/bin/python tools/helm.py)" \
		$(BIN)/pytest $(TEST_ARGS)

programs: $(VENV)/.ready ## Build the programs of a real Kubernetes, once (root: Debian's parts are installed)
	@$(BIN)/python -m tests.e2e.components >/dev/null

e2e: programs ## Run the tests against a real Kubernetes on this machine (root; the first run builds it)
	@KUBECTL="$$($(TOOLS)/bin/python tools/kubectl.py)" HELM="$$($(TOOLS)/bin/python tools/helm.py)" \
		$(BIN)/pytest $(E2E_TESTS)

chaos: programs ## Hurt a real Kubernetes for an hour and watch what its pods get (root); SEED=... repeats one
	@CHAOS_PODS=$${CHAOS_PODS:-500} CHAOS_ACCIDENTS=$${CHAOS_ACCIDENTS:-100} SEED=$(SEED) \
		$(BIN)/pytest tests/e2e/test_chaos.py -s

contract: programs ## Run the contract of the embedded cluster against a real Kubernetes (root)
	@KUBECTL="$$($(TOOLS)/bin/python tools/kubectl.py)" $(BIN)/pytest tests/contract --real --timeout=1800

lint: $(VENV)/.ready ## Check format, style, layers and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy tests/e2e

manifests: $(VENV)/.ready ## Write deploy/manifests anew from the chart
	@$(BIN)/python tools/manifests.py

image: $(VENV)/.ready ## Build the container image as an archive, without an engine: dist/gpuslice.tar
	@$(TOOLS)/bin/python tools/image.py

sbom: $(UV) ## Write what the image is made of, as CycloneDX: dist/gpuslice.cdx.json
	@$(TOOLS)/bin/python tools/sbom.py

audit: $(UV) ## Ask PyPI for known vulnerabilities of what uv.lock names
	@$(TOOLS)/bin/python tools/audit.py

bench: $(VENV)/.ready ## Run the benchmarks by hand; results go to bench/results/
	@for file in bench/bench_*.py; do $(BIN)/python $$file || exit 1; done

peers: $(VENV)/.ready ## Run NVIDIA's own tools beside ours and compare (root, git, Go; the first run builds them)
	@$(BIN)/python bench/peers

fresh: ## Run every install step on an empty Debian, without what is here already (root, debootstrap, Go)
	@$(INTERPRETER) tools/fresh.py

clean: ## Remove everything that make has installed
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
