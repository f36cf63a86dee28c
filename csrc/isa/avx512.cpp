// The kernels for AVX-512.
#if defined(__x86_64__)
#include "simd/isa/avx512.h"
// Kernels use the instruction set whose header comes first.
#include "kernels/kernels.h"
#endif
