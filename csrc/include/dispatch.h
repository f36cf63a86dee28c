// The builds of the kernels that this processor can run.
#pragma once

#include <vector>

#include "kernel_table.h"

namespace regard {

// The builds, the fastest first. The portable build is always the last one.
const std::vector<const KernelTable*>& supported_builds();

}  // namespace regard
