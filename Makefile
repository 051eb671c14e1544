# `make demo` and `make test` set up what they need. PENSTOCK_VENV=… builds the environment elsewhere.
SHELL := /bin/bash
# `make test PYTHON=python3.12` has an environment of its own, .venv-3.12.
ifeq ($(origin PYTHON),command line)
export PENSTOCK_VENV := $(or $(PENSTOCK_VENV),.venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
endif
VENV := $(or $(PENSTOCK_VENV),.venv)
PYTHON_IN_VENV := $(VENV)/bin/python
PYTEST := $(PYTHON_IN_VENV) -m pytest
# Tests at a time: most of them wait for processes. Those of engines run one after the other, beside the rest.
TOGETHER := -n $(or $(JOBS),4)
# Real peers of tests; each target does nothing where it is there.
TEST_PEERS := prometheus nats kubectl page-tools chromium
COMPAT := $(or $(PENSTOCK_VENV_COMPAT),.venv-compat)
OTHER_PYTHON := $(or $(PENSTOCK_VENV_PYTHON),.venv-python)/bin/python

# What the tests start, some thousand agents, commands and engines, need not compile the code anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-ec demo-eplb demo-fleet test test-fast test-engine test-long record-incidents record-films test-repeat properties chaos calm fuzz bench bench-quick bench-gate scale profile lint format types proto check-proto check schema prometheus nats valgrind kubectl page-tools chromium page-vendor page-screenshots kube-apiserver kustomize crd check-crd clean setup-compat test-compat test-compat-engine test-versions setup-dynamo test-dynamo setup-python test-python check-versions setup-connectors test-connectors setup-gpu test-gpu package payload setup-trace-backend test-trace-backend setup-routers test-routers observability check-observability image test-image

help: ## Show what there is.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Build .venv (agent, instrumentation, tools, vLLM for CPU, NIXL); nothing if it is up to date.
	@scripts/setup.sh

setup-compat: setup ## Build .venv-compat: the Python code of vLLM 0.33 (VLLM=x.y.z for another) over .venv; nothing if it is up to date.
	@scripts/setup-compat.sh

setup-python: ## Build .venv-python: Penstock and its tools, without vLLM, for CPython 3.12 or 3.13; a sentence where there is none.
	@scripts/setup-python.sh

setup-connectors: setup ## Mooncake and LMCache, for the tests of vLLM's connectors to them; beside .venv, not in it.
	@PENSTOCK_VENV=$(VENV) scripts/setup-connectors.sh

setup-gpu: ## Build .venv-gpu: vLLM for CUDA, NIXL, Penstock; PYTHON=… names one that has them.
	@scripts/setup-gpu.sh

setup-trace-backend: ## Arize Phoenix, for the test of the trace export to a backend of another project; beside .venv, not in it.
	@scripts/setup-trace-backend.sh

setup-routers: ## vllm-router, sglang-router, LiteLLM and HAProxy, for the tests of what they make of our answers; beside .venv.
	@scripts/setup-routers.sh
	@scripts/need-haproxy.sh

setup-dynamo: setup ## NVIDIA Dynamo over vLLM 0.31, in .venv-versions; nothing if it is up to date.
	@PENSTOCK_VENV=$(VENV) scripts/setup-dynamo.sh

demo: setup ## Agent and two real vLLM servers; failures, and a policy changed live. KEEP=1 leaves it up.
	@$(PYTHON_IN_VENV) -m demo $(if $(filter 1,$(KEEP)),--keep)

demo-ec: setup ## Agent, a real encoder and a real language model; transfers that wait and break. KEEP=1 leaves it up.
	@$(PYTHON_IN_VENV) -m demo.ec $(if $(filter 1,$(KEEP)),--keep)

demo-eplb: setup ## Two processes move expert weights through vLLM's balancer; what Penstock says of it.
	@$(PYTHON_IN_VENV) -m demo.eplb

demo-fleet: setup nats $(if $(wildcard .cache/kubernetes/api-server/kube-apiserver),kubectl) ## Three agents, two relays, one source of policies (SOURCE=kubernetes|nats); a roll-out that aborts itself. KEEP=1 leaves it up.
	@$(PYTHON_IN_VENV) -m demo.fleet $(if $(filter 1,$(KEEP)),--keep) $(if $(SOURCE),--source $(SOURCE))

test: setup $(TEST_PEERS) ## The test suite (ARGS="tests/agent/journal" or ARGS="-k name" for a part, JOBS=0 one after the other, PYTHON=python3.12 for another Python).
	@$(PYTEST) $(TOGETHER) -m "not long" $(ARGS)

test-fast: setup $(TEST_PEERS) ## The same without engines.
	@$(PYTEST) $(TOGETHER) -m "not long and not engine" $(ARGS)

test-engine: setup ## The same, only the tests that start vLLM.
	@$(PYTEST) -m "engine and not long" $(ARGS)

test-long: setup $(TEST_PEERS) ## What `make test` leaves out: exhaustive variants, engines included, the five incidents, and all examples of properties.
	@$(PYTEST) $(TOGETHER) -m "long or hypothesis" --hypothesis-profile=long $(ARGS)

record-incidents: setup ## Cause the incidents on engines and store their bundles in tests/golden/incidents (ARGS="-k name" for one; 15 minutes in all).
	@PENSTOCK_RECORD_INCIDENTS=$(CURDIR)/tests/golden/incidents $(PYTEST) -m long -o timeout=900 tests/e2e/test_incidents.py tests/e2e/test_incidents_of_the_field.py tests/e2e/test_stuck_calls.py $(ARGS)

record-films: setup ## Film incidents on engines, from a calm minute to ten minutes after the remedy, into tests/golden/films (NAMES="pod-stopped" for some; 20 minutes each).
	@$(PYTHON_IN_VENV) -m tests.films tests/golden/films $(NAMES)

test-repeat: setup $(TEST_PEERS) ## `make test` N=10 times beside a busy loop; ends at the first failure.
	@scripts/test-repeat.sh $(or $(N),10) $(PYTEST) $(TOGETHER) -m "not long" $(ARGS)

test-compat: setup-compat ## The hooks on vLLM 0.33, without engines.
	@$(COMPAT)/bin/python -m pytest $(TOGETHER) -m "not long" $(ARGS) tests/instrumentation/vllm

test-compat-engine: setup-compat ## Engines of vLLM 0.33 on the kernels of 0.32 (ARGS="-k name" for a part; an hour in all).
	@$(COMPAT)/bin/python -m pytest $(ARGS) tests/e2e

test-versions: setup $(TEST_PEERS) ## Older vLLMs (VERSIONS="0.28.0 0.31.0"): hooks, demo, engines; an environment each, kept (PARTS="hooks demo" for some).
	@PENSTOCK_PARTS="$(PARTS)" PENSTOCK_ARGS='$(ARGS)' PENSTOCK_TOGETHER='$(TOGETHER)' PENSTOCK_VENV=$(VENV) scripts/test-versions.sh $(VERSIONS)

test-dynamo: setup-dynamo ## Dynamo's front end, prefill and decode worker on the CPU; skipped in the others.
	@.venv-versions/dynamo-1.6.1/bin/python -m pytest -m engine $(ARGS) tests/e2e/test_dynamo.py

test-python: setup-python $(TEST_PEERS) ## Agent and engine side on that CPython, without vLLM and what depends on no interpreter.
	@[[ ! -x $(OTHER_PYTHON) ]] || $(OTHER_PYTHON) -m pytest $(TOGETHER) -m "not long and not engine and not hypothesis" \
		tests/agent tests/instrumentation tests/proto tests/rules --ignore=tests/instrumentation/vllm \
		--ignore=tests/agent/policy/rollouts --ignore=tests/agent/metrics/test_prometheus.py \
		--ignore=tests/agent/page/browser --ignore=tests/agent/page/test_javascript.py --ignore=tests/agent/diagnosis/test_films.py \
		--ignore=tests/agent/relay/test_hostile_agents.py --ignore=tests/agent/relay/test_many_agents.py \
		--ignore=tests/agent/relay/test_fleet_rollouts.py --ignore=tests/agent/relay/object_status/test_lease_of_processes.py \
		--ignore=tests/agent/journal/commit/test_retention.py $(ARGS)

check-versions: setup ## The hook check on each minor vLLM from 0.26 on; writes the table of docs/compatibility.md (CHECK=1 compares it, VERSIONS="0.33.0 …" prints some).
	@PENSTOCK_VENV=$(VENV) $(PYTHON_IN_VENV) scripts/check_versions.py $(if $(filter 1,$(CHECK)),--check) $(VERSIONS)

test-vllm-own: setup ## vLLM's own tests of schedulers and KV connectors, with and without Penstock (VERSIONS="0.28.0 0.32.0"; PYTHON_OF=.venv-compat/bin/python for VERSIONS=0.33.0).
	@for version in $(if $(PYTHON_OF),,$(filter-out 0.32.%,$(VERSIONS))); do VLLM=$$version PENSTOCK_VENV=$(VENV) scripts/setup-version.sh || exit; done
	@$(PYTHON_IN_VENV) scripts/vllm_own_tests.py $(if $(PYTHON_OF),--python $(PYTHON_OF)) $(VERSIONS)

test-connectors: setup-connectors ## Mooncake over TCP, its store, and LMCache on the CPU; skipped in the others without setup-connectors.
	@$(PYTEST) $$(grep -rl --include='test_*.py' needs_extra_connectors tests) $(ARGS)

test-trace-backend: setup setup-trace-backend ## The trace export to Arize Phoenix over gRPC and HTTP; skipped in the others without setup-trace-backend.
	@$(PYTEST) -s tests/agent/traces/export/test_phoenix.py $(ARGS)

test-routers: setup setup-routers ## Routers of other projects in front of API servers and engines that are out of rotation or answer 503; skipped in the others without setup-routers.
	@$(PYTEST) tests/routers $(ARGS)

test-gpu: ## The checks on an NVIDIA GPU, and docs/gpu.md from their results; a sentence where there is none.
	@scripts/test-gpu.sh $(ARGS)

image: setup ## Build the images with podman over Debian's packages (BASE=… over another base).
	@scripts/need-podman.sh
	@PYTHON=$(PYTHON_IN_VENV) scripts/image.sh

test-image: image ## Run those images as a pod runs them; skipped in the others. Needs root.
	@PENSTOCK_IMAGE=$$(scripts/image.sh --name agent) PENSTOCK_PAYLOAD_IMAGE=$$(scripts/image.sh --name payload) \
		$(PYTEST) tests/deploy/test_image.py tests/deploy/test_payload_image.py $(ARGS)

properties: setup ## What `make test` tries on the same examples each time (Hypothesis), on fresh ones, and more of them.
	@$(PYTEST) $(TOGETHER) -m hypothesis --hypothesis-profile=fresh $(ARGS)

chaos: setup ## The fault suite at full length, 500 damaged states, and 200 random kills under traffic, ten minutes of kills of NATS, API server, etcd and relay (KILLS=n, CHANGES=n, SEED=n repeats a run).
	@FAULTS=long $(PYTEST) -o timeout=0 tests/faults tests/agent/traces/test_numbers.py $(ARGS)
	@$(PYTHON_IN_VENV) -m tests.faults.damage --cases 500 $(if $(SEED),--seed $(SEED))
	@$(PYTHON_IN_VENV) -m tests.faults.chaos --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED))
	@$(PYTHON_IN_VENV) -m tests.faults.fleet.chaos --seconds 600 --changes $(or $(CHANGES),100) $(if $(SEED),--seed $(SEED))

