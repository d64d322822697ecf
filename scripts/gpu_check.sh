#!/bin/sh
# gpu_check.sh -- all that only a GPU can tell, in one command: build for it, test, sanitize, time, compare, and write it down.
#
#   build      for the GPU that answers; where none does, for sm_80, sm_89 and sm_90a, to see that it compiles
#   tests      the whole suite                memcheck, racecheck, initcheck, synccheck    the small tests, each tool
#   bench      every kernel and the step against cuBLASLt and cudaMemcpy
#   step       train_gpt's training step, on two models;    pytorch    the same step in PyTorch, eager and compiled
#   spills     registers and spills of every kernel (check_spills.sh)
#
# Usage    sh scripts/gpu_check.sh [--quick] [--out FILE]
#          --quick   brief timings, the small model only, PyTorch not compiled; without a GPU bench only, for sm_90a
#          --out     where the results go: benchmarks/<gpu>.md, or build/gpu_check.md where there is no GPU
# Env      PYTHON (python3): one that has torch; without it the step is skipped
# Prints   one line per step: passed, failed or skipped, and why; the end of what a failed step printed. Logs: build/gpu_check
# Status   0 when nothing failed, 2 for a bad option. What a machine cannot do is skipped, not failed
# Why      time on a GPU is short: a step has a limit, all together have ten minutes, and none stops the others
set -u

