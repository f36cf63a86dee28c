// Forward. For each query, over tiles of keys, with s in units of log 2:
//
//     top' = max(top, s),   total = total 2^(top - top') + sum 2^(s - top'),   sum = sum 2^(top - top') + 2^(s - top') v
//
// and at the end output = sum / total, lse = (top + log2 total) log 2. A panel's numbers depend on the panel alone, so
// they are the same for any number of threads and however panels are shared out.

constexpr double LOG2_E_EXACT = 1.4426950408889634;
constexpr float LOG2_E = float(LOG2_E_EXACT);
constexpr int64_t TOGETHER = 8;  // panels that read a tile of keys one after another

struct Panel {
  int64_t first, count, lanes;  // queries
  Runs runs;             // what is left of them
  Queries queries;
  float* sums;  // (value width, lanes)
  float top[PANEL], total[PANEL];
  Dropout dropout;
};

// 0 times inf is NaN: rows of V that are not finite are left out of the product and added where they are seen.
template <int N>
static void sum_wild(Panel& panel, const Problem& problem, const Piece& piece, const Vec (&shrink)[N], float* tame,
                     const int32_t* seen) {
  const int64_t count = piece.to - piece.from, width = problem.value_width;
  for (int64_t t = 0; t < count; ++t) {
    const float* row = piece.v + t * piece.v_row;
    const bool wild = !std::all_of(row, row + width, [](float x) { return std::isfinite(x); });
    for (int64_t c = 0; c < width; ++c) tame[t * width + c] = wild ? 0.0f : row[c];
  }
  weighted_sums<N>(piece.scores, tame, width, count, width, shrink, panel.sums + piece.low * LANES, panel.lanes);
  for (int64_t t = 0; t < count; ++t) {
    const float* row = piece.v + t * piece.v_row;
    if (std::all_of(row, row + width, [](float x) { return std::isfinite(x); })) continue;
    for (int64_t c = 0; c < width; ++c)
      for (int j = 0; j < N; ++j) {
        float* sum = panel.sums + c * panel.lanes + (piece.low + j) * LANES;
        const Vec more = load(sum) + row[c] * load(piece.scores + (t * N + j) * LANES);
        store(sum, choose(load(seen + (t * N + j) * LANES), more, load(sum)));
      }
  }
}

// In units of log 2 unless a rule wants to see the scores as they are. `change` runs the program on the scores. `tame` is
// space for V without rows that are not finite, if there are any, and for what is seen.
template <int N, bool RULED, class Change>
static void take_keys(Panel& panel, const Problem& problem, const Piece& piece, const Change& change, float* tame) {
  const int64_t count = piece.to - piece.from;
  const int64_t low = piece.low * LANES;
  float *scores = piece.scores, *tops = panel.top + low, *totals = panel.total + low;
  Vec top[N], shrink[N], total[N];
  REGARD_UNROLL for (int j = 0; j < N; ++j) top[j] = load(tops + j * LANES);
  if (!RULED && !piece.partial()) {
    score_keys<N, true>(problem, panel.queries, piece, scores, top);
  } else {
    score_keys<N>(problem, panel.queries, piece, scores);
    change();
    for (int64_t t = 0; t < count; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) top[j] = larger(load(scores + (t * N + j) * LANES), top[j]);
  }
  int32_t* seen = tame ? reinterpret_cast<int32_t*>(tame) + KEYS * problem.value_width : nullptr;
  if (seen)
    for (int64_t i = 0; i < count * N * LANES; i += LANES) store(seen + i, IntVec(load(scores + i) != -INFINITY));
  REGARD_UNROLL for (int j = 0; j < N; ++j) {
    const Vec before = load(tops + j * LANES);
    store(tops + j * LANES, top[j]);
    top[j] = larger(top[j], all(-FLT_MAX));  // nothing seen so far: 2^(-inf - finite) is 0
    shrink[j] = exp2(RULED ? (before - top[j]) * LOG2_E : before - top[j]);
    total[j] = Vec{};
  }
  for (int64_t chunk = 0; chunk < count; chunk += CHUNK) {  // sums of sums: rounding grows with their lengths
    Vec sum[N] = {};
    for (int64_t t = chunk; t < std::min<int64_t>(count, chunk + CHUNK); ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* place = scores + (t * N + j) * LANES;
        const Vec from_top = load(place) - top[j];
        const Vec weight = exp2(RULED ? from_top * LOG2_E : from_top);
        store(place, weight);
        sum[j] += weight;
      }
    REGARD_UNROLL for (int j = 0; j < N; ++j) total[j] += sum[j];
  }
  REGARD_UNROLL for (int j = 0; j < N; ++j) {
    float* before = totals + j * LANES;
    store(before, fma(load(before), shrink[j], total[j]));
  }
  if (problem.dropped)
    for (int64_t t = 0; t < count; ++t)
      REGARD_UNROLL for (int j = 0; j < N; ++j) {
        float* place = scores + (t * N + j) * LANES;
        const IntVec stays = panel.dropout.kept(piece.from + t, piece.low + j);
        store(place, choose(stays, load(place) * panel.dropout.factor, Vec{}));
      }
  if (seen) return sum_wild<N>(panel, problem, piece, shrink, tame, seen);
  if (piece.soon_v.at)
    return weighted_sums<N, true>(scores, piece.v, piece.v_row, count, problem.value_width, shrink, panel.sums + low,
                                  panel.lanes, piece.soon_v);
  weighted_sums<N>(scores, piece.v, piece.v_row, count, problem.value_width, shrink, panel.sums + low, panel.lanes);
}

