// Half precision: all numbers there are, and the nearest of them to others.

// The number behind 16 bits, by its definition.
static double value_of(uint16_t bits, Kind kind) {
  const int fraction_bits = kind == HALF ? 10 : 7, bias = kind == HALF ? 15 : 127;
  const int most = (1 << (15 - fraction_bits)) - 1;
  const int exponent = bits >> fraction_bits & most, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == most) return fraction ? NAN : sign * INFINITY;
  const int shown = exponent ? fraction + (1 << fraction_bits) : fraction;
  return sign * std::ldexp(shown, (exponent ? exponent : 1) - bias - fraction_bits);
}

static void every_half_is_widened_exactly_and_comes_back() {
  const FlushTiny flush;  // as in a kernel
  for (const Kind kind : {BRAIN, HALF}) {
    for (int64_t first = 0; first < 65536; first += 21) {  // not a whole number of vectors
      const int64_t count = std::min<int64_t>(21, 65536 - first);
      uint16_t halves[21], back[21];
      float wide[21];
      for (int64_t i = 0; i < count; ++i) halves[i] = uint16_t(first + i);
      widen(halves, count, kind, wide);
      narrow(wide, count, kind, back);
      for (int64_t i = 0; i < count; ++i) {
        const double expected = value_of(halves[i], kind);
        uint32_t word;  // read as bits, since tiny numbers count as 0 here
        std::memcpy(&word, wide + i, sizeof word);
        const float exact = float(expected);
        uint32_t exact_word;
        std::memcpy(&exact_word, &exact, sizeof exact_word);
        if (std::isnan(expected)) {
          CHECK(std::isnan(wide[i]), "kind %d: %04x is %g, not NaN", int(kind), halves[i], wide[i]);
          CHECK(std::isnan(value_of(back[i], kind)), "kind %d: NaN %04x comes back as %04x", int(kind), halves[i], back[i]);
        } else {
          const bool tiny = kind == BRAIN && std::abs(expected) < FLT_MIN;  // the C library's own may be flushed here
          CHECK(tiny || word == exact_word, "kind %d: %04x is %g, not %g", int(kind), halves[i], wide[i], expected);
          CHECK(back[i] == halves[i], "kind %d: %04x comes back as %04x", int(kind), halves[i], back[i]);
        }
      }
    }
  }
}

static void a_float_becomes_the_nearest_half_the_even_one_of_two() {
  check::Dice dice;
  for (const Kind kind : {BRAIN, HALF})
    for (int round = 0; round < 20000; ++round) {
      float x[LANES];
      uint16_t found[LANES];
      for (float& number : x) {
        number = std::ldexp(dice(), int(dice() * (kind == HALF ? 20 : 100)));
        if (round % 2) {  // halfway between two
          uint16_t half;
          narrow(&number, 1, kind, &half);
          number = float((value_of(half & 0x7fff, kind) + value_of((half & 0x7fff) + 1, kind)) / 2);
          if (!std::isfinite(number)) number = 1.0f;
        }
      }
      narrow(x, LANES, kind, found);
      for (int i = 0; i < LANES; ++i) {
        const double off = std::abs(value_of(found[i], kind) - x[i]);
        for (const int step : {-1, 1}) {
          const double other = value_of(uint16_t(found[i] + step), kind);
          if ((found[i] & 0x7fff) == 0 && step < 0) continue;  // there is no step below 0
          const double other_off = std::isinf(other) ? off + 1 : std::abs(other - x[i]);
          CHECK(off < other_off || (off == other_off && found[i] % 2 == 0) || std::isinf(value_of(found[i], kind)),
                "kind %d: %a becomes %04x, and %04x is nearer", int(kind), x[i], found[i], uint16_t(found[i] + step));
        }
      }
    }
  const struct {
    float x;
    Kind kind;
    uint16_t expected;
  } limits[] = {{65519.0f, HALF, 0x7bff}, {65520.0f, HALF, 0x7c00}, {-1e9f, HALF, 0xfc00},       {0x1p-25f, HALF, 0},
                {0x1.8p-25f, HALF, 1},    {-0.0f, HALF, 0x8000},    {FLT_MAX, BRAIN, 0x7f80},     {INFINITY, HALF, 0x7c00},
                {1.0f, BRAIN, 0x3f80},    {INFINITY, BRAIN, 0x7f80}, {-INFINITY, BRAIN, 0xff80}};
  for (const auto& it : limits) {
    uint16_t found;
    narrow(&it.x, 1, it.kind, &found);
    CHECK(found == it.expected, "kind %d: %g becomes %04x, not %04x", int(it.kind), it.x, found, it.expected);
  }
}

static void test_roundings() {
  every_half_is_widened_exactly_and_comes_back();
  a_float_becomes_the_nearest_half_the_even_one_of_two();
}
