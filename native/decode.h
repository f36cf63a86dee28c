// Few queries and many keys, as when text is generated. The queries of all heads that share keys go together, so that a
// key is read once. Keys are split into parts of a fixed length, whose answers are merged by their maxima and sums: more
// than one thread has something to do, and the numbers are the same for any number of threads.

constexpr int64_t PART = 2048;     // keys
constexpr int64_t PART_KEYS = 32;  // a tile of them
// Up to so many queries are taken one by one, with a key's numbers side by side.
constexpr int64_t THIN = LANES * 3 / 4;
constexpr int64_t THIN_SPAN = SPAN / 2 * LANES;  // of a width: half a SPAN of terms in each lane

// scores[r][t] = q[r] . k[t] for M queries; beyond the last key, up to a whole vector, they are -inf. Of each few rows
// that are wanted soon those from `low` to `high` in quarters are asked for.
template <int M>
static void thin_products(const float* q, int64_t width, const float* keys, int64_t key_row, int64_t count, float* scores,
                          const Soon& soon, int64_t low, int64_t high) {
  constexpr int K = LANES / M, FEW = K < 4 ? K : 4;  // keys whose scores fill a vector, and that are multiplied at a time
  const auto write = [&](Vec (&sums)[LANES], int64_t t) REGARD_AT_ONCE {
    float found[LANES];
    store(found, sums_of_lanes(sums));
    REGARD_UNROLL for (int r = 0; r < M; ++r) std::memcpy(scores + r * PART_KEYS + t, found + r * K, sizeof(float) * K);
  };
  // the products of FEW keys from `t` on, over one span of the width
  const auto multiply_few = [&](Vec (&dots)[M][FEW], int64_t t, int64_t span) REGARD_AT_ONCE {
    const float* first = keys + t * key_row;
    for (int64_t c = span; c < std::min(width, span + THIN_SPAN); c += LANES) {
      Vec key[FEW];
      REGARD_UNROLL for (int i = 0; i < FEW; ++i) key[i] = load(first + i * key_row + c);
      REGARD_UNROLL for (int r = 0; r < M; ++r) {
        const Vec query = load(q + r * width + c);
        REGARD_UNROLL for (int i = 0; i < FEW; ++i) dots[r][i] = fma(query, key[i], dots[r][i]);
      }
      for (int64_t i = low; i < high; ++i) soon.ask(t + i, c);
    }
  };
  int64_t t = 0;
  for (; t + K <= count; t += K) {
    Vec sums[LANES];
    REGARD_UNROLL for (int some = 0; some < K; some += FEW) {
      Vec dots[M][FEW] = {};
      multiply_few(dots, t + some, 0);
      REGARD_UNROLL for (int r = 0; r < M; ++r)
        REGARD_UNROLL for (int i = 0; i < FEW; ++i) sums[r * K + some + i] = dots[r][i];
      for (int64_t span = THIN_SPAN; span < width; span += THIN_SPAN) {
        Vec more[M][FEW] = {};
        multiply_few(more, t + some, span);
        REGARD_UNROLL for (int r = 0; r < M; ++r)
          REGARD_UNROLL for (int i = 0; i < FEW; ++i) sums[r * K + some + i] += more[r][i];
      }
    }
    write(sums, t);
  }
  if (t < count) {
    Vec sums[LANES] = {};
    for (int64_t i = 0; i < count - t; ++i)
      for (int r = 0; r < M; ++r)
        for (int64_t span = 0; span < width; span += THIN_SPAN) {
          Vec dot{};
          for (int64_t c = span; c < std::min(width, span + THIN_SPAN); c += LANES)
            dot = fma(load(q + r * width + c), load(keys + (t + i) * key_row + c), dot);
          sums[r * K + i] += dot;
        }
    write(sums, t);
  }
  const int64_t whole = (count + LANES - 1) / LANES * LANES;
  for (int r = 0; r < M; ++r) std::fill(scores + r * PART_KEYS + count, scores + r * PART_KEYS + whole, -INFINITY);
}

