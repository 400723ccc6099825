#!/bin/bash
# The mode IPVS on the kernels of Debian 12 (6.1) and of its newer series (6.12), in virtual machines: the tests of
# crates/datapath/tests/ipvs on both, and scenarios: a core in both families on 6.12, and once on 6.1 either the core and those
# that are of this mode alone or, with VM_SCENARIOS=all, all of them. Expects all built. scenarios/ipvs.tsv says which are the
# core, and what is left out and why.
#
# Two machines run side by side, each with one CPU. Fails if anything in them fails, with all that they said; that is also
# in target/vm/*.log.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/target/vm
mkdir -p "$folder"
rm -f "$folder"/*.log

tests=$(cargo test --locked --workspace --test ipvs --no-run 2>&1 |
    sed -n 's/.*Executable .*(\(.*\)).*/\1/p' | tail -n 1)
[ -x "$tests" ] || { echo "vm: the test program of the mode IPVS is not built" >&2; exit 1; }
# Read page by page through the machine's file server: without symbols, half as much.
strip -o "$folder/signpost" target/debug/signpost

# Names in the table with this word, as files; FOLDER/* is all of a folder.
named() { awk -F'\t' -v runs="$1" 'NR > 1 && $2 == runs { print "scenarios/" $1 ".yaml" }' scenarios/ipvs.tsv; }
patterns() { named "$1" | sed 's|\*|[^/]*|'; }
core=$(named core)
# Those that say themselves that they are not defined in the mode are passed over.
all=$(find scenarios -name '*.yaml' | sort | grep -vxE -f <(patterns 'left out'; patterns undefined))
# Of the mode alone, without two that take minutes.
own=$(grep -lE '^modes: \[ipvs\]' $all | grep -vE '/(timeout|cleanup)-ipvs')
# With all, the second machine has these after the core.
second=$(grep -E '^scenarios/(doctor|dns|trace)/' <<<"$all")
first=$(grep -vxF -f <(echo "$second") <<<"$all")

# Limits are stretched, since a machine is emulated: its clock counts its own instructions, so that a busy host changes
# nothing, but a second holds less than elsewhere. Two labs: one works while the other waits.
scenarios() { echo "SIGNPOST_SCENARIO_PATIENCE=3 '$folder/signpost' lab test --mode ipvs --labs 2 $*"; }

# machine NAME KERNEL COMMANDS
machine() {
    VMTEST_TIMEOUT=${VMTEST_TIMEOUT:-3600} VMTEST_MEM=${VMTEST_MEM:-3072} VMTEST_SHIFT=${VMTEST_SHIFT:-1} \
        tools/vmtest.sh "$2" bash -ec "$3" 2>&1 | tr -d '\r' | tee "$folder/$1.log" | sed -u "s/^/vm $1: /"
}

left() {
    [ "${VM_SCENARIOS:-core}" = all ] || first="$core
$own"
    machine 6.1-first 6.1 "$tests --test-threads 1; $(scenarios --once $first)"
}
right() {
    local status=0
    machine 6.12-core 6.12 "$tests --test-threads 1; $(scenarios $core)" || status=1
    [ "${VM_SCENARIOS:-core}" = all ] || return $status
    machine 6.1-second 6.1 "$(scenarios --once $second)" || status=1
    return $status
}

# Each in a process group of its own, to be ended as a whole.
set -m
left & one=$!
right & other=$!
set +m
trap 'kill -- -$one -$other 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
status=0
wait $one || status=1
wait $other || status=1
[ $status = 0 ] || echo "vm: failed: see target/vm/*.log" >&2
exit $status
