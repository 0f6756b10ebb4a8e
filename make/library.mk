# The library, static and shared, and the programs that use it.

# Inner modules: kernels/cpu and model/arch.
module-sources = $(wildcard src/$(1)/*.c src/$(1)/cpu/*.c src/$(1)/arch/*.c)
objects = $(patsubst %.c,$(OBJ)/%.o,$(1))

LIB_SOURCES := $(foreach r,$(MODULES),$(call module-sources,$r))
LIB_OBJECTS := $(call objects,$(LIB_SOURCES))
CLI_SOURCES := $(wildcard src/cli/*.c)
CLI_SHARED := $(filter-out src/cli/hybrid_%.c,$(CLI_SOURCES))
# hybrid-serve, of which src/serve is a part, is built if libmicrohttpd is found.
CLI_MAINS := $(filter-out $(if $(MICROHTTPD_LIBS),,src/cli/hybrid_serve.c),\
    $(filter src/cli/hybrid_%.c,$(CLI_SOURCES)))
SERVE_SOURCES := $(call module-sources,serve)
SERVE_OBJECTS := $(call objects,$(SERVE_SOURCES)) $(OBJ)/gen/serve_page.o

# ---- configuration files embedded in the library ------------------------------------------
BUILTIN_INPUTS := $(wildcard configs/*.cfg configs/*/*.cfg)
BUILTIN_C := $(GEN)/builtin_files.c
LIB_OBJECTS += $(OBJ)/gen/builtin_files.o

$(eval $(call remember,$(GEN)/builtin-list,$(BUILTIN_INPUTS)))
$(BUILTIN_C): scripts/embed.sh $(BUILTIN_INPUTS) $(GEN)/builtin-list
	$(call say,EMBED,$@)
	$(Q)scripts/embed.sh $@

# ---- the style and the script of reports, carried the same way ---------------------------------
PAGE_STYLE := src/report/page/style.css
PAGE_SCRIPTS := $(addprefix src/report/page/,figures.js data.js bands.js chart.js page.js)
REPORT_PAGE_C := $(GEN)/report_page.c
LIB_OBJECTS += $(OBJ)/gen/report_page.o

$(REPORT_PAGE_C): scripts/embed-page.sh $(PAGE_STYLE) $(PAGE_SCRIPTS)
	$(call say,EMBED,$@)
	$(Q)scripts/embed-page.sh $@ report/page.h hy_report style=$(PAGE_STYLE) \
	    script=$(subst $(space),$(comma),$(PAGE_SCRIPTS))

SERVE_PAGE := $(addprefix src/serve/page/,style.css body.html page.js)
SERVE_PAGE_C := $(GEN)/serve_page.c
$(SERVE_PAGE_C): scripts/embed-page.sh $(SERVE_PAGE)
	$(call say,EMBED,$@)
	$(Q)scripts/embed-page.sh $@ serve/page.h hy_serve style=$(word 1,$(SERVE_PAGE)) \
	    body=$(word 2,$(SERVE_PAGE)) script=$(word 3,$(SERVE_PAGE))

# ---- objects ---------------------------------------------------------------------------------
compile = $(Q)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(2) -MMD -MP -c $(1) -o $@

$(OBJ)/%.o: %.c $(FLAGS_STAMP) | $(GEN)/has-libc $(GEN)/has-libconfig $(GEN)/has-libyaml
	$(call say,CC,$<)
	$(call compile,$<,$(if $(filter src/kernels/cpu/%,$<),$(KERNEL_CFLAGS)) \
	    $(if $(filter src/formats/blocks%,$<),$(BLOCKS_CFLAGS)) $(if $(filter bench/%,$<),-Ibench))

$(OBJ)/gen/%.o: $(GEN)/%.c $(FLAGS_STAMP) | $(GEN)/has-libc $(GEN)/has-libconfig $(GEN)/has-libyaml
	$(call say,CC,$<)
	$(call compile,$<)

# ---- libraries -------------------------------------------------------------------------------
STATIC_LIB := $(OUT)/lib/libhybrid.a
SONAME := libhybrid.so.$(SOVERSION)
SHARED_LIB := $(OUT)/lib/libhybrid.so
SHARED_FILE := $(OUT)/lib/libhybrid.so.$(VERSION)

$(eval $(call remember,$(OBJ)/library-list,$(LIB_OBJECTS)))

