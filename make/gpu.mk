# Tests that need a card, and checks of kernels that do not.
#
# `make test-gpu` runs the Check programs tests/gpu/test_*.c and the shell suites tests/gpu/run-*.sh
# on the first CUDA device. `make gpu-test-programs` only builds the programs, for a machine with a
# card but without Check. `make check-kernels` compiles for sm_120, which has the tightest limits,
# and reads the resource report; `make test` does so if nvcc is found.

GPU_TESTS := $(patsubst tests/%.c,$(OUT)/tests/%,$(wildcard tests/gpu/test_*.c))
GPU_SUITES := $(wildcard tests/gpu/run-*.sh)

.PHONY: test-gpu gpu-test-programs check-kernels
test-gpu: lib bin $(GPU_TESTS) ## all tests that need a card: ops, backend, training, errors
	@[ -n "$(CUDA_LIB)" ] || { echo "test-gpu: there is no CUDA backend to test, because nvcc was not found" \
	    "(NVCC=/path/to/nvcc names it)" >&2; exit 1; }
	@$(OUT)/tests/gpu/test_gpu_backend --probe || exit 1
	@HYBRID_TEST_LIMIT=$${HYBRID_TEST_LIMIT:-1200} $(RUN_TESTS) $(GPU_TESTS) $(GPU_SUITES)

gpu-test-programs: $(GPU_TESTS)

# The build for sm_120 leaves its logs next to the objects. A build only for other cards makes
# separate objects for sm_120.
ifneq ($(filter 120,$(CUDA_ARCHS)),)
KERNEL_REPORTS := $(CUDA_SOURCES:%.cu=$(OBJ)/%.cu.log)
$(KERNEL_REPORTS): %.log: %.o
	@touch $@
else
KERNEL_REPORTS := $(CUDA_SOURCES:%.cu=$(OBJ)/sm_120/%.log)
$(OBJ)/sm_120/%.log: %.cu $(OBJ)/cuda-flags
	$(call say,PTXAS,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(filter-out -gencode arch=%,$(NVCC_FLAGS)) \
	    -gencode arch=compute_120,code=sm_120 -Xptxas -v -MMD -MP -MF $(@:.log=.d) -MT $@ \
	    -c $< -o $(@:.log=.o) > $@ 2>&1 || { cat $@ >&2; rm -f $@; exit 1; }
endif
KERNEL_CHECK := $(OBJ)/kernels-checked

$(KERNEL_CHECK): scripts/check-kernels.sh $(KERNEL_REPORTS)
	$(Q)scripts/check-kernels.sh $(KERNEL_REPORTS) && touch $@

check-kernels: $(if $(and $(NVCC),$(CUDA_SOURCES)),$(KERNEL_CHECK)) ## sm_120: no spills, 99 KB

# Checks without a card: the programs compile, the kernels fit.
ifeq ($(VARIANT),release)
fast-tests: gpu-test-programs check-kernels
endif

-include $(wildcard $(OBJ)/sm_120/src/kernels/cuda/*.d)
