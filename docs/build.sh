#!/bin/sh
# Build the site into build/docs/html, from a copy, build/docs/docs: what Sphinx writes stays there.
#   docs/build.sh PYTHON
set -eu
cd "$(dirname "$0")/.."
source=build/docs/docs
mkdir -p "$source"
# Everything but what an earlier build has written, which spares running the gallery again.
find "$source" -mindepth 1 -maxdepth 1 ! -name examples ! -name reference -exec rm -rf {} +
cp -R docs/. "$source"
cp README.md CONTRIBUTING.md CHANGELOG.md build/docs
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=Agg \
    "$1" -m sphinx -W --keep-going -q -b html -d build/docs/doctrees "$source" build/docs/html
"$1" docs/check_links.py build/docs/html
