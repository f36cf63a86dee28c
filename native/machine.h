// The vector machine: runs a program over a few keys (rows) and a panel of queries while they are in the nearest cache.

constexpr int ROWS = 32;

// Numbers of an operand: a vector for each row, or one for all rows (row = 0), or one number a row.
struct Source {
  const float* at;
  int64_t row;
  bool spread;  // one number a row, or one for all
};

template <int N, class F>
REGARD_INLINE void binary(const Source& a, const Source& b, float* into, int64_t rows, const F& f) {
  constexpr int64_t W = N * LANES;
  if (a.spread) {
    for (int64_t t = 0; t < rows; ++t) {
      const Vec x = spread(a.at + t * a.row);
      REGARD_UNROLL for (int j = 0; j < N; ++j)
        store(into + t * W + j * LANES, f(x, load(b.at + t * b.row + j * LANES)));
    }
  } else if (b.spread) {
    for (int64_t t = 0; t < rows; ++t) {
      const Vec y = spread(b.at + t * b.row);
      REGARD_UNROLL for (int j = 0; j < N; ++j)
        store(into + t * W + j * LANES, f(load(a.at + t * a.row + j * LANES), y));
    }
  } else {
    for (int64_t t = 0; t < rows; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j)
        store(into + t * W + j * LANES, f(load(a.at + t * a.row + j * LANES), load(b.at + t * b.row + j * LANES)));
  }
}

template <int N, class F>
REGARD_INLINE void unary(const Source& a, float* into, int64_t rows, const F& f) {
  for (int64_t i = 0; i < rows * N * LANES; i += LANES) store(into + i, f(load(a.at + i)));
}

// Whether each of these numbers is one more than the number before it.
REGARD_INLINE bool count_up(const int32_t* numbers, int64_t step, int64_t count) {
  for (int64_t i = 1; i < count; ++i)
    if (numbers[i * step] != numbers[0] + i) return false;
  return true;
}

template <class F>
REGARD_INLINE Vec each(Vec x, const F& f) {
  for (int lane = 0; lane < LANES; ++lane) x[lane] = f(x[lane]);
  return x;
}

// Where the gradient of a captured tensor is added up: a large one in place, a small one, to which many pairs add, in
// double precision.
struct Into {
  float* large;
  double* small;
};

struct Machine {
  const Program& program;
  float* registers;  // register r from 1 on, each ROWS rows; register 0 is the scores
  int64_t b, h, first_query;

  // for gradients of captured tensors: the sums, the gradients that arrive at this tile, and how many queries count
  const Into* sums = nullptr;
  float* arriving = nullptr;
  int64_t queries = 0;

  int32_t known = -1;  // an array of lanes of which is known whether its numbers follow each other
  bool follow = false;

  template <int64_t W>
  bool side_by_side(int32_t array, const int32_t* numbers) {
    if (array != known) known = array, follow = count_up(numbers, 1, W);
    return follow;
  }

  float* rows_of(int32_t r, float* scores) const { return r == 0 ? scores : registers + (r - 1) * ROWS * PANEL; }

  Source source(const Operand& x, int64_t key, float* scores, int64_t row) const {
    switch (x.place) {
      case REGISTER:
        return {rows_of(x.index, scores), row, false};
      case LANES_OF: {
        const Numbers& n = program.lanes[x.index];
        return {reinterpret_cast<const float*>(n.at + b * n.batch + h * n.head + first_query), 0, false};
      }
      case KEYS_OF: {
        const Numbers& n = program.keys[x.index];
        return {reinterpret_cast<const float*>(n.at + b * n.batch + h * n.head + key), 1, true};
      }
      default:
        return {reinterpret_cast<const float*>(&x.index), 0, true};
    }
  }

  // What the rule will look up for keys from `key` on, where that are rows along the keys.
  SoonLookedUp soon(int64_t key, int64_t lanes, int64_t width) {
    for (int64_t n = 0; n < program.rule; ++n) {
      const Instruction& x = program.instructions[n];
      if (x.op != LOOKUP || x.a.place != LANES_OF || x.b.place != KEYS_OF) continue;
      const int32_t* by_lane = reinterpret_cast<const int32_t*>(source(x.a, key, nullptr, 0).at);
      if (count_up(by_lane, 1, lanes)) continue;
      return {static_cast<const float*>(program.tables[x.table]), by_lane,
              reinterpret_cast<const int32_t*>(source(x.b, key, nullptr, 0).at), lanes, width};
    }
    return {};
  }

