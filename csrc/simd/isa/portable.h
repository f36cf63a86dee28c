// Any processor: vectors of 4 floats, and no instruction beyond those of the compiler's default target.
#pragma once

#include "simd/vector_ops.h"

#define REGARD_ISA portable

namespace regard {

struct Portable;

template <>
struct Isa<Portable> : VectorOps<Isa<Portable>, 4> {
  static constexpr const char* NAME = "portable";
  static constexpr int NUM_REGISTERS = 16;
  static constexpr bool HAS_FMA = false;
};

namespace portable {
using Ops = Isa<Portable>;
}

}  // namespace regard
