// Operations on pairs of bfloat16 numbers, where the instruction set has them.
#pragma once

#include "check.h"
#include "simd/exp.h"
#include "simd/half_types.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Instruction sets without products of pairs have nothing to test.
template <class PairOps, class = void>
struct PairTests {
  static void run() {}
};

template <class PairOps>
struct PairTests<PairOps, decltype(void(PairOps::dot_pairs(Vec{}, IntVec{}, IntVec{})))> {
  static void run() {
    test_products();
    test_words();
    test_rounding();
    test_exp2_bits();
  }

  // Lane i has the words 2 i and 2 i + 1.
  static IntVec numbered_words(int first) {
    IntVec words{};
    for (int i = 0; i < LANES; ++i) words[i] = (first + 2 * i) | (first + 2 * i + 1) << 16;
    return words;
  }

  static uint32_t bf16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    return word >> 16;
  }

  static void test_products() {
    IntVec a{}, b{};
    Vec sum{};
    for (int i = 0; i < LANES; ++i) {
      a[i] = int32_t(bf16(float(i)) | bf16(0.5f) << 16), b[i] = int32_t(bf16(3.0f) | bf16(float(-i)) << 16);
      sum[i] = 100.0f;
    }
    const Vec products = PairOps::dot_pairs(sum, a, b);
    for (int i = 0; i < LANES; ++i)
      CHECK(products[i] == 100.0f + 3.0f * float(i) - 0.5f * float(i), "lane %d: %g", i, products[i]);
  }

  static void test_words() {
    uint16_t memory[2 * LANES], target[2 * LANES];
    for (int i = 0; i < 2 * LANES; ++i) memory[i] = uint16_t(i + 1);
    for (int count = 0; count <= 2 * LANES + 1; ++count) {
      std::fill_n(target, 2 * LANES, uint16_t(0xffff));
      const IntVec words = PairOps::load_words(memory, count);
      PairOps::store_words(target, words, count);
      uint16_t loaded[2 * LANES];
      std::memcpy(loaded, &words, sizeof loaded);
      for (int i = 0; i < 2 * LANES; ++i) {
        CHECK(loaded[i] == (i < count ? i + 1 : 0), "%d words: word %d is %d", count, i, loaded[i]);
        CHECK(target[i] == (i < count ? i + 1 : 0xffff), "%d words: word %d was stored as %d", count, i, target[i]);
      }
    }
    const IntVec a = numbered_words(0), b = numbered_words(1000);
    const IntVec low = PairOps::interleave_low(a, b), high = PairOps::interleave_high(a, b),
                 upper = PairOps::pair_upper_halves(a, b);
    for (int i = 0; i < LANES; ++i) {
      CHECK(low[i] == (i | (1000 + i) << 16), "lane %d: %x", i, low[i]);
      CHECK(high[i] == ((LANES + i) | (1000 + LANES + i) << 16), "lane %d: %x", i, high[i]);
      CHECK(upper[i] == ((2 * i + 1) | (1001 + 2 * i) << 16), "lane %d: %x", i, upper[i]);
    }
  }

  static void test_rounding() {
    Vec a{}, b{};
    for (int i = 0; i < LANES; ++i) a[i] = 1.0f + float(i) * 0.013f, b[i] = -3.7f * float(i + 1);
    const IntVec pairs = PairOps::round_to_pairs(a, b);
    uint16_t words[LANES], expected[LANES];
    PairOps::store_rounded(words, a);
    for (int i = 0; i < LANES; ++i) {
      store_bf16(expected, a);
      CHECK((pairs[i] & 0xffff) == expected[i] && words[i] == expected[i], "lane %d: %x, not %x", i, pairs[i],
            expected[i]);
      store_bf16(expected, b);
      CHECK(uint32_t(pairs[i]) >> 16 == expected[i], "lane %d: %x, not %x", i, pairs[i], expected[i]);
    }
  }

  static void test_exp2_bits() {
    for (float x = -125.0f; x <= 0.0f; x += 0.01171875f) {
      const float actual = from_bits(PairOps::exp2_bits(broadcast(x * 0x1p23f)))[0];
      CHECK(check::is_close(actual, std::exp2(double(x)), 3e-5, 0), "2^%g is %g", x, actual);
    }
    for (const float x : {-127.0f, -1000.0f, -INFINITY, float(NAN)}) {
      const float actual = from_bits(PairOps::exp2_bits(broadcast(x * 0x1p23f)))[0];
      CHECK(actual >= 0.0f && actual < 0x1p-125f, "2^%g is %g", x, actual);
    }
  }
};

void test_pairs() { PairTests<Ops>::run(); }

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
