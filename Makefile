# make lab   : set up .venv, open JupyterLab on the explore notebook   (make lab OPEN=no prints the address)
# make test  : set up .venv, run every check and test
# make bench : speed ratios      make figures : remake figures/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPEN ?= yes
STAMP := $(VENV)/.installed

.PHONY: lab test bench figures clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# //p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) from constraints.txt (2 GB, some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,triton]'
	@touch $@

lab: $(STAMP)
	@echo "opening JupyterLab on notebooks/01_explore.ipynb (loopback, token on; Ctrl-C stops it)"
	@$(BIN)/workbench lab $(if $(filter no,$(OPEN)),--no-open)

test: $(STAMP)
	@echo "checking style and types, then running every test"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest

bench: $(STAMP)
	@$(BIN)/python bench/simulate.py

figures: $(STAMP)
	@$(BIN)/workbench figures

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
