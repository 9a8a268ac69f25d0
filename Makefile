# Every target makes what it needs; all of it lives in .venv and build/.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SOURCES := pyproject.toml CMakeLists.txt $(wildcard native/*)

.PHONY: demo test check bench gate sanitize leaks picture clean

demo: $(INSTALLED)
	$(BIN)/ondes demo --force

test: $(INSTALLED)
	$(BIN)/pytest

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A quarter of an hour on a quiet machine; MUSIC=folder adds real recordings.
bench: $(INSTALLED)
	$(BIN)/python benchmarks/kernels.py $(if $(MUSIC),--music $(MUSIC))
	$(BIN)/python benchmarks/streaming.py
	$(BIN)/python benchmarks/figures.py
	$(if $(MUSIC),$(BIN)/python experiments/why_the_default.py $(MUSIC))

# Instruction counts of the kernel against those kept in benchmarks/gate.json.
gate: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/gate.py

# The kernel under the address, undefined-behaviour and thread sanitizers.
sanitize: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh native/sanitize.sh

# A million calls of the kernel: nothing may be kept.
leaks: $(INSTALLED)
	$(BIN)/python tests/test_native.py

picture: $(INSTALLED)
	$(BIN)/python docs/picture.py

$(INSTALLED): $(SOURCES)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf .venv build
