#include "dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace regard {

#if defined(__x86_64__)
namespace avx512bf16 {
extern const KernelTable kernels;
}
namespace avx512 {
extern const KernelTable kernels;
}
namespace avx2 {
extern const KernelTable kernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const KernelTable kernels;
}
#endif
namespace portable {
extern const KernelTable kernels;
}

#if defined(__x86_64__)
// Clang 14 does not know the name "f16c" of __builtin_cpu_supports.
static bool supports_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

// Not every compiler knows the name "avx512bf16" of __builtin_cpu_supports.
static bool supports_avx512bf16() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1 << 5);
}
#endif

const std::vector<const KernelTable*>& supported_builds() {
  static const std::vector<const KernelTable*> builds = [] {
    std::vector<const KernelTable*> supported;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      if (supports_avx512bf16()) supported.push_back(&avx512bf16::kernels);
      supported.push_back(&avx512::kernels);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && supports_f16c())
      supported.push_back(&avx2::kernels);
#elif defined(__aarch64__)
    supported.push_back(&neon::kernels);  // every 64-bit ARM processor has NEON
#endif
    supported.push_back(&portable::kernels);
    return supported;
  }();
  return builds;
}

}  // namespace regard
