# make run: set up and start everything.  make test: set up and test it.  Needs Python 3.11 or newer and a C locale, no more.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes
UV ?= uv
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-emit-find-links --no-annotate --no-header --generate-hashes
MESSAGES := $(patsubst %.po,%.mo,$(wildcard dashboard/locale/*/LC_MESSAGES/*.po))

.PHONY: help setup run test test-mindspore lint types fix bench agent lock screenshots chromium

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

setup: $(VENV)/.runtime node_modules/.installed $(MESSAGES) ## Make .venv and fetch what the pages need

run: setup ## Start the whole product; PORT and STEPSCOPE_DATA say where
	@exec $(PY) manage.py up

test: setup $(VENV)/.dev chromium ## Run all tests
	@$(PY) -m pytest $(ARGS)

test-mindspore: $(VENV)/bin/python ## Train a tiny GPT on CPU under the callback
	@deploy/test_mindspore.sh

lint: $(VENV)/.dev ## Check style
	@$(PY) -m ruff format --check . && $(PY) -m ruff check .

types: $(VENV)/.dev ## Check types
	@$(PY) -m mypy

fix: $(VENV)/.dev ## Put style right
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

bench: setup $(VENV)/.dev ## Measure speed and memory; ONLY=pages, report, capture, peers, agent or timeline takes one
	@for script in tests/bench/bench_$(or $(ONLY),*).py; do PYTHONPATH=. $(PY) $$script; done

agent: $(VENV)/bin/python ## Build agents/dist/stepscope-agent.pyz
	@$(PY) agents/build.py

lock: ## Pin requirements anew (needs uv; UV=path)
	$(LOCK) requirements.in -o requirements.lock
	$(LOCK) -c requirements.lock requirements-dev.in -o requirements-dev.lock
	$(LOCK) requirements-node.in -o requirements-node.lock

screenshots: setup $(VENV)/.dev chromium ## Take pictures of every page into var/screenshots, and those of the README anew
	@$(PY) -m tests.e2e.screenshots $(ARGS)

chromium:
	@deploy/chromium.sh

$(VENV)/bin/python:
	@deploy/venv.sh $(VENV)

$(VENV)/.runtime: requirements.lock | $(VENV)/bin/python
	@echo "Installing what the server needs"
	@$(PIP) -r requirements.lock
	@touch $@

$(VENV)/.dev: requirements-dev.lock | $(VENV)/.runtime
	@echo "Installing what tests need"
	@$(PIP) -r requirements-dev.lock
	@touch $@

node_modules/.installed: package.json package-lock.json .npmrc | $(VENV)/.runtime
	@deploy/npm_ci.sh $(VENV)
	@touch $@

%.mo: %.po | $(VENV)/.runtime
	@$(PY) -m babel.messages.frontend --quiet compile --input-file $< --output-file $@ --locale $(notdir $(patsubst %/LC_MESSAGES/,%,$(dir $<)))
