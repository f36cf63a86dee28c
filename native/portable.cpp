// The kernels for portable.
#define REGARD_LANES 4
#define REGARD_BUILD portable
#define REGARD_NAME "portable"

#if defined(__x86_64__) || 4 == 4
#include "kernels.h"
#else
#include "problem.h"
#endif

namespace regard {

const Kernels* portable_kernels() {
#if 4 == 4
  return &portable::kernels;
#else
  return nullptr;
#endif
}

}  // namespace regard
