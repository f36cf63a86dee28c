// Dropout: whether a weight is dropped is a pure function of (seed, b, h, i, j), the same in every backend.
// backends/shared/dropout.py has the formula.
#pragma once

#include <algorithm>
#include <cstdint>

#include "abi.h"
#include "kernels/panel.h"

namespace regard {
namespace REGARD_ISA {
namespace {

typedef uint32_t UintVec __attribute__((vector_size(4 * LANES)));
typedef uint32_t UnalignedUintVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

template <class Word>
REGARD_INLINE Word mix(Word x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

// The hashes of a panel's queries.
struct Dropout {
  uint32_t row_hash[PANEL_QUERIES], key_stride[PANEL_QUERIES];
  uint32_t key_offset = 0, key_step = 0;
  uint32_t dropout_threshold = 0;
  float scale = 0.0f;

  void init(const AttentionParams& p, int64_t b, int64_t h, int64_t query_begin, int64_t num_queries) {
    dropout_threshold = uint32_t(p.dropout_threshold);
    scale = float(p.dropout_scale);
    key_offset = uint32_t(p.dropout_key_offset);
    key_step = uint32_t(p.dropout_key_step);
    const uint64_t seed = uint64_t(p.seed);
    uint32_t head = mix(mix(uint32_t(seed)) + uint32_t(seed >> 32));
    head = mix(mix(head + uint32_t(b)) + uint32_t(p.dropout_head_offset + h));
    for (int64_t i = 0; i < PANEL_QUERIES; ++i) {
      const int64_t query = query_begin + std::min(i, num_queries - 1);
      row_hash[i] = mix(head + uint32_t(p.dropout_query_offset + p.dropout_query_step * query));
      key_stride[i] = mix(row_hash[i] ^ 0x9E3779B9u) | 1u;
    }
  }

  // -1 where the weight of key `key` and a query of vector j is kept, else 0.
  REGARD_INLINE_METHOD IntVec keep_mask(int64_t key, int j) const {
    const uint32_t position = key_offset + key_step * uint32_t(key);
    const UintVec hash = mix(position * *reinterpret_cast<const UnalignedUintVec*>(key_stride + j * LANES) +
                             *reinterpret_cast<const UnalignedUintVec*>(row_hash + j * LANES));
    return IntVec(hash >= dropout_threshold);
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
