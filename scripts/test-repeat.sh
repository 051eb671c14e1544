#!/usr/bin/env bash
# Runs a command a number of times beside a busy loop, which takes one core from it; ends at the first failure.
# usage: scripts/test-repeat.sh TIMES COMMAND…
set -euo pipefail
cd "$(dirname "$0")/.."

times=$1
shift
while :; do :; done &
busy=$!
trap 'kill "$busy" 2>/dev/null || true' EXIT
for ((run = 1; run <= times; run++)); do
    echo "--- run $run of $times, beside a busy loop"
    "$@" || {
        code=$?
        echo "--- run $run of $times failed" >&2
        exit "$code"
    }
done
