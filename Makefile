# Every target sets up what it needs by itself: see tools/setup_env.py. PYTHON=... chooses the interpreter of .venv.
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python
SETUP = @$(PYTHON) tools/setup_env.py

.PHONY: help build run screenshots quick test test-all crash ha fuzz bench bench-check wheels release man docs matrix lint format clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

build: ## the kernels in place, in .venv
	$(SETUP) build

run: ## the main job: a Celery fleet on one store, with no server; BROKER=redis has a Redis
	$(SETUP) run
	@$(VENV_PYTHON) -m celery_app $(if $(BROKER),--broker $(BROKER))

quick: ## what a change most often breaks, in three minutes
	$(SETUP) quick
	@$(VENV_PYTHON) tools/run_tests.py quick

test: ## all tests but the long ones, with the time of each group
	@start=$$(date +%s); $(PYTHON) tools/setup_env.py test && \
	$(VENV_PYTHON) tools/run_tests.py $(ARGS) --setup-seconds $$(( $$(date +%s) - start ))

test-all: ## the long tests too
	$(SETUP) test-all
	@$(VENV_PYTHON) tools/run_tests.py --all

crash: ## the whole fault matrix; ARGS="kill --count 500" passes arguments
	$(SETUP) test
	@$(VENV_PYTHON) -m tests.crash --json build/crash.json $(ARGS)

ha: ## a thousand episodes of failover; ARGS="cut_off stop --count 20 --seed 7" passes arguments
	$(SETUP) test
	@$(VENV_PYTHON) -m tests.ha.failover $(ARGS)

fuzz: ## every fuzz target for a minute; ARGS="record scan --seconds 600" passes arguments
	$(SETUP) test
	@$(VENV_PYTHON) -m tests.fuzz $(ARGS)

bench: ## all benchmarks beside their peers; ARGS="--quick put" passes arguments
	$(SETUP) bench
	@$(VENV_PYTHON) -m benchmarks $(ARGS)
	@$(if $(ARGS),,$(VENV_PYTHON) -m benchmarks spark)

bench-check: ## core benchmarks; fails when a ratio fell below the committed one; ARGS="--margin 0.2" passes arguments
	$(SETUP) bench
	@$(VENV_PYTHON) -m benchmarks --check --rounds 3 $(if $(CASES),$(CASES),get query-many find-new dispatch --peers cystore_read,lmdb,rocketmq) $(ARGS)

wheels: ## the source archive, wheels for each Python and processor, checksums, in dist; ARGS="--python 3.11 --twice"
	$(SETUP) wheels
	@$(VENV_PYTHON) tools/wheels.py $(ARGS)

release: ## everything of a release but the upload; VERSION=1.2.3
	$(SETUP) wheels
	@$(VENV_PYTHON) tools/release.py $(VERSION) $(ARGS)

screenshots: ## pictures of the page for docs/pictures, from a real browser on a real fleet; ARGS="--folder FOLDER"
	$(SETUP) test
	@$(VENV_PYTHON) -m tools.screenshots $(ARGS)

man: ## a manual page for each command, in build/man; ARGS=FOLDER
	$(SETUP) build
	@$(VENV_PYTHON) -m tools.man_pages $(ARGS)

matrix: ## a slice of the tests with each version of Celery, redis-py, PySpark; ARGS='--only "Celery 5.4" Spark'
	$(SETUP) test
	@$(VENV_PYTHON) -m tools.matrix $(ARGS)

docs: ## the documents as a site with a search, in build/site
	$(SETUP) docs
	@$(VENV_PYTHON) tools/docs_site.py $(ARGS)

lint: ## ruff, formatting, mypy
	$(SETUP) lint
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy

format: ## ruff's formatting and safe corrections, written
	$(SETUP) lint
	@$(VENV_PYTHON) -m ruff format .
	@$(VENV_PYTHON) -m ruff check --fix .

clean: ## what the build made, and .venv
	rm -rf build dist .venv *.egg-info cystore/_native/*.so
