// Prefetches for the products of panels.
#pragma once

#include <cstdint>

#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Prefetches are issued one cache line at a time between other instructions: a burst of them would stall.
constexpr int64_t CACHE_LINE_FLOATS = 16;

// Issues no prefetches.
struct NoPrefetch {
  template <int M>
  REGARD_INLINE_METHOD void issue_during_product(int64_t, int64_t) const {}
};

// Prefetches the rows of a tensor.
struct Prefetch {
  const char* data = nullptr;  // null: no prefetches
  int64_t row_bytes, element_bytes;

  REGARD_INLINE_METHOD void issue(int64_t i, int64_t c) const {
    __builtin_prefetch(data + i * row_bytes + c * element_bytes, 0, 2);
  }

  // For M keys from t on, at channel p: one line of each row while as many channels are multiplied.
  template <int M>
  REGARD_INLINE_METHOD void issue_during_product(int64_t t, int64_t p) const {
    if (p % CACHE_LINE_FLOATS < M) issue(t + p % CACHE_LINE_FLOATS, p / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS);
  }
};

// Prefetches rows of a table that are contiguous along the keys, one row for each lane.
struct TablePrefetch {
  const float* table = nullptr;               // null: no prefetches
  const int32_t *lane_offsets, *key_offsets;  // the index is the sum of both
  int64_t num_lanes, num_channels;

  template <int M>
  REGARD_INLINE_METHOD void issue_during_product(int64_t t, int64_t p) const {
    if (t % CACHE_LINE_FLOATS) return;
    for (int64_t lane = p; lane < num_lanes; lane += num_channels)
      __builtin_prefetch(table + lane_offsets[lane] + int64_t(key_offsets[t]));
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
