// AVX-512 with dot products of bfloat16: each lane multiplies two pairs and adds both products to a float.
#pragma once

#include "simd/isa/avx512.h"

#undef REGARD_ISA
#define REGARD_ISA avx512bf16

namespace regard {

struct Avx512Bf16;

// A 32-bit lane holds a pair of bfloat16 numbers, the first one in its lower half.
template <>
struct Isa<Avx512Bf16> : Isa<Avx512> {
  static constexpr const char* NAME = "AVX-512 BF16";

  // sum + a.first * b.first + a.second * b.second. Denormals count as 0.
  REGARD_INLINE Vec dot_pairs(Vec sum, IntVec a, IntVec b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)(a), (__m512bh)(b));
  }

  // 16-bit words p[0] to p[count - 1], and 0 beyond them; count may exceed the vector.
  REGARD_INLINE IntVec load_words(const uint16_t* p, int64_t count) {
    return reinterpret_cast<IntVec>(_mm512_maskz_loadu_epi16(word_mask(count), p));
  }
  REGARD_INLINE void store_words(uint16_t* p, IntVec x, int64_t count) {
    _mm512_mask_storeu_epi16(p, word_mask(count), reinterpret_cast<__m512i>(x));
  }

  // Pairs (a[i], b[i]) of the words of two vectors: the first and the second half of them.
  REGARD_INLINE IntVec interleave_low(IntVec a, IntVec b) { return permute_words(a, pair_indices(0, 32, 1), b); }
  REGARD_INLINE IntVec interleave_high(IntVec a, IntVec b) { return permute_words(a, pair_indices(16, 48, 1), b); }

  // Pairs of the upper halves of each lane: two floats, cut off to bfloat16.
  REGARD_INLINE IntVec pair_upper_halves(IntVec a, IntVec b) { return permute_words(a, pair_indices(1, 33, 2), b); }

  // Pairs of two floats, rounded to the nearest bfloat16.
  REGARD_INLINE IntVec round_to_pairs(Vec a, Vec b) {
    const __m512i halves = (__m512i)(_mm512_cvtne2ps_pbh(b, a));
    return reinterpret_cast<IntVec>(_mm512_permutexvar_epi16(pair_indices(0, 16, 1), halves));
  }

  // Rounds LANES floats to bfloat16.
  REGARD_INLINE void store_rounded(uint16_t* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)(_mm512_cvtneps_pbh(x)));
  }

  // The bits of 2^x, given 2^23 x, with a relative error of 2.8e-6; a denormal number from -126 down, at -inf and NaN.
  // The integer 2^23 x has floor(x) in its upper bits and the fraction in its lower ones.
  REGARD_INLINE IntVec exp2_bits(Vec x) {
    const __m512i fixed = _mm512_cvtps_epi32(_mm512_max_ps(x, Vec{} - 126.5f * 0x1p23f));
    const Vec mantissa = reinterpret_cast<Vec>(  // 1 + the fraction
        _mm512_ternarylogic_epi32(fixed, _mm512_set1_epi32(0x7fffff), _mm512_set1_epi32(0x3f800000), 0xea));
    Vec p = fma(Vec{} + 1.353416778e-02f, mantissa, Vec{} - 2.125211060e-03f);
    p = fma(p, mantissa, Vec{} + 1.666133851e-01f);
    p = fma(p, mantissa, Vec{} + 3.120160401e-01f);
    p = fma(p, mantissa, Vec{} + 5.099642277e-01f);
    return bits(p) + reinterpret_cast<IntVec>(_mm512_and_si512(fixed, _mm512_set1_epi32(int32_t(0xff800000))));
  }

 private:
  REGARD_INLINE __mmask32 word_mask(int64_t count) {
    return count >= 32 ? ~__mmask32(0) : (__mmask32(1) << (count < 0 ? 0 : count)) - 1;
  }

  REGARD_INLINE IntVec permute_words(IntVec a, __m512i indices, IntVec b) {
    return reinterpret_cast<IntVec>(
        _mm512_permutex2var_epi16(reinterpret_cast<__m512i>(a), indices, reinterpret_cast<__m512i>(b)));
  }

  // Word 2 i is first + step * i, and word 2 i + 1 is second + step * i.
  REGARD_INLINE __m512i pair_indices(int first, int second, int step) {
    IntVec indices{};
    for (int i = 0; i < LANES; ++i) indices[i] = (first + step * i) | (second + step * i) << 16;
    return reinterpret_cast<__m512i>(indices);
  }
};

namespace avx512bf16 {
using Ops = Isa<Avx512Bf16>;
}

}  // namespace regard