// sums[r] = sums[r] * shrink[r] + sum over t of weights[r][t] * values[t], for M queries
template <int M>
static void thin_sums(const float* weights, const float* values, int64_t value_row, int64_t count, int64_t width,
                      const float* shrink, float* sums, const Soon& soon) {
  const auto columns = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
    constexpr int C = decltype(vectors)::value;
    // where they are few each sum is two, since each waits for itself
    constexpr int SUMS = M * C < 8 ? 2 : 1;
    Vec found[SUMS][M][C] = {};
    REGARD_UNROLL for (int r = 0; r < M; ++r)
      REGARD_UNROLL for (int j = 0; j < C; ++j) found[0][r][j] = load(sums + r * width + c + j * LANES) * shrink[r];
    const auto add = [&](Vec (&to)[M][C], int64_t t) __attribute__((always_inline)) {
      Vec value[C];
      REGARD_UNROLL for (int j = 0; j < C; ++j) value[j] = load(values + t * value_row + c + j * LANES);
      REGARD_UNROLL for (int r = 0; r < M; ++r) {
        const Vec weight = all(weights[r * PART_KEYS + t]);
        REGARD_UNROLL for (int j = 0; j < C; ++j) to[r][j] = fma(weight, value[j], to[r][j]);
      }
    };
    int64_t t = 0;
    for (; t + 2 <= count; t += 2) {
      add(found[0], t), add(found[SUMS - 1], t + 1);
      if (!soon.at) continue;
      REGARD_UNROLL for (int j = 0; j < C; ++j) soon.ask(t, c + j * LANES), soon.ask(t + 1, c + j * LANES);
    }
    if (t < count) add(found[0], t);
    REGARD_UNROLL for (int r = 0; r < M; ++r)
      REGARD_UNROLL for (int j = 0; j < C; ++j) {
        const Vec sum = SUMS == 2 ? found[0][r][j] + found[SUMS - 1][r][j] : found[0][r][j];
        store(sums + r * width + c + j * LANES, sum);
      }
  };
  constexpr int WIDE = LANES == 16 ? 4 : 2;
  int64_t c = 0;
  for (; c + WIDE * LANES <= width; c += WIDE * LANES) columns(std::integral_constant<int, WIDE>{}, c);
  for (; c < width; c += LANES) columns(std::integral_constant<int, 1>{}, c);
}

struct Decode {
  const Problem& problem;
  const int64_t group, rows, parts;  // heads and queries that share keys, parts of the keys
  std::vector<float> answers;        // of parts: (batch x key heads, parts, rows, value width + top + total)

  enum Sight { NONE, SOME, ALL };

  explicit Decode(const Problem& p)
      : problem(p),
        group(p.heads / p.key_heads),
        rows(group * p.n_q),
        parts((p.n_k + PART - 1) / PART),
        answers(p.batch * p.key_heads * parts * rows * (p.value_width + 2)) {}

  static bool suits(const Problem& p) {
    return p.n_q > 0 && p.n_k >= PART_KEYS && p.heads / p.key_heads * p.n_q <= PANEL && !p.dropped && !p.u;
  }

  bool is_thin() const { return rows <= THIN && problem.width % LANES == 0 && problem.value_width % LANES == 0; }

  size_t scratch() const {
    const int64_t lanes = (rows + LANES - 1) / LANES * LANES, width = problem.width + problem.value_width;
    const int64_t registers = problem.program ? problem.program->registers : 0;
    return space_of(problem.kind, PART_KEYS, width) + lanes * (problem.width + width) + 3 * PART_KEYS * PANEL +
           KEYS * problem.value_width + (registers + 1) * ROWS * PANEL + 8 * 16;
  }

  float* answer(int64_t item, int64_t row) {
    return answers.data() + (item * rows + row) * (problem.value_width + 2);
  }

  // What a head's queries see of some keys.
  Sight sight(Runs& runs, int64_t from, int64_t to) const {
    if (runs.seen_from(from, to) >= to) return NONE;
    const int64_t vectors = (problem.n_q + LANES - 1) / LANES;
    for (const Run* r = runs.next; r < runs.end && r->first <= from && !r->partial && !r->low && r->high >= vectors; ++r) {
      from = r->last;
      if (from >= to) return ALL;
    }
    return SOME;
  }

