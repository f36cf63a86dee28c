// Every operation of the tile interpreter as a function of two scalars.
#pragma once

#include "kernels/dropout.h"
#include "program_builder.h"

namespace regard {
namespace REGARD_ISA {
namespace {

typedef int32_t (*ScalarFunction)(int32_t, int32_t);  // bits in, bits out

// The values that an operation is tested on.
enum InputPool { ANY, POSITIVE, SMALL, INTEGERS, SHIFTS, CONDITIONS };

struct TestedOperation {
  Op op;
  int operands;
  InputPool pool;
  bool returns_float;
  double bound;  // of the relative error
  ScalarFunction expected;
};

static int32_t sample_bits(InputPool pool, int64_t n) {
  const float specials[] = {0.0f, -0.0f, 1.0f, -2.5f, INFINITY, -INFINITY, NAN, 3e38f};
  const uint32_t word = mix(uint32_t(n) + 77u);
  const float x = float(word >> 8) / float(1 << 24);
  switch (pool) {
    case ANY: return check::bits_of(word % 5 == 0 ? specials[word / 8 % 8] : 8.0f * x - 4.0f);
    case POSITIVE: return check::bits_of(0.01f + 8.0f * x);
    case SMALL: return check::bits_of(4.0f * x - 2.0f);
    case INTEGERS: return int32_t(word % 4001) - 2000;
    case SHIFTS: return int32_t(word % 11);
    default: return -int32_t(word % 2);
  }
}

#define FLOAT_FUNCTION(expression) \
  [](int32_t a, int32_t b) { \
    const float x = check::float_of(a), y = check::float_of(b); \
    (void)x, (void)y; \
    return check::bits_of(expression); \
  }
#define INT_FUNCTION(expression) \
  [](int32_t x, int32_t y) { \
    (void)x, (void)y; \
    return check::bits_of(expression); \
  }

static const TestedOperation OPERATIONS[] = {
    {F_ADD, 2, ANY, true, 0, FLOAT_FUNCTION(x + y)},
    {F_SUB, 2, ANY, true, 0, FLOAT_FUNCTION(x - y)},
    {F_MUL, 2, ANY, true, 0, FLOAT_FUNCTION(x* y)},
    {F_DIV, 2, ANY, true, 0, FLOAT_FUNCTION(x / y)},
    {F_MIN, 2, ANY, true, 0,
     FLOAT_FUNCTION(x != x || y != y ? NAN
                    : x < y          ? x
                                     : y)},
    {F_MAX, 2, ANY, true, 0,
     FLOAT_FUNCTION(x != x || y != y ? NAN
                    : x > y          ? x
                                     : y)},
    {F_NEG, 1, ANY, true, 0, FLOAT_FUNCTION(-x)},
    {F_ABS, 1, ANY, true, 0, FLOAT_FUNCTION(std::abs(x))},
    {F_SIGN, 1, ANY, true, 0, FLOAT_FUNCTION(x != x ? x : float(x > 0) - float(x < 0))},
    {F_SQRT, 1, POSITIVE, true, 0, FLOAT_FUNCTION(std::sqrt(x))},
    {F_EXP, 1, SMALL, true, 2e-7, FLOAT_FUNCTION(float(std::exp(double(x))))},
    {F_TANH, 1, ANY, true, 4e-7, FLOAT_FUNCTION(float(std::tanh(double(x))))},
    {F_SIGMOID, 1, ANY, true, 4e-7, FLOAT_FUNCTION(float(1.0 / (1.0 + std::exp(-double(x)))))},
    {F_LOG, 1, POSITIVE, true, 3e-7, FLOAT_FUNCTION(float(std::log(double(x))))},
    {F_EXP2, 1, SMALL, true, 0, FLOAT_FUNCTION(std::exp2(x))},
    {F_EXPM1, 1, SMALL, true, 0, FLOAT_FUNCTION(std::expm1(x))},
    {F_LOG1P, 1, POSITIVE, true, 0, FLOAT_FUNCTION(std::log1p(x))},
    {F_LOG2, 1, POSITIVE, true, 0, FLOAT_FUNCTION(std::log2(x))},
    {F_SIN, 1, SMALL, true, 0, FLOAT_FUNCTION(std::sin(x))},
    {F_COS, 1, SMALL, true, 0, FLOAT_FUNCTION(std::cos(x))},
    {F_POW, 2, POSITIVE, true, 0, FLOAT_FUNCTION(std::pow(x, y))},
    {F_FLOOR, 1, ANY, true, 0, FLOAT_FUNCTION(std::floor(x))},
    {F_CEIL, 1, ANY, true, 0, FLOAT_FUNCTION(std::ceil(x))},
    {F_ROUND, 1, ANY, true, 0, FLOAT_FUNCTION(std::nearbyint(x))},
    {F_TRUNC, 1, ANY, true, 0, FLOAT_FUNCTION(std::trunc(x))},
    {I_ADD, 2, INTEGERS, false, 0, INT_FUNCTION(x + y)},
    {I_SUB, 2, INTEGERS, false, 0, INT_FUNCTION(x - y)},
    {I_MUL, 2, INTEGERS, false, 0, INT_FUNCTION(x* y)},
    {I_MIN, 2, INTEGERS, false, 0, INT_FUNCTION(std::min(x, y))},
    {I_MAX, 2, INTEGERS, false, 0, INT_FUNCTION(std::max(x, y))},
    {I_NEG, 1, INTEGERS, false, 0, INT_FUNCTION(-x)},
    {I_ABS, 1, INTEGERS, false, 0, INT_FUNCTION(std::abs(x))},
    {I_SIGN, 1, INTEGERS, false, 0, INT_FUNCTION((x > 0) - (x < 0))},
    {I_AND, 2, INTEGERS, false, 0, INT_FUNCTION(x& y)},
    {I_OR, 2, INTEGERS, false, 0, INT_FUNCTION(x | y)},
    {I_XOR, 2, INTEGERS, false, 0, INT_FUNCTION(x ^ y)},
    {I_NOT, 1, INTEGERS, false, 0, INT_FUNCTION(~x)},
    {I_SHL, 2, SHIFTS, false, 0, INT_FUNCTION(x << y)},
    {I_SHR, 2, SHIFTS, false, 0, INT_FUNCTION(x >> y)},
    {I_TO_F, 1, INTEGERS, true, 0, INT_FUNCTION(float(x))},
    {F_TO_I, 1, SMALL, false, 0, FLOAT_FUNCTION(int32_t(x))},
    {B_TO_I, 1, CONDITIONS, false, 0, INT_FUNCTION(-x)},
    {F_EQ, 2, ANY, false, 0, FLOAT_FUNCTION(-int32_t(x == y))},
    {F_NE, 2, ANY, false, 0, FLOAT_FUNCTION(-int32_t(x != y))},
    {F_LT, 2, ANY, false, 0, FLOAT_FUNCTION(-int32_t(x < y))},
    {F_LE, 2, ANY, false, 0, FLOAT_FUNCTION(-int32_t(x <= y))},
    {I_EQ, 2, SHIFTS, false, 0, INT_FUNCTION(-int32_t(x == y))},
    {I_NE, 2, SHIFTS, false, 0, INT_FUNCTION(-int32_t(x != y))},
    {I_LT, 2, SHIFTS, false, 0, INT_FUNCTION(-int32_t(x < y))},
    {I_LE, 2, SHIFTS, false, 0, INT_FUNCTION(-int32_t(x <= y))},
};

// The masking operations, as the condition under which a score is kept.
static const TestedOperation MASKING_OPERATIONS[] = {
    {MASK, 1, CONDITIONS, true, 0, INT_FUNCTION(x)},
    {MASK_EQ, 2, SHIFTS, true, 0, INT_FUNCTION(-int32_t(x == y))},
    {MASK_NE, 2, SHIFTS, true, 0, INT_FUNCTION(-int32_t(x != y))},
    {MASK_LT, 2, SHIFTS, true, 0, INT_FUNCTION(-int32_t(x < y))},
    {MASK_LE, 2, SHIFTS, true, 0, INT_FUNCTION(-int32_t(x <= y))},
};

#undef FLOAT_FUNCTION
#undef INT_FUNCTION

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
