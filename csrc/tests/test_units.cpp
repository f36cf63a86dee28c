// Tests of the parts that kernels are made of, for one instruction set, which REGARD_LANES, REGARD_BUILD and
// REGARD_BUILD_NAME select.
#include "program_builder.h"

namespace regard {
namespace REGARD_BUILD {
void test_units();
}
}  // namespace regard

// Defined before the kernels are included, so that it is compiled for any processor.
int main() {
#if REGARD_LANES == 16
  const bool is_supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#elif REGARD_LANES == 8
  const bool is_supported =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  const bool is_supported = true;
#endif
  if (!is_supported) {
    std::printf("units for %s: skipped, this processor does not support it\n", REGARD_BUILD_NAME);
    return 0;
  }
  regard::REGARD_BUILD::test_units();
  return check::exit_status("units for " REGARD_BUILD_NAME);
}

#include "test_half_types.h"
#include "test_interpreter.h"
#include "test_panel.h"
#include "test_simd.h"

namespace regard {
namespace REGARD_BUILD {

void test_units() {
  test_simd();
  test_half_types();
  test_panel();
  test_interpreter();
}

}  // namespace REGARD_BUILD
}  // namespace regard
