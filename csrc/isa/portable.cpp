// The kernels for any processor.
#define REGARD_LANES 4
#define REGARD_BUILD portable
#define REGARD_BUILD_NAME "portable"

#include "kernels/kernels.h"

namespace regard {

const KernelTable* portable_kernels() { return &portable::kernels; }

}  // namespace regard
