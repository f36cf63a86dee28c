// The kernels for AVX2.
#define REGARD_LANES 8
#define REGARD_BUILD avx2
#define REGARD_NAME "AVX2"

#if defined(__x86_64__) || 8 == 4
#include "kernels.h"
#else
#include "problem.h"
#endif

namespace regard {

const Kernels* avx2_kernels() {
#if 8 == 4
  return &avx2::kernels;
#elif defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")
             ? &avx2::kernels : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace regard
