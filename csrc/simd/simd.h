// Vectors of floats and integers. Arithmetic uses the operators of the compiler's vector types; only operations that
// the compiler cannot express use intrinsics.
#pragma once

#include "simd/instruction_set.h"

namespace regard {
namespace REGARD_BUILD {
namespace {

constexpr int LANES = REGARD_LANES;

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t IntVec __attribute__((vector_size(4 * LANES)));
typedef float UnalignedVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t UnalignedIntVec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define REGARD_INLINE static inline __attribute__((always_inline))
#define REGARD_INLINE_METHOD inline __attribute__((always_inline))
// For lambdas that only prefetch: they have no visible effect, and the compiler removes a call that is not yet inlined.
#define REGARD_INLINE_LAMBDA __attribute__((always_inline))
#define REGARD_UNROLL _Pragma("GCC unroll 32")

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
REGARD_INLINE IntVec bits(Vec x) { return reinterpret_cast<IntVec>(x); }
REGARD_INLINE Vec from_bits(IntVec x) { return reinterpret_cast<Vec>(x); }

// Booleans, one byte each, as a mask of 0 and -1.
REGARD_INLINE IntVec load_bool_mask(const uint8_t* p) {
  typedef uint8_t ByteVec __attribute__((vector_size(LANES)));
  ByteVec x;
  std::memcpy(&x, p, sizeof x);
  return -__builtin_convertvector(x, IntVec);
}

// One boolean per lane as bits: bit i is byte i.
REGARD_INLINE int32_t load_bool_bits(const uint8_t* p) {
#if REGARD_LANES == 16
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return int32_t(_mm_test_epi8_mask(x, x));
#elif REGARD_LANES == 8
  return _mm_movemask_epi8(_mm_cmpgt_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_setzero_si128()));
#else
  int32_t mask = 0;
  for (int i = 0; i < LANES; ++i) mask |= int32_t(p[i]) << i;
  return mask;
#endif
}

#if REGARD_LANES == 16
REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
REGARD_INLINE Vec vec_max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // b where either is NaN
REGARD_INLINE Vec vec_min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)), b, a);
}
#elif REGARD_LANES == 8
REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
REGARD_INLINE Vec vec_max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
REGARD_INLINE Vec vec_min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return _mm256_blendv_ps(b, a, from_bits(mask)); }
#else
REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return from_bits((mask & bits(a)) | (~mask & bits(b))); }
REGARD_INLINE Vec vec_max(Vec a, Vec b) { return where(a > b, a, b); }
REGARD_INLINE Vec vec_min(Vec a, Vec b) { return where(a < b, a, b); }
#endif

// The sum over all lanes.
REGARD_INLINE float horizontal_sum(Vec x) {
#if REGARD_LANES == 16
  return _mm512_reduce_add_ps(x);
#else
  float sum = 0.0f;
  for (int lane = 0; lane < LANES; ++lane) sum += x[lane];
  return sum;
#endif
}

// Whether the mask is set in any lane.
REGARD_INLINE bool any(IntVec x) {
#if REGARD_LANES == 16
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(x)) != 0;
#elif REGARD_LANES == 8
  return _mm256_movemask_ps(from_bits(x)) != 0;
#else
  int32_t combined = 0;
  for (int lane = 0; lane < LANES; ++lane) combined |= x[lane];
  return combined != 0;
#endif
}

// Flushes denormals (numbers below 2^-126) to 0 on this thread during its lifetime. Weights that small do not change a
// sum, and arithmetic on them takes a hundred times as long.
class FlushDenormals {
 public:
#if defined(__SSE__)
  FlushDenormals() : saved_mxcsr_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_mxcsr_ | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved_mxcsr_); }

 private:
  unsigned saved_mxcsr_;
#endif
};

// Transposes a 2 x 2 matrix of blocks of STEP lanes, with rows a and b.
template <int STEP>
REGARD_INLINE void transpose_step(Vec& a, Vec& b) {
  IntVec low{}, high{};
  for (int lane = 0; lane < LANES; ++lane) {
    low[lane] = lane & STEP ? LANES + lane - STEP : lane;
    high[lane] = lane & STEP ? LANES + lane : lane + STEP;
  }
  const Vec first = __builtin_shuffle(a, b, low), second = __builtin_shuffle(a, b, high);
  a = first, b = second;
}

// One stage of a transposition; there is a stage for each bit of a lane's index.
template <int STEP>
REGARD_INLINE void transpose_stage(Vec (&rows)[LANES]) {
  REGARD_UNROLL for (int i = 0; i < LANES; ++i)
    if (!(i & STEP)) transpose_step<STEP>(rows[i], rows[i + STEP]);
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
}  // namespace REGARD_BUILD
}  // namespace regard
