// Selects the instruction set of a build. REGARD_LANES is the number of floats in a vector: 16 with AVX-512, 8 with
// AVX2, 4 on any processor.
//
// All standard headers and all headers that builds share come before the instruction set is selected. Otherwise their
// inline functions would be compiled for it, and the linker might use them in another build.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#ifndef REGARD_LANES  // an editor opens a header alone
#define REGARD_LANES 4
#define REGARD_BUILD portable
#define REGARD_BUILD_NAME "portable"
#endif

#if REGARD_LANES > 4
#include <immintrin.h>
#endif

#include "abi.h"
#include "kernel_table.h"
#include "parallel.h"

#if REGARD_LANES == 16
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma")
#elif REGARD_LANES == 8
#pragma GCC target("avx2,fma,f16c")
#endif
