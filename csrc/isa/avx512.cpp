// The kernels for AVX-512.
#define REGARD_LANES 16
#define REGARD_BUILD avx512
#define REGARD_BUILD_NAME "AVX-512"

#if defined(__x86_64__)
#include "kernels/kernels.h"
#else
#include "kernel_table.h"
#endif

namespace regard {

const KernelTable* avx512_kernels() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
             ? &avx512::kernels
             : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace regard
