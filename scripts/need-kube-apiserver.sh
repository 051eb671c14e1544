#!/usr/bin/env bash
# The tests of the Kubernetes policy source run a real API server: built from Debian's source package into
# .cache/kubernetes/api-server (no index has its binary), with Debian's Go and etcd. About ten minutes on one core, 2 GiB of
# disk; an interrupted build continues where it was. Nothing if it is up to date.
set -euo pipefail

cd "$(dirname "$0")/.."
place=$PWD/.cache/kubernetes/api-server
# Of this script: another number builds anew.
recipe=2
go=/usr/lib/go-1.19/bin/go
packages=(golang-1.19-go etcd-server dpkg-dev)
goal=k8s.io/kubernetes

say() { echo "kube-apiserver: $*"; }
have_tools() { [[ -x $go ]] && command -v etcd >/dev/null && command -v dpkg-source >/dev/null; }

if [[ -x $place/kube-apiserver && $(cat "$place/recipe" 2>/dev/null) == "$recipe" ]] && command -v etcd >/dev/null; then
    exit 0
fi
if ! have_tools; then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "The API server needs Go 1.19, etcd and dpkg-source; on Debian 12: sudo apt-get install ${packages[*]}" >&2
        exit 1
    fi
    say "Debian's packages ${packages[*]} …"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # Only etcd's program is wanted: with this the package's service is not started.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
    have_tools || {
        echo "The packages were installed, but $go, etcd or dpkg-source is missing" >&2
        exit 1
    }
fi

mkdir -p "$place/apt/lists/partial" "$place/apt/archives/partial"
cd "$place"
tree=$place/source
if [[ ! -d $tree ]]; then
    say "the source of Debian's kubernetes (34 MB) …"
    # A source list of its own: /etc/apt stays as it is.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 'Component: main' |
        sort -u | head -n 1)
    [[ -n $mirror ]] || {
        echo "apt knows no archive of Debian bookworm, whose source this is: add one to /etc/apt" >&2
        exit 1
    }
    printf '%s\n' "Types: deb-src" "URIs: $mirror" "Suites: bookworm" "Components: main" \
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" >apt/debian.sources
    own=(-qq -o "Dir::Etc::sourcelist=$place/apt/debian.sources" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$place/apt/lists" -o "Dir::Cache::archives=$place/apt/archives"
        -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" -o APT::Sandbox::User=)
    apt-get "${own[@]}" update
    apt-get "${own[@]}" source --download-only kubernetes
    rm -rf unpacked
    dpkg-source --extract kubernetes_*.dsc unpacked >/dev/null
    mv unpacked "$tree"
fi

fixed=$tree/vendor/github.com/modern-go/reflect2
if [[ ! -f $fixed/go_above_118.go ]]; then
    # The vendored 1.0.1 breaks the iteration of maps since Go 1.18: the server crashes at an object with annotations.
    rm -f "$place/kube-apiserver"
    (cd apt && apt-get download -qq golang-github-modern-go-reflect2-dev &&
        dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb reflect2)
    rm -r "$fixed"
    mkdir "$fixed"
    cp apt/reflect2/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$fixed/"
    rm -f "$fixed"/*_test.go
fi

mkdir -p "$tree/.go/src/k8s.io"
ln -sfn ../../.. "$tree/.go/src/$goal"
cd "$tree/.go/src/$goal"
export GO111MODULE=off GOPATH=$tree/.go GOCACHE=$place/go-cache CGO_ENABLED=0 GOFLAGS=${GOFLAGS:--p=1}

generated=pkg/generated/openapi/zz_generated.openapi.go
if [[ ! -f $generated ]]; then
    # The one generated file that the source package lacks.
    say "the generator of the OpenAPI definitions …"
    "$go" build -o "$place/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -rl --include='*.go' '+k8s:openapi-gen' vendor/k8s.io staging/src/k8s.io pkg |
        grep -vE '/testdata/|_test/|_test\.go|/examples?/|kube-openapi|code-generator|/sample-' |
        xargs -n1 dirname | sed 's,^staging/src/,vendor/,' | sort -u | sed "s,^,$goal/," | paste -sd,)
    say "the OpenAPI definitions …"
    "$place/openapi-gen" -O zz_generated.openapi.new -i "$inputs" -p "$goal/pkg/generated/openapi" \
        -h hack/boilerplate/boilerplate.generatego.txt -r "$place/violations.txt"
    mv pkg/generated/openapi/zz_generated.openapi.new.go "$generated"
fi

count=$("$go" list -deps ./cmd/kube-apiserver | wc -l)
say "compiling $count packages; a later run continues after an interruption …"
# Compiled packages stay in the cache, so that each group is a step that lasts.
for group in vendor/k8s.io/apimachinery vendor/k8s.io/api vendor/k8s.io/client-go vendor/go.etcd.io vendor/google.golang.org \
    vendor/k8s.io/apiserver vendor/k8s.io/kube-aggregator vendor/k8s.io/apiextensions-apiserver vendor/k8s.io \
    pkg/apis pkg/registry pkg vendor ''; do
    mapfile -t names < <("$go" list -deps ./cmd/kube-apiserver | grep "^$goal/${group:-.}" || true)
    ((${#names[@]})) || continue
    say "  ${group:-kube-apiserver} (${#names[@]} packages)"
    "$go" build "${names[@]}"
done
"$go" build -o "$place/kube-apiserver.new" ./cmd/kube-apiserver
mv "$place/kube-apiserver.new" "$place/kube-apiserver"
echo "$recipe" >"$place/recipe"
say "built: $place/kube-apiserver"
