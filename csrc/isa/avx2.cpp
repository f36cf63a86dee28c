// The kernels for AVX2.
#if defined(__x86_64__)
#include "simd/isa/avx2.h"
// Kernels use the instruction set whose header comes first.
#include "kernels/kernels.h"
#endif
