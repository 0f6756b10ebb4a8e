# Tests: a Check program per tests/test_*.c, shell suites in tests/*/run.sh, long ones in
# tests/long.

CHECK_CFLAGS := $(shell $(PKG_CONFIG) --cflags check 2>/dev/null)
CHECK_LIBS := $(or $(shell $(PKG_CONFIG) --libs --static check 2>/dev/null),\
    -lcheck -lsubunit -lrt -lm -lpthread)
# The folder of golden files, for tests started in any folder.
TEST_CFLAGS := $(CHECK_CFLAGS) -Itests -DHY_SOURCE_DIR='"$(CURDIR)"'

TEST_SOURCES := $(wildcard tests/test_*.c)
TESTS := $(patsubst tests/%.c,$(OUT)/tests/%,$(TEST_SOURCES))
LONG_TESTS := $(patsubst tests/%.c,$(OUT)/tests/%,$(wildcard tests/long/test_*.c))
# Tests of a bench script that starts many runs.
MEASUREMENT_SUITES := tests/adapter_value/run.sh
# The package is tested as shipped, without a sanitizer.
SUITES := $(filter-out $(if $(filter-out release,$(VARIANT)),tests/package/%),$(filter-out $(MEASUREMENT_SUITES),$(wildcard tests/*/run.sh)))
# The last of these runs every command in the docs.
LONG_SUITES := $(wildcard tests/long/*.sh) $(MEASUREMENT_SUITES) tests/docs/commands.sh

$(eval $(call remember,$(OBJ)/test-flags,$(TEST_CFLAGS) $(CHECK_LIBS)))

$(OBJ)/tests/%.o: tests/%.c $(FLAGS_STAMP) $(OBJ)/test-flags | $(GEN)/has-check $(GEN)/has-libc
	$(call say,CC,$<)
	$(call compile,$<,$(TEST_CFLAGS))

link-test = $(Q)mkdir -p $(@D) && $(LINK) $(WRAPPED:%=-Wl,--wrap=%) -o $@ $(filter %.o %.a,$^) $(LIBS) \
    $(CHECK_LIBS)
# Programs that intercept functions of the library: tests/skipped_time.h, tests/engine_rig.h,
# tests/test_generate_use.c, tests/test_generate_file.c, tests/test_decode_inference.c.
$(addprefix $(OUT)/tests/,test_monitor_run test_steering test_ranks_steering long/test_steering_all \
    long/test_ranks_steering_all): private WRAPPED := hy_clock
$(addprefix $(OUT)/tests/,test_engine_exact test_engine_limits long/test_engine_exact_all \
    long/test_engine_limits_all long/test_engine_growth gpu/test_gpu_engine): \
    private WRAPPED := hy_cpu_stream_create hy_cpu_stream_destroy hy_cpu_stream_enqueue

$(addprefix $(OUT)/tests/,test_generate_use test_generate_file): private WRAPPED := hy_batch_decoder_step
$(OUT)/tests/test_decode_inference: private WRAPPED := hy_batch_decoder_read

# tests/inside.c, for the programs that call it.
TEST_RIG := $(OBJ)/tests/inside.a
$(TEST_RIG): $(OBJ)/tests/inside.o
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(OUT)/tests/%: $(OBJ)/tests/%.o $(TEST_RIG) $(STATIC_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(link-test)

# ---- out of memory ---------------------------------------------------------------------------
# Programs in which allocations fail: every call of the library to one of these goes through
# tests/oom/faults.c. -rdynamic gives names to stacks.
OOM_WRAPPED := malloc calloc realloc aligned_alloc posix_memalign free strdup strndup mmap fopen \
    opendir getline pthread_create hy_cpu_stream_enqueue hy_cpu_stream_copy hy_cpu_stream_call \
    hy_cpu_event_record hy_cpu_stream_wait hy_disk_write_at config_init config_read_string
OOM_OBJECTS := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tests/oom/*.c))
$(OUT)/tests/test_oom $(OUT)/tests/long/test_oom_all: $(OUT)/tests/%: $(OBJ)/tests/%.o \
    $(OOM_OBJECTS) $(TEST_RIG) $(STATIC_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -rdynamic $(OOM_WRAPPED:%=-Wl,--wrap=%) -o $@ \
	    $(filter %.o %.a,$^) $(LIBS)

# Ranks that fail at an exact allocation, launch or write.
RANK_FAULTS := $(addprefix $(OUT)/tests/,test_ranks_faults long/test_ranks_killed long/test_ranks_refused)
$(RANK_FAULTS): $(OUT)/tests/%: $(OBJ)/tests/%.o $(OBJ)/tests/oom/faults.o $(TEST_RIG) $(STATIC_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -rdynamic $(OOM_WRAPPED:%=-Wl,--wrap=%) -o $@ \
	    $(filter %.o %.a,$^) $(LIBS) $(CHECK_LIBS)

# ---- stand-ins ---------------------------------------------------------------------------------
# Libraries that tests open in place of third-party ones; one lacks a function.
STANDINS := $(addprefix $(OUT)/tests/standin/,libnccl.so libnccl_without_recv.so)
$(STANDINS): tests/standin/nccl.c
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) -std=gnu17 -O1 -g -fPIC -shared -pthread $(VARIANT_$(VARIANT)) \
	    $(if $(findstring without_recv,$@),-DWITHOUT_RECV) -o $@ $<
$(OUT)/tests/test_comm_nccl $(OUT)/tests/test_ranks_alone: | $(STANDINS)
$(OUT)/tests/test_comm_mpi $(OUT)/tests/test_comm_team $(OUT)/tests/test_ranks_mpi: | $(MPI_LIB)

# ---- fuzz targets ----------------------------------------------------------------------------
# tests/fuzz/fuzz_NAME.c with tests/fuzz/driver.c and seeds in tests/fuzz/seeds/NAME. They are
# always built with the address sanitizer and linked with the parsing modules: FUZZ_MODULES.
FUZZ_MODULES := base kernels comm memory formats tokenizer jinja data model hub optim phases reward config report
FUZZ_NAMES := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_TARGETS := $(FUZZ_NAMES:%=$(BUILD)/asan/tests/fuzz/%)
ifeq ($(VARIANT),asan)
FUZZ_LIB := $(OBJ)/fuzz-modules.a
$(FUZZ_LIB): $(call objects,$(foreach r,$(FUZZ_MODULES),$(call module-sources,$r))) $(OBJ)/gen/builtin_files.o
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(OUT)/tests/fuzz/fuzz_%: $(OBJ)/tests/fuzz/fuzz_%.o $(OBJ)/tests/fuzz/driver.o $(FUZZ_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -o $@ $(filter %.o %.a,$^) $(LIBS)
endif

# ---- torture ---------------------------------------------------------------------------------
# For tests/torture/torture.sh: a library that makes calls fail, and three small programs.
TORTURE_OUT := $(OUT)/tests/torture
TORTURE_TOOLS := $(addprefix $(TORTURE_OUT)/,faults.so guard mutate strangers)
$(TORTURE_OUT)/faults.so: tests/torture/faults.c
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(CC) -std=gnu17 -O1 -fPIC -shared -o $@ $< -ldl
$(TORTURE_OUT)/guard $(TORTURE_OUT)/mutate $(TORTURE_OUT)/strangers: $(TORTURE_OUT)/%: $(OBJ)/tests/torture/%.o $(STATIC_LIB) \
    $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -o $@ $(filter %.o %.a,$^) $(LIBS)

# The programs that tests/templates/compare.py and tests/rows/compare.py compare with transformers.
$(OUT)/tests/templates/render $(OUT)/tests/rows/encode: $(OUT)/tests/%: $(OBJ)/tests/%.o \
    $(STATIC_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -o $@ $(filter %.o %.a,$^) $(LIBS)

RUN_TESTS = VARIANT=$(VARIANT) HYBRID_BUILD="$(abspath $(OUT))" HYBRID_MAKE_ARGS="$(MAKEOVERRIDES)" \
    tests/run.sh

##@ Test

.PHONY: test test-all test-programs fast-tests long-tests asan tsan fuzz-programs fuzz torture
test: ## install missing packages, build, run the fast tests
	@scripts/install-deps.sh --tests
	@$(MAKE) --no-print-directory fast-tests $(FOR_TESTS)

test-all: ## the above, the long tests, both sanitizers, the commands in the docs
	@scripts/install-deps.sh --tests
	@$(MAKE) --no-print-directory fast-tests
	@$(MAKE) --no-print-directory long-tests
	@$(MAKE) --no-print-directory asan
	@$(MAKE) --no-print-directory tsan

test-programs: $(TESTS)

# The fuzz targets are part of the plain run only: it builds them with their own sanitizer.
FUZZED := $(if $(filter release,$(VARIANT)),$(FUZZ_TARGETS))
fast-tests: lib bin examples $(BENCHES) $(TESTS) $(if $(FUZZED),fuzz-programs)
	@HYBRID_FUZZ_SECONDS=$${HYBRID_FUZZ_SECONDS:-1} HYBRID_FUZZ_TARGETS="$(abspath $(FUZZED))" \
	    $(RUN_TESTS) $(TESTS) $(SUITES) \
	    $(if $(FUZZED),tests/fuzz/all.sh)

long-tests: lib bin examples $(LONG_TESTS)
	@HYBRID_TEST_LIMIT=$${HYBRID_TEST_LIMIT:-1800} $(RUN_TESTS) $(LONG_TESTS) $(LONG_SUITES)
	@$(MAKE) --no-print-directory fuzz SECONDS=600
	@$(MAKE) --no-print-directory torture MINUTES=10

fuzz-programs:
	@$(MAKE) --no-print-directory VARIANT=asan $(FUZZ_TARGETS)

SECONDS ?= 60
fuzz: fuzz-programs ## every parser on damaged files for SECONDS (60) each, under a sanitizer
	@HYBRID_FUZZ_SECONDS=$(SECONDS) HYBRID_TEST_LIMIT=$$(($(SECONDS) * $(words $(FUZZ_TARGETS)) + 300)) \
	    HYBRID_FUZZ_TARGETS="$(abspath $(FUZZ_TARGETS))" $(RUN_TESTS) tests/fuzz/all.sh

# A new seed, unless one is given.
SEED ?= $(shell date +%s)
MINUTES ?= 2
torture: lib bin $(TORTURE_TOOLS) fuzz-programs ## kills, faults, damaged input, odd environments, strangers for MINUTES (2), by SEED
	@HYBRID_BUILD="$(abspath $(OUT))" HYBRID_FUZZ_TARGETS="$(abspath $(FUZZ_TARGETS))" \
	    tests/torture/torture.sh $(SEED) $(MINUTES)

asan: ## build with address and undefined-behaviour sanitizers, run the fast tests
	@$(MAKE) --no-print-directory VARIANT=asan fast-tests

tsan: ## build with the thread sanitizer, run the fast tests
	@$(MAKE) --no-print-directory VARIANT=tsan fast-tests

# One module: its tests are linked only with the modules up to it, which also detects a module that
# uses a later one. FROM="base formats" names the modules to link instead.
upto = $(firstword $(2)) \
    $(if $(filter-out $(1),$(firstword $(2))),$(call upto,$(1),$(wordlist 2,99,$(2))))
ifneq ($(MODULE),)
FROM ?= $(strip $(call upto,$(MODULE),$(MODULES)))
MODULE_OBJECTS := $(foreach r,$(FROM),$(call objects,$(call module-sources,$r)))
ifneq ($(filter config,$(FROM)),)
MODULE_OBJECTS += $(filter %/builtin_files.o,$(LIB_OBJECTS))
endif
ifneq ($(filter report,$(FROM)),)
MODULE_OBJECTS += $(filter %/report_page.o,$(LIB_OBJECTS))
endif
MODULE_LIB := $(OBJ)/modules-to-$(MODULE).a
MODULE_SOURCES := $(wildcard tests/test_$(MODULE).c tests/test_$(MODULE)_*.c)
MODULE_TESTS := $(patsubst tests/%.c,$(OUT)/tests/modules/%,$(MODULE_SOURCES))
$(eval $(call remember,$(OBJ)/list-to-$(MODULE),$(MODULE_OBJECTS)))
$(MODULE_LIB): $(MODULE_OBJECTS) $(OBJ)/list-to-$(MODULE)
	$(Q)rm -f $@ && $(AR) rcs $@ $(MODULE_OBJECTS)
$(OUT)/tests/modules/%: $(OBJ)/tests/%.o $(TEST_RIG) $(MODULE_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(link-test)
.PHONY: module-tests
module-tests: $(MODULE_TESTS)
	@[ -n "$(MODULE_TESTS)" ] || { echo "there is no tests/test_$(MODULE).c" >&2; exit 1; }
	@$(RUN_TESTS) $(MODULE_TESTS)
endif

test-%: ## the tests of one module (make test-base), linked only with the modules before it
	@$(MAKE) --no-print-directory MODULE=$* module-tests

# Compiles one module: make module-base
module-%: FORCE
	@$(MAKE) --no-print-directory $(call objects,$(call module-sources,$*))