  // The program on the scores of one head; at(t, i) is that of key t and query i.
  template <class At>
  void change(Machine& machine, int64_t key, int64_t count, bool hides, float* turned, const At& at) const {
    const int64_t n_q = problem.n_q;
    with_vectors((n_q + LANES - 1) / LANES, [&](auto vectors) {
      constexpr int N = decltype(vectors)::value;
      for (int64_t first = 0; first < count; first += ROWS) {
        const int64_t here = std::min<int64_t>(ROWS, count - first);
        for (int64_t t = 0; t < here; ++t)
          for (int64_t i = 0; i < N * LANES; ++i) turned[t * N * LANES + i] = *at(first + t, std::min(i, n_q - 1));
        machine.run<N>(0, machine.program.rule, key + first, here, turned);
        if (hides) machine.run<N>(machine.program.rule, machine.program.hiding, key + first, here, turned);
        for (int64_t t = 0; t < here; ++t)
          for (int64_t i = 0; i < n_q; ++i) *at(first + t, i) = turned[t * N * LANES + i];
      }
    });
  }

  void part(int64_t item, float* space) {
    const FlushTiny flush;
    const Problem& p = problem;
    const int64_t b = item / parts / p.key_heads, key_head = item / parts % p.key_heads;
    const int64_t first = item % parts * PART, last = std::min(p.n_k, first + PART);
    const bool ruled = p.program && p.program->rule;
    const auto take = [&](int64_t floats) {
      float* here = space;
      space += (floats + 15) / 16 * 16;
      return here;
    };
    float* queries = take(rows * p.width);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = queries + r * p.width;
      const float* q = floats_of(p.q, p.kind, b, key_head * group + r / p.n_q, r % p.n_q, 1, p.width, row).at;
      const float factor = float(ruled ? p.scale : p.scale * LOG2_E_EXACT);
      for (int64_t c = 0; c < p.width; ++c) row[c] = q[c] * factor;
    }
    Runs runs[PANEL];
    const Run everything{0, int32_t(p.n_k), 0, 0, VECTORS};
    for (int64_t n = 0; n < group; ++n) runs[n] = runs_of(p, b, key_head * group + n, 0, everything);
    if (is_thin()) {
      ruled ? thin<true>(item, b, key_head, first, last, queries, runs, take)
            : thin<false>(item, b, key_head, first, last, queries, runs, take);
    } else {
      side_by_side(item, b, key_head, first, last, queries, runs, take, ruled);
    }
  }

  // Queries side by side, as in the forward pass.
  template <class Take>
  void side_by_side(int64_t item, int64_t b, int64_t key_head, int64_t first, int64_t last, const float* queries,
                    Runs* runs, const Take& take, bool ruled) {
    const Problem& p = problem;
    float* wide_k = take(space_of(p.kind, PART_KEYS, p.width));
    float* wide_v = take(space_of(p.kind, PART_KEYS, p.value_width));
    Panel panel{};
    panel.count = rows, panel.lanes = (rows + LANES - 1) / LANES * LANES;
    panel.queries = {take(panel.lanes * p.width), panel.lanes, Raised{}, nullptr};
    panel.sums = take(panel.lanes * p.value_width);
    float* scores = take(PART_KEYS * PANEL);
    float* tame = take(KEYS * p.value_width + PART_KEYS * PANEL);
    float* registers = take((p.program ? p.program->registers : 0) * ROWS * PANEL);
    float* turned = take(ROWS * PANEL);
    gather_lanes(queries, p.width, rows, p.width, 1.0f, panel.queries.at, panel.lanes);
    std::fill(panel.sums, panel.sums + panel.lanes * p.value_width, 0.0f);
    std::fill(panel.top, panel.top + PANEL, -INFINITY);
    std::fill(panel.total, panel.total + PANEL, 0.0f);
    for (int64_t key = first; key < last; key += PART_KEYS) {
      const int64_t until = std::min(last, key + PART_KEYS);
      bool none = true, all = true;
      for (int64_t n = 0; n < group; ++n) {
        const Sight sees = sight(runs[n], key, until);
        none = none && sees == NONE, all = all && sees == ALL;
      }
      if (none) continue;
      Piece piece{};
      piece.from = key, piece.to = until, piece.high = VECTORS, piece.scores = scores;
      piece.hide_from = key, piece.hide_to = all ? key : until;
      const Floats k = floats_of(p.k, p.kind, b, key_head, key, until - key, p.width, wide_k);
      const Floats v = floats_of(p.v, p.kind, b, key_head, key, until - key, p.value_width, wide_v);
      piece.k = k.at, piece.k_row = k.row, piece.v = v.at, piece.v_row = v.row;
      if (until < last) piece.soon_k = soon(p.k, p.kind, b, key_head, until), piece.soon_v = soon(p.v, p.kind, b, key_head, until);
      float* wild = all_finite(v.at, v.row, until - key, p.value_width) ? nullptr : tame;
      with_vectors(panel.lanes / LANES, [&](auto vectors) {
        constexpr int N = decltype(vectors)::value;
        const auto changed = [&] {
          for (int64_t n = 0; n < group; ++n) {
            Machine machine{*p.program, registers, b, key_head * group + n, 0};
            change(machine, key, until - key, !all, turned,
                   [&](int64_t t, int64_t i) { return scores + t * N * LANES + n * p.n_q + i; });
          }
        };
        ruled ? take_keys<N, true>(panel, p, piece, changed, wild) : take_keys<N, false>(panel, p, piece, changed, wild);
      });
    }
    float ones[PANEL];
    std::fill(ones, ones + PANEL, 1.0f);
    scatter_lanes(panel.sums, panel.lanes, ones, rows, p.value_width, answer(item, 0), p.value_width + 2);
    for (int64_t r = 0; r < rows; ++r)
      answer(item, r)[p.value_width] = panel.top[r], answer(item, r)[p.value_width + 1] = panel.total[r];
  }

  // A key's numbers side by side.
  template <bool RULED, class Take>
  void thin(int64_t item, int64_t b, int64_t key_head, int64_t first, int64_t last, const float* queries, Runs* runs,
            const Take& take) {
    const Problem& p = problem;
    float* wide_k = take(space_of(p.kind, PART_KEYS, p.width));
    float* wide_v = take(space_of(p.kind, PART_KEYS, p.value_width));
    float* sums = take(rows * p.value_width);
    float* scores = take(rows * PART_KEYS);
    float* registers = take((p.program ? p.program->registers : 0) * ROWS * PANEL);
    float* turned = take(ROWS * PANEL);
    Vec top = all(-INFINITY), total{};  // of each query in its lane
    float shrinks[LANES];
    uint8_t seen[THIN * PART_KEYS];
    std::fill(sums, sums + rows * p.value_width, 0.0f);
    for (int64_t key = first; key < last; key += PART_KEYS) {
      const int64_t until = std::min(last, key + PART_KEYS), count = until - key;
      Sight sights[THIN];  // of heads
      for (int64_t n = 0; n < group; ++n) sights[n] = sight(runs[n], key, until);
      if (std::all_of(sights, sights + group, [](Sight sees) { return sees == NONE; })) continue;
      const bool asks = until < last;
      const Soon soon_k = asks ? soon(p.k, p.kind, b, key_head, until) : Soon{};
      const Soon soon_v = asks ? soon(p.v, p.kind, b, key_head, until) : Soon{};
      const Floats k = floats_of(p.k, p.kind, b, key_head, key, count, p.width, wide_k);
      in_blocks<4>(0, rows, [&](auto together, int64_t r) {
        constexpr int M = decltype(together)::value;
        thin_products<M>(queries + r * p.width, p.width, k.at, k.row, count, scores + r * PART_KEYS, soon_k,
                         asks ? r * 4 / rows : 0, asks ? (r + M) * 4 / rows : 0);
      });
      for (int64_t n = 0; n < group; ++n) {
        float* of_head = scores + n * p.n_q * PART_KEYS;
        if (sights[n] == NONE) std::fill(of_head, of_head + p.n_q * PART_KEYS, -INFINITY);
        if (sights[n] == NONE || (sights[n] == ALL && !RULED)) continue;
        Machine machine{*p.program, registers, b, key_head * group + n, 0};
        change(machine, key, count, sights[n] != ALL, turned,
               [&](int64_t t, int64_t i) { return of_head + i * PART_KEYS + t; });
      }
      const Floats v = floats_of(p.v, p.kind, b, key_head, key, count, p.value_width, wide_v);
      const bool finite = all_finite(v.at, v.row, count, p.value_width);
      if (!finite)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t t = 0; t < count; ++t) seen[r * PART_KEYS + t] = scores[r * PART_KEYS + t] != -INFINITY;
      Vec of_row[LANES];
      std::fill(of_row, of_row + LANES, all(-INFINITY));
      for (int64_t r = 0; r < rows; ++r)  // in this order a NaN is passed over
        for (int64_t t = 0; t < count; t += LANES) of_row[r] = larger(load(scores + r * PART_KEYS + t), of_row[r]);
      const Vec highest = larger(tops_of_lanes(of_row), top);
      const Vec origin = larger(highest, all(-FLT_MAX));  // nothing seen so far: 2^(-inf - finite) is 0
      const Vec shrink = exp2(RULED ? (top - origin) * LOG2_E : top - origin);
      top = highest;
      std::fill(of_row, of_row + LANES, Vec{});
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t t = 0; t < count; t += LANES) {
          float* here = scores + r * PART_KEYS + t;
          const Vec from_top = load(here) - origin[r], weight = exp2(RULED ? from_top * LOG2_E : from_top);
          store(here, weight);
          of_row[r] += weight;
        }
      total = fma(total, shrink, sums_of_lanes(of_row));
      store(shrinks, shrink);
      if (finite) {
        in_blocks<4>(0, rows, [&](auto together, int64_t r) {
          thin_sums<decltype(together)::value>(scores + r * PART_KEYS, v.at, v.row, count, p.value_width, shrinks + r,
                                               sums + r * p.value_width, r == 0 ? soon_v : Soon{});
        });
      } else {  // 0 times inf is NaN: what is hidden is left out
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < p.value_width; ++c) {
            float& sum = sums[r * p.value_width + c];
            sum *= shrinks[r];
            for (int64_t t = 0; t < count; ++t)
              if (seen[r * PART_KEYS + t]) sum += scores[r * PART_KEYS + t] * v.at[t * v.row + c];
          }
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* to = answer(item, r);
      std::copy_n(sums + r * p.value_width, p.value_width, to);
      to[p.value_width] = top[r], to[p.value_width + 1] = total[r];
    }
  }

  // The parts of each query together, in the order of their keys.
  void merge() {
    const Problem& p = problem;
    const bool ruled = p.program && p.program->rule;
    std::vector<float> output(p.value_width);
    for (int64_t keys = 0; keys < p.batch * p.key_heads; ++keys)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t head = keys / p.key_heads * p.heads + keys % p.key_heads * group + r / p.n_q;
        const int64_t row = head * p.n_q + r % p.n_q;
        float top = -INFINITY;
        for (int64_t n = 0; n < parts; ++n) top = std::max(top, answer(keys * parts + n, r)[p.value_width]);
        double total = 0.0;
        std::fill(output.begin(), output.end(), 0.0f);
        for (int64_t n = 0; n < parts; ++n) {
          const float* part = answer(keys * parts + n, r);
          const float there = part[p.value_width], weighed = part[p.value_width + 1];
          if (weighed == 0.0f) continue;  // nothing seen
          const float share = ruled ? std::exp(there - top) : std::exp2(there - top);
          total += double(weighed) * share;
          for (int64_t c = 0; c < p.value_width; ++c) output[c] += part[c] * share;
        }
        const bool sees = total != 0.0;
        for (int64_t c = 0; c < p.value_width; ++c) output[c] = sees ? output[c] / float(total) : 0.0f;
        write_output(p, output.data(), 1, row);
        p.lse[row] = sees ? float(top / (ruled ? 1.0 : LOG2_E_EXACT) + std::log(total)) : -INFINITY;
      }
  }
};

static bool decode(const Problem& problem, bool (*pause)()) {
  Decode work(problem);
  const bool finished = parallel(
      problem.batch * problem.key_heads * work.parts, problem.threads, work.scratch(),
      [](void* context, int64_t item, float* space) { static_cast<Decode*>(context)->part(item, space); }, &work, pause);
  if (finished) work.merge();
  return finished;
}
