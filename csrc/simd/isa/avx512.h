// AVX-512: vectors of 16 floats, 32 registers.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 warns about its own intrinsics
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include "simd/vector_ops.h"

#define REGARD_ISA avx512

namespace regard {

struct Avx512;

template <>
struct Isa<Avx512> : VectorOps<Isa<Avx512>, 16> {
  static constexpr const char* NAME = "AVX-512";
  static constexpr int NUM_REGISTERS = 32;
  static constexpr bool HAS_FMA = true;

  REGARD_INLINE __mmask16 bitmask(IntVec mask) { return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)); }

  REGARD_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  REGARD_INLINE Vec where(IntVec mask, Vec a, Vec b) { return _mm512_mask_blend_ps(bitmask(mask), b, a); }
  REGARD_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  REGARD_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  REGARD_INLINE float horizontal_sum(Vec x) { return _mm512_reduce_add_ps(x); }
  REGARD_INLINE bool any(IntVec mask) { return bitmask(mask) != 0; }

  REGARD_INLINE int32_t load_bool_bits(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return int32_t(_mm_test_epi8_mask(x, x));
  }

  REGARD_INLINE Vec round_nearest(Vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  REGARD_INLINE Vec scale_exponent(Vec x, Vec n) {
    return _mm512_mask_scalef_ps(Vec{}, _mm512_cmp_ps_mask(n, Vec{} - 127.0f, _CMP_NEQ_UQ), x, n);
  }

  template <class Exp2Fraction>
  REGARD_INLINE Vec exp2(Vec x, const Exp2Fraction& exp2_fraction) {
    const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT);  // x minus the nearest integer, 0 at -inf
    return _mm512_scalef_ps(exp2_fraction(f), x - f);
  }

  REGARD_INLINE Vec reciprocal(Vec x) {
    const Vec guess = _mm512_rcp14_ps(x);
    return fma(guess, fma(-x, guess, Vec{} + 1.0f), guess);
  }

  REGARD_INLINE Vec load_fp16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  REGARD_INLINE void store_fp16(uint16_t* p, Vec x) {
    const __m256i half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  }
};

namespace avx512 {
using Ops = Isa<Avx512>;
}

}  // namespace regard
