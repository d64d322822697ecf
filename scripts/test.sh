#!/bin/sh
# test.sh -- `make test`: every test on the CPU and on the simulated GPU, there those of kernels again with lanes in another
#            order, and some with every access checked for races; the CUDA build compiles and spills no register.
#            Ends with 'N passed, N failed'.
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

# tests_on MACHINE "PROGRAMS" LOG [the last program's options]: builds them, and runs the last, which has the tests, while
# the next thing is built.
running=
tests_on() {
    programs= log=$3
    for program in $2; do programs="$programs build/$1/$program"; done
    if $make MACHINE="$1" $programs; then
        machine=$1
        shift 3
        OMP_WAIT_POLICY=passive FEWBITS_PROGRAM=build/$machine/train_gpt FEWBITS_CPU_PROGRAM=build/cpu/train_gpt \
            "build/$machine/$program" "$@" >"build/$log.log" 2>&1 &
        running="$running $log"
    else
        echo "the build for MACHINE=$1 failed"
        failed=$((failed + 1))
    fi
}
$make MACHINE=cpu build/cpu/train_gpt                  # which the simulator's tests compare with
tests_on sim "train_gpt run_tests" tests-sim           # first: they take longest
tests_on cpu "train_gpt run_tests" tests-cpu
# Lanes and warps in another order: what only works in one order has a barrier missing.
kernels='*adam.cu,*attention.cu,*crossentropy.cu,*embedding.cu,*gelu.cu,*layernorm.cu,*linear.cu,*matmul.cu,*pack.cu,*scaling.cu,*tensorcore.cu,*tile.cu'
FEWBITS_LANE_ORDER=1 tests_on sim run_tests tests-sim-another-order "-sf=$kernels" "-tce=*the same bytes*"
tests_on sim-racecheck run_some_tests tests-racecheck # of all: make racecheck

# train_gpt for 80, 89 and 90a, without a warning, and its registers. For 75, 86 and 120, bench, and tests with device code of their own: make check-long.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [ -n "$nvcc" ]; then
    if sh scripts/check_spills.sh >build/spills.md; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    tail -n 1 build/spills.md
else
    echo "no nvcc here: the CUDA build was not compiled"
fi

wait
for name in $running; do
    echo "== $name =="
    cat "build/$name.log"
    add "build/$name.log"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
