// Parts of an item's scratch buffer.
#pragma once

#include <cstdint>

#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Hands out parts of a scratch buffer, each of them aligned to a cache line.
class ScratchAllocator {
 public:
  explicit ScratchAllocator(float* begin) : next_(begin) {}

  float* floats(int64_t count) {
    float* const part = next_;
    next_ += (count + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return part;
  }
  double* doubles(int64_t count) { return reinterpret_cast<double*>(floats(2 * count)); }

 private:
  static constexpr int64_t CACHE_LINE = 16;  // floats

  float* next_;
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
