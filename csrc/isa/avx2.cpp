// The kernels for AVX2.
#define REGARD_LANES 8
#define REGARD_BUILD avx2
#define REGARD_BUILD_NAME "AVX2"

#if defined(__x86_64__)
#include "kernels/kernels.h"
#else
#include "kernel_table.h"
#endif

namespace regard {

const KernelTable* avx2_kernels() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")
             ? &avx2::kernels
             : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace regard
