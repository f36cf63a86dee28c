// Backward. With weights w = 2^(s - lse) made again tile by tile, g the gradient of the output and level = g . output:
//
//     d_v[t] += sum_q w[t,q] g[q],   d_s[t,q] = w[t,q] (v[t] . g[q] - level[q]),
//     d_k[t] += scale sum_q d_s[t,q] q[q],   d_q[q] = scale sum_t d_s[t,q] k[t]
//
// An item is a block of panels of one head; it keeps its d_q and walks over tiles of keys. All items that share keys add
// to the same d_k and d_v, each tile in the order of the items: an item waits for its turn at a tile. So the sums are
// the same for any number of threads, and no copies of d_k and d_v are needed. The gradient of a captured tensor, if it is
// small, is summed by each item for itself and added in their order; if it is large, an item waits until those before it
// that may add to the same places have finished. The gradient of an additive score's u is such a small sum.

constexpr int64_t BACK_KEYS = 96;
constexpr int64_t BACK_TOGETHER = 4;
constexpr int64_t SMALL_SUM = 1 << 16;  // floats

constexpr int64_t in_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

struct BackPanel {
  int64_t first, count, lanes;  // queries
  Runs runs;                    // what is left of them
  bool finite;                  // q and d_output
  Queries queries;
  float* gradients;       // (value width, lanes)
  float* sums;            // (width, lanes): d_q
  const float* query_rows;     // (count, width in whole vectors)
  const float* gradient_rows;  // (count, value width in whole vectors)
  float lse[PANEL], level[PANEL];
  Dropout dropout;
};

// sums[t] += sum over queries of left[t, query] * right[query]: rows of numbers, `width` and the rows in whole vectors
static void over_queries(const float* left, int64_t left_row, int64_t keys, int64_t queries, const float* right,
                         int64_t width, float* sums) {
  constexpr int WIDE = LANES == 16 ? 4 : 2;
  auto columns = [&](auto vectors, int64_t c) __attribute__((always_inline)) {
    constexpr int N = decltype(vectors)::value;
    constexpr int M = LANES == 16 ? (N == 4 ? 6 : 8) : 6;
    for (int64_t t = 0; t < keys;) {
      auto block = [&](auto rows) __attribute__((always_inline)) {
        constexpr int R = decltype(rows)::value;
        Vec sum[R][N];
        REGARD_UNROLL for (int i = 0; i < R; ++i)
          REGARD_UNROLL for (int j = 0; j < N; ++j) sum[i][j] = load(sums + (t + i) * width + (c + j) * LANES);
        multiply<R, N>(sum, left + t * left_row, left_row, 1, right + c * LANES, width, queries);
        REGARD_UNROLL for (int i = 0; i < R; ++i)
          REGARD_UNROLL for (int j = 0; j < N; ++j) store(sums + (t + i) * width + (c + j) * LANES, sum[i][j]);
        t += R;
      };
      if (t + M <= keys) {
        block(std::integral_constant<int, M>{});
      } else if (t + 2 <= keys) {
        block(std::integral_constant<int, 2>{});
      } else {
        block(std::integral_constant<int, 1>{});
      }
    }
  };
  int64_t c = 0;
  for (; c + WIDE <= width / LANES; c += WIDE) columns(std::integral_constant<int, WIDE>{}, c);
  for (; c < width / LANES; ++c) columns(std::integral_constant<int, 1>{}, c);
}

// The same where some numbers are not finite, over the queries that are seen.
static void over_seen(const float* left, const int32_t* seen, int64_t left_row, int64_t keys, int64_t queries,
                      const float* right, int64_t width, float* sums) {
  for (int64_t t = 0; t < keys; ++t)
    for (int64_t i = 0; i < queries; ++i) {
      if (!seen[t * left_row + i]) continue;
      const Vec weight = all(left[t * left_row + i]);
      for (int64_t c = 0; c < width; c += LANES)
        store(sums + t * width + c, fma(weight, load(right + i * width + c), load(sums + t * width + c)));
    }
}

