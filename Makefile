# Every target makes what it needs; all of it lives in .venv and build/.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SOURCES := pyproject.toml CMakeLists.txt $(wildcard native/*)

.PHONY: demo test check bench clean

demo: $(INSTALLED)
	$(BIN)/ondes demo --force

test: $(INSTALLED)
	$(BIN)/pytest

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python benchmarks/kernels.py

$(INSTALLED): $(SOURCES)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf .venv build
