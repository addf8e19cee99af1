# make train   measure ResNet-18 training: on the GPU where there is one, else modelled on the CPU
# make test    every test that this machine can run
# make help    the rest

PYTHON ?= python3
VENV ?= .venv
ARGS ?= -a resnet18 --dummy
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SANITIZED := build/sanitized
CUPTI_12_8 := $(VENV)/share/cupti-12.8

.PHONY: help setup train test unit gpu lint format sanitize compat clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 18

setup: $(READY)  ## a virtual environment with roofprobe built in it

$(READY): pyproject.toml setup.py CMakeLists.txt $(wildcard csrc/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "roofprobe needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@command -v c++ > /dev/null || { echo "roofprobe needs a C++ compiler (c++), such as Debian's package g++"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	# Other CUPTIs for the tests: one that is too old and must be refused, and the oldest to build
	# for. They lie beside the environment's own packages: PyTorch would load them from there.
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/share/cupti-12.4 nvidia-cuda-cupti-cu12==12.4.127
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(CUPTI_12_8) nvidia-cuda-cupti-cu12==12.8.90 nvidia-cuda-runtime-cu12==12.8.90
	touch $(READY)

train: $(READY)  ## measure a training step; ARGS="-a alexnet --dummy" for another
	$(BIN)/python -m roofprobe.train $(ARGS)

test: $(READY)  ## all tests; those for a GPU are skipped, with a count, where there is none
	$(BIN)/python -m pytest

unit: $(READY)  ## tests without a compiled extension or a GPU
	$(BIN)/python -m pytest tests/unit

gpu: $(READY)  ## tests on a GPU
	$(BIN)/python -m pytest tests/gpu

lint: $(READY)  ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror csrc/*

format: $(READY)  ## let the formatters have their way
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i csrc/*

sanitize: $(READY)  ## the extension's tests under AddressSanitizer and UBSan
	rm -rf $(SANITIZED)
	ROOFPROBE_SANITIZE=1 $(BIN)/pip install --quiet --no-deps --target $(SANITIZED) .
	cc -shared -fPIC -o build/no_deepbind.so tests/native/no_deepbind.c -ldl
	# Leaks are off: CPython and libcupti keep memory to the end by design.
	LD_PRELOAD="$(CURDIR)/build/no_deepbind.so $$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	PYTHONPATH=$(SANITIZED) PYTHONMALLOC=malloc \
	  $(BIN)/python -m pytest tests/native -p no:cacheprovider

compat: $(READY)  ## the extension built with CUPTI 12.8's headers, and its tests
	rm -rf build/cupti-12.8
	ROOFPROBE_CUDA_INCLUDE="$(CURDIR)/$(CUPTI_12_8)/nvidia/cuda_cupti/include:$(CURDIR)/$(CUPTI_12_8)/nvidia/cuda_runtime/include" \
	  $(BIN)/pip install --quiet --no-deps --target build/cupti-12.8 .
	PYTHONPATH=build/cupti-12.8 $(BIN)/python -m pytest tests/native -p no:cacheprovider

clean:  ## forget the environment and everything built
	rm -rf $(VENV) build src/*.egg-info src/roofprobe/*.so
