// The vector machine, with operands in every place, against scalar loops.

#include "operations.h"

// A few keys and one panel of queries in the second batch element, second head and second panel.
template <int N>
struct Bench {
  static constexpr int64_t W = N * LANES, KEY = 5, B = 1, H = 1;
  int64_t rows;
  check::Code code;
  std::vector<float> scores, registers;

  explicit Bench(int64_t rows)
      : rows(rows), code(2, 2, PANEL + W, KEY + rows, PANEL), scores(rows * W), registers(4 * ROWS * PANEL) {}

  float* rows_of(int32_t r) { return r ? registers.data() + (r - 1) * ROWS * PANEL : scores.data(); }
  int32_t found(int32_t r, int64_t t, int64_t lane) { return check::bits_of(rows_of(r)[t * W + lane]); }

  static int64_t place_in(Place place, int32_t salt, int64_t t, int64_t lane) {
    const int64_t where = place == REGISTER ? t * W + lane : place == LANES_OF ? lane : place == KEYS_OF ? t : 0;
    return 100000 * salt + where;
  }

  // The operand number `salt`, its numbers drawn from a pool; in a register it is register `r`.
  Operand operand(Place place, int32_t salt, Pool pool, int32_t r) {
    const auto along = [=](int64_t first) {
      // other batch elements and heads have other numbers
      return [=](int64_t b, int64_t h, int64_t n) {
        return drawn(pool, 100000 * salt + n - first + (b == B && h == H ? 0 : 555));
      };
    };
    switch (place) {
      case LANES_OF: return code.lanes(along(PANEL));
      case KEYS_OF: return code.keys(along(KEY));
      case NUMBER: return check::number(drawn(pool, 100000 * salt));
      default:
        for (int64_t i = 0; i < rows * W; ++i) rows_of(r)[i] = check::float_of(drawn(pool, 100000 * salt + i));
        return check::in_register(r);
    }
  }

  void run() {
    const Program& program = code.program();
    Machine machine{program, registers.data(), B, H, PANEL};
    machine.template run<N>(0, program.end, KEY, rows, scores.data());
  }
};

template <int N>
static void computes(const Operation& it, Place a, Place b, int64_t rows) {
  Bench<N> bench(rows);
  const Operand x = bench.operand(a, 1, it.pool, 0), y = bench.operand(b, 2, it.pool, 3);
  for (int64_t i = 0; i < ROWS * PANEL; ++i) bench.rows_of(2)[i] = 12345.0f;
  bench.code.add(it.op, 2, x, it.operands == 2 ? y : check::nothing);
  bench.run();
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t lane = 0; lane < bench.W; ++lane) {
      const int32_t p = drawn(it.pool, bench.place_in(a, 1, t, lane));
      const int32_t q = drawn(it.pool, bench.place_in(b, 2, t, lane));
      const int32_t expected = it.truth(p, q), found = bench.found(2, t, lane);
      const bool same = it.gives_float
                            ? check::close(check::float_of(found), check::float_of(expected), it.bound, 0.0)
                            : found == expected;
      CHECK(same, "operation %d of places %d and %d, key %d, lane %d of %d: %d (%g), not %d (%g)", it.op, a, b, int(t),
            int(lane), int(bench.W), found, check::float_of(found), expected, check::float_of(expected));
    }
  for (int64_t i = rows * bench.W; i < ROWS * PANEL; ++i)
    CHECK(bench.rows_of(2)[i] == 12345.0f, "operation %d of %d keys writes to number %d", it.op, int(rows), int(i));
}

template <int N>
static void divides(Op op, int32_t divisor, int64_t rows) {
  Bench<N> bench(rows);
  bench.code.add(op, 2, bench.operand(REGISTER, 1, WHOLE, 0), check::number(divisor));
  bench.run();
  for (int64_t i = 0; i < rows * bench.W; ++i) {
    const int32_t p = drawn(WHOLE, 100000 + i), found = bench.found(2, 0, i);
    const int32_t down = p / divisor - (p % divisor != 0 && (p < 0) != (divisor < 0));  // towards -inf, as Python does
    const int32_t expected = op == I_FLOORDIV ? down : p - down * divisor;
    CHECK(found == expected, "operation %d of %d and %d: %d, not %d", op, p, divisor, found, expected);
  }
}

template <int N>
static void hides(const Operation& it, Place a, Place b, int64_t rows) {
  Bench<N> bench(rows);
  for (int64_t i = 0; i < rows * bench.W; ++i) bench.scores[i] = float(i);
  const Operand x = bench.operand(a, 1, it.pool, 2), y = bench.operand(b, 2, it.pool, 3);
  bench.code.add(it.op, 0, x, it.operands == 2 ? y : check::nothing);
  bench.run();
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t lane = 0; lane < bench.W; ++lane) {
      const bool stays =
          it.truth(drawn(it.pool, bench.place_in(a, 1, t, lane)), drawn(it.pool, bench.place_in(b, 2, t, lane)));
      const float expected = stays ? float(t * bench.W + lane) : -INFINITY, found = bench.scores[t * bench.W + lane];
      CHECK(found == expected, "operation %d, key %d, lane %d: %g, not %g", it.op, int(t), int(lane), found, expected);
    }
}

