# Prints "target  what it does" for each rule line of the makefiles that carries a ## comment,
# under the ##@ headings.
/^##@ / { printf "\n%s\n", substr($0, 5) }
/^[a-z][a-zA-Z_% -]*:.*## / {
    name = $0; sub(/:.*/, "", name); sub(/%/, "MODULE", name)
    text = $0; sub(/.*## /, "", text)
    printf "  make %-14s %s\n", name, text
}
END {
    print "\nVariables"
    print "  V=1              show the commands"
    print "  HY_NATIVE=1      compile for this machine only (-march=native)"
    print "  STATIC_DEPS=1    link libconfig, libyaml and PCRE2 into the programs"
    print "  WERROR=1         warnings are errors (CI=true sets it)"
    print "  PREFIX, DESTDIR  where `make install` puts things (/usr/local)"
}
