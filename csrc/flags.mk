# The compiler's flags, read by setup.py, csrc/tests/Makefile, tools/compile_commands.py and the benchmarks.
# Comparisons must use the same numbers as in torch, so products and sums are not contracted.
# Without debug information the core is a tenth of the size and builds in two thirds of the time.
CORE_FLAGS := -std=c++17 -O3 -g0 -ffp-contract=off -fno-math-errno -fvisibility=hidden -Wno-psabi
# Of the file in csrc/isa with the same name.
avx512_FLAGS := -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma
avx512bf16_FLAGS := -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx512bf16 -mfma
avx2_FLAGS := -mavx2 -mfma -mf16c
neon_FLAGS :=
portable_FLAGS :=
# The instruction sets of each processor. Objects are linked in this order: of an inline function that several files
# define, the linker keeps the first copy, which must run on every processor that calls it.
x86_64_ISAS := portable avx2 avx512 avx512bf16
aarch64_ISAS := portable neon
