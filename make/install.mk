# Installing and removing: libraries, headers, pkg-config file, programs, man pages, completion.

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
# Only the programs open the backend and MPI, so they need not be in the loader's path (beside.h).
CUDADIR ?= $(LIBDIR)
INSTALL ?= install

MAN_PAGES := $(wildcard docs/man/*.1)
CONFIGS := $(wildcard configs/*.cfg configs/*/*.cfg)

##@ Install

# Shells search for completion by the name of a program; one file is for all of ours.
PROGRAM_NAMES = $(notdir $(PROGRAMS))

# SOURCE>TARGET pairs of all files to copy; install and uninstall both use this list.
INSTALLED = \
    $(STATIC_LIB)>$(LIBDIR)/libhybrid.a \
    $(SHARED_FILE)>$(LIBDIR)/$(notdir $(SHARED_FILE)) \
    $(foreach f,$(CUDA_LIB) $(MPI_LIB),$f>$(CUDADIR)/$(notdir $f)) \
    $(foreach f,$(PUBLIC_HEADERS),$f>$(INCLUDEDIR)/$(notdir $f)) \
    $(GEN)/hybrid.pc>$(LIBDIR)/pkgconfig/hybrid.pc \
    $(foreach f,$(PROGRAMS),$f>$(BINDIR)/$(notdir $f)) \
    $(foreach f,$(MAN_PAGES),$f>$(DATADIR)/man/man1/$(notdir $f)) \
    $(foreach p,$(PROGRAM_NAMES),completions/hybrid-train.bash>$(DATADIR)/bash-completion/completions/$p) \
    completions/_hybrid-train>$(DATADIR)/zsh/site-functions/_hybrid-train \
    $(foreach p,$(PROGRAM_NAMES),completions/hybrid-train.fish>$(DATADIR)/fish/vendor_completions.d/$p.fish) \
    $(foreach f,$(CONFIGS),$f>$(DATADIR)/hybrid-train/$f)
LINKS = $(LIBDIR)/$(SONAME) $(LIBDIR)/libhybrid.so

$(eval $(call remember,$(GEN)/prefix,$(PREFIX) $(LIBDIR) $(INCLUDEDIR) $(VERSION) $(CONFIG_LIBS) $(PCRE2_LIBS)))
$(GEN)/hybrid.pc: packaging/hybrid.pc.in $(GEN)/prefix
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' \
	    -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@DEPENDENCIES@|$(CONFIG_LIBS) $(PCRE2_LIBS)|' $< > $@

.PHONY: install uninstall
install: all $(GEN)/hybrid.pc ## into PREFIX (/usr/local), under DESTDIR when packaging
	@for pair in $(foreach p,$(INSTALLED),'$p'); do \
	    from="$${pair%%>*}" to="$(DESTDIR)$${pair#*>}" mode=644; \
	    case "$$from" in */bin/*|*.so*) mode=755;; esac; \
	    $(INSTALL) -D -m $$mode "$$from" "$$to" || exit 1; \
	done
	@ln -sf $(notdir $(SHARED_FILE)) "$(DESTDIR)$(LIBDIR)/$(SONAME)"
	@ln -sf $(SONAME) "$(DESTDIR)$(LIBDIR)/libhybrid.so"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig 2>/dev/null || true; fi
	@echo "installed under $(DESTDIR)$(PREFIX)"

uninstall: ## remove the installed files
	@for pair in $(foreach p,$(INSTALLED),'$p'); do rm -f "$(DESTDIR)$${pair#*>}"; done
	@rm -f $(foreach l,$(LINKS),"$(DESTDIR)$l")
	@rmdir "$(DESTDIR)$(DATADIR)/hybrid-train/configs"/* "$(DESTDIR)$(DATADIR)/hybrid-train/configs" \
	    "$(DESTDIR)$(DATADIR)/hybrid-train" 2>/dev/null || true

# ---- packages ----------------------------------------------------------------------------------
PACKAGES ?= $(BUILD)/packages
MULTIARCH = $(shell dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null)
# "13.0", as nvcc reports it, and the folder of its libraries.
CUDA_VERSION = $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
CUDA_LIBRARIES = $(firstword $(wildcard $(addprefix $(dir $(NVCC))../,lib64 lib)))

# A build id depends on debug information, which contains the folder; without it, any folder gives
# the same bytes.
DEB_LDFLAGS = $(LDFLAGS) -Wl,--build-id=none -Wl,-z,relro -Wl,-z,now

.PHONY: deb dist
deb: ## Debian packages, into build/packages (PACKAGES=)
	@rm -rf $(GEN)/stage
	@$(MAKE) --no-print-directory install DESTDIR=$(abspath $(GEN))/stage PREFIX=/usr \
	    LIBDIR=/usr/lib/$(MULTIARCH) CUDADIR=/usr/lib/hybrid-train BUILD=$(BUILD) LDFLAGS="$(DEB_LDFLAGS)" MPICC=
	@CUDA_LIBRARIES="$(CUDA_LIBRARIES)" packaging/deb.sh $(GEN)/stage $(PACKAGES) $(VERSION) \
	    $(if $(CUDA_LIB),$(CUDA_VERSION))
	$(if $(CUDA_LIB),,@echo "hybrid-train-cuda was not made, because nvcc was not found.")

dist: $(CUDA_LIB) ## a tarball and a wheel for any Linux with glibc 2.31 or newer, into build/packages
	@packaging/dist.sh $(PACKAGES) $(VERSION) $(if $(CUDA_LIB),"$(abspath $(BUILD))" "$(NVCC)" $(CUDA_VERSION) "$(CUDA_ARCHS)")