struct Forward {
  const Problem& problem;
  int64_t blocks;    // of panels, a head
  int64_t together;  // panels in a block

  size_t scratch() const {
    const int64_t registers = problem.program ? problem.program->registers : 0;
    const int64_t width = problem.width + problem.value_width;
    return size_t(KEYS) * (2 * PANEL + problem.value_width) + registers * ROWS * PANEL +
           together * (Queries::space(problem, PANEL) + PANEL * problem.value_width) +
           space_of(problem.kind, KEYS, width) + PANEL * width + Additive::space(problem) + 64;
  }

  void block(int64_t item, float* space) const {
    const FlushTiny flush;
    const Problem& p = problem;
    const int64_t b = item / (p.heads * blocks), h = item / blocks % p.heads;
    const int64_t key_head = h / (p.heads / p.key_heads);
    const int64_t panels = (p.n_q + PANEL - 1) / PANEL;
    // heavy ones first: under a causal mask the last queries see most
    const int64_t first = (blocks - 1 - item % blocks) * together, last = std::min(panels, first + together);
    float* scores = space;
    space += KEYS * PANEL;
    float* tame = space;
    space += KEYS * (p.value_width + PANEL);
    float* registers = space;
    space += (p.program ? p.program->registers : 0) * ROWS * PANEL;
    float *wide_k = space, *wide_v = wide_k + space_of(p.kind, KEYS, p.width);
    space = wide_v + space_of(p.kind, KEYS, p.value_width);
    float* rows = space;  // of a panel, on their way in and out
    space += PANEL * (p.width + p.value_width);
    static const Program nothing{};
    const bool ruled = p.program && p.program->rule;
    const double unit = ruled ? 1.0 : LOG2_E_EXACT;
    const Additive additive = p.u ? Additive(p, h, unit, space) : Additive();
    space += Additive::space(p);
    float* raised_k = additive.keys;
    Panel set[TOGETHER];
    const Run everything{0, int32_t(p.n_k), 0, 0, VECTORS};
    for (int64_t n = first; n < last; ++n) {
      Panel& panel = set[n - first];
      panel.first = n * PANEL;
      panel.count = std::min<int64_t>(PANEL, p.n_q - panel.first);
      panel.lanes = (panel.count + LANES - 1) / LANES * LANES;
      const Floats q = floats_of(p.q, p.kind, b, h, panel.first, panel.count, p.width, rows);
      panel.queries = Queries::of(p, q, panel.count, panel.lanes, unit, additive, space);
      space += Queries::space(p, panel.lanes);
      panel.sums = space, space += panel.lanes * p.value_width;
      std::fill(panel.sums, panel.sums + panel.lanes * p.value_width, 0.0f);
      std::fill(panel.top, panel.top + PANEL, -INFINITY);
      std::fill(panel.total, panel.total + PANEL, 0.0f);
      if (p.dropped) panel.dropout.begin(p, b, h, panel.first, panel.count);
      panel.runs = runs_of(p, b, h, n, everything);
    }
    // tiles that no panel sees are passed over, so that time grows with what is seen
    const auto next_tile = [&](int64_t key) {
      int64_t seen = p.n_k;
      for (int64_t n = 0; n < last - first; ++n) seen = std::min(seen, set[n].runs.seen_from(key, p.n_k));
      return seen < p.n_k ? seen / KEYS * KEYS : p.n_k;
    };
    for (int64_t key = next_tile(0); key < p.n_k; key = next_tile(key + KEYS)) {
      const int64_t until = std::min(p.n_k, key + KEYS);
      int finite = -1;  // whether V is, in this tile; not known
      Floats k{}, v{};
      Raised keys{};
      for (int64_t n = 0; n < last - first; ++n) {
        Panel& panel = set[n];
        Piece piece{};
        piece.scores = scores;
        for (int64_t from = key; piece.next(panel.runs, from, until); from = piece.to) {
          if (finite < 0) {
            k = floats_of(p.k, p.kind, b, key_head, key, until - key, p.width, wide_k);
            v = floats_of(p.v, p.kind, b, key_head, key, until - key, p.value_width, wide_v);
            if (p.u) keys = raised_keys(k.at, k.row, until - key, p.width, raised_k);
            finite = all_finite(v.at, v.row, until - key, p.value_width);
          }
          piece.k = k.at + (piece.from - key) * k.row, piece.v = v.at + (piece.from - key) * v.row;
          piece.k_row = k.row, piece.v_row = v.row;
          if (p.u) piece.raised = keys.from(piece.from - key);
          if (until == p.n_k && !ruled && !p.u) ask_ahead(piece, item, n, piece.from - key);
          Machine machine{p.program ? *p.program : nothing, registers, b, h, panel.first + piece.low * LANES};
          with_vectors(std::min(piece.high, panel.lanes / LANES) - piece.low, [&](auto vectors) {
            constexpr int N = decltype(vectors)::value;
            if (ruled && !p.u) piece.looked_up = machine.soon(piece.from, N * LANES, p.width);
            float* space = finite ? nullptr : tame;
            const auto change = [&] { apply_program<N>(piece, machine); };
            ruled ? take_keys<N, true>(panel, p, piece, change, space)
                  : take_keys<N, false>(panel, p, piece, change, space);
          });
        }
      }
    }
    for (int64_t n = 0; n < last - first; ++n) finish(set[n], b, h, rows);
  }