static float dot(const float* x, const float* y, int64_t count) {
  double total = 0.0;
  int64_t i = 0;
  while (i + LANES <= count) {
    Vec sum{};
    const int64_t end = std::min(count, i + THIN_SPAN);
    for (; i + LANES <= end; i += LANES) sum = fma(load(x + i), load(y + i), sum);
    for (int lane = 0; lane < LANES; ++lane) total += sum[lane];
  }
  for (; i < count; ++i) total += double(x[i]) * y[i];
  return float(total);
}

struct Backward {
  const Problem& problem;
  int64_t blocks;    // of panels, a head
  int64_t together;  // panels in a block
  int64_t tiles;     // of keys
  std::unique_ptr<std::atomic<int64_t>[]> turn;  // whose turn it is, for each batch element, key head and tile
  std::unique_ptr<bool[]> begun;                 // whether anybody had a turn there
  std::unique_ptr<int32_t[]> range;              // first and last tile of each item
  std::unique_ptr<std::atomic<bool>[]> finished;  // of each item; only where gradients of captured tensors are summed
  int64_t small = 0;                              // numbers of all small sums
  std::unique_ptr<double[]> small_sums;

  Backward(const Problem& p, int64_t blocks, int64_t together)
      : problem(p),
        blocks(blocks),
        together(together),
        tiles((p.n_k + BACK_KEYS - 1) / BACK_KEYS),
        turn(new std::atomic<int64_t>[p.batch * p.key_heads * tiles]),
        begun(new bool[p.batch * p.key_heads * tiles]()),
        range(new int32_t[2 * p.batch * p.heads * blocks]) {
    const int64_t sharing = p.heads / p.key_heads * blocks;  // items that share keys
    for (int64_t item = 0; item < p.batch * p.heads * blocks; ++item) {
      int64_t low = p.n_k, high = 0;
      for (int64_t n = first_panel(item); n < last_panel(item); ++n) {
        const Run everything{0, int32_t(p.n_k), 0, 0, VECTORS};
        const Runs runs = runs_of(p, item / blocks / p.heads, item / blocks % p.heads, n, everything);
        if (runs.next == runs.end) continue;
        low = std::min<int64_t>(low, runs.next->first), high = std::max<int64_t>(high, runs.end[-1].last);
      }
      range[2 * item] = int32_t(low / BACK_KEYS);
      range[2 * item + 1] = int32_t((high + BACK_KEYS - 1) / BACK_KEYS);
    }
    for (int64_t group = 0; group < p.batch * p.key_heads; ++group)
      for (int64_t tile = 0; tile < tiles; ++tile)
        turn[group * tiles + tile] = next_at(group * sharing, (group + 1) * sharing, tile);
    if (!sums_up()) return;
    finished.reset(new std::atomic<bool>[p.batch * p.heads * blocks]);
    for (int64_t item = 0; item < p.batch * p.heads * blocks; ++item) finished[item] = false;
    for (int64_t n = 0; n < sum_count(); ++n)
      if (is_small(n)) small += p.program->sums[n].size;
    small_sums.reset(new double[small]());
  }

  // What the small sums came to, when all items are done.
  void write_small_sums() const {
    const double* from = small_sums.get();
    for (int64_t n = 0; n < sum_count(); ++n) {
      if (!is_small(n)) continue;
      const Sum& sum = problem.program->sums[n];
      std::copy(from, from + sum.size, sum.at);
      from += sum.size;
    }
  }

  // The gradients of keys that nobody sees.
  void write_unseen() const {
    for (int64_t n = 0; n < problem.batch * problem.key_heads * tiles; ++n)
      if (!begun[n]) write_keys<false>(n / tiles, n % tiles, nullptr, nullptr);
  }

