// The kernels for any processor.
#include "simd/isa/portable.h"
// Kernels use the instruction set whose header comes first.
#include "kernels/kernels.h"