$(STATIC_LIB): $(LIB_OBJECTS) $(OBJ)/library-list
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $(LIB_OBJECTS)

# The shared library exports only what the public headers declare; the list is made from the
# headers. The static library keeps every name, so tests can call the modules.
PUBLIC_HEADERS := $(wildcard include/*.h)
EXPORTS := $(GEN)/libhybrid.map
$(EXPORTS): $(PUBLIC_HEADERS) | $(GEN)/has-libc
	$(Q)mkdir -p $(@D)
	$(Q){ echo '{ global:'; \
	      cat $(PUBLIC_HEADERS) | $(CC) -E -P -Iinclude -x c - | \
	          tr '\n' ' ' | sed -E 's/static inline [^(]*\(//g' | \
	          grep -o '\bhy_[a-z0-9_]*(' | tr '(' ';' | sort -u; \
	      echo 'local: *; };'; } > $@

$(SHARED_FILE): $(LIB_OBJECTS) $(OBJ)/library-list $(EXPORTS) $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=$(EXPORTS) \
	    -o $@ $(LIB_OBJECTS) $(LIBS)

$(SHARED_LIB): $(SHARED_FILE)
	$(Q)ln -sf $(<F) $(@D)/$(SONAME) && ln -sf $(SONAME) $@ && touch $@

# ---- programs --------------------------------------------------------------------------------
# src/cli/hybrid_NAME.c holds a main and becomes build/bin/hybrid-NAME; the other files in src/cli
# are shared between the programs.
program-of = $(OUT)/bin/$(subst _,-,$(patsubst src/cli/%.c,%,$(1)))
PROGRAMS := $(foreach m,$(CLI_MAINS),$(call program-of,$m))
CLI_ARCHIVE := $(OBJ)/cli.a

$(eval $(call remember,$(OBJ)/cli-list,$(CLI_SHARED)))

$(CLI_ARCHIVE): $(call objects,$(CLI_SHARED)) $(OBJ)/cli-list
	$(Q)rm -f $@ && $(AR) rcs $@ $(call objects,$(CLI_SHARED))

is-serve = $(filter %/hybrid_serve.c,$(1))
define program-rule
$(call program-of,$(1)): $(call objects,$(1)) $(if $(is-serve),$(SERVE_OBJECTS)) $(CLI_ARCHIVE) \
    $(STATIC_LIB) $(LINK_STAMP)
	$$(call say,LD,$$@)
	$$(Q)mkdir -p $$(@D) && $$(LINK) -o $$@ $$(filter %.o %.a,$$^) \
	    $(if $(is-serve),$(MICROHTTPD_LIBS)) $$(PROGRAM_LIBS)
endef
$(foreach m,$(CLI_MAINS),$(eval $(call program-rule,$m)))

# Said once, after the programs.
ifeq ($(MICROHTTPD_LIBS),)
build-note: $(GEN)/no-serve
$(GEN)/no-serve: | bin
	@mkdir -p $(@D) && echo "hybrid-serve was left out: libmicrohttpd was not found (package \
	libmicrohttpd-dev; \`make deps\` installs it)." | tee $@
endif

# ---- examples and measurements ---------------------------------------------------------------
# Examples use only the public header; measurements may use internal ones.
EXAMPLES := $(patsubst examples/%.c,$(OUT)/examples/%,$(wildcard examples/*.c))
BENCHES := $(patsubst bench/%.c,$(OUT)/bench/%,$(wildcard bench/*.c))

$(OUT)/examples/%: examples/%.c $(PUBLIC_HEADERS) $(STATIC_LIB) $(FLAGS_STAMP) $(LINK_STAMP)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && \
	    $(CC) $(filter-out -Isrc,$(ALL_CFLAGS)) $(LDFLAGS) -o $@ $< $(STATIC_LIB) $(LIBS)

# bench/NAME.c may have a folder bench/NAME with more files.
bench-parts = $(call objects,$(wildcard bench/$(1)/*.c))
.SECONDEXPANSION:
$(OUT)/bench/%: $(OBJ)/bench/%.o $$(call bench-parts,$$*) $(STATIC_LIB) $(LINK_STAMP)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) && $(LINK) -o $@ $(filter %.o,$^) $(STATIC_LIB) $(LIBS)

.SECONDARY:
-include $(wildcard $(OBJ)/*/*.d $(OBJ)/*/*/*.d $(OBJ)/*/*/*/*.d)