  // Rows of d_k and d_v in the sums of a head and tile: added to what is there, or instead of it. Nothing counts as 0.
  template <bool ADD>
  void write_keys(int64_t key_head, int64_t tile, const float* d_k, const float* d_v) const {
    const Problem& p = problem;
    const int64_t key = tile * BACK_KEYS, count = std::min(p.n_k, key + BACK_KEYS) - key;
    const int64_t row = key_head * p.n_k + key;
    write_rows<ADD>(d_k, in_lanes(p.width), count, p.width, float(p.scale), p.d_k + row * p.width);
    write_rows<ADD>(d_v, in_lanes(p.value_width), count, p.value_width, 1.0f, p.d_v + row * p.value_width);
  }

  int64_t sum_count() const { return problem.program ? problem.program->sum_count : 0; }
  bool sums_up() const { return sum_count() || problem.u; }
  bool is_small(int64_t n) const { return problem.program->sums[n].size <= SMALL_SUM; }

  void wait_until_finished(int64_t item) const {
    for (int64_t spins = 0; item >= 0 && !finished[item].load(std::memory_order_acquire); ++spins)
      if (spins > 256) std::this_thread::yield();
  }

  // the first item from `item` to `end` whose range has the tile
  int64_t next_at(int64_t item, int64_t end, int64_t tile) const {
    while (item < end && !(range[2 * item] <= tile && tile < range[2 * item + 1])) ++item;
    return item;
  }

  int64_t first_panel(int64_t item) const { return item % blocks * together; }
  int64_t last_panel(int64_t item) const {
    return std::min(first_panel(item) + together, (problem.n_q + PANEL - 1) / PANEL);
  }

  size_t scratch() const {
    const int64_t rows = in_lanes(problem.width) + in_lanes(problem.value_width);
    const int64_t wide = space_of(problem.kind, together * PANEL + BACK_KEYS, problem.width + problem.value_width + 32);
    const int64_t copies = problem.powers ? BACK_KEYS * (rows + problem.width + problem.value_width) : 0;
    const int64_t registers = problem.program ? problem.program->registers * ROWS + BACK_KEYS : 0;
    const int64_t turned = problem.u ? (BACK_KEYS + LANES + together * (PANEL + LANES) + 2) * problem.width : 0;
    return wide + problem.value_width + together * PANEL * (2 * problem.width + problem.value_width + rows) +
           3 * BACK_KEYS * PANEL + BACK_KEYS * rows + copies + registers * PANEL + 2 * small + turned +
           Additive::space(problem) + 704;
  }

