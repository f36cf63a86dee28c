// Runs the tests of test_units.cpp if this processor supports their instruction set. Compiled for any processor.
#include <cstdio>
#include <cstring>

#include "dispatch.h"

namespace regard {
int test_units();
}

// REGARD_UNITS is the name of the instruction set.
int main() {
  for (const regard::KernelTable* build : regard::supported_builds())
    if (!std::strcmp(build->name, REGARD_UNITS)) return regard::test_units();
  std::printf("units for %s: skipped, this processor does not support it\n", REGARD_UNITS);
  return 0;
}