template <int N>
static void selects(Place a, Place b, Place c, int64_t rows) {
  Bench<N> bench(rows);
  const Operand x = bench.operand(a, 1, WHOLE, 0), y = bench.operand(b, 2, WHOLE, 3);
  bench.code.add(SELECT, 2, x, y, bench.operand(c, 3, CONDITIONS, 4));
  bench.run();
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t lane = 0; lane < bench.W; ++lane) {
      const bool first = drawn(CONDITIONS, bench.place_in(c, 3, t, lane));
      const int32_t expected = drawn(WHOLE, first ? bench.place_in(a, 1, t, lane) : bench.place_in(b, 2, t, lane));
      CHECK(bench.found(2, t, lane) == expected, "places %d, %d, %d, key %d, lane %d", a, b, c, int(t), int(lane));
    }
}

// Reads table[on_lanes(lane) + on_keys(key)] from a table that ends with the last number read; `as` says whether the
// part of the lanes comes as an array, in a register, or as one number.
template <int N, class OnLanes, class OnKeys>
static void looks_up(const char* how, Place as, int64_t rows, const OnLanes& on_lanes, const OnKeys& on_keys) {
  for (const Op op : {LOOKUP, LOOKUP_BYTE}) {
    Bench<N> bench(rows);
    int64_t last = 0;
    for (int64_t lane = 0; lane < bench.W; ++lane)
      for (int64_t t = 0; t < rows; ++t) last = std::max<int64_t>(last, on_lanes(lane) + on_keys(t));
    std::vector<float> numbers(last + 1);
    std::vector<uint8_t> bytes(last + 1);
    for (int64_t n = 0; n <= last; ++n) numbers[n] = float(n), bytes[n] = n % 3 == 1;
    const auto lane_part = [&](int64_t, int64_t, int64_t i) { return int32_t(on_lanes(i - PANEL)); };
    const auto key_part = [&](int64_t, int64_t, int64_t j) {
      return int32_t(j < bench.KEY ? 0 : on_keys(j - bench.KEY));
    };
    for (int64_t i = 0; i < rows * bench.W; ++i) bench.rows_of(3)[i] = check::float_of(int32_t(on_lanes(i % bench.W)));
    const Operand a = as == LANES_OF   ? bench.code.lanes(lane_part)
                      : as == REGISTER ? check::in_register(3)
                                       : check::number(int32_t(on_lanes(0)));
    const void* table = op == LOOKUP ? static_cast<const void*>(numbers.data()) : bytes.data();
    bench.code.add(op, 2, a, bench.code.keys(key_part), check::nothing, bench.code.table(table));
    bench.run();
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t lane = 0; lane < bench.W; ++lane) {
        const int64_t place = on_lanes(as == NUMBER ? 0 : lane) + on_keys(t);
        const int32_t expected = op == LOOKUP ? check::bits_of(float(place)) : -int32_t(bytes[place]);
        CHECK(bench.found(2, t, lane) == expected, "%s, key %d of %d, lane %d: not number %d", how, int(t), int(rows),
              int(lane), int(place));
      }
  }
}

template <int N>
static void looks_up_tables_of_every_order(int64_t rows) {
  const auto nothing = [](int64_t) { return int64_t(0); };
  const auto itself = [](int64_t n) { return n; };
  const auto backwards = [=](int64_t t) { return rows - 1 - t; };
  const auto far_apart = [=](int64_t lane) { return lane * rows; };
  const auto by_columns = [](int64_t t) { return t * N * LANES; };
  // as far apart at the ends of four as if they were in order
  const auto shuffled = [=](int64_t t) { return t / 4 * 4 + 3 < rows && (t % 4 == 1 || t % 4 == 2) ? t ^ 3 : t; };
  looks_up<N>("by the difference", LANES_OF, rows, itself, backwards);
  looks_up<N>("along the queries", LANES_OF, rows, itself, by_columns);
  looks_up<N>("along the keys", LANES_OF, rows, far_apart, itself);
  looks_up<N>("along the keys in another order", LANES_OF, rows, far_apart, shuffled);
  looks_up<N>("by a register", REGISTER, rows, far_apart, itself);
  looks_up<N>("by the key alone", NUMBER, rows, nothing, itself);
}

template <int N>
static void test_programs_of(int64_t rows) {
  // one number for a row, or for all, beside another such number would not need a tile
  constexpr Place PAIRS[][2] = {{REGISTER, REGISTER}, {REGISTER, LANES_OF}, {REGISTER, KEYS_OF}, {REGISTER, NUMBER},
                                {LANES_OF, REGISTER}, {KEYS_OF, REGISTER},  {NUMBER, REGISTER},  {LANES_OF, KEYS_OF},
                                {KEYS_OF, LANES_OF},  {LANES_OF, NUMBER},   {LANES_OF, LANES_OF}};
  constexpr Place PLACES[] = {REGISTER, LANES_OF, KEYS_OF, NUMBER};
  for (const Operation& it : OPERATIONS) {
    if (it.operands == 1) computes<N>(it, REGISTER, NUMBER, rows);
    if (it.operands == 2)
      for (const auto& [a, b] : PAIRS) computes<N>(it, a, b, rows);
  }
  for (const int32_t divisor : {1, 3, 7, 64, -5})
    for (const Op op : {I_FLOORDIV, I_MOD}) divides<N>(op, divisor, rows);
  for (const Operation& it : HIDING) {
    if (it.operands == 1)
      for (const Place a : PLACES) hides<N>(it, a, NUMBER, rows);
    if (it.operands == 2)
      for (const auto& [a, b] : PAIRS) hides<N>(it, a, b, rows);
  }
  for (const Place a : PLACES)
    for (const Place b : PLACES)
      for (const Place c : PLACES) selects<N>(a, b, c, rows);
  looks_up_tables_of_every_order<N>(rows);
}

static void test_programs() {
  for (const int64_t rows : {1, 7, 31, 32}) {
    test_programs_of<1>(rows);
    test_programs_of<3>(rows);
  }
}
