// AVX2 with fused multiply-add: vectors of 8 floats, 16 registers.
#pragma once

#include <immintrin.h>

#include "simd/vector_ops.h"

#define REGARD_ISA avx2

namespace regard {

struct Avx2;

template <>
struct Isa<Avx2> : VectorOps<Isa<Avx2>, 8> {
  static constexpr const char* NAME = "AVX2";
  static constexpr int NUM_REGISTERS = 16;
  static constexpr bool HAS_FMA = true;

  REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return _mm256_blendv_ps(b, a, from_bits(mask)); }
  REGARD_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  REGARD_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  REGARD_INLINE bool any(IntVec mask) { return _mm256_movemask_ps(from_bits(mask)) != 0; }

  REGARD_INLINE int32_t load_bool_bits(const uint8_t* p) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_movemask_epi8(_mm_cmpgt_epi8(x, _mm_setzero_si128()));
  }

  REGARD_INLINE Vec load_fp16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  REGARD_INLINE void store_fp16(uint16_t* p, Vec x) {
    const __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  }
};

namespace avx2 {
using Ops = Isa<Avx2>;
}

}  // namespace regard