  void block(int64_t item, float* space) const {
    const FlushTiny flush;
    const Problem& p = problem;
    const int64_t b = item / blocks / p.heads, h = item / blocks % p.heads;
    const int64_t group = p.heads / p.key_heads, key_head = h / group, sharing = group * blocks;
    const int64_t head_row = (b * p.heads + h) * p.n_q;
    const int64_t wide = in_lanes(p.width), value_wide = in_lanes(p.value_width);
    auto take = [&](int64_t floats) {
      float* here = space;
      space += (floats + 15) / 16 * 16;
      return here;
    };
    float* weights = take(BACK_KEYS * PANEL);
    float* d_scores = take(BACK_KEYS * PANEL);
    float* d_k = take(BACK_KEYS * wide);
    float* d_v = take(BACK_KEYS * value_wide);
    float* raw = take(p.program ? BACK_KEYS * PANEL : 0);
    int32_t* seen = reinterpret_cast<int32_t*>(take(BACK_KEYS * PANEL));
    float* registers = take((p.program ? p.program->registers : 0) * ROWS * PANEL);
    float* wide_k = take(space_of(p.kind, BACK_KEYS, p.width));
    float* wide_v = take(space_of(p.kind, BACK_KEYS, p.value_width));
    float* one_row = take(p.value_width);
    Few few{};
    if (p.powers) {
      few.k = take(BACK_KEYS * p.width), few.v = take(BACK_KEYS * p.value_width);
      few.d_k = take(BACK_KEYS * wide), few.d_v = take(BACK_KEYS * value_wide);
    }
    static const Program nothing{};
    const bool ruled = p.program && p.program->rule;
    const double unit = ruled || p.powers ? 1.0 : LOG2_E_EXACT;
    float* u_space = take(Additive::space(p));
    const Powers powers{p.powers ? p.powers[h] : 0.0f};
    const float* u = p.u ? p.u + h * p.width : nullptr;
    const Additive additive = p.u ? Additive(p, h, unit, u_space) : Additive();
    float* raised_k = additive.keys;
    float* d_k_turned = take(p.u ? (BACK_KEYS + LANES) * p.width : 0);
    double* own_u = reinterpret_cast<double*>(take(p.u ? 2 * p.width : 0));
    if (p.u) std::fill(own_u, own_u + p.width, 0.0);
    double* own_sums = reinterpret_cast<double*>(take(2 * small));
    std::fill(own_sums, own_sums + small, 0.0);
    std::vector<Into> sums(sum_count());
    int64_t before = -1;  // the last item that must have finished before this one adds to a large sum
    for (int64_t n = 0, at = 0; n < sum_count(); ++n) {
      const Sum& sum = p.program->sums[n];
      sums[n] = is_small(n) ? Into{nullptr, own_sums + at} : Into{sum.at, nullptr};
      if (is_small(n)) at += sum.size;
      if (!is_small(n) && sum.meeting) before = std::max(before, sum.meeting == 1 ? item - blocks : item - 1);
    }
    wait_until_finished(before);
    BackPanel set[BACK_TOGETHER];
    const Run everything{0, int32_t(p.n_k), 0, 0, VECTORS};
    const int64_t count = last_panel(item) - first_panel(item);
    for (int64_t n = 0; n < count; ++n) {
      BackPanel& panel = set[n];
      panel.first = (first_panel(item) + n) * PANEL;
      panel.count = std::min<int64_t>(PANEL, p.n_q - panel.first);
      panel.lanes = in_lanes(panel.count);
      panel.runs = runs_of(p, b, h, first_panel(item) + n, everything);
      panel.gradients = take(panel.lanes * p.value_width);
      panel.sums = take(panel.lanes * p.width);
      const Floats q = floats_of(p.q, p.kind, b, h, panel.first, panel.count, p.width,
                                 take(space_of(p.kind, panel.count, p.width)));
      const Floats g = floats_of(p.d_output, p.kind, b, h, panel.first, panel.count, p.value_width,
                                 take(space_of(p.kind, panel.count, p.value_width)));
      panel.finite = all_finite(q.at, q.row, panel.count, p.width) && all_finite(g.at, g.row, panel.count, p.value_width);
      panel.queries = Queries::of(p, q, panel.count, panel.lanes, unit, additive, take(Queries::space(p, panel.lanes)));
      gather_lanes(g.at, g.row, panel.count, p.value_width, 1.0f, panel.gradients, panel.lanes);
      panel.query_rows = rows_of(q.at, q.row, panel.count, p.width, take(panel.count * wide));
      panel.gradient_rows = rows_of(g.at, g.row, panel.count, p.value_width, take(panel.count * value_wide));
      std::fill(panel.sums, panel.sums + panel.lanes * p.width, 0.0f);
      if (p.dropped) panel.dropout.begin(p, b, h, panel.first, panel.count);
      for (int64_t i = 0; i < panel.lanes; ++i) {
        const int64_t row = head_row + panel.first + std::min(i, panel.count - 1);
        const float lse = unit == 1.0 ? p.lse[row] : float(p.lse[row] * unit);
        panel.lse[i] = lse == -INFINITY ? INFINITY : lse;  // a query that sees nothing weighs nothing
        const Floats output = floats_of({p.output, 0, 0, p.value_width}, p.kind, 0, 0, row, 1, p.value_width, one_row);
        panel.level[i] = dot(output.at, g.at + std::min(i, panel.count - 1) * g.row, p.value_width) - p.d_lse[row];
      }
    }
    for (int64_t tile = range[2 * item]; tile < range[2 * item + 1]; ++tile) {
      const int64_t key = tile * BACK_KEYS, until = std::min(p.n_k, key + BACK_KEYS);
      bool sees = false;
      int finite = -1;  // whether K and V are, in this tile; not known
      Floats k{}, v{};
      Raised keys{};
      for (int64_t n = 0; n < count; ++n) {
        BackPanel& panel = set[n];
        Piece piece{};
        piece.scores = weights;
        for (int64_t from = key; piece.next(panel.runs, from, until); from = piece.to) {
          if (!sees) {
            std::fill(d_k, d_k + (until - key) * wide, 0.0f);
            std::fill(d_v, d_v + (until - key) * value_wide, 0.0f);
            if (p.u) std::fill(d_k_turned, d_k_turned + (BACK_KEYS + LANES) * p.width, 0.0f);
            sees = true;
          }
          if (finite < 0) {
            k = floats_of(p.k, p.kind, b, key_head, key, until - key, p.width, wide_k);
            v = floats_of(p.v, p.kind, b, key_head, key, until - key, p.value_width, wide_v);
            if (p.u) keys = raised_keys(k.at, k.row, until - key, p.width, raised_k);
            // 0 times inf is NaN: where something is not finite, only what is seen is added up
            finite = all_finite(k.at, k.row, until - key, p.width) && all_finite(v.at, v.row, until - key, p.value_width);
          }
          piece.k = k.at + (piece.from - key) * k.row, piece.v = v.at + (piece.from - key) * v.row;
          piece.k_row = k.row, piece.v_row = v.row;
          if (p.u) piece.raised = keys.from(piece.from - key);
          int32_t* only = finite && panel.finite ? nullptr : seen;
          const int64_t low = piece.low * LANES, high = std::min(piece.high * LANES, panel.lanes);
          Machine machine{p.program ? *p.program : nothing, registers, b, h, panel.first + low};
          machine.sums = sums.data();
          machine.queries = std::min(high, panel.count) - low;
          float* d_v_here = d_v + (piece.from - key) * value_wide;
          float* d_k_here = d_k + (piece.from - key) * wide;
          const bool captured = ruled && p.program->slope < p.program->end;
          if (p.powers && !only && !p.u && !captured) {
            with_vectors((high - low) / LANES, [&](auto vectors) {
              constexpr int N = decltype(vectors)::value;
              ruled ? take_few<N, true>(panel, piece, machine, d_scores, raw, powers, few, d_k_here, d_v_here)
                    : take_few<N, false>(panel, piece, machine, d_scores, raw, powers, few, d_k_here, d_v_here);
            });
            continue;
          }
          with_vectors((high - low) / LANES, [&](auto vectors) {
            constexpr int N = decltype(vectors)::value;
            if (ruled && !p.u) piece.looked_up = machine.soon(piece.from, N * LANES, p.width);
            const auto take = p.powers ? ruled ? &Backward::take_keys<N, true, true> : &Backward::take_keys<N, false, true>
                              : ruled  ? &Backward::take_keys<N, true, false>
                                       : &Backward::take_keys<N, false, false>;
            (this->*take)(panel, piece, machine, d_scores, raw, only, powers);
            if (p.u) {
              const int64_t rows = piece.to - piece.from, first = piece.from - key;
              for (int64_t t = 0; t < rows; ++t)  // copies of the last query do not count
                std::fill(d_scores + t * N * LANES + machine.queries, d_scores + (t + 1) * N * LANES, 0.0f);
              additive_gradients<N>(panel.queries.raised.from(0, low), piece.raised, p.width, rows, d_scores, panel.sums + low,
                                    panel.lanes, d_k_turned + first, BACK_KEYS + LANES, own_u);
            }
          });
          const int64_t rows = piece.to - piece.from, row = high - low;
          const float *gradients = panel.gradient_rows + low * value_wide, *queries = panel.query_rows + low * wide;
          if (only) {
            over_seen(weights, seen, row, rows, machine.queries, gradients, value_wide, d_v_here);
            if (!p.u) over_seen(d_scores, seen, row, rows, machine.queries, queries, wide, d_k_here);
          } else {
            over_queries(weights, row, rows, machine.queries, gradients, value_wide, d_v_here);
            if (!p.u) over_queries(d_scores, row, rows, machine.queries, queries, wide, d_k_here);
          }
        }
      }
      if (p.u && sees)
        for (int64_t t = 0; t < until - key; ++t)
          for (int64_t c = 0; c < p.width; ++c) d_k[t * wide + c] = u[c] * d_k_turned[c * (BACK_KEYS + LANES) + t];
      const int64_t place = (b * p.key_heads + key_head) * tiles + tile;
      std::atomic<int64_t>& mine = turn[place];
      for (int64_t spins = 0; mine.load(std::memory_order_acquire) != item; ++spins)
        if (spins > 256) std::this_thread::yield();
      if (sees) {
        begun[place] ? write_keys<true>(place / tiles, tile, d_k, d_v) : write_keys<false>(place / tiles, tile, d_k, d_v);
        begun[place] = true;
      }
      mine.store(next_at(item + 1, (item / sharing + 1) * sharing, tile), std::memory_order_release);
    }
    float factor[PANEL];
    std::fill(factor, factor + PANEL, float(p.scale));
    for (int64_t n = 0; p.u && n < count; ++n)
      for (int64_t c = 0; c < p.width; ++c)
        for (int64_t i = 0; i < set[n].lanes; ++i) set[n].sums[c * set[n].lanes + i] *= u[c];
    for (int64_t n = 0; n < count; ++n)
      scatter_lanes(set[n].sums, set[n].lanes, factor, set[n].count, p.width,
                    p.d_q + (head_row + set[n].first) * p.width, p.width);
    if (!sums_up()) return;
    wait_until_finished(item - 1);
    for (int64_t c = 0; u && c < p.width; ++c) p.d_u[h * p.width + c] += own_u[c];
    for (int64_t i = 0; i < small; ++i) small_sums[i] += own_sums[i];
    finished[item].store(true, std::memory_order_release);
  }

