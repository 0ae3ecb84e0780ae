# Magnetar: every task of the project. `make help` lists them.
# VENV=dir puts the virtual environment elsewhere; MAGNETAR_CACHE=dir the binaries and images built for tests and the local cluster.
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.magnetar-installed
DATA_DIR ?= data
BROKER_PORT ?= 6650
HTTP_PORT ?= 8080
CONTEXT ?=
IMAGE ?=
SEEDS ?= 0:10000
SUITE ?= durable
MINUTES ?= 10
TRANSACTIONS ?= 10000
KILLS ?= 300
SEED ?=
export PYTHONPATH := broker_image:operator:spark_jobs:.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A server that finds no bytecode compiles all it imports, at every start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo test check unit sim e2e cluster cluster-down image bench oracle campaign soak soak-txn soak-compaction soak-compaction-pods soak-hostile attack lock proto crds docs clean

help: ## List the tasks
	@grep -hE '^[a-z0-9-]+:.*?## ' $(MAKEFILE_LIST) | awk -F':.*?## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make the virtual environment (VENV=dir, default .venv)

$(STAMP): requirements/dev.lock pyproject.toml
	@python3 dev/setup.py "$(VENV)" requirements/dev.lock
	@touch "$(STAMP)"

run: setup ## Start a standalone server on embedded defaults (DATA_DIR, BROKER_PORT, HTTP_PORT), check it, print what to do next
	@exec $(PY) -m magnetar standalone --data-dir "$(DATA_DIR)" --broker-port $(BROKER_PORT) --http-port $(HTTP_PORT) --self-check

demo: setup ## Kill a standalone server in the middle of real traffic and show that nothing acknowledged is missing
	@$(PY) -m dev.demo

test: setup ## Every tier that needs no Kubernetes node: check, unit, contract, simulation, clients, foreign, differential, spark, apiserver
	@$(PY) -m dev.tiers check simulation unit contract clients foreign differential spark apiserver

check: setup ## Lint, types, layers
	@$(PY) -m dev.tiers check

unit: setup ## Unit and property tests only
	@$(PY) -m dev.tiers unit contract

sim: setup ## The CI share of the simulation
	@$(PY) -m dev.tiers simulation

campaign: setup ## The long, resumable simulation run (SUITE=durable, tracer or restore, SEEDS=0:10000)
	@PYTHONHASHSEED=0 $(PY) -m dev.campaign --suite $(SUITE) --seeds $(SEEDS) --jobs 2 --state build/campaign-$(SUITE).json

soak: setup ## Three brokers and etcd hurt at random under load, then a history check (MINUTES=10, SEED=n repeats the faults of a run)
	@$(PY) -m dev.kube binary etcd > /dev/null
	@$(PY) -m dev.testbed.foreign_build java go > /dev/null
	@$(PY) -m dev.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

soak-txn: setup ## Exactly-once applications under kills of brokers and coordinators, then a history check (TRANSACTIONS=10000, KILLS=300, SEED=n)
	@$(PY) -m dev.kube binary etcd > /dev/null
	@$(PY) -m dev.testbed.foreign_build java go > /dev/null
	@$(PY) -m dev.soak.transactions --transactions $(TRANSACTIONS) --kills $(KILLS) $(if $(SEED),--seed $(SEED))

soak-compaction: setup ## Compaction after compaction while drivers, executors, brokers and etcd die (RUNS=200, SEED=n)
	@$(PY) -m dev.kube binary etcd > /dev/null
	@$(PY) -m dev.soak.compactions $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))

soak-compaction-pods: setup ## The same by a DataJob on the node of `make cluster`, while pods of every kind are deleted (RUNS=20, SEED=n)
	@$(PY) -m dev.soak.compaction_pods $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))

soak-hostile: setup ## An ordinary workload with and without a hostile client beside it, clocks that jump: latencies compared (MINUTES=60, SEED=n)
	@$(PY) -m dev.kube binary etcd > /dev/null
	@$(PY) -m dev.soak.hostile --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

attack: setup ## Attacks on what a server with TLS and tokens has, one by one beside an ordinary client: latencies compared (MINUTES=10, SEED=n)
	@$(PY) -m dev.soak.attack --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

cluster: ## Magnetar and the quickstart on a cluster you have (CONTEXT=name IMAGE=ref), or on a real one-node Kubernetes made here
	@python3 -m dev.cluster up --environment "$(VENV)" $(if $(CONTEXT),--context $(CONTEXT)) $(if $(IMAGE),--image $(IMAGE))

cluster-down: ## Stop the local cluster (its volumes stay; PURGE=1 removes them)
	@python3 -m dev.kube down $(if $(PURGE),--purge)

e2e: setup ## End-to-end tests on a real node: scale, drain, forced deletion, Spark
	@$(PY) -m dev.tiers kubernetes

image: setup ## Build the images of brokers, operator and Spark (REPO=registry/name to tag them for a push)
	@python3 -m dev.image build $(if $(REPO),--tag $(REPO):$(shell $(PY) -c 'import magnetar; print(magnetar.__version__)'))

bench: setup ## Figures of the publish path with pulsar-perf, beside the raw disk (of transactions: python -m dev.bench.transactions)
	@$(PY) -m dev.bench

oracle: setup ## Run Apache Pulsar itself, from Maven artifacts, on the loopback until Ctrl-C: what to compare Magnetar with
	@exec $(PY) -m dev.testbed.oracle

lock: setup ## Resolve the dependencies again, with hashes and without any index address
	@python3 dev/lock.py

proto: setup ## Regenerate the protocol's Python from its .proto
	@$(PY) -m dev.proto

crds: setup ## Regenerate the CRDs from the custom resources' models
	@$(PY) -m dev.broker_settings
	@$(PY) -m dev.crds
	@$(PY) -m dev.docs

docs: setup ## Regenerate the chart's README and schema texts, dashboards, and the reference in docs/
	@$(PY) -m dev.docs

clean: ## Remove what builds and tests left in the checkout (not the caches)
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find broker_image operator spark_jobs dev tests -name __pycache__ -prune -exec rm -rf {} +
