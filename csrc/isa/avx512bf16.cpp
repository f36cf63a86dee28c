// The kernels for AVX-512 with bfloat16 products.
#if defined(__x86_64__)
#include "simd/isa/avx512bf16.h"
// Kernels use the instruction set whose header comes first.
#include "kernels/bf16/kernels.h"
#endif