calm: setup prometheus ## An hour of ordinary life on engines, in which no critical alert may fire and no cause be told that is not true (DURATION=60 minutes, PHASES="agent,busy" for some, SEED=n repeats a run).
	@$(PYTHON_IN_VENV) -m tests.calm --minutes $(or $(DURATION),60) $(if $(SEED),--seed $(SEED)) $(if $(PHASES),--phases "$(PHASES)")

fuzz: setup ## Fuzz engines' messages, values of policy sources, agents' answers at a relay, and bundles, each for MINUTES=n (10); finds stay below .cache/fuzz.
	@mkdir -p .cache/fuzz/corpus .cache/fuzz/policy_corpus .cache/fuzz/relay_corpus .cache/fuzz/bundle_corpus .cache/fuzz/found
	@$(PYTHON_IN_VENV) -m tests.fuzz.ingest -max_total_time=$$(($(or $(MINUTES),10) * 60)) \
		-artifact_prefix=.cache/fuzz/found/ .cache/fuzz/corpus tests/fuzz/corpus
	@$(PYTHON_IN_VENV) -m tests.fuzz.policy_values -max_total_time=$$(($(or $(MINUTES),10) * 60)) -max_len=65536 \
		-artifact_prefix=.cache/fuzz/found/ .cache/fuzz/policy_corpus tests/fuzz/policy_corpus
	@$(PYTHON_IN_VENV) -m tests.fuzz.relay_answers -max_total_time=$$(($(or $(MINUTES),10) * 60)) -max_len=65536 \
		-artifact_prefix=.cache/fuzz/found/ .cache/fuzz/relay_corpus tests/fuzz/relay_corpus
	@$(PYTHON_IN_VENV) -m tests.fuzz.bundles -max_total_time=$$(($(or $(MINUTES),10) * 60)) -max_len=65536 \
		-artifact_prefix=.cache/fuzz/found/ .cache/fuzz/bundle_corpus tests/fuzz/bundle_corpus

