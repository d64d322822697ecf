# make            build ./train_gpt for the best machine found (the CPU where no GPU answers)
# make train      set up, build, train the default model on the built-in stories in about a minute, sample, draw the curves
# make test       set up, build, run every test; compile the CUDA build where nvcc exists; ends with 'N passed, N failed'
# make compare    train with all four recipes on the same data and draw their curves in one picture
# make bench      every kernel and the whole step against the limits of this machine, measured in the same run
# make cuda       the nvcc build                     make asan     the tests under ASan and UBSan, on the CPU
# make sim        the GPU's code on a simulated GPU: build/sim/train_gpt and build/sim/run_tests
# make sim-train  a tiny model, trained on it          make racecheck  its tests, with all accesses checked for races
# make check-long the above for every test, under ASan and with lanes in other orders, and more: takes an hour
# make fuzz       the readers of files under libFuzzer (clang++), SECONDS=600 each
# make format     clang-format                       make clean    remove what was built
# MACHINE=cpu or MACHINE=cuda chooses for you. sh scripts/setup.sh installs what is missing.

NVCC := $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
MACHINE ?= $(if $(and $(NVCC),$(shell nvidia-smi -L 2>/dev/null | grep '^GPU ')),cuda,cpu)
BUILD := build/$(MACHINE)
JOBS := -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# ---- the CPU: any C++17 compiler with OpenMP ----
ifeq ($(origin CXX),default)
CXX := $(firstword $(foreach c,g++ clang++,$(shell command -v $(c) 2>/dev/null)) g++)
endif
BREW := $(if $(filter Darwin,$(shell uname)),$(shell brew --prefix 2>/dev/null))
accepts = $(shell echo | $(CXX) -Werror $(1) -x c++ -fsyntax-only - 2>/dev/null && echo $(1))
WARNINGS := -Wall -Wextra -Werror
# No -ffast-math: finding NaN and Inf is this program's job. Sums may be reordered, which is what vectorises them; -O3 is no
# faster (measured) and takes half as long again to compile.
OPTIMISE := -O2 -ftree-vectorize $(call accepts,-fvect-cost-model=dynamic) $(or $(call accepts,-march=native),$(call accepts,-mcpu=native)) $(call accepts,-mprefer-vector-width=512) \
            -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros
OPENMP := $(or $(call accepts,-fopenmp),-Xpreprocessor -fopenmp)
INCLUDES := -I. $(if $(BREW),-isystem $(BREW)/include -isystem $(BREW)/opt/libomp/include) \
            $(addprefix -isystem ,$(wildcard /usr/local/cuda/include))
LIBRARIES := $(if $(BREW),-L$(BREW)/lib -L$(BREW)/opt/libomp/lib -lomp) -ldnnl

# ---- CUDA: the GPU that answers, or with ARCHES a list such as "75 80 86 89 90a 120" ----
CAPABILITY := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$$' | head -n 1 | tr -d .)
KNOWN := $(if $(NVCC),$(shell $(NVCC) --list-gpu-code 2>/dev/null))
wanted := $(or $(subst 90,90a,$(CAPABILITY)),90a)
ARCHES ?= $(if $(filter sm_$(wanted) sm_$(wanted:a=),$(KNOWN)),$(wanted),$(patsubst sm_%,%,$(lastword $(KNOWN))))
GENCODE := $(foreach a,$(ARCHES),-gencode arch=compute_$(a),code=sm_$(a)) $(foreach a,$(lastword $(ARCHES)),-gencode arch=compute_$(a),code=compute_$(a))

