#!/usr/bin/env bash
# Prints JSON lines: how long 10,000 Services with 100,000 endpoints take to load and what they take in memory; how long after the
# API's event a name follows a pod's readiness in a lab (as root); and the answers of BIND 9, Unbound and Signpost for the same
# names, one after the other, each on one core, the load generator on
# another. The servers' packages are unpacked into .tools/, not installed: no service of theirs is ever started or enabled.
# Usage: tools/bench_dns.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-10}
services=10000
port=15353
rate=10000

fail() { echo "bench: $1" >&2; exit 1; }

tools=$PWD/.tools/dns-bench
if [ ! -x "$tools/usr/bin/dnsperf" ]; then
    command -v apt-get >/dev/null || fail "no apt-get: dnsperf, bind9 and unbound come from Debian packages"
    rm -rf "$tools" && mkdir -p "$tools/packages"
    # What apt would install, with all that they need and is not there.
    mapfile -t packages < <(apt-get install -s --no-install-recommends dnsperf bind9 unbound | awk '$1 == "Inst" { print $2 }')
    [ ${#packages[@]} -gt 0 ] || packages=(dnsperf bind9 unbound)
    (cd "$tools/packages" && apt-get download -qq "${packages[@]}" >/dev/null) || fail "cannot download ${packages[*]}"
    for package in "$tools"/packages/*.deb; do dpkg-deb -x "$package" "$tools"; done
fi
libraries=$(find "$tools/usr/lib" -maxdepth 1 -type d | paste -sd:)

work=$(mktemp -d)
server=
cleanup() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; fi
    rm -rf "$work"
}
trap cleanup EXIT

cargo build --quiet --locked --release -p signpost-dns --example dns_speed
target/release/examples/dns_speed
cargo build --quiet --locked --release --bin signpost
cargo run --quiet --locked --release -p signpost-lab --example names_speed -- target/release/signpost

# Every fifth Service is headless there; the others have an address.
seq 0 $((services - 1)) | awk '$1 % 5 { print "svc-" $1 ".default.svc.cluster.local A" }' | shuf --random-source=<(yes) >"$work/questions"
{
    printf '$TTL 5\n@ IN SOA ns.dns hostmaster 1 7200 1800 86400 5\n@ IN NS ns.dns\nns.dns IN A 10.96.0.10\n'
    awk '{ split($1, l, "."); sub("svc-", "", l[1]); n = l[1]; printf "svc-%d.default.svc IN A 10.%d.%d.%d\n", n, n / 65536, n / 256 % 256, n % 256 }' "$work/questions"
} >"$work/zone"
cat >"$work/named.conf" <<CONF
options { directory "$work"; listen-on port $port { 127.0.0.1; }; listen-on-v6 { none; }; pid-file none; recursion no; dnssec-validation no; minimal-responses yes; };
controls { };
zone "cluster.local" { type primary; file "$work/zone"; };
CONF
{
    printf 'server:\n  num-threads: 1\n  interface: 127.0.0.1@%s\n  do-daemonize: no\n  username: ""\n  chroot: ""\n  directory: "%s"\n  pidfile: ""\n  use-syslog: no\n  do-not-query-localhost: yes\n  access-control: 127.0.0.0/8 allow\n  so-reuseport: yes\n  minimal-responses: yes\n  module-config: "iterator"\n  local-zone: "cluster.local." static\n' "$port" "$work"
    awk '{ split($1, l, "."); sub("svc-", "", l[1]); n = l[1]; printf "  local-data: \"%s. 5 IN A 10.%d.%d.%d\"\n", $1, n / 65536, n / 256 % 256, n % 256 }' "$work/questions"
    printf 'remote-control:\n  control-enable: no\n'
} >"$work/unbound.conf"

cpu_s() { awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hz }' "/proc/$1/stat"; }

generate() { LD_LIBRARY_PATH=$libraries taskset -c 0 "$tools/usr/bin/dnsperf" -s 127.0.0.1 -p "$port" -d "$work/questions" -T 1 "$@" 2>&1; }

percentile() { awk -v p="$1" '{ line[NR] = $1 } END { print line[int((NR - 1) * p / 100) + 1] }' "$work/latencies"; }

# name, then the server's command
measure() {
    local name=$1 question before after report sent
    shift
    taskset -c 1 "$@" >"$work/$name.log" 2>&1 &
    server=$!
    question=$(head -n 1 "$work/questions" | cut -d' ' -f1)
    for _ in $(seq 200); do
        dig +short +tries=1 +time=1 @127.0.0.1 -p "$port" "$question" 2>/dev/null | grep -q '^10\.' && break
        kill -0 "$server" 2>/dev/null || { tail -n 5 "$work/$name.log" >&2; fail "$name ended"; }
        sleep 0.1
    done
    before=$(cpu_s "$server")
    report=$(generate -l "$seconds" -c 32 -q 200) || { echo "$report" >&2; fail "dnsperf failed against $name"; }
    after=$(cpu_s "$server")
    # The latency at a load that all of them carry: the time of each answer is told.
    generate -l 5 -c 32 -Q "$rate" -v | awk '/^> NOERROR/ { print $NF * 1000 }' | sort -n >"$work/latencies"
    kill "$server" && wait "$server" 2>/dev/null || true
    server=
    awk -v name="$name" -v cpu_s="$(awk -v a="$after" -v b="$before" 'BEGIN { print a - b }')" -v rate="$rate" \
        -v p50="$(percentile 50)" -v p99="$(percentile 99)" '
        /Queries completed/ { done = $3 } /Queries lost/ { lost = $3 } /Queries per second/ { qps = $4 } /Response codes/ { codes = $3 " " $4 }
        END {
            printf "{\"bench\":\"dns_answers\",\"server\":\"%s\",\"qps\":%d,\"qps_per_core_s\":%d,\"lost\":%d,\"codes\":\"%s\",", name, qps, done / cpu_s, lost, codes
            printf "\"at_qps\":%d,\"p50_ms\":%.3f,\"p99_ms\":%.3f}\n", rate, p50, p99
        }' <<<"$report"
}

measure bind9 env LD_LIBRARY_PATH="$libraries" "$tools/usr/sbin/named" -n 1 -f -c "$work/named.conf"
measure unbound env LD_LIBRARY_PATH="$libraries" "$tools/usr/sbin/unbound" -d -c "$work/unbound.conf"
measure signpost target/release/examples/dns_speed serve "127.0.0.1:$port" "$services"