bench: setup nats valgrind ## All benchmarks, beside their peers; ratios into docs/benchmarks.md, all numbers into .cache/benchmarks (half an hour; ONLY="emit scrape" for a part).
	@$(PYTHON_IN_VENV) -m benchmarks $(ONLY)

bench-quick: setup ## Ratios to peers in seconds, no engine; judges and writes nothing (ONLY="emit scrape" for a part).
	@$(PYTHON_IN_VENV) -m benchmarks --quick $(ONLY)

bench-gate: setup ## Instructions of fixed jobs against benchmarks/instructions.json; UPDATE=1 stores them, BASE=HEAD^ compares with a commit (ONLY="emit step" for a part).
	@scripts/need-valgrind.sh || [[ $$(id -u) != 0 ]]
	@$(PYTHON_IN_VENV) -m benchmarks.gate $(if $(filter 1,$(UPDATE)),--update) $(if $(BASE),--base $(BASE)) $(ONLY)

scale: setup ## How an agent's answers grow, and their bounds; writes docs/scale.md (10 minutes; ONLY="engines peers journal uptime" for a part).
	@$(PYTHON_IN_VENV) -m benchmarks.scale $(ONLY)

profile: setup ## Sample an engine and the agent under load with py-spy; what it says: docs/profiles.md.
	@$(PYTHON_IN_VENV) -m benchmarks.profile