ifeq ($(MACHINE),cuda)
COMPILE = $(NVCC) -x cu -std=c++17 -O3 $(GENCODE) --threads 2 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fopenmp -I. -MMD -MP
LINK = $(NVCC) $(GENCODE) -Xcompiler -fopenmp
LIBRARIES :=
# bench holds our products against cuBLASLt, where the toolkit has it.
CUDA := $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
ifneq ($(wildcard $(CUDA)/include/cublasLt.h),)
$(BUILD)/bench.o: COMPILE += -DHAVE_CUBLASLT
$(BUILD)/bench: LIBRARIES += -lcublasLt -Xlinker -rpath,$(CUDA)/lib64
endif
else ifneq ($(filter sim%,$(MACHINE)),)
COMPILE = $(CXX) -x c++ -std=c++17 -DFEWBITS_SIMULATOR $(SIMULATED) $(WARNINGS) $(OPENMP) $(INCLUDES) -MMD -MP
LINK = $(CXX) $(OPENMP)
LIBRARIES := $(if $(BREW),-L$(BREW)/lib -L$(BREW)/opt/libomp/lib -lomp) -lboost_context
SIMULATED = $(OPTIMISE)
ifeq ($(MACHINE),sim-asan)
SIMULATED = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
LINK += -fsanitize=address,undefined
else ifeq ($(MACHINE),sim-racecheck) # ThreadSanitizer's calls without its library: racecheck.h
SIMULATED = -O2 -g1 -fsanitize=thread -DFEWBITS_RACECHECK
LINK += -Wl,--wrap=memcpy,--wrap=memset
endif
else ifeq ($(MACHINE),asan)
ASAN_LEVEL := -O1
COMPILE = $(CXX) -x c++ -std=c++17 $(ASAN_LEVEL) -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all $(WARNINGS) $(OPENMP) $(INCLUDES) -MMD -MP
LINK = $(CXX) $(OPENMP) -fsanitize=address,undefined
else
COMPILE = $(CXX) -x c++ -std=c++17 $(OPTIMISE) $(WARNINGS) $(OPENMP) $(INCLUDES) -MMD -MP
LINK = $(CXX) $(OPENMP)
endif

