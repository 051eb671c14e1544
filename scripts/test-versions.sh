#!/usr/bin/env bash
# Runs on older vLLMs what says whether Penstock works there: the hooks on vLLM's classes, the demo's four acts, and engines
# whose loads fail, wait, expire and are decided about. Each version has an environment of its own (setup-version.sh), which
# is kept. test-versions.sh VERSION …; PENSTOCK_PARTS="hooks demo engines" for some; PENSTOCK_ARGS for pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=${PENSTOCK_PARTS:-hooks demo engines}
# Refused, incompatible and shared handshakes; a peer that dies; leases; deadlines; recompute, fail and auto, token by token;
# drills; an agent killed under load, or none; engines that are stopped; encoder outputs that are damaged or gone.
# The lease begins with the first file; the third ends the server that has it.
engines=(tests/e2e/test_kv_handshake.py tests/e2e/test_kv_leases.py tests/e2e/test_kv_collateral.py
    tests/e2e/test_kv_peer_gone.py tests/e2e/test_kv_auto.py tests/e2e/test_kv_drills.py tests/e2e/test_demo.py
    tests/e2e/test_agent_trouble.py tests/e2e/test_without.py tests/e2e/test_stopped_server.py
    tests/e2e/test_seeded_sampling.py tests/e2e/test_ec_files.py)
(($#)) || {
    echo 'test-versions: which? make test-versions VERSIONS="0.28.0 0.31.0"' >&2
    exit 2
}
read -ra more <<<"${PENSTOCK_ARGS:-}"
read -ra together <<<"${PENSTOCK_TOGETHER:-}"

failed=0
rows=()
run() {
    local began=$SECONDS code=0 log
    log=$(mktemp)
    echo "test-versions: vLLM $version: $1 …"
    "${@:2}" 2>&1 | tee "$log" || code=$?
    ((code == 0)) || failed=1
    # Pytest's last line has the numbers.
    local numbers
    numbers=$(grep -E '[0-9]+ (passed|failed|errors?|skipped|deselected)' "$log" | tail -n 1 | tr -d '=' | xargs || true)
    rows+=("$(printf '%-8s  %-8s  %s' "$version" "$1" "$( ((code == 0)) && echo passed || echo FAILED): ${numbers:-in $((SECONDS - began)) s}")")
    rm -f "$log"
}

for version; do
    VLLM=$version scripts/setup-version.sh
    python=$PWD/.venv-versions/$version/bin/python
    [[ " $parts " != *" hooks "* ]] || run hooks "$python" -m pytest -q "${together[@]}" \
        -m "not long and not engine" "${more[@]}" tests/instrumentation/vllm
    [[ " $parts " != *" demo "* ]] || run demo "$python" -m demo
    [[ " $parts " != *" engines "* ]] || run engines "$python" -m pytest -q -m "engine and not long" \
        "${more[@]}" "${engines[@]}"
done
printf '%s\n' "" "${rows[@]}"
exit "$failed"
