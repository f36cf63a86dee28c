// Tests of what the kernels are made of, for one instruction set: REGARD_LANES, REGARD_BUILD and REGARD_NAME say which.
#include "code.h"

namespace regard {
namespace REGARD_BUILD {
void test_parts();
}
}  // namespace regard

// It stands before the kernels, so that it is compiled for any processor.
int main() {
#if REGARD_LANES == 16
  const bool runs_here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#elif REGARD_LANES == 8
  const bool runs_here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                         __builtin_cpu_supports("f16c");
#else
  const bool runs_here = true;
#endif
  if (!runs_here) {
    std::printf("parts for %s: skipped, this processor lacks it\n", REGARD_NAME);
    return 0;
  }
  regard::REGARD_BUILD::test_parts();
  return check::verdict("parts for " REGARD_NAME);
}

#include "kernels.h"

namespace regard {
namespace REGARD_BUILD {
namespace {

#include "vectors.h"
#include "roundings.h"
#include "panels.h"
#include "programs.h"

}  // namespace

void test_parts() {
  test_vectors();
  test_roundings();
  test_panels();
  test_programs();
}

}  // namespace REGARD_BUILD
}  // namespace regard