  template <int N>
  void look_up(const Instruction& x, int64_t key, float* scores, float* into, int64_t rows) {
    constexpr int64_t W = N * LANES;
    const Source a = source(x.a, key, scores, W), b = source(x.b, key, scores, W);
    const void* table = program.tables[x.table];
    const int32_t x_op = x.op;
    const int32_t* lane_part = reinterpret_cast<const int32_t*>(a.at);
    const int32_t* key_part = reinterpret_cast<const int32_t*>(b.at);
    const bool by_both = !a.spread && b.spread && a.row == 0;
    if (by_both && side_by_side<W>(x.a.index, lane_part)) {
      for (int64_t t = 0; t < rows; ++t) {
        const int64_t place = int64_t(lane_part[0]) + key_part[t * b.row];
        REGARD_UNROLL for (int j = 0; j < N; ++j)
          store(into + t * W + j * LANES,
                x_op == LOOKUP ? load(static_cast<const float*>(table) + place + j * LANES)
                               : floats(conditions(static_cast<const uint8_t*>(table) + place + j * LANES)));
      }
      return;
    }
    int64_t t = 0;
    if (by_both) {  // rows of a table that lie along the keys: read so, then turned over
      for (; t + LANES <= rows && count_up(key_part + t * b.row, b.row, LANES); t += LANES)
        for (int j = 0; j < N; ++j) {
          const int32_t* by_lane = lane_part + j * LANES;
          float* to = into + t * W + j * LANES;
          if (x_op == LOOKUP) {
            const float* from = static_cast<const float*>(table) + key_part[t * b.row];
            Vec x[LANES];
            REGARD_UNROLL for (int lane = 0; lane < LANES; ++lane) x[lane] = load(from + by_lane[lane]);
            transpose(x);
            REGARD_UNROLL for (int i = 0; i < LANES; ++i) store(to + i * W, x[i]);
          } else {  // a key's bit in each lane
            const uint8_t* from = static_cast<const uint8_t*>(table) + key_part[t * b.row];
            alignas(sizeof(Vec)) int32_t x[LANES];
            REGARD_UNROLL for (int lane = 0; lane < LANES; ++lane) x[lane] = packed(from + by_lane[lane]);
            const IntVec each_lane = load(x);
            REGARD_UNROLL for (int i = 0; i < LANES; ++i) store(to + i * W, floats(IntVec((each_lane & (1 << i)) != 0)));
          }
        }
    }
    for (; t < rows; ++t)
      for (int64_t lane = 0; lane < W; ++lane) {
        const int64_t place = int64_t(lane_part[a.spread ? t * a.row : t * a.row + lane]) +
                              key_part[b.spread ? t * b.row : t * b.row + lane];
        if (x.op == LOOKUP) {
          into[t * W + lane] = static_cast<const float*>(table)[place];
        } else {
          reinterpret_cast<int32_t*>(into)[t * W + lane] = -int32_t(static_cast<const uint8_t*>(table)[place] != 0);
        }
      }
  }

