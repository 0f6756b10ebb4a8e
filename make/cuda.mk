# The CUDA backend: a separate shared object that the program opens at run time, so that one binary
# also starts on a machine without a driver. Built if nvcc is found.

NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_ARCHS ?= 75 80 86 89 90 120
CUDA_SOURCES := $(wildcard src/kernels/cuda/*.cu)
CUDA_LIB :=
# packaging/dist.sh links another file from the same objects.
CUDA_FILE ?= $(OUT)/lib/libhybrid_cuda.so

ifneq ($(CUDA_SOURCES),)
ifneq ($(NVCC),)
ifeq ($(VARIANT),release)
CUDA_LIB := $(CUDA_FILE)
endif
endif
endif

# Compressed code makes the backend a sixth as large; it needs a driver of CUDA 12.4 or newer.
NVCC_FLAGS = -std=c++17 -O3 -lineinfo --compress-mode=size -Iinclude -Isrc \
    -Xcompiler -fPIC,-Wall,-Wextra,-Wno-missing-field-initializers \
    -Xcompiler -fvisibility=hidden $(NVCC_EXTRA) \
    $(foreach a,$(OWN_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
    -gencode arch=compute_$(lastword $(OWN_ARCHS)),code=compute_$(lastword $(OWN_ARCHS))
# wgmma exists in code for sm_90a alone, which runs wherever sm_90 does.
OWN_ARCHS = $(CUDA_ARCHS)
$(OBJ)/src/kernels/cuda/grouped_wgmma.cu.o: OWN_ARCHS = $(patsubst 90,90a,$(CUDA_ARCHS))
CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(OBJ)/%.cu.o)

$(eval $(call remember,$(OBJ)/cuda-flags,$(NVCC) $(NVCC_FLAGS) $(CUDA_SOURCES)))

# The report of ptxas about registers and spills is stored next to the object, for check-kernels;
# warnings are shown.
$(OBJ)/%.cu.o: %.cu $(OBJ)/cuda-flags
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(NVCC_FLAGS) -Xptxas -v -MMD -MP -MF $(@:.o=.d) -c $< -o $@ \
	    > $(@:.o=.log) 2>&1 || { cat $(@:.o=.log) >&2; exit 1; }
	$(Q)grep -A3 -i 'warning' $(@:.o=.log) >&2 || true

# From the library it uses only names and sizes of types. Of the libraries of C++ it needs so little
# that they are included.
$(CUDA_FILE): $(CUDA_OBJECTS) $(OBJ)/src/base/names.o
	$(call say,NVCC,$@)
	$(Q)mkdir -p $(@D) && $(NVCC) $(NVCC_EXTRA) -shared -o $@ $^ $(CUDA_LINK_EXTRA) -lcublasLt -ldl \
	    -Xcompiler -static-libstdc++,-static-libgcc -Xlinker --exclude-libs,ALL
	$(Q)echo $(CUDA_ARCHS) > $(BUILT_FOR)

.PHONY: cuda
# Examples with their own kernels.
ifneq ($(CUDA_LIB),)
CUDA_EXAMPLES := $(patsubst examples/%.cu,$(OUT)/examples/%,$(wildcard examples/*.cu))
$(CUDA_EXAMPLES): $(OUT)/examples/%: examples/%.cu $(PUBLIC_HEADERS) $(STATIC_LIB) $(OBJ)/cuda-flags
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(filter-out -Isrc,$(NVCC_FLAGS)) -o $@ $< $(STATIC_LIB) $(LIBS)

# Measurements of kernels alone, which they include.
CUDA_BENCHES := $(patsubst bench/%.cu,$(OUT)/bench/%,$(wildcard bench/*.cu))
$(CUDA_BENCHES): $(OUT)/bench/%: bench/%.cu $(wildcard src/kernels/cuda/*.cuh) $(OBJ)/cuda-flags
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(NVCC_FLAGS) -o $@ $<
endif

cuda: $(CUDA_LIB) ## only the CUDA backend (CUDA_ARCHS="89" for one architecture)
	@[ -n "$(CUDA_LIB)" ] || { echo "cuda: nvcc was not found. Install the CUDA toolkit, 12.8 or newer" \
	    "(NVCC=/path/to/nvcc when it is not in PATH)." >&2; exit 1; }

# ---- make run, make test -----------------------------------------------------------------------
# All architectures take minutes. `make run` builds for the cards of this machine, and no backend if
# there is none; `make test` also builds for the oldest (without tiles) and for the one with the
# tightest limits. A backend that was already built for more architectures is kept.
BUILT_FOR := $(OBJ)/built-for
ifneq ($(and $(filter run test,$(MAKECMDGOALS)),$(CUDA_LIB),$(filter file,$(origin CUDA_ARCHS))),)
CARDS := $(shell scripts/card-archs.sh '$(NVCC)')
BUILT_ARCHS := $(and $(wildcard $(CUDA_LIB)),$(file <$(BUILT_FOR)))
ifneq ($(filter test,$(MAKECMDGOALS)),)
TESTED_ARCHS := $(sort $(filter-out none all,$(CARDS)) 75 120)
FOR_TESTS := CUDA_ARCHS="$(if $(filter-out $(BUILT_ARCHS),$(TESTED_ARCHS)),$(TESTED_ARCHS),$(BUILT_ARCHS))"
else ifeq ($(CARDS),none)
FOR_THIS_MACHINE := CUDA_LIB= HAS_NO_CARD=1
else ifneq ($(CARDS),all)
FOR_THIS_MACHINE := CUDA_ARCHS="$(if $(filter-out $(BUILT_ARCHS),$(CARDS)),$(CARDS),$(BUILT_ARCHS))"
endif
endif

# Prints the kind of build, once; again only if it changes.
ifneq ($(CUDA_LIB),)
BUILD_NOTE := CUDA backend built for $(addprefix sm_,$(CUDA_ARCHS)).
else ifneq ($(HAS_NO_CARD),)
BUILD_NOTE := CPU build: there is no NVIDIA card here, so the CUDA backend was left out. \
`make cuda` builds it, `make` builds everything.
else ifneq ($(CUDA_SOURCES),)
BUILD_NOTE := CPU build: nvcc was not found. For a GPU install the CUDA toolkit, 12.8 or newer, \
and run make again (NVCC=/path/to/nvcc when it is not in PATH).
else
BUILD_NOTE := CPU build: this version has no CUDA backend yet, so there is nothing to install for \
a GPU. The backend will be built with nvcc of the CUDA toolkit, 12.8 or newer \
($(if $(NVCC),found: $(NVCC),not found here)).
endif

.PHONY: build-note
build-note: $(GEN)/build-note
$(GEN)/build-note: $(if $(call differs,$(BUILD_NOTE),$(file <$(GEN)/build-note)),FORCE) | bin $(CUDA_LIB)
	@: $(shell mkdir -p $(@D))$(file >$@,$(strip $(BUILD_NOTE)))
	@cat $@
