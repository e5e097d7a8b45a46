# Catchment. Everything is installed into .venv from the locked requirements; nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_DATA ?= demo-data

.DEFAULT_GOAL := help
.PHONY: help install demo demo-network test check lint format run bench conformance reference docs lock clean

help: ## Show this list
	@echo "make TARGET, where TARGET is one of:"
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

install: $(VENV)/.installed ## Install everything into .venv (a Java for Spark too, where there is none)

$(VENV)/.installed: pyproject.toml requirements/build.lock requirements/all.lock requirements/java.lock scripts/install
	@PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/install
	@touch $@

demo: install ## Run a node, publish signed messages with known trouble, and let Spark find it
	@$(BIN)/python examples/demo.py --data $(DEMO_DATA)

demo-network: install ## Run a tracker, two brokers and a storage node, kill one midway, and see that nothing is lost
	@$(BIN)/python examples/demo_network.py --data $(DEMO_DATA)

run: install ## Run a node that stays up (Ctrl-C ends it)
	@$(BIN)/catchment serve

lint: install ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: lint ## The inner loop, under two minutes: lint, types, and every test that is not marked spark, crash or slow
	@$(BIN)/python scripts/reference.py --check
	@$(BIN)/pytest -q -n auto --dist worksteal -m "not spark and not crash and not slow" --hypothesis-profile=quick

test: lint ## Everything, as CI does: all tests, with Spark, kills, real clients and the docs site
	@$(BIN)/pytest

format: install ## Put the code in its usual form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: install ## Measure this node beside other servers: ten minutes, needs a C compiler (ARGS="--quick" for a look)
	@$(BIN)/python bench/run.py $(ARGS)

reference: install ## Write the made parts of docs/settings.md, commands.md, metrics.md and tables.md anew
	@$(BIN)/python scripts/reference.py

docs: install ## Build the documentation site into site/; what is undocumented or broken fails
	@$(BIN)/python scripts/reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html"

conformance: install ## Run the published Streamr clients against a node and write the table of it (needs node and npm)
	@$(BIN)/pytest tests/conformance --write-table --deselect tests/conformance/test_table.py
	@$(BIN)/pytest -q tests/conformance/test_table.py

lock: install ## Choose dependency versions anew (needs uv)
	@scripts/lock

clean: ## Remove what was installed and made here
	rm -rf $(VENV) .java conformance/streamr/node_modules build dist site bench/build bench/results $(DEMO_DATA) .mypy_cache .ruff_cache .pytest_cache .hypothesis
