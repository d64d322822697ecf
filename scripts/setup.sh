#!/bin/sh
# setup.sh -- what this project needs beyond make: look for it, install what is missing, say what was done.
#
#   C++17 compiler with OpenMP   oneDNN (matrix products on a CPU)   Boost.Context (the simulated GPU)   doctest (tests)
#   stb (PNG)   nlohmann json   CLI11
#
# Usage    sh scripts/setup.sh          no options and no questions; `make train` and `make test` run it first
# Env      CXX   the compiler that must find the headers (default: g++, else clang++)
# Status   0 when all is there, 1 with a command for you to run where this script may not or cannot
# Why      It looks for headers, not for packages: what you built or unpacked by hand counts too. The look is one run of
#          the preprocessor, so it costs nothing to do it before each build.
#          A CUDA toolkit is used where there is one and never installed: that choice goes with your driver.
set -eu

say() { echo "setup: $*"; }
words() { echo "$*"; }
stop() { say "$*" >&2; exit 1; }

# The compiler that make will use, or nothing.
compiler() {
    if [ -n "${CXX-}" ]; then
        if command -v "${CXX%% *}" >/dev/null 2>&1; then echo "$CXX"; fi # it may be several words: "ccache g++"
        return
    fi
    for c in g++ clang++; do
        if command -v $c >/dev/null 2>&1; then echo $c; return; fi
    done
}

# Homebrew keeps headers where no compiler looks by itself.
brew_includes() {
    for prefix in /opt/homebrew /usr/local; do
        if [ -x $prefix/bin/brew ]; then echo "-I$prefix/include -I$prefix/opt/libomp/include"; return; fi
    done
}

# Prints the names of what is missing, from: compiler openmp onednn boost doctest stb json cli11.
missing() {
    cxx=$(compiler)
    if [ -z "$cxx" ]; then echo compiler openmp onednn boost doctest stb json cli11; return; fi
    # shellcheck disable=SC2046,SC2086 # words are meant to split
    $cxx -std=c++17 -E -P -x c++ ${CPPFLAGS-} $(brew_includes) - 2>/dev/null <<'CODE' || echo compiler
#if !__has_include(<filesystem>)
compiler
#endif
#if !__has_include(<omp.h>)
openmp
#endif
#if !__has_include(<oneapi/dnnl/dnnl.hpp>) && !__has_include(<dnnl.hpp>)
onednn
#endif
#if !__has_include(<boost/context/detail/fcontext.hpp>)
boost
#endif
#if !__has_include(<doctest/doctest.h>) && !__has_include(<doctest.h>)
doctest
#endif
#if !(__has_include(<stb/stb_image_write.h>) && __has_include(<stb/stb_image.h>)) && \
    !(__has_include(<stb_image_write.h>) && __has_include(<stb_image.h>))
stb
#endif
#if !__has_include(<nlohmann/json.hpp>)
json
#endif
#if !__has_include(<CLI/CLI.hpp>)
cli11
#endif
CODE
}

# package MANAGER THING: what THING is called there; nothing where that manager has none. Clang's OpenMP comes apart.
package() {
    case $1:$2 in
        apt:compiler) case ${CXX-} in *clang*) echo clang ;; *) echo g++ ;; esac ;;
        apt:openmp)   case ${CXX-$(compiler)} in *clang*) echo libomp-dev ;; *) echo g++ ;; esac ;;
        apt:onednn)   echo libdnnl-dev ;;
        apt:boost)    echo libboost-context-dev ;;
        apt:doctest)  echo doctest-dev ;;
        apt:stb)      echo libstb-dev ;;
        apt:json)     echo nlohmann-json3-dev ;;
        apt:cli11)    echo libcli11-dev ;;

        dnf:compiler) case ${CXX-} in *clang*) echo clang ;; *) echo gcc-c++ ;; esac ;;
        dnf:openmp)   case ${CXX-$(compiler)} in *clang*) echo libomp-devel ;; *) echo gcc-c++ ;; esac ;;
        dnf:onednn)   echo onednn-devel ;;
        dnf:boost)    echo boost-devel boost-context ;;
        dnf:doctest)  echo doctest-devel ;;
        dnf:stb)      echo stb_image-devel stb_image_write-devel ;;
        dnf:json)     echo json-devel ;;
        dnf:cli11)    echo cli11-devel ;;

        brew:openmp)  echo libomp ;;
        brew:onednn)  echo onednn ;;
        brew:boost)   echo boost ;;
        brew:doctest) echo doctest ;;
        brew:json)    echo nlohmann-json ;;
        brew:cli11)   echo cli11 ;;
    esac
}