check: lint types check-proto check-observability check-crd ## Lint, types, generated code.

lint: setup ## ruff.
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check

format: setup ## Let ruff format and repair.
	@$(VENV)/bin/ruff format
	@$(VENV)/bin/ruff check --fix

types: setup ## mypy, strict.
	@$(VENV)/bin/mypy

proto: setup ## Generate the code of the wire contract.
	@PYTHON=$(PYTHON_IN_VENV) scripts/proto.sh

check-proto: setup ## Is the generated code what the .proto files say?
	@PYTHON=$(PYTHON_IN_VENV) scripts/proto.sh --check

package: setup ## Build wheel and sdist into dist/, and try them in environments of their own (TAG=vX.Y.Z compares the version, INDEX=1 installs from the package index).
	@$(PYTHON_IN_VENV) scripts/package.py $(if $(TAG),--tag $(TAG)) $(if $(filter 1,$(INDEX)),--index)

payload: setup ## Build what an init container stages for an engine's image without Penstock, into dist/payload.
	@PYTHON=$(PYTHON_IN_VENV) deploy/payload/build.sh dist/payload

schema: setup ## Write docs/reference/*.schema.json: of policies, of what agentctl prints, of a client's error, and of the feed for routers.
	@$(PYTHON_IN_VENV) -m penstock.agent.policy.manifest.json_schema >docs/reference/transferpolicy.schema.json
	@$(PYTHON_IN_VENV) -m penstock.agent.ctl.json_schema >docs/reference/agentctl.schema.json
	@$(PYTHON_IN_VENV) scripts/client_error_schema.py >docs/reference/client-error.schema.json
	@$(PYTHON_IN_VENV) -m penstock.agent.views.router_feed.json_schema >docs/reference/router-feed.schema.json

observability: setup ## Write docs/reference/metrics.md, the PrometheusRule and the links to the runbook (RUNBOOK=https://…/runbook.md for a copy).
	@$(PYTHON_IN_VENV) scripts/observability.py $(if $(RUNBOOK),--runbook $(RUNBOOK))

check-observability: setup ## Are those what the catalogue, the rules and the alerts say?
	@$(PYTHON_IN_VENV) scripts/observability.py --check

prometheus:
	@scripts/need-prometheus.sh

nats:
	@scripts/need-nats.sh

valgrind:
	@scripts/need-valgrind.sh

kubectl: setup
	@$(PYTHON_IN_VENV) scripts/need_kubectl.py

page-tools:
	@scripts/need-page-tools.sh

chromium:
	@scripts/need-chromium.sh

page-vendor: ## The page's libraries, of npm at the versions of scripts/update-vendor.sh (CHECK=1 compares them).
	@scripts/update-vendor.sh $(if $(filter 1,$(CHECK)),--check)

page-screenshots: setup chromium ## Draw docs/images/page-*.png: the page of recorded incidents of real engines.
	@$(PYTHON_IN_VENV) -m tests.agent.page.browser.screenshots

kube-apiserver: ## Build a real Kubernetes API server from Debian's source, for the tests of the Kubernetes policy source; skipped in the others without it.
	@scripts/need-kube-apiserver.sh

crd: setup ## Write deploy/crd/transferpolicies.yaml from the policy model.
	@$(PYTHON_IN_VENV) scripts/crd.py

check-crd: setup ## Is it what the policy model says?
	@$(PYTHON_IN_VENV) scripts/crd.py --check

kustomize: setup ## Write what is generated below deploy/kustomize.
	@$(PYTHON_IN_VENV) scripts/kustomize.py

clean: ## Remove environments and caches.
	rm -rf .venv .venv-3.* .venv-python .venv-compat .venv-versions .venv-gpu .venv-proto .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
