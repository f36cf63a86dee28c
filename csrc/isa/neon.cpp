// The kernels for NEON.
#if defined(__aarch64__)
#include "simd/isa/neon.h"
// Kernels use the instruction set whose header comes first.
#include "kernels/kernels.h"
#endif