# The names of the packages for all that is missing, each once.
packages() {
    # shellcheck disable=SC2046 # lines become words
    words $(for thing in $things; do package "$1" "$thing"; done | sort -u)
}

# need_root COMMAND: sets $as_root to what goes in front of a command that installs. With neither root nor sudo there is
# nothing to be done but to name COMMAND.
need_root() {
    as_root=
    [ "$(id -u)" = 0 ] && return
    command -v sudo >/dev/null 2>&1 || stop "missing: $things. Run this as root, then make again:  $1"
    as_root=sudo
}

# Runs a command and shows what it printed only if it failed.
quietly() {
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then rm -f "$log"; return; fi
    tail -n 15 "$log" >&2
    rm -f "$log"
    return 1
}

# shellcheck disable=SC2086 # $as_root is a word or none, $names a list
install_apt() {
    names=$(packages apt)
    by_hand="apt-get update && apt-get install -y --no-install-recommends $names"
    need_root "$by_hand"
    say "missing: $things; installing with apt: $names"
    quietly $as_root apt-get -o APT::Update::Error-Mode=any update || say "apt-get update failed (above); going on with the lists that are here"
    for name in $names; do
        case $(LC_ALL=C apt-cache policy "$name") in
            *"Candidate: (none)"* | "")
                stop "apt has no $name for this system. On Ubuntu it is in 'universe' (add-apt-repository universe);" \
                     "elsewhere build it from its source. Then make again." ;;
        esac
    done
    quietly $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $names ||
        stop "apt-get failed (above). By hand, as root:  $by_hand"
}

# shellcheck disable=SC2086 # $as_root is a word or none, $names a list
install_dnf() {
    names=$(packages dnf)
    by_hand="dnf install -y $names"
    need_root "$by_hand"
    say "missing: $things; installing with dnf: $names"
    quietly $as_root dnf install -y --setopt=install_weak_deps=False $names ||
        stop "dnf failed (above). By hand, as root:  $by_hand"
}

install_brew() {
    case " $things " in *" compiler "*) stop "no C++ compiler. Run  xcode-select --install  and make again." ;; esac
    names=$(packages brew)
    say "missing: $things; installing with brew: $names"
    # shellcheck disable=SC2086 # $names is a list
    [ -z "$names" ] || brew install --quiet $names || stop "brew failed (above). By hand:  brew install $names"
    # Homebrew has no stb: fetch its two headers, at a commit we know, to where brew's other headers are.
    case " $things " in *" stb "*)
        to=$(brew --prefix)/include/stb
        from=https://raw.githubusercontent.com/nothings/stb/31c1ad37456438565541f4919958214b6e762fb4
        say "fetching stb_image.h and stb_image_write.h into $to"
        mkdir -p "$to"
        for header in stb_image.h stb_image_write.h; do
            curl -fsSL -o "$to/$header" "$from/$header" || stop "cannot fetch $from/$header; put it into $to by hand"
        done ;;
    esac
}

cuda() {
    for nvcc in nvcc /usr/local/cuda/bin/nvcc; do
        if command -v $nvcc >/dev/null 2>&1; then
            echo "CUDA $($nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
            return
        fi
    done
    echo "no CUDA toolkit (builds for the CPU)"
}

# shellcheck disable=SC2046 # lines become words
things=$(words $(missing))
if [ -n "$things" ]; then
    if command -v apt-get >/dev/null 2>&1; then install_apt
    elif command -v dnf >/dev/null 2>&1; then install_dnf
    elif command -v brew >/dev/null 2>&1; then install_brew
    else stop "missing: $things; and no apt-get, dnf or brew to install it with. Install it by hand, and make again."
    fi
    # shellcheck disable=SC2046
    things=$(words $(missing))
    [ -z "$things" ] || stop "installed, but ${CXX:-$(compiler)} still does not find: $things"
fi
say "all there: $(compiler), OpenMP, oneDNN, Boost.Context, doctest, stb, json, CLI11; $(cuda)"
