// Every instruction of the vector machine as a function of two numbers.

typedef int32_t (*Truth)(int32_t, int32_t);  // bits in, bits out

// Which numbers an instruction is tried on.
enum Pool { ANY, POSITIVE, SMALL, WHOLE, SHIFTS, CONDITIONS };

struct Operation {
  Op op;
  int operands;
  Pool pool;
  bool gives_float;
  double bound;  // of the relative error
  Truth truth;
};

static int32_t drawn(Pool pool, int64_t n) {
  const float specials[] = {0.0f, -0.0f, 1.0f, -2.5f, INFINITY, -INFINITY, NAN, 3e38f};
  const uint32_t word = mix(uint32_t(n) + 77u);
  const float x = float(word >> 8) / float(1 << 24);
  switch (pool) {
    case ANY: return check::bits_of(word % 5 == 0 ? specials[word / 8 % 8] : 8.0f * x - 4.0f);
    case POSITIVE: return check::bits_of(0.01f + 8.0f * x);
    case SMALL: return check::bits_of(4.0f * x - 2.0f);
    case WHOLE: return int32_t(word % 4001) - 2000;
    case SHIFTS: return int32_t(word % 11);
    default: return -int32_t(word % 2);
  }
}

#define OF_FLOATS(expression) \
  [](int32_t a, int32_t b) { \
    const float x = check::float_of(a), y = check::float_of(b); \
    (void)x, (void)y; \
    return check::bits_of(expression); \
  }
#define OF_WHOLE(expression) \
  [](int32_t x, int32_t y) { \
    (void)x, (void)y; \
    return check::bits_of(expression); \
  }

static const Operation OPERATIONS[] = {
    {F_ADD, 2, ANY, true, 0, OF_FLOATS(x + y)},
    {F_SUB, 2, ANY, true, 0, OF_FLOATS(x - y)},
    {F_MUL, 2, ANY, true, 0, OF_FLOATS(x * y)},
    {F_DIV, 2, ANY, true, 0, OF_FLOATS(x / y)},
    {F_MIN, 2, ANY, true, 0, OF_FLOATS(x != x || y != y ? NAN : x < y ? x : y)},
    {F_MAX, 2, ANY, true, 0, OF_FLOATS(x != x || y != y ? NAN : x > y ? x : y)},
    {F_NEG, 1, ANY, true, 0, OF_FLOATS(-x)},
    {F_ABS, 1, ANY, true, 0, OF_FLOATS(std::abs(x))},
    {F_SIGN, 1, ANY, true, 0, OF_FLOATS(x != x ? x : float(x > 0) - float(x < 0))},
    {F_SQRT, 1, POSITIVE, true, 0, OF_FLOATS(std::sqrt(x))},
    {F_EXP, 1, SMALL, true, 2e-7, OF_FLOATS(float(std::exp(double(x))))},
    {F_TANH, 1, ANY, true, 4e-7, OF_FLOATS(float(std::tanh(double(x))))},
    {F_SIGMOID, 1, ANY, true, 4e-7, OF_FLOATS(float(1.0 / (1.0 + std::exp(-double(x)))))},
    {F_LOG, 1, POSITIVE, true, 3e-7, OF_FLOATS(float(std::log(double(x))))},
    {F_EXP2, 1, SMALL, true, 0, OF_FLOATS(std::exp2(x))},
    {F_EXPM1, 1, SMALL, true, 0, OF_FLOATS(std::expm1(x))},
    {F_LOG1P, 1, POSITIVE, true, 0, OF_FLOATS(std::log1p(x))},
    {F_LOG2, 1, POSITIVE, true, 0, OF_FLOATS(std::log2(x))},
    {F_SIN, 1, SMALL, true, 0, OF_FLOATS(std::sin(x))},
    {F_COS, 1, SMALL, true, 0, OF_FLOATS(std::cos(x))},
    {F_POW, 2, POSITIVE, true, 0, OF_FLOATS(std::pow(x, y))},
    {F_FLOOR, 1, ANY, true, 0, OF_FLOATS(std::floor(x))},
    {F_CEIL, 1, ANY, true, 0, OF_FLOATS(std::ceil(x))},
    {F_ROUND, 1, ANY, true, 0, OF_FLOATS(std::nearbyint(x))},
    {F_TRUNC, 1, ANY, true, 0, OF_FLOATS(std::trunc(x))},
    {I_ADD, 2, WHOLE, false, 0, OF_WHOLE(x + y)},
    {I_SUB, 2, WHOLE, false, 0, OF_WHOLE(x - y)},
    {I_MUL, 2, WHOLE, false, 0, OF_WHOLE(x * y)},
    {I_MIN, 2, WHOLE, false, 0, OF_WHOLE(std::min(x, y))},
    {I_MAX, 2, WHOLE, false, 0, OF_WHOLE(std::max(x, y))},
    {I_NEG, 1, WHOLE, false, 0, OF_WHOLE(-x)},
    {I_ABS, 1, WHOLE, false, 0, OF_WHOLE(std::abs(x))},
    {I_SIGN, 1, WHOLE, false, 0, OF_WHOLE((x > 0) - (x < 0))},
    {I_AND, 2, WHOLE, false, 0, OF_WHOLE(x & y)},
    {I_OR, 2, WHOLE, false, 0, OF_WHOLE(x | y)},
    {I_XOR, 2, WHOLE, false, 0, OF_WHOLE(x ^ y)},
    {I_NOT, 1, WHOLE, false, 0, OF_WHOLE(~x)},
    {I_SHL, 2, SHIFTS, false, 0, OF_WHOLE(x << y)},
    {I_SHR, 2, SHIFTS, false, 0, OF_WHOLE(x >> y)},
    {I_TO_F, 1, WHOLE, true, 0, OF_WHOLE(float(x))},
    {F_TO_I, 1, SMALL, false, 0, OF_FLOATS(int32_t(x))},
    {B_TO_I, 1, CONDITIONS, false, 0, OF_WHOLE(-x)},
    {F_EQ, 2, ANY, false, 0, OF_FLOATS(-int32_t(x == y))},
    {F_NE, 2, ANY, false, 0, OF_FLOATS(-int32_t(x != y))},
    {F_LT, 2, ANY, false, 0, OF_FLOATS(-int32_t(x < y))},
    {F_LE, 2, ANY, false, 0, OF_FLOATS(-int32_t(x <= y))},
    {I_EQ, 2, SHIFTS, false, 0, OF_WHOLE(-int32_t(x == y))},
    {I_NE, 2, SHIFTS, false, 0, OF_WHOLE(-int32_t(x != y))},
    {I_LT, 2, SHIFTS, false, 0, OF_WHOLE(-int32_t(x < y))},
    {I_LE, 2, SHIFTS, false, 0, OF_WHOLE(-int32_t(x <= y))},
};

// What hides, as the condition under which a score stays.
static const Operation HIDING[] = {
    {KEEP, 1, CONDITIONS, true, 0, OF_WHOLE(x)},
    {KEEP_EQ, 2, SHIFTS, true, 0, OF_WHOLE(-int32_t(x == y))},
    {KEEP_NE, 2, SHIFTS, true, 0, OF_WHOLE(-int32_t(x != y))},
    {KEEP_LT, 2, SHIFTS, true, 0, OF_WHOLE(-int32_t(x < y))},
    {KEEP_LE, 2, SHIFTS, true, 0, OF_WHOLE(-int32_t(x <= y))},
};

#undef OF_FLOATS
#undef OF_WHOLE
