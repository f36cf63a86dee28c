// The kernels for AVX-512.
#if defined(__x86_64__)
#include "simd/isa/avx512.h"
// The kernels use the instruction set whose header comes first.
#include "kernels/kernels.h"
#endif
