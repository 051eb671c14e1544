#!/usr/bin/env bash
# Runs a command a number of times beside a busy loop, which takes one core from it; ends at the first failure.
# usage: scripts/test-repeat.sh TIMES COMMAND…
set -euo pipefail
cd "$(dirname "$0")/.."

times=$1
shift
# It rests a moment now and then: beside one that never sleeps Linux 6.18 left threads that were ready, its own too, without
# a turn for minutes ("rcu_preempt kthread starved" in its log).
while :; do
    for ((turn = 0; turn < 20000; turn++)); do :; done
    sleep 0.001
done &
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
