#!/usr/bin/env bash
# Prints one JSON object per line: the plan, the kernel's rules, whole labs, the scenarios. Usage: tools/bench.sh path/to/signpost
set -euo pipefail
cd "$(dirname "$0")/.."
signpost=$(realpath "${1:?usage: tools/bench.sh path/to/signpost (a release build)}")

cargo run --quiet --locked --release -p signpost-core --example plan_speed
cargo bench --quiet --locked -p signpost-datapath --bench modes | grep '^{'
cargo run --quiet --locked --release -p signpost-diagnose --example doctor_speed -- 5000 10
cargo bench --quiet --locked -p signpost-datapath --bench connect | grep '^{'
cargo run --quiet --locked --release -p signpost-lab --example lab_speed -- "$signpost"
cargo run --quiet --locked --release -p signpost-lab --example lb_speed -- "$signpost"

tools/bench_dns.sh

started=$(date +%s%N)
report=$("$signpost" lab test scenarios)
ended=$(date +%s%N)
closing=$(tail -n 1 <<<"$report")
count=$(awk '{ print $1 }' <<<"$closing")
awk -v ns=$((ended - started)) -v count="$count" -v closing="$closing" \
    'BEGIN { printf "{\"bench\":\"scenarios\",\"result\":\"%s\",\"total_s\":%.1f,\"each_s\":%.2f}\n", closing, ns / 1e9, ns / 1e9 / count }'
