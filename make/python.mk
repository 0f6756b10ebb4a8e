# The Python package: wheels, and its tests. packaging/wheel.sh makes the wheel.

PYTHON ?= python3
WHEELS ?= $(BUILD)/wheels

# They create an environment and take minutes if torch is installed: part of the long tests.
SUITES := $(filter-out tests/python/%,$(SUITES))
LONG_SUITES += tests/python/run.sh

##@ Python

.PHONY: wheel python python-tests
wheel: lib ## a wheel of the Python package with the library in it, into build/wheels (WHEELS=)
	@HYBRID_BUILD="$(abspath $(BUILD))" PYTHON="$(PYTHON)" packaging/wheel.sh "$(WHEELS)"

python: lib ## prepare `import hybrid_train` from python/, without installing
	@$(PYTHON) python/builder/write.py include python/hybrid_train

python-tests: lib ## only the tests of the Python package (PYTHON= names a Python with torch)
	@PYTHON="$(PYTHON)" $(RUN_TESTS) tests/python/run.sh
