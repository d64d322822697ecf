#!/bin/sh
# test.sh -- `make test`: every test on the CPU and on the simulated GPU, there once more with its accesses checked for races,
#            and that the CUDA build compiles; ends with 'N passed, N failed'.
#
# Usage    sh scripts/test.sh ["make and its options"]
# Status   0 when nothing failed
set -u
make=${1:-make --no-print-directory}
passed=0 failed=0

# add LOG: adds the counts of the last line 'N passed, N failed' of a test program; none is a failure.
add() {
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$1" | tail -n 1)
    if [ -z "$counts" ]; then
        echo "no result from $1"
        failed=$((failed + 1))
    else
        passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
    fi
}

mkdir -p build
# tests_on MACHINE WHAT-TO-MAKE: builds its tests and runs them.
tests_on() {
    if $make MACHINE=$1 $2; then
        OMP_WAIT_POLICY=passive FEWBITS_PROGRAM=build/$1/train_gpt build/$1/run_tests >build/$1/tests.log 2>&1
        cat build/$1/tests.log
        add build/$1/tests.log
    else
        echo "the build for MACHINE=$1 failed"
        failed=$((failed + 1))
    fi
}
tests_on cpu programs
tests_on sim programs
tests_on sim-racecheck build/sim-racecheck/run_tests # as `make racecheck`

# compiles WHAT make-arguments: one more passed or failed.
compiles() {
    what=$1
    shift
    if $make MACHINE=cuda "$@"; then
        echo "nvcc compiles $what, without a warning"
        passed=$((passed + 1))
    else
        echo "nvcc does not compile $what"
        failed=$((failed + 1))
    fi
}

# The programs for every architecture that this toolkit knows, sm_75 to sm_120; the tests for one of them.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [ -n "$nvcc" ]; then
    known=$($nvcc --list-gpu-code)
    arches=
    for a in 75 80 86 89 90 120; do
        case "$known" in *sm_$a*) arches="$arches $a" ;; esac
    done
    arches=$(echo $arches | sed 's/\<90\>/90a/') # what Hopper's own instructions need
    compiles "the programs for $arches" BUILD=build/cuda-all ARCHES="$arches" build/cuda-all/train_gpt build/cuda-all/bench
    compiles "the tests for ${arches##* }" BUILD=build/cuda-tests ARCHES="${arches##* }" build/cuda-tests/run_tests
else
    echo "no nvcc here: the CUDA build was not compiled"
fi

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
