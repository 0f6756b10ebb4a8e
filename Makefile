# hybrid-train: `make run` and `make test` include all set-up; `make help` lists the other targets.
#
# Sources are found by module (src/MODULE/*.c; kernels also cpu/*.c, model also arch/*.c), so a new
# file needs no line here. The results are under build/: lib/, bin/, tests/, bench/, examples/ for
# the normal build, and the same under build/asan/ and build/tsan/ for the two sanitizer variants.
# BUILD= names another folder. The rules are in make/: flags.mk (compiling), library.mk, cuda.mk,
# mpi.mk, tests.mk, gpu.mk, install.mk, python.mk.

# Modules in order: each may use only those before it.
MODULES := base kernels comm memory formats tokenizer jinja data model hub optim phases reward config report state plan engine setup record infer generate trainer custom selftest

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

# All cores unless -j was given on the command line. `clean` with other goals runs in the order
# written.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
ifneq ($(and $(filter clean,$(MAKECMDGOALS)),$(filter-out clean,$(MAKECMDGOALS))),)
.NOTPARALLEL:
endif

include make/flags.mk
include make/library.mk
include make/cuda.mk
include make/mpi.mk
include make/tests.mk
include make/gpu.mk
include make/install.mk
include make/python.mk

##@ Build and use

.PHONY: all lib bin
all: lib bin build-note ## build libraries and programs (the default)
lib: $(STATIC_LIB) $(SHARED_LIB) $(CUDA_LIB) $(MPI_LIB) ## build/lib/libhybrid.a, libhybrid.so, libhybrid_cuda.so, libhybrid_mpi.so
bin: $(PROGRAMS) ## the programs, into build/bin

# Extra arguments replace these: make run ARGS="--model gpt2-124m --data my.txt"
ARGS ?= --profile aggressive

.PHONY: run deps
run: ## install missing packages, build for this machine, train (ARGS="..." replaces --profile aggressive)
	@scripts/install-deps.sh
	@$(MAKE) --no-print-directory bin build-note $(FOR_THIS_MACHINE)
	$(BUILD)/bin/hybrid-train $(ARGS)

# Names from the original documents.
.PHONY: verify-install check-gpu monitor-memory
verify-install: bin ## check programs, libraries and devices of this machine
	@$(BUILD)/bin/hybrid-train --doctor
check-gpu: bin ## the same, and the self-test of the GPU
	@$(BUILD)/bin/hybrid-train --doctor
	@$(BUILD)/bin/hybrid-train --selftest --device cuda
monitor-memory: bin ## watch the newest run: memory by class, speed, loss
	@$(BUILD)/bin/hybrid-top

deps: ## install the packages that building and testing need
	@scripts/install-deps.sh --tests

.PHONY: examples
examples: $(EXAMPLES) $(CUDA_EXAMPLES) ## examples/*.c, each a program that uses only the public header

.PHONY: bench
bench: $(BENCHES) ## build and run the measurements in bench/
	@for b in $(BENCHES) $(wildcard bench/*.sh); do echo "== $$b"; "$$b" || exit 1; done

##@ Code quality

FORMATTED = $(wildcard include/*.h \
    $(foreach d,src tests bench examples,$d/*.[ch] $d/*/*.[ch] $d/*/*/*.[ch]))
TIDY_SOURCES = $(LIB_SOURCES) $(CLI_SOURCES) $(SERVE_SOURCES)

need-tool = @command -v $(1) >/dev/null || \
    { echo "$(1) is missing: sudo apt-get install $(1)" >&2; exit 1; }

.PHONY: tidy format format-check
tidy: $(TIDY_SOURCES:%=tidy/%) ## clang-tidy over src/

.PHONY: $(TIDY_SOURCES:%=tidy/%)
$(TIDY_SOURCES:%=tidy/%): tidy/%:
	$(call need-tool,clang-tidy)
	$(call say,TIDY,$*)
	$(Q)clang-tidy --quiet $* -- $(BASE_CFLAGS) -Wno-unknown-pragmas 2>/dev/null

format: ## clang-format all sources in place
	$(call need-tool,clang-format)
	$(Q)clang-format -i $(FORMATTED)

format-check: ## fail if clang-format would change a file
	$(call need-tool,clang-format)
	$(Q)clang-format --dry-run -Werror $(FORMATTED)

.PHONY: clean
clean: ## remove build/
	$(Q)rm -rf $(BUILD)

.PHONY: help
help: ## this list
	@awk -f make/help.awk $(MAKEFILE_LIST)

.PHONY: FORCE
FORCE:
