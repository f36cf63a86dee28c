// The kernels for AVX-512.
#define REGARD_LANES 16
#define REGARD_BUILD avx512
#define REGARD_NAME "AVX-512"

#if defined(__x86_64__) || 16 == 4
#include "kernels.h"
#else
#include "problem.h"
#endif

namespace regard {

const Kernels* avx512_kernels() {
#if 16 == 4
  return &avx512::kernels;
#elif defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl")
              ? &avx512::kernels : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace regard
