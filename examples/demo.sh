#!/usr/bin/env bash
# The experiment: a Service address that is on no interface answers curl. Usage: examples/demo.sh path/to/signpost
# Every command is shown before it runs, and what it prints is what it printed. Leaves the lab `demo` up.
set -euo pipefail
signpost=$(realpath "${1:?usage: demo.sh path/to/signpost}")
started=$SECONDS

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' dim=$'\e[2m' plain=$'\e[0m'; else bold='' dim='' plain=''; fi
step=0
say() { step=$((step + 1)); printf '\n%s%d. %s%s\n' "$bold" "$step" "$1" "$plain"; }
tell() { printf '%s   %s%s\n' "$dim" "$1" "$plain"; }
show() { printf '   $ %s\n' "$1"; }
# run TEXT COMMAND...: shows TEXT, runs the command, indents what it prints; its status is the command's.
run() {
    show "$1"
    shift
    "$@" 2>&1 | sed 's/^/   /'
}
in_place() { local place=$1; shift; "$signpost" lab exec --name demo "$place" -- "$@"; }
in_pod() { local pod=$1; shift; in_place "pod/$pod" "$@"; }
on_node() { local node=$1; shift; in_place "node/$node" "$@"; }
fail() { echo "demo: $1" >&2; exit 1; }

say "A cluster of two nodes, out of network namespaces"
if "$signpost" lab kubeconfig --name demo >/dev/null 2>&1; then
    tell "The lab \`demo\` of an earlier run is still up: ending it."
    run "signpost lab down --name demo" "$signpost" lab down --name demo
fi
run "signpost lab up --name demo --nodes 2 --mode nftables" "$signpost" lab up --name demo --nodes 2 --mode nftables
KUBECONFIG=$("$signpost" lab kubeconfig --name demo)
export KUBECONFIG
run "kubectl get nodes -o wide" kubectl get nodes -o wide

say "A Service and its pods, made with kubectl"
run "kubectl create deployment web --image=signpost/echo --replicas=3" kubectl create deployment web --image=signpost/echo --replicas=3
run "kubectl expose deployment web --port=80 --target-port=8080" kubectl expose deployment web --port=80 --target-port=8080
run "kubectl run client --image=signpost/echo" kubectl run client --image=signpost/echo
run "kubectl rollout status deployment/web" kubectl rollout status deployment/web --timeout=20s
run "kubectl wait --for=condition=Ready pod/client" kubectl wait --for=condition=Ready pod/client --timeout=20s
run "kubectl get pods -o wide" kubectl get pods -o wide
run "kubectl get service web" kubectl get service web
run "kubectl get endpointslices -l kubernetes.io/service-name=web" kubectl get endpointslices -l kubernetes.io/service-name=web
vip=$(kubectl get service web -o jsonpath='{.spec.clusterIP}')

say "No interface has the address $vip"
for node in n1 n2; do
    show "signpost lab exec --name demo node/$node -- ip addr | grep $vip"
    if on_node "$node" ip addr | grep -F "$vip"; then fail "$vip is on an interface of $node"; fi
    tell "(nothing on $node)"
done
show "signpost lab exec --name demo pod/client -- ip route get $vip"
in_pod client ip route get "$vip" 2>&1 | sed 's/^/   /'
tell "The pod just sends it to its gateway: no host lives there."

say "Who answers ping, and why"
show "signpost lab exec --name demo pod/client -- ping -c 2 -W 1 $vip"
in_pod client ping -c 2 -W 1 "$vip" 2>&1 | sed 's/^/   /' || true
tell "Nobody has the address, so nobody answers an echo. The client's node refuses it, because it knows that $vip"
tell "is a Service and that only 80/TCP of it means anything. Try curl, not ping."

say "curl reaches every pod, on both nodes"
show "for i in \$(seq 30); do signpost lab exec --name demo pod/client -- curl -s http://$vip/; done | grep -o '\"pod\":\"[^\"]*\"' | sort | uniq -c"
answers=$(for _ in $(seq 30); do in_pod client curl -s --max-time 2 "http://$vip/" || echo "no answer"; done | grep -o -e '"pod":"[^"]*"' -e 'no answer')
sort <<<"$answers" | uniq -c | sed 's/^/   /'
reached=$(grep -F '"pod"' <<<"$answers" | sort -u | wc -l)
[ "$reached" = 3 ] || fail "30 requests reached $reached of 3 pods"

say "A capture in a backend's pod shows only pod addresses"
node=$(kubectl get pod client -o jsonpath='{.spec.nodeName}')
places=$(kubectl get pods -l app=web -o jsonpath='{range .items[*]}{.spec.nodeName} {.metadata.name}{"\n"}{end}')
backend=$(grep -v "^$node " <<<"$places" | head -n 1 | cut -d ' ' -f 2)
[ -n "$backend" ] || fail "all pods of web are on $node"
tell "The client is on $node; $backend is not."
capture=$(mktemp)
trap 'rm -f "$capture"' EXIT
show "signpost lab exec --name demo pod/$backend -- tcpdump -nn -q -i eth0 -c 3 tcp     (while the client asks $vip)"
in_pod "$backend" timeout 10 tcpdump -nn -q -l -i eth0 -c 3 tcp >"$capture" 2>/dev/null &
watcher=$!
while kill -0 "$watcher" 2>/dev/null; do in_pod client curl -s -o /dev/null --max-time 1 "http://$vip/" || true; done
wait "$watcher" || true
[ -s "$capture" ] || fail "tcpdump saw nothing in pod $backend"
sed 's/^/   /' "$capture"
if grep -qF "$vip" "$capture"; then fail "the capture shows $vip"; fi
tell "$vip is not there: the client's own node rewrote it before the packet left."

say "The rules that did it, on the client's node"
show "signpost lab exec --name demo node/$node -- nft list table ip kube-proxy | grep -F $vip"
rules=$(on_node "$node" nft list table ip kube-proxy)
grep -F "$vip" <<<"$rules" | sed -E 's/^[[:space:]]*(elements = \{)?[[:space:]]*/   /'
chain=$(sed -n "s/.*$vip \. tcp \. 80 .*goto \([a-z0-9-]*\).*/\1/p" <<<"$rules" | head -n 1)
[ -n "$chain" ] || fail "no rule for $vip on $node"
# list_chain NAME: shows it, without the empty lines around.
list_chain() {
    show "signpost lab exec --name demo node/$node -- nft list chain ip kube-proxy $1"
    on_node "$node" nft list chain ip kube-proxy "$1" | grep -v -e '^table' -e '^}' | sed 's/^/   /'
}
list_chain "$chain"
list_chain spread-tcp-3
tell "The first lookup finds the Service and the chain for its number of endpoints; the chain draws a number below it, and"
tell "the second lookup gives the endpoint of that number. Two lookups, however many Services there are."

printf '\n%sDone in %d s. The lab stays up.%s Go on with it:\n' "$bold" "$((SECONDS - started))" "$plain"
printf '   export KUBECONFIG=%s\n' "$KUBECONFIG"
printf '   %s lab exec --name demo pod/client -- curl -s http://%s/\n' "$signpost" "$vip"
printf 'Stop it:\n   %s lab down --name demo\n' "$signpost"