out='' quick=''
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=--quick ;;
        --out) [ $# -gt 1 ] || { echo "gpu_check: --out: expected a file" >&2; exit 2; }
               case $2 in /*) out=$2 ;; *) out=$PWD/$2 ;; esac
               shift ;;
        *) echo "gpu_check: $1: expected --quick or --out FILE" >&2; exit 2 ;;
    esac
    shift
done
cd "$(dirname "$0")/.." || exit 2
work=build/gpu_check
rm -rf $work && mkdir -p $work || exit 2

# ---- steps ----------------------------------------------------------------------------------------------------------

total=600
deadline=$(($(date +%s) + total))
failures=0
timeout=$(command -v timeout || command -v gtimeout) # without it nothing has a limit

# limited SECONDS COMMAND...: stops it after so long, or when all the time is spent.
limited() {
    limit=$1
    shift
    left=$((deadline - $(date +%s)))
    [ "$left" -gt "$limit" ] || limit=$left
    [ "$limit" -gt 0 ] || { why="no time left of $total s"; return 1; }
    ${timeout:+"$timeout" -k 10 "$limit"} "$@"
    status=$?
    if [ $status = 124 ]; then why="stopped after $limit s"; fi
    return $status
}

# step NAME COMMAND...: runs it and reports it. It returns 0: passed, 3: skipped, else failed; and may say $why.
step() {
    name=$1 why='' begin=$(date +%s)
    shift
    "$@" >"$work/$name.log" 2>&1
    case $? in
        0) result=passed ;;
        3) result=skipped ;;
        *) result=failed failures=$((failures + 1)) ;;
    esac
    seconds=$(($(date +%s) - begin))
    echo "$name: $result${why:+ ($why)}, $seconds s"
    echo "| $name | $result | $seconds | $why |" >>$work/steps.md
    [ $result = failed ] || return 0
    tail -n 15 "$work/$name.log" | sed 's/^/    /'
    { printf '\n### %s failed\n\n```\n' "$name"; tail -n 40 "$work/$name.log"; echo '```'; } >>$work/failures.md
}
skip() { why=$1; return 3; }

# ---- the machine ----------------------------------------------------------------------------------------------------

smi() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1; }
gpu=
if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then gpu=$(smi name); fi
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
python=${PYTHON:-python3}

machine() {
    if [ -n "$gpu" ]; then
        echo "| GPU | $gpu, compute capability $(smi compute_cap), $(smi memory.total), driver $(smi driver_version) |"
    else
        echo "| GPU | none |"
    fi
    if [ -n "$nvcc" ]; then echo "| nvcc | $($nvcc --version | sed -n 's/.*release [0-9.]*, V//p') |"; else echo "| nvcc | none |"; fi
    echo "| processor | $(sed -n 's/^model name.*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), $cores cores |"
    echo "| system | $(uname -srm) |"
    why=$([ -n "$gpu" ] && echo "$gpu" || echo "no GPU answers to nvidia-smi")
}

# ---- build and tests ------------------------------------------------------------------------------------------------

built='' # the programs for the GPU are there
build() {
    [ -n "$nvcc" ] || { skip "no nvcc"; return; }
    limited 60 sh scripts/setup.sh || echo "setup.sh failed; what it wanted may not be needed here"
    why=
    if [ -n "$gpu" ]; then
        limited 300 make -j"$cores" MACHINE=cuda build/cuda/train_gpt build/cuda/bench build/cuda/run_tests || return 1
        built=yes why="for this GPU"
    else
        programs='train_gpt bench' arches='80 89 90a'
        [ -z "$quick" ] || programs=bench arches=90a
        for program in $programs; do
            limited 300 make -j"$cores" MACHINE=cuda BUILD=build/cuda-check ARCHES="$arches" "build/cuda-check/$program" || return 1
        done
        why="$programs compiled for $arches"
    fi
}

# needs: skips a step that needs the programs and a GPU.
needs() {
    if [ -z "$gpu" ]; then skip "no GPU"; elif [ -z "$built" ]; then skip "nothing was built"; fi
}

# counts LOG: 'N passed, N failed' from a run of the tests; fails unless some passed and none failed.
counts() {
    counted=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$1" | tail -n 1)
    why=${counted:-${why:-no result}}
    case $counted in '' | '0 passed'*) return 1 ;; *', 0 failed') ;; *) return 1 ;; esac
}

tests() {
    needs || return
    limited 180 env FEWBITS_PROGRAM=build/cuda/train_gpt build/cuda/run_tests
    status=$?
    counts $work/tests.log && [ $status = 0 ]
}

# The kernels' own tests; for the tools that watch shared memory and barriers, of the kernels that have them.
sanitize() {
    needs || return
    tool=$1
    sanitizer=
    for program in compute-sanitizer "${nvcc%/*}/compute-sanitizer" "${nvcc%/*}/../compute-sanitizer/compute-sanitizer"; do
        if command -v "$program" >/dev/null 2>&1; then sanitizer=$program; break; fi
    done
    [ -n "$sanitizer" ] || { skip "no compute-sanitizer"; return; }
    filter='*test_gpu*,*test_layernorm*,*test_matmul*,*test_attention*,*test_flash_attention*,*test_adam*,*test_linear*'
    options=
    case $tool in
        memcheck | initcheck) filter="$filter,*test_gelu*,*test_pack*,*test_tensorcore*,*test_tile*,*test_embedding*,*test_crossentropy*,*test_scaling*" ;;
    esac
    if [ "$tool" = memcheck ]; then options='--report-api-errors no'; fi # one test asks for more memory than there is
    # shellcheck disable=SC2086 # $options are words
    limited 90 "$sanitizer" --tool "$tool" --error-exitcode 99 $options build/cuda/run_tests --source-file="$filter"
    status=$?
    if grep -qi 'device not supported' "$work/$tool.log"; then skip "compute-sanitizer: device not supported"; return; fi
    counts "$work/$tool.log"
    tested=$?
    summary=$(sed -n 's/^=* *\(.* SUMMARY: .*\)/\1/p' "$work/$tool.log" | tail -n 1)
    why="$why${summary:+; $summary}"
    [ $status = 0 ] && [ $tested = 0 ]
}

# ---- time -----------------------------------------------------------------------------------------------------------

bench() {
    needs || return
    # shellcheck disable=SC2086 # $quick is a word or none
    limited 240 build/cuda/bench $quick || return 1
    why="limits that could not be measured: $(grep -c '| skipped: ' $work/bench.log)"
    return 0
}

# one_model RECIPES SIZES OPTIONS...: a row of milliseconds per step for each recipe, from OUT/log.jsonl: the median of the
# steps after the tenth, or where the limit left fewer than twenty, of their last two thirds.
one_model() {
    recipes=$1 model=$2
    shift 2
    for recipe in $recipes; do
        rm -rf $work/run
        limited 45 build/cuda/train_gpt --recipe "$recipe" "$@" --steps 30 --warmup 5 --eval-every 0 --tokens 0 --out $work/run
        status=$?
        if [ $status != 0 ] && [ $status != 124 ]; then return 1; fi
        sed -n 's/.*"tokens_per_second": *\([0-9.e+]*\).*/\1/p' $work/run/log.jsonl | awk -v model="$model" -v recipe="$recipe" '
            { rate[NR] = $1 + 0 }
            END {
                first = NR < 20 ? int(NR / 3) : 10
                for (i = first + 1; i <= NR; i++) { # insertion sort
                    x = rate[i]
                    for (j = n++; j > 0 && sorted[j] > x; j--) sorted[j + 1] = sorted[j]
                    sorted[j + 1] = x
                }
                if (n < 3) { print "fewer than 3 steps to take the median of" > "/dev/stderr"; exit 1 }
                split(model, size, /[ A-Z]+/) # "L6 H6 C384 T256 B4 V256": an empty first piece, then the numbers
                median = sorted[int((n + 1) / 2)]
                printf "| %s | fewbits %s | %.2f | %.0f |\n", model, recipe, 1000 * size[5] * size[6] / median, median
            }' >>$work/models.md || return 1
    done
}