  // w and d_s of some keys, and their part of d_q. `seen` takes what is seen, if it is asked for. What is not above a
  // row's level is not seen.
  template <int N, bool RULED, bool LEVELED>
  void take_keys(BackPanel& panel, const Piece& piece, Machine& machine, float* d_scores, float* raw, int32_t* seen,
                 const Powers& powers) const {
    const Problem& p = problem;
    const Program& program = machine.program;
    const int64_t count = piece.to - piece.from;
    float* weights = piece.scores;
    const int64_t low = piece.low * LANES;
    score_keys<N>(p, panel.queries, piece, weights);
    products<N>(panel.gradients + low, panel.lanes, p.value_width, piece.v, piece.v_row, count, d_scores);
    const bool sloped = RULED && program.hiding < program.slope, captured = RULED && program.slope < program.end;
    if (sloped || captured) std::memcpy(raw, weights, sizeof(float) * count * N * LANES);
    if (RULED || piece.partial()) apply_program<N>(piece, machine);
    turn_gradients<N, RULED, LEVELED>(panel, piece, count, nullptr, d_scores, seen, powers);
    if (captured)
      for (int64_t t = 0; t < count; t += ROWS) {
        machine.arriving = d_scores + t * N * LANES;
        machine.run<N>(program.slope, program.end, piece.from + t, std::min<int64_t>(ROWS, count - t),
                       raw + t * N * LANES);
      }
    if (sloped)
      for (int64_t t = 0; t < count; t += ROWS) {
        const int64_t rows = std::min<int64_t>(ROWS, count - t);
        machine.run<N>(program.hiding, program.slope, piece.from + t, rows, raw + t * N * LANES);
        multiply_slopes(d_scores + t * N * LANES, machine.registers, rows * N * LANES);
      }
    if (p.u) return;  // a gradient of its own
    if (!seen) return add_queries<N>(panel, piece, d_scores, piece.k, piece.k_row, count);
    for (int64_t t = 0; t < count; ++t)
      for (int64_t c = 0; c < p.width; ++c)
        REGARD_UNROLL for (int j = 0; j < N; ++j) {
          float* sum = panel.sums + c * panel.lanes + low + j * LANES;
          const Vec more = load(sum) + piece.k[t * piece.k_row + c] * load(d_scores + (t * N + j) * LANES);
          store(sum, choose(load(seen + (t * N + j) * LANES), more, load(sum)));
        }
  }

