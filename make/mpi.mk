# MPI: a separate shared object that the program opens at run time. Built if mpicc is found (MPICC=
# omits it, MPICC=/path/to/mpicc names one).

MPICC ?= $(shell command -v mpicc 2>/dev/null)
MPI_SOURCES := $(wildcard src/comm/mpi/*.c)
MPI_LIB :=
ifneq ($(MPICC),)
ifeq ($(VARIANT),release)
MPI_LIB := $(OUT)/lib/libhybrid_mpi.so
endif
endif

MPI_FLAGS = $(BASE_CFLAGS) -fPIC -fvisibility=hidden $(CPPFLAGS) $(CFLAGS) $(if $(filter 1,$(WERROR)),-Werror)
$(eval $(call remember,$(OBJ)/mpi-flags,$(MPICC) $(MPI_FLAGS) $(LDFLAGS) $(MPI_SOURCES)))

$(OUT)/lib/libhybrid_mpi.so: $(MPI_SOURCES) $(wildcard src/comm/*.h) $(OBJ)/mpi-flags
	$(call say,MPICC,$@)
	$(Q)mkdir -p $(@D) && $(MPICC) $(MPI_FLAGS) $(LDFLAGS) -shared -o $@ $(MPI_SOURCES)