  // Adds each pair's gradient, times c, where a look-up read.
  template <int N>
  void add_to(const Instruction& x, int64_t key, float* scores, int64_t rows) {
    constexpr int64_t W = N * LANES;
    const Source a = source(x.a, key, scores, W), b = source(x.b, key, scores, W), c = source(x.c, key, scores, W);
    const int32_t* lane_part = reinterpret_cast<const int32_t*>(a.at);
    const int32_t* key_part = reinterpret_cast<const int32_t*>(b.at);
    const Into& into = sums[x.table];
    const auto add = [&](int64_t place, float more) {
      if (into.small) {
        into.small[place] += more;
      } else {
        into.large[place] += more;
      }
    };
    int32_t counts[W];  // beyond the last query are copies of it
    for (int64_t lane = 0; lane < W; ++lane) counts[lane] = -int32_t(lane < queries);
    const auto gradient = [&](int64_t t, int j) __attribute__((always_inline)) {
      const Vec g = load(arriving + t * W + j * LANES);
      const Vec factor = c.spread ? spread(c.at + t * c.row) : load(c.at + t * c.row + j * LANES);
      // where no gradient arrives (hidden pairs among them) an infinite factor must not make a NaN
      return choose(load(counts + j * LANES) & IntVec(g != 0.0f), g * factor, Vec{});
    };
    const bool by_lane = a.row == 0 && b.row == 0 && b.spread;  // the same for all keys
    if (by_lane) {
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        Vec total{};
        for (int64_t t = 0; t < rows; ++t) total += gradient(t, j);
        for (int64_t lane = j * LANES; lane < std::min<int64_t>(queries, (j + 1) * LANES); ++lane)
          add(int64_t(lane_part[a.spread ? 0 : lane]) + key_part[0], total[lane - j * LANES]);
      }
      return;
    }
    int64_t t = 0;
    if (into.large && !a.spread && a.row == 0 && b.spread)  // rows of a table that lie along the keys
      for (; t + LANES <= rows && count_up(key_part + t * b.row, b.row, LANES); t += LANES)
        for (int j = 0; j * LANES < queries; ++j) {
          Vec g[LANES];
          REGARD_UNROLL for (int i = 0; i < LANES; ++i) g[i] = gradient(t + i, j);
          transpose(g);
          for (int64_t lane = j * LANES; lane < std::min<int64_t>(queries, (j + 1) * LANES); ++lane) {
            float* place = into.large + lane_part[lane] + int64_t(key_part[t * b.row]);
            store(place, load(place) + g[lane - j * LANES]);
          }
        }
    for (; t < rows; ++t)
      for (int j = 0; j * LANES < queries; ++j) {
        const Vec g = gradient(t, j);
        for (int64_t lane = j * LANES; lane < std::min<int64_t>(queries, (j + 1) * LANES); ++lane)
          add(int64_t(lane_part[a.spread ? t * a.row : t * a.row + lane]) +
                  key_part[b.spread ? t * b.row : t * b.row + lane],
              g[lane - j * LANES]);
      }
  }

  // Runs instructions `from` to `to` - 1 on keys `key` to `key + rows - 1`, whose scores are given.
  template <int N>
  void run(int64_t from, int64_t to, int64_t key, int64_t rows, float* scores) {
    for (int64_t n = from; n < to; ++n) {
      const Instruction& x = program.instructions[n];
      step<N>(x, source(x.a, key, scores, N * LANES), source(x.b, key, scores, N * LANES), key, rows, scores,
              rows_of(x.into, scores));
    }
  }

  template <int N>
  void step(const Instruction& x, const Source& a, const Source& b, int64_t key, int64_t rows, float* scores,
            float* into) {
    const auto ints = [](auto f) { return [f](Vec p, Vec q) { return floats(f(bits(p), bits(q))); }; };
    const auto holds = [](auto f) { return [f](Vec p, Vec q) { return floats(IntVec(f(p, q))); }; };
    const auto one = [](auto f) { return [f](Vec p) { return each(p, f); }; };
    const auto whole = [](auto f) {
      return [f](Vec p) {
        IntVec q = bits(p);
        for (int lane = 0; lane < LANES; ++lane) q[lane] = f(q[lane]);
        return floats(q);
      };
    };
    const Vec hidden = all(-INFINITY);
    switch (x.op) {
      case F_ADD: return binary<N>(a, b, into, rows, [](Vec p, Vec q) { return p + q; });
      case F_SUB: return binary<N>(a, b, into, rows, [](Vec p, Vec q) { return p - q; });
      case F_MUL: return binary<N>(a, b, into, rows, [](Vec p, Vec q) { return p * q; });
      case F_DIV: return binary<N>(a, b, into, rows, [](Vec p, Vec q) { return p / q; });
      case F_MIN: return binary<N>(a, b, into, rows, [](Vec p, Vec q) { return choose(p != p, p, smaller(p, q)); });
      case F_MAX: return binary<N>(a, b, into, rows, [](Vec p, Vec q) { return choose(p != p, p, larger(p, q)); });
      case F_NEG: return unary<N>(a, into, rows, [](Vec p) { return -p; });
      case F_ABS: return unary<N>(a, into, rows, [](Vec p) { return floats(bits(p) & 0x7fffffff); });
      case F_SIGN:
        return unary<N>(a, into, rows, one([](float p) { return p != p ? p : float((p > 0) - (p < 0)); }));
      case F_SQRT: return unary<N>(a, into, rows, one([](float p) { return std::sqrt(p); }));
      case F_EXP: return unary<N>(a, into, rows, [](Vec p) { return exp(p); });
      case F_TANH: return unary<N>(a, into, rows, [](Vec p) { return tanh(p); });
      case F_SIGMOID: return unary<N>(a, into, rows, [](Vec p) { return 1.0f / (1.0f + exp(-p)); });
      case F_LOG: return unary<N>(a, into, rows, [](Vec p) { return log(p); });
      case F_EXP2: return unary<N>(a, into, rows, one([](float p) { return std::exp2(p); }));
      case F_EXPM1: return unary<N>(a, into, rows, one([](float p) { return std::expm1(p); }));
      case F_LOG1P: return unary<N>(a, into, rows, one([](float p) { return std::log1p(p); }));
      case F_LOG2: return unary<N>(a, into, rows, one([](float p) { return std::log2(p); }));
      case F_SIN: return unary<N>(a, into, rows, one([](float p) { return std::sin(p); }));
      case F_COS: return unary<N>(a, into, rows, one([](float p) { return std::cos(p); }));
      case F_POW:
        return binary<N>(a, b, into, rows, [](Vec p, Vec q) {
          for (int lane = 0; lane < LANES; ++lane) p[lane] = std::pow(p[lane], q[lane]);
          return p;
        });
      case F_FLOOR: return unary<N>(a, into, rows, one([](float p) { return std::floor(p); }));
      case F_CEIL: return unary<N>(a, into, rows, one([](float p) { return std::ceil(p); }));
      case F_ROUND: return unary<N>(a, into, rows, one([](float p) { return std::nearbyint(p); }));
      case F_TRUNC: return unary<N>(a, into, rows, one([](float p) { return std::trunc(p); }));
      case I_ADD: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p + q; }));
      case I_SUB: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p - q; }));
      case I_MUL: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p * q; }));
      case I_MIN: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p < q ? p : q; }));
      case I_MAX: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p > q ? p : q; }));
      case I_NEG: return unary<N>(a, into, rows, [](Vec p) { return floats(-bits(p)); });
      case I_ABS: return unary<N>(a, into, rows, whole([](int32_t p) { return p < 0 ? -p : p; }));
      case I_SIGN: return unary<N>(a, into, rows, whole([](int32_t p) { return (p > 0) - (p < 0); }));
      case I_FLOORDIV: case I_MOD: {  // by a number that is not 0; exact, since 53 bits hold any quotient of 32
        int32_t divisor;
        std::memcpy(&divisor, b.at, sizeof divisor);
        if (x.op == I_FLOORDIV)
          return unary<N>(a, into, rows, whole([divisor](int32_t p) { return int32_t(std::floor(double(p) / divisor)); }));
        return unary<N>(a, into, rows, whole([divisor](int32_t p) {
          return int32_t(p - std::floor(double(p) / divisor) * divisor);
        }));
      }
      case I_AND: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p & q; }));
      case I_OR: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p | q; }));
      case I_XOR: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p ^ q; }));
      case I_NOT: return unary<N>(a, into, rows, [](Vec p) { return floats(~bits(p)); });
      case I_SHL: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p << q; }));
      case I_SHR: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return p >> q; }));
      case I_TO_F: return unary<N>(a, into, rows, [](Vec p) { return __builtin_convertvector(bits(p), Vec); });
      case F_TO_I: return unary<N>(a, into, rows, [](Vec p) { return floats(__builtin_convertvector(p, IntVec)); });
      case B_TO_I: return unary<N>(a, into, rows, [](Vec p) { return floats(bits(p) & 1); });
      case F_EQ: return binary<N>(a, b, into, rows, holds([](Vec p, Vec q) { return p == q; }));
      case F_NE: return binary<N>(a, b, into, rows, holds([](Vec p, Vec q) { return p != q; }));
      case F_LT: return binary<N>(a, b, into, rows, holds([](Vec p, Vec q) { return p < q; }));
      case F_LE: return binary<N>(a, b, into, rows, holds([](Vec p, Vec q) { return p <= q; }));
      case I_EQ: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return IntVec(p == q); }));
      case I_NE: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return IntVec(p != q); }));
      case I_LT: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return IntVec(p < q); }));
      case I_LE: return binary<N>(a, b, into, rows, ints([](IntVec p, IntVec q) { return IntVec(p <= q); }));
      case SELECT: {
        const Source c = source(x.c, key, scores, N * LANES);
        for (int64_t t = 0; t < rows; ++t)
          REGARD_UNROLL for (int j = 0; j < N; ++j) {
            const auto part = [&](const Source& s) {
              return s.spread ? spread(s.at + t * s.row) : load(s.at + t * s.row + j * LANES);
            };
            store(into + (t * N + j) * LANES, choose(bits(part(c)), part(a), part(b)));
          }
        return;
      }
      case LOOKUP: case LOOKUP_BYTE: return look_up<N>(x, key, scores, into, rows);
      case ADD_TO: return add_to<N>(x, key, scores, rows);
      default: break;
    }
    // what hides: the scores themselves are the third operand
    const auto keep = [&](auto f) {
      binary<N>(a, b, registers, rows, ints(f));
      for (int64_t i = 0; i < rows * N * LANES; i += LANES)
        store(scores + i, choose(bits(load(registers + i)), load(scores + i), hidden));
    };
    switch (x.op) {
      case KEEP:
        for (int64_t t = 0; t < rows; ++t)
          REGARD_UNROLL for (int j = 0; j < N; ++j) {
            float* score = scores + (t * N + j) * LANES;
            const Vec seen = a.spread ? spread(a.at + t * a.row) : load(a.at + t * a.row + j * LANES);
            store(score, choose(bits(seen), load(score), hidden));
          }
        return;
      case KEEP_EQ: return keep([](IntVec p, IntVec q) { return IntVec(p == q); });
      case KEEP_NE: return keep([](IntVec p, IntVec q) { return IntVec(p != q); });
      case KEEP_LT: return keep([](IntVec p, IntVec q) { return IntVec(p < q); });
      case KEEP_LE: return keep([](IntVec p, IntVec q) { return IntVec(p <= q); });
      default: return;
    }
  }
};
