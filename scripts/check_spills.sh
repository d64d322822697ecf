#!/bin/sh
# check_spills.sh -- registers, spills and shared memory of every kernel, as ptxas reports them; a hot kernel may not spill.
#
#   hot      matmul, flash, layernorm or adamw is in its name: where a training step spends its time
#   spills   ptxas ran out of registers, or an array is indexed by what is only known at run time (a stack frame without
#            spills): either way numbers that were meant for registers go to memory and back
#
# Usage    sh scripts/check_spills.sh [LOG...]    LOG: what nvcc printed with -Xptxas -v, for any kernels and architectures.
#          Without one the kernels of train_gpt.cu are compiled, for the GPU alone and all architectures at once: seconds.
# Env      NVCC, ARCHES ("80 89 90a")
# Prints   a Markdown table, bytes per thread and, for shared memory, per block (what a launch adds is not in it); then one
#          line that says what was found
# Status   0: no hot kernel spills, or there is no nvcc; 1: one does, or a log has no kernels; 2: nvcc failed
set -u
hot='matmul|flash|layernorm|adamw'

if [ $# = 0 ]; then
    cd "$(dirname "$0")/.." || exit 2
    nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
    [ -n "$nvcc" ] || { echo "skipped: no nvcc here"; exit 0; }
    known=$($nvcc --list-gpu-code)
    mkdir -p build/spills
    compilers=
    for arch in ${ARCHES:-80 89 90a}; do
        case $known in *"sm_${arch%a}"*) ;; *) continue ;; esac # an older toolkit
        # Optimised as the Makefile does it.
        $nvcc -x cu -std=c++17 -O3 -I. -arch="sm_$arch" -cubin -Werror all-warnings -Xptxas -v train_gpt.cu -o "build/spills/sm_$arch.cubin" \
            >"build/spills/sm_$arch.log" 2>&1 &
        compilers="$compilers $!"
        set -- "$@" "build/spills/sm_$arch.log"
    done
    [ $# -gt 0 ] || { echo "this nvcc knows none of the architectures wanted"; exit 2; }
    for compiler in $compilers; do
        wait "$compiler" || { cat "$@"; echo "nvcc failed"; exit 2; }
    done
fi

demangle="cat"
for filter in c++filt cu++filt /usr/local/cuda/bin/cu++filt; do
    if command -v $filter >/dev/null 2>&1; then demangle=$filter; break; fi
done

# shellcheck disable=SC2016 # a $ in awk's programs is awk's
# One line per kernel: its mangled name, a tab, then numbers. A function that a kernel calls is reported after the kernel
# and counts as part of it.
numbers='
function end() { if (name) print name "\t" arch, registers, spill, stack, shared, serial; name = "" }
function before(words) { return match($0, "[0-9]+ " words) ? substr($0, RSTART) + 0 : 0 }
FNR == 1 || /Compiling entry function/ { end() }
/Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4]; registers = spill = stack = shared = serial = 0 }
/bytes stack frame/        { stack += before("bytes stack frame"); spill += before("bytes spill stores") + before("bytes spill loads") }
/Used [0-9]+ registers/    { registers = before("registers"); shared = before("bytes smem") }
/wgmma.*serialized/        { serial = 1 }
END { end() }'

# shellcheck disable=SC2016
# `void kernel<fp16, 64>(float*, int)` becomes `kernel<fp16, 64>`: cut at the first parenthesis outside < >.
table='
function short(name,    depth, i, c) {
    sub(/^void /, "", name); gsub(/\(anonymous namespace\)::/, "", name)
    for (i = 1; i <= length(name); i++) {
        c = substr(name, i, 1)
        depth += (c == "<") - (c == ">")
        if (c == "(" && depth == 0) return substr(name, 1, i - 1)
    }
    return name
}
{ split($2, n, " "); print short($1) "\t" n[1] "\t" n[2] "\t" n[3] "\t" n[4] "\t" n[5] "\t" n[6] }'

rows=$(cat "$@" | awk "$numbers" | $demangle | awk -F '\t' "$table" | LC_ALL=C sort -u)
[ -n "$rows" ] || { echo "no kernels in: $* (was it compiled with -Xptxas -v?)"; exit 1; }
echo "$rows" | awk -F '\t' -v hot="$hot" '
BEGIN {
    printf "| %-48s | %-7s | registers | spill bytes | stack bytes | shared memory |\n", "kernel", "arch"
    printf "|:%s|:--------|----------:|------------:|------------:|--------------:|\n", "-------------------------------------------------"
}
{
    printf "| %-48s | %-7s | %9d | %11d | %11d | %13d |\n", $1, $2, $3, $4, $5, $6
    kernels++
    if (!($2 in seen)) { seen[$2]; names = names " " $2 }
    if ($1 ~ hot) {
        hots++
        if ($4 + $5) { bad++; list = list sprintf("spills: %s on %s: %d bytes, with a stack frame of %d\n", $1, $2, $4, $5) }
    }
    if ($7) list = list sprintf("note: %s on %s: ptxas runs its wgmma instructions one after the other\n", $1, $2)
}
END {
    printf "\n%s%d kernels, %d of them hot, on all of%s together; hot ones that spill: %d\n", list, kernels, hots, names, bad
    exit bad > 0
}'
