# Each target does its own set-up; later calls reuse it. Needs git, make, Python 3.11 and its venv module.
#
#   make demo      a real training script on a GPU that is not there
#   make test      the checks, and the tests that are run before every change
#   make test-all  every test that is run by day, in the environments that they need; writes tests/whole.json
#   make seconds   the same, and writes tests/seconds.csv, what each case takes
#   make check     lint, types, spelling, the ceiling on the tree
#   make nightly   the slow tests too, on five versions of PyTorch, the popular stacks and published programs;
#                  writes docs/results/programs.md, and parts of accuracy.md, estimates.md, explain.md and serving.md
#   make fuzz      the readers of snapshots and of packed code against a million inputs each, of other texts for an
#                  hour each; needs clang
#   make docs      docs/ as a site, in build/docs; a dead link ends it
#   make wheel     wheels for x86-64 and aarch64 Linux

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Real GPUs were recorded with these.
RECORDED_TORCH := 2.11.0 2.9.1 2.6.0
OLDEST_TORCH := 2.6.0

BIN := .venv/bin
# A process for each core; the tests of one file share what they make, so they stay together, and the
# files that take longest come first (tests/seconds.csv). What the many processes import is compiled once.
PYTEST := PATH="$$PATH:$(CURDIR)/.tools/usr/bin" PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile \
  --no-loadscope-reorder
WHOLE := PATH="$$PATH:$(CURDIR)/.tools/usr/bin" PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.whole
NEWEST := .envs/torch-newest
OLDEST := .envs/torch-$(OLDEST_TORCH)
RECORDED := $(RECORDED_TORCH:%=.envs/torch-%)
REQUIREMENTS := examples/requirements.txt
STACKS := .envs/stacks
# The libraries that the guide says how to log to.
TRACKERS := .envs/trackers
# benchmarks/stacks.py makes it
STACKS_VLLM := .envs/stacks-vllm

.PHONY: demo test test-all test-all-environments seconds check nightly docs fuzz wheel clean phantom promtool chromium clang
.DELETE_ON_ERROR:

demo: $(NEWEST)/ullage-env.json phantom
	$(BIN)/ullage run --gpu h100-80gb --python $(NEWEST)/bin/python -- examples/gpt2/train.py

test: check $(NEWEST)/ullage-env.json phantom
	ULLAGE_TEST_PYTHON=$(NEWEST)/bin/python $(PYTEST) --seconds check

test-all: check test-all-environments
	$(WHOLE) $(WRITES) $(foreach env,$(NEWEST) $(STACKS) $(RECORDED),--python $(env)/bin/python)
	$(BIN)/ullage check --python $(NEWEST)/bin/python
	$(BIN)/python -m benchmarks.truth

seconds:
	$(MAKE) test-all WRITES="--seconds write"

check: .venv/done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m benchmarks.ceiling
	@$(BIN)/python -m tests.whole --is-current

# The versions of PyTorch are a list in benchmarks/versions.py, which makes an environment for each.
nightly: test-all docs $(TRACKERS)/done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check distributed submitit
	ULLAGE_TEST_PYTHON=$(NEWEST)/bin/python ULLAGE_TEST_VLLM_PYTHON=$(STACKS_VLLM)/bin/python \
	  ULLAGE_TEST_TRACKERS_PYTHON=$(TRACKERS)/bin/python $(PYTEST) --tier nightly
	$(BIN)/python -m benchmarks.truth --tier night
	$(BIN)/python -m benchmarks.ratios
	$(BIN)/python -m benchmarks.net --count 40
	$(BIN)/python -m benchmarks.lowest
	$(MAKE) wheel
	$(BIN)/python -m benchmarks.wheels --python $(NEWEST)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .envs/rivals \
	  torch-kitsune ridgepoint
	$(BIN)/python -m benchmarks.rivals --python .envs/torch-2.11.0/bin/python --packages .envs/rivals
	$(BIN)/python -m benchmarks.versions
	$(BIN)/python -m benchmarks.examples --python $(NEWEST)/bin/python --python $(OLDEST)/bin/python
	$(BIN)/python -m benchmarks.distributed --python $(NEWEST)/bin/python
	$(BIN)/python -m benchmarks.asynchronous --python $(NEWEST)/bin/python --python .envs/torch-2.9.1/bin/python
	$(BIN)/python -m benchmarks.gate --python $(NEWEST)/bin/python --repetitions 500
	$(BIN)/python -m benchmarks.stacks
	ULLAGE_TEST_PYTHON=$(STACKS)/bin/python $(BIN)/python -m pytest --tier nightly tests/phantom/test_stacks.py \
	  tests/phantom/test_compile.py tests/phantom/test_kernels.py tests/phantom/test_distributed.py \
	  tests/phantom/test_attribution.py
	ULLAGE_TEST_PYTHON=$(STACKS_VLLM)/bin/python $(BIN)/python -m pytest --tier nightly \
	  tests/phantom/test_stacks.py tests/phantom/test_serve.py tests/phantom/test_serve_plan.py
	$(BIN)/python -m benchmarks.serving.phantom_starts --python $(STACKS_VLLM)/bin/python
	$(BIN)/python -m benchmarks.guard.sweep --python $(NEWEST)/bin/python
	$(BIN)/python -m benchmarks.guard.random_errors --python $(NEWEST)/bin/python
	$(BIN)/python -m benchmarks.guard.ranks --python $(NEWEST)/bin/python
	$(BIN)/python -m benchmarks.guard.adapt --python $(NEWEST)/bin/python
	$(BIN)/python -m benchmarks.front
	$(BIN)/python -m benchmarks.front.load
	$(BIN)/python -m benchmarks.front.endurance
	$(BIN)/python -m benchmarks.wild
	$(BIN)/python -m benchmarks.attribution --python $(STACKS)/bin/python
	$(BIN)/python -m benchmarks.folklore --python $(STACKS)/bin/python
	$(BIN)/python -m benchmarks.accuracy.estimate --python $(STACKS)/bin/python