  // The keys of a piece that weigh something, copied: rows of k, v and of the sums d_k, d_v.
  struct Few {
    float *k, *v, *d_k, *d_v;
  };

  // All of it for a weighing with a level: keys that weigh nothing for all queries of the panel, which are most of them,
  // are left out before anything is multiplied with them.
  template <int N, bool RULED>
  void take_few(BackPanel& panel, const Piece& piece, Machine& machine, float* d_scores, float* raw, const Powers& powers,
                const Few& few, float* d_k, float* d_v) const {
    const Problem& p = problem;
    const Program& program = machine.program;
    const int64_t keys = piece.to - piece.from, row = N * LANES, low = piece.low * LANES;
    const int64_t wide = in_lanes(p.width), value_wide = in_lanes(p.value_width);
    float* weights = piece.scores;
    score_keys<N>(p, panel.queries, piece, weights);
    const bool sloped = RULED && program.hiding < program.slope;
    if (sloped) std::memcpy(raw, weights, sizeof(float) * keys * row);
    if (RULED || piece.partial()) apply_program<N>(piece, machine);
    for (int64_t t = 0; sloped && t < keys; t += ROWS) {  // scores give way to their slopes
      const int64_t rows = std::min<int64_t>(ROWS, keys - t);
      machine.run<N>(program.hiding, program.slope, piece.from + t, rows, raw + t * row);
      std::copy_n(machine.registers, rows * row, raw + t * row);
    }
    Vec lse[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) lse[j] = load(panel.lse + low + j * LANES);
    int32_t at[BACK_KEYS];
    int64_t count = 0;
    for (int64_t t = 0; t < keys; ++t) {
      const float* scores = weights + t * row;
      IntVec counts{};
      REGARD_UNROLL for (int j = 0; j < N; ++j) counts |= ~IntVec(load(scores + j * LANES) <= lse[j]);
      if (!any(counts)) continue;
      if (count < t) std::copy_n(scores, row, weights + count * row);
      if (sloped && count < t) std::copy_n(raw + t * row, row, raw + count * row);
      std::copy_n(piece.k + t * piece.k_row, p.width, few.k + count * p.width);
      std::copy_n(piece.v + t * piece.v_row, p.value_width, few.v + count * p.value_width);
      std::copy_n(d_k + t * wide, wide, few.d_k + count * wide);
      std::copy_n(d_v + t * value_wide, value_wide, few.d_v + count * value_wide);
      at[count++] = int32_t(t);
    }
    products<N>(panel.gradients + low, panel.lanes, p.value_width, few.v, p.value_width, count, d_scores);
    turn_gradients<N, RULED, true>(panel, piece, count, at, d_scores, nullptr, powers);
    if (sloped) multiply_slopes(d_scores, raw, count * row);
    add_queries<N>(panel, piece, d_scores, few.k, p.width, count);
    over_queries(weights, row, count, machine.queries, panel.gradient_rows + low * value_wide, value_wide, few.d_v);
    over_queries(d_scores, row, count, machine.queries, panel.query_rows + low * wide, wide, few.d_k);
    for (int64_t t = 0; t < count; ++t) {
      std::copy_n(few.d_k + t * wide, wide, d_k + at[t] * wide);
      std::copy_n(few.d_v + t * value_wide, value_wide, d_v + at[t] * value_wide);
    }
  }

