// The tile interpreter: runs a program on a few keys (rows) and a panel of queries (lanes) while they are in the L1
// cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/panel.h"
#include "program.h"
#include "simd/exp.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int REGISTER_ROWS = 32;

// The values of an operand: a vector for each row, one vector for all rows (row_stride = 0), or one value per row.
struct OperandView {
  const float* data;
  int64_t row_stride;
  bool is_broadcast;  // one value per row, or one for all rows
};

template <int N, class F>
REGARD_INLINE void binary(const OperandView& a, const OperandView& b, float* dest, int64_t rows, const F& f) {
  constexpr int64_t W = N * LANES;
  if (a.is_broadcast) {
    for (int64_t t = 0; t < rows; ++t) {
      const Vec x = load_broadcast(a.data + t * a.row_stride);
      REGARD_UNROLL for (int j = 0; j < N; ++j)
          store(dest + t * W + j * LANES, f(x, load(b.data + t * b.row_stride + j * LANES)));
    }
  } else if (b.is_broadcast) {
    for (int64_t t = 0; t < rows; ++t) {
      const Vec y = load_broadcast(b.data + t * b.row_stride);
      REGARD_UNROLL for (int j = 0; j < N; ++j)
          store(dest + t * W + j * LANES, f(load(a.data + t * a.row_stride + j * LANES), y));
    }
  } else {
    for (int64_t t = 0; t < rows; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j)
          store(dest + t * W + j * LANES,
                f(load(a.data + t * a.row_stride + j * LANES), load(b.data + t * b.row_stride + j * LANES)));
  }
}

template <int N, class F>
REGARD_INLINE void unary(const OperandView& a, float* dest, int64_t rows, const F& f) {
  for (int64_t i = 0; i < rows * N * LANES; i += LANES) store(dest + i, f(load(a.data + i)));
}

// Whether each value is one more than the value before it.
REGARD_INLINE bool is_consecutive(const int32_t* values, int64_t step, int64_t count) {
  for (int64_t i = 1; i < count; ++i)
    if (values[i * step] != values[0] + i) return false;
  return true;
}

template <class F>
REGARD_INLINE Vec map_lanes(Vec x, const F& f) {
  for (int lane = 0; lane < LANES; ++lane) x[lane] = f(x[lane]);
  return x;
}

// The target of the gradient of a captured tensor: a large one is summed in place, in memory that all items share. A
// small one, to which many pairs add, is summed in double precision in memory of the item.
struct GradientTarget {
  float* shared;
  double* local;
};

struct Interpreter {
  const Program& program;
  float* registers;  // registers from 1 on, REGISTER_ROWS rows each; register 0 is the scores
  int64_t b, h, first_query;

  // For gradients of captured tensors: their targets, the gradients of this tile's scores, and the number of queries.
  const GradientTarget* gradient_targets = nullptr;
  float* d_scores = nullptr;
  int64_t num_queries = 0;

  // The per-query array that was last checked for consecutive values, and the result.
  int32_t checked_array = -1;
  bool is_checked_array_consecutive = false;

  template <int64_t W>
  bool lanes_are_consecutive(int32_t array, const int32_t* values) {
    if (array != checked_array) checked_array = array, is_checked_array_consecutive = is_consecutive(values, 1, W);
    return is_checked_array_consecutive;
  }

  float* register_rows(int32_t r, float* scores) const {
    return r == SCORE_REGISTER ? scores : registers + (r - 1) * REGISTER_ROWS * PANEL_QUERIES;
  }

  OperandView operand_view(const Operand& x, int64_t key, float* scores, int64_t row) const {
    switch (x.kind) {
      case REGISTER: return {register_rows(x.index, scores), row, false};
      case PER_QUERY: {
        const PositionArray& n = program.per_query[x.index];
        return {reinterpret_cast<const float*>(n.data + b * n.batch_stride + h * n.head_stride + first_query), 0,
                false};
      }
      case PER_KEY: {
        const PositionArray& n = program.per_key[x.index];
        return {reinterpret_cast<const float*>(n.data + b * n.batch_stride + h * n.head_stride + key), 1, true};
      }
      default: return {reinterpret_cast<const float*>(&x.index), 0, true};
    }
  }

