#!/bin/sh
# The kernel's driver under the thread sanitizer, for one instruction set: half a minute. All of them
# are in native/sanitize.sh. Needs GCC.
set -eu
cd "$(dirname "$0")/.."
isa=baseline
flags=
if [ "$(uname -m)" = x86_64 ]; then
    isa=v3
    flags="-march=x86-64-$isa"
    for other in v2 v4; do  # the driver names all of them
        flags="$flags -Wl,--defsym=_ZN5ondes2${other}7kernelsE=_ZN5ondes2${isa}7kernelsE"
    done
fi
mkdir -p build
g++ -std=c++17 -O1 -g1 -fsanitize=thread -ffp-contract=fast -fno-math-errno -fno-trapping-math \
    -Wno-psabi -Wno-ignored-attributes -DONDES_ISA=$isa $flags \
    native/kernel.cpp native/driver.cpp -pthread -o build/races
for solver in default kullback-leibler; do
    build/races $isa float32 $solver 4
done
