#!/usr/bin/env bash
# Builds the environment that everything here runs in: agent, instrumentation, tools, vLLM for CPU and NIXL.
# Does nothing when it is up to date. PENSTOCK_VENV: where (default .venv). PYTHON: which Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${PENSTOCK_VENV:-.venv}
torch_index=https://download.pytorch.org/whl/cpu
stamp=$venv/.penstock-setup
log=$venv/setup.log
inputs=(scripts/setup.sh scripts/requirements-torch.txt scripts/requirements-engine.txt scripts/constraints-dev.txt
    pyproject.toml proto/penstock/proto/version.py)

fail() {
    echo "setup: $*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed and was not found as ${PYTHON:-python3.11, python3.12 or python3};" \
        "install it or name it with PYTHON=…"
}

# Runs a command with its output in the log; says every 20 s that it is still at work.
step() {
    local title=$1 began=$SECONDS worker
    shift
    echo "setup: $title …"
    echo "=== $title: $*" >>"$log"
    "$@" >>"$log" 2>&1 &
    worker=$!
    while kill -0 "$worker" 2>/dev/null; do
        sleep 1
        if (((SECONDS - began) % 20 == 0)); then
            echo "setup:   $((SECONDS - began)) s: $(tail -n 1 "$log" | cut -c 1-100)"
        fi
    done
    wait "$worker"
}

must() {
    step "$@" || {
        tail -n 30 "$log" >&2
        fail "$1: failed; all of its output is in $log"
    }
}

# Prints "3.11 of /usr" for /usr/bin/python3.11 and its environments; nothing for one that does not run.
origin_of() {
    "$1" -c 'import sys; print("%d.%d of" % sys.version_info[:2], sys.base_prefix)' 2>/dev/null || true
}

# An environment over that of another Python has the one's programs and the other's packages.
drop_another_pythons() {
    local old new
    [[ -f $venv/pyvenv.cfg ]] || return 0
    old=$(origin_of "$venv/bin/python")
    new=$(origin_of "$python")
    if [[ $old != "$new" ]]; then
        echo "setup: $venv was made by Python ${old:-(which does not run any more)}, this is Python $new: it is built anew"
        rm -rf "$venv"
    fi
}

python=$(find_python)
wanted=$(cat "${inputs[@]}" <("$python" --version) <(pwd) | sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
drop_another_pythons
mkdir -p "$venv"
: >"$log"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
# Python compiles what it imports; of these packages that is the smaller part.
export PIP_NO_COMPILE=1
must "a virtual environment in $venv" "$python" -m venv "$venv"

if ! step "PyTorch for CPU, from pip's configured sources" "${pip[@]}" install -r scripts/requirements-torch.txt; then
    echo "setup:   not there; from PyTorch's own index then"
    # In a step of its own: an extra index is asked for every package, and costs seconds where it is out of reach.
    must "PyTorch for CPU, from $torch_index" "${pip[@]}" install -r scripts/requirements-torch.txt \
        --index-url "$torch_index"
fi
must "vLLM for CPU and NIXL (gigabytes, some minutes)" "${pip[@]}" install -r scripts/requirements-engine.txt
must "Penstock and its tools" "${pip[@]}" install -e '.[agent,dev]' -c scripts/constraints-dev.txt

# The ones of the package index are CUDA builds, which fail at import beside a CPU build of torch; vLLM
# works without them.
for package in torchvision torchaudio torchcodec; do
    version=$("${pip[@]}" show "$package" 2>/dev/null | sed -n 's/^Version: //p') || true
    if [[ -n $version && $version != *+cpu ]]; then
        must "without $package $version (a CUDA build)" "${pip[@]}" uninstall -y "$package"
    fi
done
must "a look whether the engine can be imported" "$venv/bin/python" -c 'import nixl, torch, vllm'

echo "$wanted" >"$stamp"
echo "setup: done in $((SECONDS - began)) s"
