// Vectors of floats and integers of the instruction set that a file is compiled for. Arithmetic uses the operators of
// the compiler's vector types.
//
// A file includes the header of its instruction set, of simd/isa, before any kernel. Everything that depends on it is
// in a namespace named REGARD_ISA: each instruction set has kernels of its own.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#ifndef REGARD_ISA  // an editor opens a header alone
#include "simd/isa/portable.h"
#endif
#include "simd/vector_ops.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int LANES = Ops::LANES;

typedef Ops::Vec Vec;
typedef Ops::IntVec IntVec;
typedef float UnalignedVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t UnalignedIntVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

REGARD_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
REGARD_INLINE void store(float* p, Vec x) { *reinterpret_cast<UnalignedVec*>(p) = x; }
REGARD_INLINE IntVec load(const int32_t* p) { return *reinterpret_cast<const UnalignedIntVec*>(p); }
REGARD_INLINE void store(int32_t* p, IntVec x) { *reinterpret_cast<UnalignedIntVec*>(p) = x; }
REGARD_INLINE Vec broadcast(float x) { return x - Vec{}; }  // x + 0 would turn -0 into 0
REGARD_INLINE IntVec broadcast(int32_t x) { return IntVec{} + x; }
// The 32 bits at p, a float or an integer, in every lane.
REGARD_INLINE Vec load_broadcast(const float* p) {
  int32_t x;
  std::memcpy(&x, p, sizeof x);
  return reinterpret_cast<Vec>(broadcast(x));
}
REGARD_INLINE IntVec bits(Vec x) { return Ops::bits(x); }
REGARD_INLINE Vec from_bits(IntVec x) { return Ops::from_bits(x); }

// Booleans, one byte each, as a mask of 0 and -1.
REGARD_INLINE IntVec load_bool_mask(const uint8_t* p) {
  typedef uint8_t ByteVec __attribute__((vector_size(LANES)));
  ByteVec x;
  std::memcpy(&x, p, sizeof x);
  return -__builtin_convertvector(x, IntVec);
}

REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return Ops::fma(a, b, c); }
REGARD_INLINE Vec vec_max(Vec a, Vec b) { return Ops::max(a, b); }  // b where either is NaN
REGARD_INLINE Vec vec_min(Vec a, Vec b) { return Ops::min(a, b); }
REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return Ops::where(mask, a, b); }

// The sum over all lanes.
REGARD_INLINE float horizontal_sum(Vec x) { return Ops::horizontal_sum(x); }

// Whether the mask is set in any lane.
REGARD_INLINE bool any(IntVec mask) { return Ops::any(mask); }

// Lane i of the result is lane INDICES[i] of a, or of b from LANES on.
template <int... INDICES>
REGARD_INLINE Vec shuffle(Vec a, Vec b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, INDICES...);
#else
  return __builtin_shuffle(a, b, IntVec{INDICES...});
#endif
}

// Transposes a 2 x 2 matrix of blocks of STEP lanes, with rows a and b.
template <int STEP, int... LANE>
REGARD_INLINE void transpose_blocks(Vec& a, Vec& b, std::integer_sequence<int, LANE...>) {
  const Vec low = shuffle<(LANE & STEP ? LANES + LANE - STEP : LANE)...>(a, b);
  const Vec high = shuffle<(LANE & STEP ? LANES + LANE : LANE + STEP)...>(a, b);
  a = low, b = high;
}

template <int STEP>
REGARD_INLINE void transpose_step(Vec& a, Vec& b) {
  transpose_blocks<STEP>(a, b, std::make_integer_sequence<int, LANES>());
}

// One stage of a transposition; there is a stage for each bit of a lane's index.
template <int STEP>
REGARD_INLINE void transpose_stage(Vec (&rows)[LANES]) {
  REGARD_UNROLL for (int i = 0; i < LANES; ++i) if (!(i & STEP)) transpose_step<STEP>(rows[i], rows[i + STEP]);
}

REGARD_INLINE void transpose(Vec (&rows)[LANES]) {
  transpose_stage<1>(rows);
  transpose_stage<2>(rows);
  if constexpr (LANES >= 8) transpose_stage<LANES >= 8 ? 4 : 1>(rows);
  if constexpr (LANES >= 16) transpose_stage<LANES >= 16 ? 8 : 1>(rows);
}

// One stage of a reduction of each vector over its lanes. The result of vector i ends up in lane i: the vectors are
// transposed and combined at the same time.
template <int STEP, class F>
REGARD_INLINE void reduce_stage(Vec (&rows)[LANES], const F& combine) {
  REGARD_UNROLL for (int i = 0; i < LANES; i += 2 * STEP) {
    transpose_step<STEP>(rows[i], rows[i + STEP]);
    rows[i] = combine(rows[i], rows[i + STEP]);
  }
}

template <class F>
REGARD_INLINE Vec reduce_each(Vec (&rows)[LANES], const F& combine) {
  reduce_stage<1>(rows, combine);
  reduce_stage<2>(rows, combine);
  if constexpr (LANES >= 8) reduce_stage<LANES >= 8 ? 4 : 1>(rows, combine);
  if constexpr (LANES >= 16) reduce_stage<LANES >= 16 ? 8 : 1>(rows, combine);
  return rows[0];
}

REGARD_INLINE Vec lane_sums(Vec (&rows)[LANES]) {
  return reduce_each(rows, [](Vec a, Vec b) REGARD_INLINE_LAMBDA { return a + b; });
}

REGARD_INLINE Vec lane_maxima(Vec (&rows)[LANES]) {
  return reduce_each(rows, [](Vec a, Vec b) REGARD_INLINE_LAMBDA { return vec_max(a, b); });
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
