# Compiling: compiler, warnings, the three variants, and rebuilding when they change.

ifeq ($(origin CC),default)
CC := gcc
endif
PKG_CONFIG ?= pkg-config

# VARIANT is release, asan (address and undefined behaviour) or tsan (threads).
VARIANT ?= release
BUILD ?= build
OBJ := $(BUILD)/obj/$(VARIANT)
OUT := $(BUILD)$(if $(filter-out release,$(VARIANT)),/$(VARIANT))
GEN := $(BUILD)/gen

VERSION := $(shell sed -n 's/^\#define HYBRID_VERSION "\(.*\)"/\1/p' include/hybrid.h)
SOVERSION := 0

WARNINGS := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes
BASE_CFLAGS := -std=c17 -D_GNU_SOURCE -Iinclude -Isrc $(WARNINGS)

# The sanitizer variants poison released device memory (HY_POISON, see memory/arena.h); two warnings
# are off there because only the instrumented code causes them.
SANITIZED := -fno-omit-frame-pointer -DHY_POISON -Wno-maybe-uninitialized -Wno-format-truncation
VARIANT_release :=
VARIANT_asan := $(SANITIZED) -fsanitize=address,undefined -fno-sanitize-recover=undefined
VARIANT_tsan := $(SANITIZED) -fsanitize=thread
ifeq ($(filter release asan tsan,$(VARIANT)),)
$(error VARIANT=$(VARIANT) is not accepted; accepted: release, asan, tsan)
endif
CFLAGS ?= $(if $(filter release,$(VARIANT)),-O3,-O1) -g

# The static and the shared library use the same objects: position-independent, with direct calls
# between our own functions.
ALL_CFLAGS = $(BASE_CFLAGS) -fPIC -fno-semantic-interposition -pthread $(CPPFLAGS) $(CFLAGS) \
    $(VARIANT_$(VARIANT))
LINK = $(CC) $(CFLAGS) $(VARIANT_$(VARIANT)) $(LDFLAGS)

# Only the loop pragmas of OpenMP are used: we manage threads ourselves (kernels/cpu/parallel.c).
KERNEL_CFLAGS := -fopenmp-simd -ffp-contract=fast
# formats/blocks*.c: the bytes of a file must not depend on the machine, so multiply and add are
# never contracted. The other flags let loops become vectors and change no result.
BLOCKS_CFLAGS := -fopenmp-simd -ffp-contract=off -fno-trapping-math -fno-math-errno

ifeq ($(HY_NATIVE),1)
ALL_CFLAGS += -march=native
endif
ifeq ($(CI),true)
WERROR ?= 1
endif
ifeq ($(WERROR),1)
ALL_CFLAGS += -Werror
endif

# OpenBLAS is not linked: the program opens it at run time, after it has chosen the core type.
# libconfig reads configuration files; nothing is built without it (has-libconfig, below).
# PCRE2 handles split patterns of tokenizers that are not built in; without it they are rejected.
# libyaml reads them in YAML and JSON.
LIBCONFIG_LIBS := -lconfig
LIBYAML_LIBS := -lyaml
CONFIG_LIBS := $(LIBCONFIG_LIBS) $(LIBYAML_LIBS)
PCRE2_LIBS := $(shell echo 'int main(void) { return 0; }' | $(CC) $(CPPFLAGS) $(LDFLAGS) \
    -DPCRE2_CODE_UNIT_WIDTH=8 -include pcre2.h -x c - -o /dev/null -lpcre2-8 2>/dev/null && \
    echo -lpcre2-8)
ALL_CFLAGS += $(if $(PCRE2_LIBS),-DHY_HAS_PCRE2)
# libmicrohttpd is for hybrid-serve alone, which is left out without it.
MICROHTTPD_LIBS := $(shell echo 'int main(void) { return 0; }' | $(CC) $(CPPFLAGS) $(LDFLAGS) \
    -include microhttpd.h -x c - -o /dev/null -lmicrohttpd 2>/dev/null && echo -lmicrohttpd)
SYSTEM_LIBS := -lm -lpthread -ldl
LIBS := $(CONFIG_LIBS) $(PCRE2_LIBS) $(SYSTEM_LIBS)
ifeq ($(STATIC_DEPS),1)
PROGRAM_LIBS := -Wl,-Bstatic $(CONFIG_LIBS) $(PCRE2_LIBS) -Wl,-Bdynamic $(SYSTEM_LIBS)
else
PROGRAM_LIBS := $(LIBS)
endif

# V=1 shows commands; otherwise each line names an action and its file; -s is silent.
Q := $(if $(filter 1,$(V)),,@)
say = @$(if $(findstring s,$(firstword -$(MAKEFLAGS))),:,printf '  %-6s %s\n' '$(1)' '$(2)')

# $(call remember,FILE,TEXT): a rule for a file that contains TEXT and is rewritten only if TEXT has
# changed; targets that depend on the file are then rebuilt. (The file is written while the recipe
# is expanded, so the folder is made there, too.)
differs = $(subst x$(strip $(1)),,x$(strip $(2)))
define remember
$(1): $(if $(call differs,$(2),$(file <$(1))),FORCE)
	@: $$(shell mkdir -p $$(@D))$$(file >$$@,$(strip $(2)))
endef

FLAGS_STAMP := $(OBJ)/flags
$(eval $(call remember,$(FLAGS_STAMP),$(CC) $(ALL_CFLAGS) $(KERNEL_CFLAGS) $(BLOCKS_CFLAGS)))
LINK_STAMP := $(OBJ)/link-flags
$(eval $(call remember,$(LINK_STAMP),$(LINK) $(PROGRAM_LIBS)))

comma := ,
empty :=
space := $(empty) $(empty)
# $(call need-header,STAMP,HEADER,PACKAGE,LIBRARY): a stamp that is made when the compiler exists
# and finds the header and the library (may be empty), also in folders from CPPFLAGS and LDFLAGS.
# All compiling depends on it, so that a missing package is the first and only message.
define need-header
$(1):
	@mkdir -p $$(@D)
	@command -v $$(firstword $$(CC)) >/dev/null || { \
	    echo "There is no compiler ($$(CC)). \`make deps\` installs missing packages." >&2; exit 1; }
	@echo 'int main(void) { return 0; }' | $$(CC) $$(CPPFLAGS) $$(LDFLAGS) -include $(2) -x c - \
	    -o /dev/null $(4) 2>/dev/null || { \
	    echo "$(2)$(if $(4),$(comma) or its library$(comma)) is missing: package $(3)." >&2; \
	    echo "\`make deps\` installs it; so do \`make run\` and \`make test\`." >&2; exit 1; }
	@touch $$@
endef
$(eval $(call need-header,$(GEN)/has-libc,stdio.h,libc6-dev))
$(eval $(call need-header,$(GEN)/has-check,check.h,check))
$(eval $(call need-header,$(GEN)/has-libconfig,libconfig.h,libconfig-dev,$(LIBCONFIG_LIBS)))
$(eval $(call need-header,$(GEN)/has-libyaml,yaml.h,libyaml-dev,$(LIBYAML_LIBS)))