# A vocabulary of bytes is a text file's; one of 50304 that of 16-bit tokens: the same text, two bytes to a token.
train() {
    needs || return
    cat ./*.cuh ./*.h ./*.cu | LC_ALL=C tr -cd '\n -~' | head -c 300000 >$work/text.txt
    cp $work/text.txt $work/text.bin
    one_model "fp32 bf16 fp16 fp8" "L6 H6 C384 T256 B4 V256" --data $work/text.txt --layers 6 --heads 6 --channels 384 --context 256 --batch 4 || return
    [ -z "$quick" ] || return 0
    one_model "bf16 fp8" "L12 H12 C768 T1024 B8 V50304" --data $work/text.bin --vocab 50304 --layers 12 --heads 12 --channels 768 --context 1024 --batch 8
}

pytorch() {
    needs || return
    command -v "$python" >/dev/null 2>&1 || { skip "no $python"; return; }
    limited 60 "$python" -c 'import torch, numpy' || { skip "$python has no torch"; return; }
    limited 60 "$python" -c 'import torch; assert torch.cuda.is_available()' || { skip "torch finds no GPU"; return; }
    # shellcheck disable=SC2046 # words
    limited 240 "$python" scripts/bench_pytorch_step.py --rows --device cuda $([ -z "$quick" ] || echo --model small --modes eager) >$work/pytorch.md
    status=$?
    cat $work/pytorch.md
    cat $work/pytorch.md >>$work/models.md
    return $status
}

spills() {
    [ -n "$nvcc" ] || { skip "no nvcc"; return; }
    limited 180 sh scripts/check_spills.sh
    status=$?
    [ -n "$why" ] || why=$(tail -n 1 $work/spills.log)
    return $status
}

# ---- all of them, and the page --------------------------------------------------------------------------------------

step machine machine
step build build
step tests tests
for tool in memcheck racecheck initcheck synccheck; do step $tool sanitize $tool; done
step bench bench
step step train
step pytorch pytorch
step spills spills

if [ -z "$out" ]; then
    out=build/gpu_check.md
    [ -z "$gpu" ] || out=benchmarks/$(echo "$gpu" | tr '[:upper:]' '[:lower:]' | tr -cs 'a-z0-9\n' _).md
fi
mkdir -p "$(dirname "$out")"
{
    printf '# %s\n\n' "${gpu:-No GPU}"
    echo "By scripts/gpu_check.sh${quick:+ $quick}, $(date -u +%Y-%m-%d), commit $(git describe --always --dirty 2>/dev/null || echo unknown)."
    printf '\n| machine | |\n|:--|:--|\n'
    cat $work/machine.log
    printf '\n| step | result | seconds | |\n|:--|:--|--:|:--|\n'
    cat $work/steps.md
    cat $work/failures.md 2>/dev/null
    if [ -n "$built" ]; then
        printf '\n## Kernels and the step against the limits of this GPU\n\n'
        cat $work/bench.log
        printf '\n## A training step of the same model\n\nLayers, heads, channels, context, batch, vocabulary; medians.\n'
        printf '\n| model | program | ms per step | tokens/s |\n|:--|:--|--:|--:|\n'
        cat $work/models.md 2>/dev/null
    fi
    if [ -s $work/spills.log ]; then
        printf '\n## Registers and spills\n\n'
        cat $work/spills.log
    fi
} >"$out"
echo "$out: $failures failed"
[ $failures = 0 ]