  // Where no gradient arrives (hidden pairs among them) an infinite slope must not make a NaN.
  static void multiply_slopes(float* d_scores, const float* slopes, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
      const Vec g = load(d_scores + i);
      store(d_scores + i, choose(g == 0.0f, g, g * load(slopes + i)));
    }
  }

  template <int N>
  void add_queries(BackPanel& panel, const Piece& piece, const float* d_scores, const float* k, int64_t k_row,
                   int64_t count) const {
    Vec one[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) one[j] = all(1.0f);
    weighted_sums<N>(d_scores, k, k_row, count, problem.width, one, panel.sums + piece.low * LANES, panel.lanes);
  }

  // Scores become weights, and gradients of weights those of scores. `at` says where keys lie that do not lie in a row.
  template <int N, bool RULED, bool LEVELED>
  REGARD_MEMBER void turn_gradients(const BackPanel& panel, const Piece& piece, int64_t count, const int32_t* at,
                                    float* d_scores, int32_t* seen, const Powers& powers) const {
    const Problem& p = problem;
    const int64_t low = piece.low * LANES;
    float* weights = piece.scores;
    Vec lse[N], level[N];
    REGARD_UNROLL for (int j = 0; j < N; ++j) {
      lse[j] = load(panel.lse + low + j * LANES);
      level[j] = load(panel.level + low + j * LANES);
    }
    for (int64_t t = 0; t < count; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* weight = weights + (t * N + j) * LANES;
        float* gradient = d_scores + (t * N + j) * LANES;
        const Vec score = load(weight), from_lse = score - lse[j];
        const IntVec hidden = LEVELED ? IntVec(from_lse <= 0.0f) : IntVec(score == -INFINITY);
        Vec w, slope;
        if (LEVELED) {
          powers.weigh(from_lse, w, slope);
        } else {
          w = slope = exp2(RULED ? from_lse * LOG2_E : from_lse);
        }
        Vec kept = w, d_weight = load(gradient);
        if (p.dropped) {
          const IntVec stays = panel.dropout.kept(piece.from + (at ? at[t] : t), piece.low + j);
          kept = choose(stays, w * panel.dropout.factor, Vec{});
          d_weight = choose(stays, d_weight * panel.dropout.factor, Vec{});
        }
        Vec d_score = slope * (d_weight - level[j]);
        if (seen) store(seen + (t * N + j) * LANES, ~hidden);
        if (LEVELED || piece.partial() || RULED || seen) {
          // where lse or d_weight is not finite, what is hidden has no zeros of its own
          kept = choose(hidden, Vec{}, kept);
          d_score = choose(hidden, Vec{}, d_score);
        }
        store(weight, kept);
        store(gradient, d_score);
      }
  }

  // Rows of whole vectors, one behind the other: where they are, if they are such, else a copy in the space given.
  static const float* rows_of(const float* from, int64_t row, int64_t count, int64_t width, float* space) {
    const int64_t wide = in_lanes(width);
    if (row == width && width == wide) return from;
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from + i * row, width, space + i * wide);
      std::fill(space + i * wide + width, space + (i + 1) * wide, 0.0f);
    }
    return space;
  }

  template <bool ADD>
  static void write_rows(const float* from, int64_t row, int64_t count, int64_t width, float factor, float* to) {
    if (!from) return std::fill(to, to + count * width, 0.0f), void();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = 0; p < width; ++p) {
        const float more = factor * from[i * row + p];
        to[i * width + p] = ADD ? to[i * width + p] + more : more;
      }
  }
};

static bool backward_in_panels(const Problem& problem, bool (*pause)()) {
  const int64_t panels = (problem.n_q + PANEL - 1) / PANEL;
  const int64_t together = std::min(BACK_TOGETHER, panels);
  const int64_t blocks = (panels + together - 1) / together;
  Backward work(problem, blocks, together);
  const bool finished = parallel(
      problem.batch * problem.heads * blocks, problem.threads, work.scratch(),
      [](void* context, int64_t item, float* space) { static_cast<Backward*>(context)->block(item, space); }, &work,
      pause);
  work.write_unseen();
  work.write_small_sums();
  return finished;
}
