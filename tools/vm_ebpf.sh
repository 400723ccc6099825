#!/bin/bash
# The mode eBPF on the kernels of Debian 12 (6.1) and of its newer series (6.12), each in a virtual machine: what `signpost
# node --probe` finds, and the kernel tests of the mode. Expects both programs built. Usage: tools/vm_ebpf.sh path/to/signpost
set -euo pipefail
cd "$(dirname "$0")/.."
signpost=$(realpath "${1:?usage: tools/vm_ebpf.sh path/to/signpost}")

program=$(cargo test --locked -p signpost-datapath --test kernel --no-run 2>&1 |
    sed -n 's/.*Executable .*(\(.*\)).*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "vm: the kernel tests are not built" >&2; exit 1; }

for kernel in ${VM_KERNELS:-6.1 6.12}; do
    echo "vm: the mode eBPF on Linux $kernel"
    export VMTEST_TIMEOUT=${VMTEST_TIMEOUT:-900}
    tools/vmtest.sh "$kernel" /bin/sh -c '"$1" node --probe --hostname-override vm && "$2" --test-threads 1 ebpf:: sockets::' sh \
        "$signpost" "$(realpath "$program")"
done
