#!/usr/bin/env bash
# Builds an environment of a CPython newer than 3.11 for the tests without engines: Penstock and its tools, no vLLM.
# Does nothing when it is up to date; says so where the machine has no such Python. PENSTOCK_VENV_PYTHON: where.
# PYTHONS: which to look for, the first that runs is taken.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${PENSTOCK_VENV_PYTHON:-.venv-python}
stamp=$venv/.penstock-setup
log=$venv/setup.log

# 3.12 comes first: it is that of the engines' images. pyenv's python3.12 on PATH may be one that does not run.
find_python() {
    local minor candidate
    for minor in ${PYTHONS:-3.12 3.13}; do
        for candidate in "python$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$minor".*/bin/python; do
            if "$candidate" -c 'import ensurepip' 2>/dev/null; then
                command -v "$candidate"
                return
            fi
        done
    done
}

python=$(find_python)
if [[ -z $python ]]; then
    echo "setup-python: no CPython ${PYTHONS:-3.12 3.13} on PATH or of pyenv: the tests on another Python are skipped"
    exit 0
fi
wanted=$(cat scripts/setup-python.sh scripts/constraints-dev.txt pyproject.toml <("$python" --version) <(realpath "$venv") |
    sha256sum | cut -d ' ' -f 1)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

began=$SECONDS
echo "setup-python: Penstock and its tools for $("$python" --version) in $venv …"
[[ ! -f $venv/pyvenv.cfg ]] || rm -rf "$venv"
mkdir -p "$venv"
{
    "$python" -m venv "$venv" &&
        "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --no-compile -e '.[agent,dev]' \
            -c scripts/constraints-dev.txt
} >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    echo "setup-python: failed; all of its output is in $log" >&2
    exit 1
}
echo "$wanted" >"$stamp"
echo "setup-python: done in $((SECONDS - began)) s"