docs: .venv/docs
	$(BIN)/python -m sphinx -q --fail-on-warning --keep-going -b html docs build/docs

fuzz: phantom
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python tests/fuzz/run.py --runs 1200000 --seconds 3600 --only read_pickle --only replay_trace --only unpack_zstd \
	  --only read_snapshots
	$(BIN)/python -m tests.fuzz.run --seconds 3600 --publish --only logs --only bodies --only metrics \
	  --only alerts --only plans --only configurations

wheel: .venv/done
	for machine in x86_64 aarch64; do \
	  ULLAGE_BUILD_TARGET=$$machine-linux-gnu.2.17 $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	done

clean:
	rm -rf .venv .envs .tools build dist src/ullage/ground/native/lib .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The C sources may be newer than the installation; this does nothing when they are not.
phantom: .venv/done
	@$(BIN)/python -m ullage.ground.native.build

# Prometheus's tool for the tests of docs/monitoring, out of Debian's package, which would start a
# service if it were installed.
promtool:
	@command -v promtool >/dev/null || test -x .tools/usr/bin/promtool || { \
	  mkdir -p .tools && cd .tools && \
	  { timeout 60 apt-get download prometheus || \
	    { timeout 60 apt-get update && timeout 60 apt-get download prometheus; }; } && \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && rm prometheus_*.deb; \
	} >/dev/null 2>&1 || echo "promtool is needed on PATH (Debian: apt-get install prometheus)"

# For tests/browser and tests/fuzz; only root can install them.
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 || \
	  echo "a Chromium is needed on PATH (Debian: apt-get install chromium)"

# With its runtime, which Debian has in a package of its own.
clang:
	@ls "$$(clang -print-resource-dir)"/lib/linux/libclang_rt.fuzzer-*.a >/dev/null 2>&1 || \
	  { apt-get update && apt-get install --yes --no-install-recommends clang libclang-rt-dev; } >/dev/null 2>&1 || \
	  echo "clang and its runtime are needed (Debian: apt-get install clang libclang-rt-dev)"

.venv/done: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m compileall -q src
	@touch $@

test-all-environments: $(NEWEST)/ullage-env.json $(STACKS)/ullage-env.json $(RECORDED:%=%/ullage-env.json) .venv/extras .venv/docs promtool chromium clang

.venv/extras: .venv/done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz,ray]'
	@touch $@

.venv/docs: .venv/done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(TRACKERS)/done:
	$(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  comet_ml mlflow-skinny neptune-scale tensorboard tensorboardX wandb
	@touch $@

$(STACKS)/ullage-env.json: benchmarks/stacks.txt $(REQUIREMENTS) | phantom
	$(BIN)/ullage env $(STACKS) -r benchmarks/stacks.txt --with-triton --force
	@# `ullage env` puts its name only, and numba-cuda loads it.
	$(STACKS)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
	  cuda-bindings==13.5.0
	@touch $@

.envs/torch-%/ullage-env.json: $(REQUIREMENTS) | phantom
	$(BIN)/ullage env .envs/torch-$* --torch $* -r $(REQUIREMENTS) --force
	@touch $@

$(NEWEST)/ullage-env.json: $(REQUIREMENTS) | phantom
	$(BIN)/ullage env $(NEWEST) -r $(REQUIREMENTS) --force
	@touch $@