  // While an item ends, memory that will be wanted next is asked for, from row `at` on: by the first panel the keys and
  // values of the item this thread takes next, if all threads are equally fast, by the second its queries, by the third
  // the place of this item's answers. Sequences of a hundred tokens would wait for these longer than for anything else.
  void ask_ahead(Piece& piece, int64_t item, int64_t n, int64_t at) const {
    const Problem& p = problem;
    piece.soon_k = piece.soon_v = {};
    const int64_t next = n == 2 ? item : item + p.threads;
    if (n > 2 || next >= p.batch * p.heads * blocks) return;
    const int64_t b = next / (p.heads * blocks), h = next / blocks % p.heads, key_head = h / (p.heads / p.key_heads);
    const int64_t first = (blocks - 1 - next % blocks) * together * PANEL;
    if (n == 0) {
      piece.soon_k = soon(p.k, p.kind, b, key_head, at), piece.soon_v = soon(p.v, p.kind, b, key_head, at);
    } else {
      const Rows output{p.output, p.heads * p.n_q * p.value_width, p.n_q * p.value_width, p.value_width};
      piece.soon_k = soon(n == 1 ? p.q : output, p.kind, b, h, first + at);
    }
  }

  void finish(Panel& panel, int64_t b, int64_t h, float* rows) const {
    const Problem& p = problem;
    const bool ruled = p.program && p.program->rule;
    const int64_t row = (b * p.heads + h) * p.n_q + panel.first;
    float factor[PANEL];
    for (int64_t i = 0; i < panel.lanes; ++i) {
      const bool sees = panel.total[i] != 0.0f;  // the largest score weighs 1, a NaN is not 0
      factor[i] = sees ? 1.0f / panel.total[i] : 0.0f;
      if (i < panel.count)
        p.lse[row + i] =
            sees ? float(panel.top[i] / (ruled ? 1.0 : LOG2_E_EXACT) + std::log(double(panel.total[i]))) : -INFINITY;
    }
    const bool direct = p.kind == FLOAT;
    float* to = direct ? static_cast<float*>(p.output) + row * p.value_width : rows;
    scatter_lanes(panel.sums, panel.lanes, factor, panel.count, p.value_width, to, p.value_width);
    if (!direct) write_output(p, rows, panel.count, row);
  }
};

static bool forward_in_panels(const Problem& problem, bool (*pause)()) {
  const int64_t panels = (problem.n_q + PANEL - 1) / PANEL;
  const int64_t heads = problem.batch * problem.heads;
  int64_t together = std::min(TOGETHER, panels);
  // a few items for each thread, so that none waits long for another
  while (together > 1 && heads * ((panels + together - 1) / together) < 4 * problem.threads) --together;
  Forward work{problem, together ? (panels + together - 1) / together : 0, together};
  return parallel(
      heads * work.blocks, problem.threads, work.scratch(),
      [](void* context, int64_t item, float* space) { static_cast<Forward*>(context)->block(item, space); }, &work,
      pause);
}
