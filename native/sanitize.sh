#!/bin/sh
# The kernel under sanitizers: its driver under the thread sanitizer, then the parity tests under
# the address and undefined-behaviour sanitizers. Needs GCC, and a .venv that `make` has filled.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python

cmake -S . -B build/thread -DONDES_SANITIZE=thread -DPython_EXECUTABLE="$python" >/dev/null
cmake --build build/thread --target driver -j2 >/dev/null
for isa in $("$python" -c "from ondes.nmf.backends import native
print(*native._kernel().instruction_sets())"); do
    for dtype in float32 float64; do
        for solver in default kullback-leibler; do
            ./build/thread/driver "$isa" "$dtype" "$solver" 4
            echo "thread sanitizer, $isa $dtype $solver: nothing found"
        done
    done
done

# The sanitized package must come before the editable one, whose import hook would win in the venv:
# so the venv's packages are only on the path, of the interpreter that the venv was made from.
site=$PWD/build/sanitized
rm -rf "$site"
"$python" -m pip install --quiet --no-deps --target "$site" . \
    --config-settings=cmake.define.ONDES_SANITIZE=address,undefined \
    --config-settings=build-dir=build/address
packages=$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
base=$("$python" -c "import sys; print(sys.base_prefix + '/bin/python3')")
# The leak test reads resident memory, which a sanitizer keeps for itself.
ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" \
PYTHONPATH="$site:$packages" "$base" -m pytest tests/test_native.py --deselect \
    tests/test_native.py::test_nothing_leaks
