# Every target makes what it needs; all of it lives in .venv and build/.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
SOURCES := pyproject.toml CMakeLists.txt $(wildcard native/*)

AUDIO ?= audio
QUICK ?=
PEERS := .venv/.peers
PLAYED := tests/test_studio_browser.py
SECONDS ?= 60
OLDEST := build/oldest
OLDEST_TESTS := audio batches channels checkpoint destinations estimator hostile_names learn_command \
	model_file report resume_arguments segment_reader stft
HOURS ?= 10
DOCS := .venv/.docs
PACKAGING := build/packaging/.installed
RECORDINGS ?= $(AUDIO)

# Of a copied clone, the programs in .venv belong to the original: only its python is our own.
ifneq ($(filter-out $(CURDIR),$(shell cat $(INSTALLED) 2>/dev/null)),)
.PHONY: $(INSTALLED)
endif

.PHONY: help shelf demo test oldest check bench gate sanitize races leaks peers paper race figures cluster fuzz \
	kills soak docs wheels sdist-and-pure dictionaries clean

# The commands, each with the first line of its comment.
help:
	@awk '/^# /{ if (!c) c = substr($$0, 3); next } /^[a-z-]+:/{ n = $$1; sub(":", "", n); if (c) printf "  %-14s %s\n", n, c } { c = "" }' Makefile

# Learn four instruments from one tune, separate another, write a report.
demo: $(INSTALLED)
	$(BIN)/python -m ondes demo --force

# All tests: two at a time, and alone those that measure what a browser plays.
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --ignore=$(PLAYED)
	$(BIN)/python -m pytest $(PLAYED)

# The lowest versions that pyproject.toml allows; .venv has the newest.
oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -p no:cacheprovider -W ignore::DeprecationWarning $(OLDEST_TESTS:%=tests/test_%.py)
	$(OLDEST)/bin/python -m pytest -p no:cacheprovider -W ignore::DeprecationWarning tests/test_cluster.py -k "keys or every_socket"

# Linters, types and the import contract.
check: $(INSTALLED)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -c "from importlinter.cli import lint_imports_command as run; run()"

# An hour on a quiet machine; MUSIC=folder adds real recordings.
bench: $(INSTALLED)
	$(BIN)/python benchmarks/kernels.py $(if $(MUSIC),--music $(MUSIC))
	$(BIN)/python benchmarks/growth.py $(if $(MUSIC),--music $(MUSIC))
	$(BIN)/python benchmarks/result_pages.py
	$(if $(MUSIC),$(BIN)/python experiments/why_the_default.py --audio $(MUSIC))

# Real recordings for `paper` and `race`, from Debian's packages; not installed, not kept.
audio:
	sh experiments/fetch_audio.sh audio

# What the race, the fused kernel's tests and the scores of separation need beside.
peers: $(PEERS)

# The paper's figures on real music, and their page; AUDIO= of your own, QUICK=--quick in minutes.
paper: $(INSTALLED) | $(AUDIO)
	$(BIN)/python experiments/small.py --audio $(AUDIO) $(QUICK)
	$(BIN)/python experiments/medium.py --audio $(AUDIO) $(QUICK)
	$(BIN)/python experiments/large.py --audio $(AUDIO) $(QUICK)
	$(BIN)/python benchmarks/result_pages.py $(QUICK)

# Against what users have today, and separation. On a quiet machine.
race: $(PEERS) | $(AUDIO)
	$(BIN)/python benchmarks/race.py --audio $(AUDIO) $(QUICK)
	$(BIN)/python benchmarks/separation.py --audio $(AUDIO) $(QUICK)
	$(BIN)/python benchmarks/result_pages.py $(QUICK)

# Write the pages from the kept results, and say which are older than the code.
figures: $(INSTALLED)
	$(BIN)/python benchmarks/result_pages.py
	$(BIN)/python benchmarks/kept.py

# What a cluster on this machine costs and saves.
cluster: $(INSTALLED)
	$(BIN)/python benchmarks/cluster.py
	$(BIN)/python benchmarks/result_pages.py

# Damaged files, answers of servers and random settings, for SECONDS; then commands on damaged files.
fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS)
	$(BIN)/python tests/fuzz/commands.py --seconds $(SECONDS)

# Broken off at fifty random moments, a run ends with the bytes of the unbroken one.
kills: $(INSTALLED)
	$(BIN)/python tests/test_faults.py --kills 50

# So many HOURS of a stream, with separation beside it: memory stays flat.
soak: $(INSTALLED)
	$(BIN)/python tests/soak.py --hours $(HOURS)

# Instruction counts of the kernel against those kept in benchmarks/gate.json.
gate: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python benchmarks/gate.py

# The kernel under the address, undefined-behaviour and thread sanitizers.
sanitize: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh native/sanitize.sh

# Threads of the kernel under the thread sanitizer, on one instruction set.
races:
	sh tests/races.sh

# A million calls of the kernel: nothing may be kept.
leaks: $(INSTALLED)
	$(BIN)/python tests/test_native.py

# The documentation site, in build/docs/html; warnings are errors.
docs: $(DOCS)
	sh docs/build.sh $(BIN)/python

# The source distribution and all wheels, in dist/, each installed and tested.
wheels: $(PACKAGING)
	build/packaging/bin/python packaging/wheels.py

# The source distribution and the wheel without the kernel, for the public workflow.
sdist-and-pure: $(PACKAGING)
	build/packaging/bin/python packaging/wheels.py --only pure --no-tests

# The separators that come with ondes, on a GPU machine with the pools of packaging/shelf/recordings.py.
shelf:
	packaging/shelf/run.sh

# Dictionaries from freely licensed recordings, in build/dictionaries.
dictionaries: $(INSTALLED)
	$(BIN)/python packaging/dictionaries.py --recordings $(RECORDINGS)

$(INSTALLED): $(SOURCES)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	echo "$(CURDIR)" > $@

$(OLDEST)/.installed: $(SOURCES) tests/lowest.py
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python tests/lowest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt pytest hypothesis \
		--editable '.[formats,report,dask]'
	touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group peers
	npm install --silent --no-save --prefix build/axe axe-core
	touch $@

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

$(PACKAGING):
	$(PYTHON) -m venv build/packaging
	build/packaging/bin/python -m pip install --quiet --upgrade pip
	build/packaging/bin/python -m pip install --quiet --group packages
	touch $@

# Remove what the others have made.
clean:
	rm -rf .venv build
