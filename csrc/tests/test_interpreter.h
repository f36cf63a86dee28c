// Compares the tile interpreter, with operands of every kind, with scalar loops.
#pragma once

#include "interpreter_operations.h"
#include "kernels/interpreter.h"

namespace regard {
namespace REGARD_ISA {
namespace {

// Runs a program on a few keys and one panel of queries, in the second batch element, second head and second panel.
template <int N>
struct InterpreterFixture {
  static constexpr int64_t W = N * LANES, KEY = 5, B = 1, H = 1;
  int64_t rows;
  check::ProgramBuilder builder;
  std::vector<float> scores, registers;

  explicit InterpreterFixture(int64_t rows)
      : rows(rows),
        builder(2, 2, PANEL_QUERIES + W, KEY + rows, PANEL_QUERIES),
        scores(rows * W),
        registers(4 * REGISTER_ROWS * PANEL_QUERIES) {}

  float* register_rows(int32_t r) {
    return r ? registers.data() + (r - 1) * REGISTER_ROWS * PANEL_QUERIES : scores.data();
  }
  int32_t result_bits(int32_t r, int64_t t, int64_t lane) { return check::bits_of(register_rows(r)[t * W + lane]); }

  static int64_t sample_index(OperandKind kind, int32_t salt, int64_t t, int64_t lane) {
    const int64_t position = kind == REGISTER ? t * W + lane : kind == PER_QUERY ? lane : kind == PER_KEY ? t : 0;
    return 100000 * salt + position;
  }

  // An operand with values from a pool, which depend on `salt`. An operand in a register is in register `r`.
  Operand operand(OperandKind kind, int32_t salt, InputPool pool, int32_t r) {
    const auto along = [=](int64_t first) {
      // other batch elements and heads have other values
      return [=](int64_t b, int64_t h, int64_t n) {
        return sample_bits(pool, 100000 * salt + n - first + (b == B && h == H ? 0 : 555));
      };
    };
    switch (kind) {
      case PER_QUERY: return builder.per_query(along(PANEL_QUERIES));
      case PER_KEY: return builder.per_key(along(KEY));
      case IMMEDIATE: return check::immediate(sample_bits(pool, 100000 * salt));
      default:
        for (int64_t i = 0; i < rows * W; ++i)
          register_rows(r)[i] = check::float_of(sample_bits(pool, 100000 * salt + i));
        return check::in_register(r);
    }
  }

  void run() {
    const Program& program = builder.program();
    Interpreter interpreter{program, registers.data(), B, H, PANEL_QUERIES};
    interpreter.template run<N>(0, program.end, KEY, rows, scores.data());
  }
};

template <int N>
static void operation_matches_scalar(const TestedOperation& it, OperandKind a, OperandKind b, int64_t rows) {
  InterpreterFixture<N> fixture(rows);
  const Operand x = fixture.operand(a, 1, it.pool, 0), y = fixture.operand(b, 2, it.pool, 3);
  for (int64_t i = 0; i < REGISTER_ROWS * PANEL_QUERIES; ++i) fixture.register_rows(2)[i] = 12345.0f;
  fixture.builder.emit(it.op, 2, x, it.operands == 2 ? y : check::no_operand);
  fixture.run();
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t lane = 0; lane < fixture.W; ++lane) {
      const int32_t p = sample_bits(it.pool, fixture.sample_index(a, 1, t, lane));
      const int32_t q = sample_bits(it.pool, fixture.sample_index(b, 2, t, lane));
      const int32_t expected = it.expected(p, q), actual = fixture.result_bits(2, t, lane);
      const bool matches = it.returns_float
                               ? check::is_close(check::float_of(actual), check::float_of(expected), it.bound, 0.0)
                               : actual == expected;
      CHECK(matches, "operation %d of operand kinds %d and %d, key %d, lane %d of %d: %d (%g), not %d (%g)", it.op, a,
            b, int(t), int(lane), int(fixture.W), actual, check::float_of(actual), expected, check::float_of(expected));
    }
  for (int64_t i = rows * fixture.W; i < REGISTER_ROWS * PANEL_QUERIES; ++i)
    CHECK(fixture.register_rows(2)[i] == 12345.0f, "operation %d of %d keys writes to element %d", it.op, int(rows),
          int(i));
}

template <int N>
static void integer_division_rounds_down(Op op, int32_t divisor, int64_t rows) {
  InterpreterFixture<N> fixture(rows);
  fixture.builder.emit(op, 2, fixture.operand(REGISTER, 1, INTEGERS, 0), check::immediate(divisor));
  fixture.run();
  for (int64_t i = 0; i < rows * fixture.W; ++i) {
    const int32_t p = sample_bits(INTEGERS, 100000 + i), actual = fixture.result_bits(2, 0, i);
    const int32_t down = p / divisor - (p % divisor != 0 && (p < 0) != (divisor < 0));  // towards -inf, as in Python
    const int32_t expected = op == I_FLOORDIV ? down : p - down * divisor;
    CHECK(actual == expected, "operation %d of %d and %d: %d, not %d", op, p, divisor, actual, expected);
  }
}

template <int N>
static void masking_matches_scalar(const TestedOperation& it, OperandKind a, OperandKind b, int64_t rows) {
  InterpreterFixture<N> fixture(rows);
  for (int64_t i = 0; i < rows * fixture.W; ++i) fixture.scores[i] = float(i);
  const Operand x = fixture.operand(a, 1, it.pool, 2), y = fixture.operand(b, 2, it.pool, 3);
  fixture.builder.emit(it.op, 0, x, it.operands == 2 ? y : check::no_operand);
  fixture.run();
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t lane = 0; lane < fixture.W; ++lane) {
      const bool is_kept = it.expected(sample_bits(it.pool, fixture.sample_index(a, 1, t, lane)),
                                       sample_bits(it.pool, fixture.sample_index(b, 2, t, lane)));
      const float expected = is_kept ? float(t * fixture.W + lane) : -INFINITY,
                  actual = fixture.scores[t * fixture.W + lane];
      CHECK(actual == expected, "operation %d, key %d, lane %d: %g, not %g", it.op, int(t), int(lane), actual,
            expected);
    }
}

template <int N>
static void select_matches_scalar(OperandKind a, OperandKind b, OperandKind c, int64_t rows) {
  InterpreterFixture<N> fixture(rows);
  const Operand x = fixture.operand(a, 1, INTEGERS, 0), y = fixture.operand(b, 2, INTEGERS, 3);
  fixture.builder.emit(SELECT, 2, x, y, fixture.operand(c, 3, CONDITIONS, 4));
  fixture.run();
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t lane = 0; lane < fixture.W; ++lane) {
      const bool selects_a = sample_bits(CONDITIONS, fixture.sample_index(c, 3, t, lane));
      const int32_t expected =
          sample_bits(INTEGERS, selects_a ? fixture.sample_index(a, 1, t, lane) : fixture.sample_index(b, 2, t, lane));
      CHECK(fixture.result_bits(2, t, lane) == expected, "operand kinds %d, %d, %d, key %d, lane %d", a, b, c, int(t),
            int(lane));
    }
}

// Reads table[on_lanes(lane) + on_keys(key)] from a table that ends with the last element read. on_lanes is an operand
// of lane_kind: an array, a register, or an immediate.
template <int N, class OnLanes, class OnKeys>
static void lookup_matches_table(const char* description, OperandKind lane_kind, int64_t rows, const OnLanes& on_lanes,
                                 const OnKeys& on_keys) {
  for (const Op op : {LOOKUP, LOOKUP_BYTE}) {
    InterpreterFixture<N> fixture(rows);
    int64_t last = 0;
    for (int64_t lane = 0; lane < fixture.W; ++lane)
      for (int64_t t = 0; t < rows; ++t) last = std::max<int64_t>(last, on_lanes(lane) + on_keys(t));
    std::vector<float> values(last + 1);
    std::vector<uint8_t> bytes(last + 1);
    for (int64_t n = 0; n <= last; ++n) values[n] = float(n), bytes[n] = n % 3 == 1;
    const auto lane_part = [&](int64_t, int64_t, int64_t i) { return int32_t(on_lanes(i - PANEL_QUERIES)); };
    const auto key_part = [&](int64_t, int64_t, int64_t j) {
      return int32_t(j < fixture.KEY ? 0 : on_keys(j - fixture.KEY));
    };
    for (int64_t i = 0; i < rows * fixture.W; ++i)
      fixture.register_rows(3)[i] = check::float_of(int32_t(on_lanes(i % fixture.W)));
    const Operand a = lane_kind == PER_QUERY  ? fixture.builder.per_query(lane_part)
                      : lane_kind == REGISTER ? check::in_register(3)
                                              : check::immediate(int32_t(on_lanes(0)));
    const void* table = op == LOOKUP ? static_cast<const void*>(values.data()) : bytes.data();
    fixture.builder.emit(op, 2, a, fixture.builder.per_key(key_part), check::no_operand,
                         fixture.builder.add_table(table));
    fixture.run();
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t lane = 0; lane < fixture.W; ++lane) {
        const int64_t index = on_lanes(lane_kind == IMMEDIATE ? 0 : lane) + on_keys(t);
        const int32_t expected = op == LOOKUP ? check::bits_of(float(index)) : -int32_t(bytes[index]);
        CHECK(fixture.result_bits(2, t, lane) == expected, "%s, key %d of %d, lane %d: not element %d", description,
              int(t), int(rows), int(lane), int(index));
      }
  }
}

template <int N>
static void lookup_handles_every_table_layout(int64_t rows) {
  const auto zero = [](int64_t) { return int64_t(0); };
  const auto identity = [](int64_t n) { return n; };
  const auto backwards = [=](int64_t t) { return rows - 1 - t; };
  const auto far_apart = [=](int64_t lane) { return lane * rows; };
  const auto by_columns = [](int64_t t) { return t * N * LANES; };
  // the first and last of four are in order, the others are not
  const auto shuffled = [=](int64_t t) { return t / 4 * 4 + 3 < rows && (t % 4 == 1 || t % 4 == 2) ? t ^ 3 : t; };
  lookup_matches_table<N>("by the difference", PER_QUERY, rows, identity, backwards);
  lookup_matches_table<N>("along the queries", PER_QUERY, rows, identity, by_columns);
  lookup_matches_table<N>("along the keys", PER_QUERY, rows, far_apart, identity);
  lookup_matches_table<N>("along the keys in another order", PER_QUERY, rows, far_apart, shuffled);
  lookup_matches_table<N>("by a register", REGISTER, rows, far_apart, identity);
  lookup_matches_table<N>("by the key alone", IMMEDIATE, rows, zero, identity);
}

template <int N>
static void test_interpreter_with(int64_t rows) {
  // two operands that are both per key or immediate would not need a tile
  constexpr OperandKind PAIRS[][2] = {{REGISTER, REGISTER},   {REGISTER, PER_QUERY}, {REGISTER, PER_KEY},
                                      {REGISTER, IMMEDIATE},  {PER_QUERY, REGISTER}, {PER_KEY, REGISTER},
                                      {IMMEDIATE, REGISTER},  {PER_QUERY, PER_KEY},  {PER_KEY, PER_QUERY},
                                      {PER_QUERY, IMMEDIATE}, {PER_QUERY, PER_QUERY}};
  constexpr OperandKind KINDS[] = {REGISTER, PER_QUERY, PER_KEY, IMMEDIATE};
  for (const TestedOperation& it : OPERATIONS) {
    if (it.operands == 1) operation_matches_scalar<N>(it, REGISTER, IMMEDIATE, rows);
    if (it.operands == 2)
      for (const auto& [a, b] : PAIRS) operation_matches_scalar<N>(it, a, b, rows);
  }
  for (const int32_t divisor : {1, 3, 7, 64, -5})
    for (const Op op : {I_FLOORDIV, I_MOD}) integer_division_rounds_down<N>(op, divisor, rows);
  for (const TestedOperation& it : MASKING_OPERATIONS) {
    if (it.operands == 1)
      for (const OperandKind a : KINDS) masking_matches_scalar<N>(it, a, IMMEDIATE, rows);
    if (it.operands == 2)
      for (const auto& [a, b] : PAIRS) masking_matches_scalar<N>(it, a, b, rows);
  }
  for (const OperandKind a : KINDS)
    for (const OperandKind b : KINDS)
      for (const OperandKind c : KINDS) select_matches_scalar<N>(a, b, c, rows);
  lookup_handles_every_table_layout<N>(rows);
}

static void test_interpreter() {
  for (const int64_t rows : {1, 7, 31, 32}) {
    test_interpreter_with<1>(rows);
    test_interpreter_with<3>(rows);
  }
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
