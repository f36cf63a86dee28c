// Tensors in half precision: rows are upcast to float32 where a kernel reads them, and rounded where it writes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "simd/prefetch.h"
#include "simd/simd.h"

namespace regard {
namespace REGARD_ISA {
namespace {

REGARD_INLINE Vec load_fp16(const uint16_t* p) { return Ops::load_fp16(p); }
REGARD_INLINE void store_fp16(uint16_t* p, Vec x) { Ops::store_fp16(p, x); }

typedef uint16_t Uint16Vec __attribute__((vector_size(2 * LANES)));

// bfloat16 is the upper half of a float.
REGARD_INLINE Vec load_bf16(const uint16_t* p) {
  Uint16Vec x;
  std::memcpy(&x, p, sizeof x);
  return from_bits(__builtin_convertvector(x, IntVec) << 16);
}
REGARD_INLINE void store_bf16(uint16_t* p, Vec x) {
  const IntVec word = bits(x), odd = (word >> 16) & 1;
  const IntVec nearest = (word + 0x7fff + odd) >> 16, quiet = (word >> 16) | 0x40;
  const Uint16Vec half = __builtin_convertvector(IntVec(x != x) ? quiet : nearest, Uint16Vec);
  std::memcpy(p, &half, sizeof half);
}

// Rows of floats in memory.
struct FloatRows {
  const float* data;
  int64_t row_stride;
};

static void upcast_row(const uint16_t* from, int64_t count, DType dtype, float* to) {
  const auto vector = [&](const uint16_t* p) { return dtype == FP16 ? load_fp16(p) : load_bf16(p); };
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) store(to + c, vector(from + c));
  if (c == count) return;
  uint16_t rest[LANES] = {};
  float upcast[LANES];
  std::copy(from + c, from + count, rest);
  store(upcast, vector(rest));
  std::copy(upcast, upcast + count - c, to + c);
}

static void downcast_row(const float* from, int64_t count, DType dtype, uint16_t* to) {
  const auto vector = [&](uint16_t* p, Vec x) { dtype == FP16 ? store_fp16(p, x) : store_bf16(p, x); };
  int64_t c = 0;
  for (; c + LANES <= count; c += LANES) vector(to + c, load(from + c));
  if (c == count) return;
  float rest[LANES] = {};
  uint16_t half[LANES];
  std::copy(from + c, from + count, rest);
  vector(half, load(rest));
  std::copy(half, half + count - c, to + c);
}

// Rows of a tensor as floats: the tensor's own memory for FP32, else upcast into `scratch`.
static FloatRows load_float_rows(const StridedRows& rows, DType dtype, int64_t b, int64_t h, int64_t first,
                                 int64_t count, int64_t num_channels, float* scratch) {
  const int64_t begin = b * rows.batch_stride + h * rows.head_stride + first * rows.row_stride;
  if (dtype == FP32) return {static_cast<const float*>(rows.data) + begin, rows.row_stride};
  for (int64_t i = 0; i < count; ++i)
    upcast_row(static_cast<const uint16_t*>(rows.data) + begin + i * rows.row_stride, num_channels, dtype,
               scratch + i * num_channels);
  return {scratch, num_channels};
}

// Prefetches the same rows.
static Prefetch prefetch_rows(const StridedRows& rows, DType dtype, int64_t b, int64_t h, int64_t first) {
  const int64_t element_bytes = dtype == FP32 ? 4 : 2;
  const int64_t begin = b * rows.batch_stride + h * rows.head_stride + first * rows.row_stride;
  return {static_cast<const char*>(rows.data) + begin * element_bytes, rows.row_stride * element_bytes, element_bytes};
}

// The number of floats that load_float_rows writes to `scratch`.
static int64_t upcast_scratch_floats(DType dtype, int64_t count, int64_t num_channels) {
  return dtype == FP32 ? 0 : count * num_channels;
}

// Writes contiguous rows of the output, from row `first` on.
static void write_output(const AttentionParams& p, const float* from, int64_t count, int64_t first) {
  const int64_t begin = first * p.value_dim, size = count * p.value_dim;
  if (p.output_dtype == FP32) {
    std::copy_n(from, size, static_cast<float*>(p.output) + begin);
  } else {
    downcast_row(from, size, p.output_dtype, static_cast<uint16_t*>(p.output) + begin);
  }
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