NO_KERNELS := test_claims test_config test_data test_decisions test_plot test_policy test_report test_safetensors test_stories test_tokenizer test_reference_model test_weights test_train_gpt
TESTS := $(patsubst tests/%.cu,$(BUILD)/tests/%.o,$(wildcard tests/*.cu))
ifneq ($(filter sim%,$(MACHINE)),) # what has no kernels is tested on the CPU; the program, on both
TESTS := $(filter-out $(patsubst %,$(BUILD)/tests/%.o,$(if $(filter sim,$(MACHINE)),$(filter-out test_train_gpt,$(NO_KERNELS)),$(NO_KERNELS))),$(TESTS))
endif
DEVICE_TESTS := flash_attention fp8 gpu matmul pack scaling tensorcore tile # with kernels of their own
SOME_TESTS := $(patsubst %,$(BUILD)/tests/%.o,main test_racecheck test_simulator test_tile test_layernorm test_shadow)

.PHONY: all setup train compare test bench cuda asan sim sim-train racecheck check-long fuzz format clean programs
all: train_gpt

# What was built for another processor or with other flags is built again.
FLAGS := $(COMPILE) $(shell $(CXX) -march=native -Q --help=target 2>/dev/null | cksum)
$(BUILD)/flags: FORCE
	@mkdir -p $(BUILD)/tests
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@
FORCE:

$(BUILD)/%.o: %.cu $(BUILD)/flags
	$(COMPILE) -c $< -o $@

# No kernel runs in these tests: optimising them would only take time.
$(patsubst %,$(BUILD)/tests/%.o,main $(NO_KERNELS)): OPTIMISE := -O1
# Nor would it under ASan, but for those that compute for seconds.
LONG := bf16 fp8 fp16 gpt matmul pack plot report tokenizer training
$(filter-out $(LONG:%=$(BUILD)/tests/test_%.o),$(TESTS)): ASAN_LEVEL := -O0

$(BUILD)/train_gpt $(BUILD)/bench: $(BUILD)/%: $(BUILD)/%.o
	$(LINK) $< $(LIBRARIES) -o $@
$(BUILD)/run_tests: $(TESTS)
	$(LINK) $(TESTS) $(LIBRARIES) -o $@
$(BUILD)/run_some_tests: $(SOME_TESTS)
	$(LINK) $(SOME_TESTS) $(LIBRARIES) -o $@
-include $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d)

train_gpt: $(BUILD)/train_gpt
	@ln -sf $< $@
	@echo "built ./train_gpt for $(MACHINE)$(if $(filter cuda,$(MACHINE)), ($(ARCHES)))"
.PHONY: train_gpt

programs: $(BUILD)/train_gpt $(BUILD)/run_tests

setup:
	@CXX="$(CXX)" sh scripts/setup.sh

# After setup a new make looks at the machine again: the compiler may have come with it.
train: setup
	@$(MAKE) $(JOBS) --no-print-directory train_gpt
	./train_gpt

compare: setup
	@$(MAKE) $(JOBS) --no-print-directory train_gpt
	./train_gpt --compare --out out/compare

test: setup
	@sh scripts/test.sh "$(MAKE) $(JOBS) --no-print-directory"

bench: setup
	@$(MAKE) $(JOBS) --no-print-directory $(BUILD)/bench
	$(BUILD)/bench

cuda: setup
	@test -n "$(NVCC)" || { echo "no nvcc here: the CUDA build needs the CUDA toolkit"; exit 1; }
	@$(MAKE) --no-print-directory MACHINE=cuda build/cuda/train_gpt

asan: setup
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=asan programs
	@export OMP_WAIT_POLICY=passive FEWBITS_PROGRAM=build/asan/train_gpt; \
	    build/asan/run_tests -sf="*train_gpt.cu" >build/asan-program.log 2>&1 & program=$$!; \
	    build/asan/run_tests -sfe="*train_gpt.cu"; status=$$?; \
	    wait $$program || status=1; cat build/asan-program.log; exit $$status

sim: setup
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=sim programs

# A tiny model, end to end, by the very kernels that a GPU runs.
sim-train: setup
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=sim build/sim/train_gpt
	OMP_WAIT_POLICY=passive build/sim/train_gpt --layers 1 --heads 2 --channels 32 --context 64 --batch 4 --steps 300 --eval-every 100 --eval-batches 2 --out out/sim

racecheck: setup
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=sim-racecheck build/sim-racecheck/run_tests
	build/sim-racecheck/run_tests

# Every reader of files on bytes of any kind, for SECONDS each; needs clang++. What is found new is kept in build/.
fuzz: SECONDS ?= 600
fuzz:
	for reader in safetensors tokenizer decisions tokens weights checkpoint; do \
	    mkdir -p build/corpus_$$reader && clang++ -x c++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wno-unknown-pragmas -I. \
	        fuzz/fuzz_$$reader.cpp -ldnnl -o build/fuzz_$$reader && build/fuzz_$$reader -max_total_time=$(SECONDS) -max_len=4096 build/corpus_$$reader fuzz/corpus/$$reader || exit 1; \
	done

# An hour or so: what make test does for some tests or one order of lanes, for all and several; a report in a browser; the stress text.
check-long: racecheck
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=sim-asan build/sim-asan/run_tests
	build/sim-asan/run_tests
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=sim programs
	if [ -n "$(NVCC)" ]; then \
	    $(MAKE) --no-print-directory MACHINE=cuda ARCHES="75 86 120" BUILD=build/cuda-more build/cuda-more/train_gpt && \
	    $(MAKE) $(JOBS) --no-print-directory MACHINE=cuda ARCHES=90a BUILD=build/cuda-tests build/cuda-tests/bench $(DEVICE_TESTS:%=build/cuda-tests/tests/test_%.o); \
	fi
	@$(MAKE) $(JOBS) --no-print-directory MACHINE=cpu train_gpt
	./train_gpt --recipe fp8 --steps 200 --reference --tolerance 1 --out out/report && sh scripts/check_report.sh out/report
	sh experiments/stress.sh
	sh scripts/check_kills.sh && sh scripts/check_kills.sh 60 --recipe fp16 --loss-scale-window 7 && sh scripts/check_kills.sh 60 --recipe bf16 --masters measured --rounding stochastic
	sh scripts/check_disk_full.sh && sh scripts/check_long_run.sh
	for order in 2 3 4 5; do FEWBITS_LANE_ORDER=$$order FEWBITS_PROGRAM=build/sim/train_gpt build/sim/run_tests || exit 1; done

format:
	clang-format -i *.h *.cuh *.cu data/*.h tests/*.h tests/*.cu

clean:
	rm -rf build train_gpt