  // Prefetches the table rows that the score modifier reads for keys from `key` on, if they are contiguous along keys.
  TablePrefetch table_prefetch(int64_t key, int64_t num_lanes, int64_t num_channels) {
    for (int64_t n = 0; n < program.score_mod_end; ++n) {
      const Instruction& x = program.instructions[n];
      if (x.op != LOOKUP || x.a.kind != PER_QUERY || x.b.kind != PER_KEY) continue;
      const int32_t* lane_offsets = reinterpret_cast<const int32_t*>(operand_view(x.a, key, nullptr, 0).data);
      if (is_consecutive(lane_offsets, 1, num_lanes)) continue;
      return {static_cast<const float*>(program.tables[x.table]), lane_offsets,
              reinterpret_cast<const int32_t*>(operand_view(x.b, key, nullptr, 0).data), num_lanes, num_channels};
    }
    return {};
  }

  template <int N>
  void lookup(const Instruction& x, int64_t key, float* scores, float* dest, int64_t rows) {
    constexpr int64_t W = N * LANES;
    const OperandView a = operand_view(x.a, key, scores, W), b = operand_view(x.b, key, scores, W);
    const void* table = program.tables[x.table];
    const int32_t x_op = x.op;
    const int32_t* a_values = reinterpret_cast<const int32_t*>(a.data);
    const int32_t* b_values = reinterpret_cast<const int32_t*>(b.data);
    const bool is_query_plus_key = !a.is_broadcast && b.is_broadcast && a.row_stride == 0;
    if (is_query_plus_key && lanes_are_consecutive<W>(x.a.index, a_values)) {
      for (int64_t t = 0; t < rows; ++t) {
        const int64_t index = int64_t(a_values[0]) + b_values[t * b.row_stride];
        REGARD_UNROLL for (int j = 0; j < N; ++j)
            store(dest + t * W + j * LANES,
                  x_op == LOOKUP ? load(static_cast<const float*>(table) + index + j * LANES)
                                 : from_bits(load_bool_mask(static_cast<const uint8_t*>(table) + index + j * LANES)));
      }
      return;
    }
    int64_t t = 0;
    if (is_query_plus_key) {  // table rows that are contiguous along the keys: read along the keys, then transposed
      for (; t + LANES <= rows && is_consecutive(b_values + t * b.row_stride, b.row_stride, LANES); t += LANES)
        for (int j = 0; j < N; ++j) {
          const int32_t* lane_offsets = a_values + j * LANES;
          float* to = dest + t * W + j * LANES;
          if (x_op == LOOKUP) {
            const float* from = static_cast<const float*>(table) + b_values[t * b.row_stride];
            Vec x[LANES];
            REGARD_UNROLL for (int lane = 0; lane < LANES; ++lane) x[lane] = load(from + lane_offsets[lane]);
            transpose(x);
            REGARD_UNROLL for (int i = 0; i < LANES; ++i) store(to + i * W, x[i]);
          } else {  // one bit per key in each lane
            const uint8_t* from = static_cast<const uint8_t*>(table) + b_values[t * b.row_stride];
            alignas(sizeof(Vec)) int32_t x[LANES];
            REGARD_UNROLL for (int lane = 0; lane < LANES; ++lane) x[lane] =
                Ops::load_bool_bits(from + lane_offsets[lane]);
            const IntVec key_bits = load(x);
            REGARD_UNROLL for (int i = 0; i < LANES; ++i)
                store(to + i * W, from_bits(IntVec((key_bits & (1 << i)) != 0)));
          }
        }
    }
    for (; t < rows; ++t)
      for (int64_t lane = 0; lane < W; ++lane) {
        const int64_t index = int64_t(a_values[a.is_broadcast ? t * a.row_stride : t * a.row_stride + lane]) +
                              b_values[b.is_broadcast ? t * b.row_stride : t * b.row_stride + lane];
        if (x.op == LOOKUP) {
          dest[t * W + lane] = static_cast<const float*>(table)[index];
        } else {
          reinterpret_cast<int32_t*>(dest)[t * W + lane] = -int32_t(static_cast<const uint8_t*>(table)[index] != 0);
        }
      }
  }

