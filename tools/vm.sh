#!/bin/bash
# The mode IPVS on the kernels of Debian 12 (6.1) and of its newer series (6.12), each in a virtual machine: the tests of
# crates/datapath/tests/ipvs. Expects them built.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(cargo test --locked -p signpost-datapath --test ipvs --no-run 2>&1 |
    sed -n 's/.*Executable .*(\(.*\)).*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "vm: the test program of the mode IPVS is not built" >&2; exit 1; }

for kernel in ${VM_KERNELS:-6.1 6.12}; do
    echo "vm: the mode IPVS on Linux $kernel"
    VMTEST_TIMEOUT=${VMTEST_TIMEOUT:-900} tools/vmtest.sh "$kernel" "$program" --test-threads 1
done