  // Adds the gradient of each pair, times c, to the element that a lookup has read.
  template <int N>
  void scatter_add(const Instruction& x, int64_t key, float* scores, int64_t rows) {
    constexpr int64_t W = N * LANES;
    const OperandView a = operand_view(x.a, key, scores, W), b = operand_view(x.b, key, scores, W),
                      c = operand_view(x.c, key, scores, W);
    const int32_t* a_values = reinterpret_cast<const int32_t*>(a.data);
    const int32_t* b_values = reinterpret_cast<const int32_t*>(b.data);
    const GradientTarget& target = gradient_targets[x.table];
    const auto add = [&](int64_t index, float update) {
      if (target.local) {
        target.local[index] += update;
      } else {
        target.shared[index] += update;
      }
    };
    int32_t is_query[W];  // lanes beyond the last query repeat it, and do not count
    for (int64_t lane = 0; lane < W; ++lane) is_query[lane] = -int32_t(lane < num_queries);
    const auto gradient = [&](int64_t t, int j) __attribute__((always_inline)) {
      const Vec g = load(d_scores + t * W + j * LANES);
      const Vec factor =
          c.is_broadcast ? load_broadcast(c.data + t * c.row_stride) : load(c.data + t * c.row_stride + j * LANES);
      // where the gradient is 0 (hidden pairs among them), an infinite factor must not give NaN
      return where(load(is_query + j * LANES) & IntVec(g != 0.0f), g * factor, Vec{});
    };
    const bool is_per_query = a.row_stride == 0 && b.row_stride == 0 && b.is_broadcast;
    if (is_per_query) {  // the same element for all keys
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        Vec total{};
        for (int64_t t = 0; t < rows; ++t) total += gradient(t, j);
        for (int64_t lane = j * LANES; lane < std::min<int64_t>(num_queries, (j + 1) * LANES); ++lane)
          add(int64_t(a_values[a.is_broadcast ? 0 : lane]) + b_values[0], total[lane - j * LANES]);
      }
      return;
    }
    int64_t t = 0;
    // table rows that are contiguous along the keys
    if (target.shared && !a.is_broadcast && a.row_stride == 0 && b.is_broadcast)
      for (; t + LANES <= rows && is_consecutive(b_values + t * b.row_stride, b.row_stride, LANES); t += LANES)
        for (int j = 0; j * LANES < num_queries; ++j) {
          Vec g[LANES];
          REGARD_UNROLL for (int i = 0; i < LANES; ++i) g[i] = gradient(t + i, j);
          transpose(g);
          for (int64_t lane = j * LANES; lane < std::min<int64_t>(num_queries, (j + 1) * LANES); ++lane) {
            float* element = target.shared + a_values[lane] + int64_t(b_values[t * b.row_stride]);
            store(element, load(element) + g[lane - j * LANES]);
          }
        }
    for (; t < rows; ++t)
      for (int j = 0; j * LANES < num_queries; ++j) {
        const Vec g = gradient(t, j);
        for (int64_t lane = j * LANES; lane < std::min<int64_t>(num_queries, (j + 1) * LANES); ++lane)
          add(int64_t(a_values[a.is_broadcast ? t * a.row_stride : t * a.row_stride + lane]) +
                  b_values[b.is_broadcast ? t * b.row_stride : t * b.row_stride + lane],
              g[lane - j * LANES]);
      }
  }

  // Runs the instructions from `begin` to `end` - 1 on the scores of the keys from `key` to `key + rows - 1`.
  template <int N>
  void run(int64_t begin, int64_t end, int64_t key, int64_t rows, float* scores) {
    for (int64_t n = begin; n < end; ++n) {
      const Instruction& x = program.instructions[n];
      execute<N>(x, operand_view(x.a, key, scores, N * LANES), operand_view(x.b, key, scores, N * LANES), key, rows,
                 scores, register_rows(x.dest, scores));
    }
  }

  template <int N>
  void execute(const Instruction& x, const OperandView& a, const OperandView& b, int64_t key, int64_t rows,
               float* scores, float* dest) {
    const auto ints = [](auto f) { return [f](Vec p, Vec q) { return from_bits(f(bits(p), bits(q))); }; };
    const auto comparison = [](auto f) { return [f](Vec p, Vec q) { return from_bits(IntVec(f(p, q))); }; };
    const auto per_float = [](auto f) { return [f](Vec p) { return map_lanes(p, f); }; };
    const auto per_int = [](auto f) {
      return [f](Vec p) {
        IntVec q = bits(p);
        for (int lane = 0; lane < LANES; ++lane) q[lane] = f(q[lane]);
        return from_bits(q);
      };
    };
    const Vec hidden = broadcast(-INFINITY);
    switch (x.op) {
      case F_ADD: return binary<N>(a, b, dest, rows, [](Vec p, Vec q) { return p + q; });
      case F_SUB: return binary<N>(a, b, dest, rows, [](Vec p, Vec q) { return p - q; });
      case F_MUL: return binary<N>(a, b, dest, rows, [](Vec p, Vec q) { return p * q; });
      case F_DIV: return binary<N>(a, b, dest, rows, [](Vec p, Vec q) { return p / q; });
      case F_MIN: return binary<N>(a, b, dest, rows, [](Vec p, Vec q) { return where(p != p, p, vec_min(p, q)); });
      case F_MAX: return binary<N>(a, b, dest, rows, [](Vec p, Vec q) { return where(p != p, p, vec_max(p, q)); });
      case F_NEG: return unary<N>(a, dest, rows, [](Vec p) { return -p; });
      case F_ABS: return unary<N>(a, dest, rows, [](Vec p) { return from_bits(bits(p) & 0x7fffffff); });
      case F_SIGN:
        return unary<N>(a, dest, rows, per_float([](float p) { return p != p ? p : float((p > 0) - (p < 0)); }));
      case F_SQRT: return unary<N>(a, dest, rows, per_float([](float p) { return std::sqrt(p); }));
      case F_EXP: return unary<N>(a, dest, rows, [](Vec p) { return exp(p); });
      case F_TANH: return unary<N>(a, dest, rows, [](Vec p) { return tanh(p); });
      case F_SIGMOID: return unary<N>(a, dest, rows, [](Vec p) { return 1.0f / (1.0f + exp(-p)); });
      case F_LOG: return unary<N>(a, dest, rows, [](Vec p) { return log(p); });
      case F_EXP2: return unary<N>(a, dest, rows, per_float([](float p) { return std::exp2(p); }));
      case F_EXPM1: return unary<N>(a, dest, rows, per_float([](float p) { return std::expm1(p); }));
      case F_LOG1P: return unary<N>(a, dest, rows, per_float([](float p) { return std::log1p(p); }));
      case F_LOG2: return unary<N>(a, dest, rows, per_float([](float p) { return std::log2(p); }));
      case F_SIN: return unary<N>(a, dest, rows, per_float([](float p) { return std::sin(p); }));
      case F_COS: return unary<N>(a, dest, rows, per_float([](float p) { return std::cos(p); }));
      case F_POW:
        return binary<N>(a, b, dest, rows, [](Vec p, Vec q) {
          for (int lane = 0; lane < LANES; ++lane) p[lane] = std::pow(p[lane], q[lane]);
          return p;
        });
      case F_FLOOR: return unary<N>(a, dest, rows, per_float([](float p) { return std::floor(p); }));
      case F_CEIL: return unary<N>(a, dest, rows, per_float([](float p) { return std::ceil(p); }));
      case F_ROUND: return unary<N>(a, dest, rows, per_float([](float p) { return std::nearbyint(p); }));
      case F_TRUNC: return unary<N>(a, dest, rows, per_float([](float p) { return std::trunc(p); }));
      case I_ADD: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p + q; }));
      case I_SUB: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p - q; }));
      case I_MUL: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p * q; }));
      case I_MIN: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p < q ? p : q; }));
      case I_MAX: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p > q ? p : q; }));
      case I_NEG: return unary<N>(a, dest, rows, [](Vec p) { return from_bits(-bits(p)); });
      case I_ABS: return unary<N>(a, dest, rows, per_int([](int32_t p) { return p < 0 ? -p : p; }));
      case I_SIGN: return unary<N>(a, dest, rows, per_int([](int32_t p) { return (p > 0) - (p < 0); }));
      case I_FLOORDIV:
      case I_MOD: {  // by an immediate that is not 0; exact, since 53 bits hold every quotient of two 32-bit integers
        int32_t divisor;
        std::memcpy(&divisor, b.data, sizeof divisor);
        if (x.op == I_FLOORDIV)
          return unary<N>(a, dest, rows,
                          per_int([divisor](int32_t p) { return int32_t(std::floor(double(p) / divisor)); }));
        return unary<N>(a, dest, rows, per_int([divisor](int32_t p) {
                          return int32_t(p - std::floor(double(p) / divisor) * divisor);
                        }));
      }
      case I_AND: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p & q; }));
      case I_OR: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p | q; }));
      case I_XOR: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p ^ q; }));
      case I_NOT: return unary<N>(a, dest, rows, [](Vec p) { return from_bits(~bits(p)); });
      case I_SHL: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p << q; }));
      case I_SHR: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return p >> q; }));
      case I_TO_F: return unary<N>(a, dest, rows, [](Vec p) { return __builtin_convertvector(bits(p), Vec); });
      case F_TO_I: return unary<N>(a, dest, rows, [](Vec p) { return from_bits(__builtin_convertvector(p, IntVec)); });
      case B_TO_I: return unary<N>(a, dest, rows, [](Vec p) { return from_bits(bits(p) & 1); });
      case F_EQ: return binary<N>(a, b, dest, rows, comparison([](Vec p, Vec q) { return p == q; }));
      case F_NE: return binary<N>(a, b, dest, rows, comparison([](Vec p, Vec q) { return p != q; }));
      case F_LT: return binary<N>(a, b, dest, rows, comparison([](Vec p, Vec q) { return p < q; }));
      case F_LE: return binary<N>(a, b, dest, rows, comparison([](Vec p, Vec q) { return p <= q; }));
      case I_EQ: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return IntVec(p == q); }));
      case I_NE: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return IntVec(p != q); }));
      case I_LT: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return IntVec(p < q); }));
      case I_LE: return binary<N>(a, b, dest, rows, ints([](IntVec p, IntVec q) { return IntVec(p <= q); }));
      case SELECT: {
        const OperandView c = operand_view(x.c, key, scores, N * LANES);
        for (int64_t t = 0; t < rows; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
            const auto values = [&](const OperandView& s) {
              return s.is_broadcast ? load_broadcast(s.data + t * s.row_stride)
                                    : load(s.data + t * s.row_stride + j * LANES);
            };
            store(dest + (t * N + j) * LANES, where(bits(values(c)), values(a), values(b)));
          }
        return;
      }
      case LOOKUP:
      case LOOKUP_BYTE: return lookup<N>(x, key, scores, dest, rows);
      case SCATTER_ADD: return scatter_add<N>(x, key, scores, rows);
      default: break;
    }
    // masks: the scores are a third operand
    const auto mask = [&](auto f) {
      binary<N>(a, b, registers, rows, ints(f));
      for (int64_t i = 0; i < rows * N * LANES; i += LANES)
        store(scores + i, where(bits(load(registers + i)), load(scores + i), hidden));
    };
    switch (x.op) {
      case MASK:
        for (int64_t t = 0; t < rows; ++t) REGARD_UNROLL for (int j = 0; j < N; ++j) {
            float* score = scores + (t * N + j) * LANES;
            const Vec visible = a.is_broadcast ? load_broadcast(a.data + t * a.row_stride)
                                               : load(a.data + t * a.row_stride + j * LANES);
            store(score, where(bits(visible), load(score), hidden));
          }
        return;
      case MASK_EQ: return mask([](IntVec p, IntVec q) { return IntVec(p == q); });
      case MASK_NE: return mask([](IntVec p, IntVec q) { return IntVec(p != q); });
      case MASK_LT: return mask([](IntVec p, IntVec q) { return IntVec(p < q); });
      case MASK_LE: return mask([](IntVec p, IntVec q) { return IntVec(p <= q); });
      default: return;
    }
  }
};

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard
