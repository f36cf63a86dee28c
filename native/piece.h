// The part of a tile of keys that a panel of queries sees, and what the program does to its scores.

// Keys that a panel sees, run by run.
struct Runs {
  const Run* next;
  const Run* end;

  // The first key from `key` on that is seen, or `none`. Runs before it are left behind.
  int64_t seen_from(int64_t key, int64_t none) {
    while (next < end && next->last <= key) ++next;
    return next == end ? none : std::max<int64_t>(key, next->first);
  }
};

static Runs runs_of(const Problem& p, int64_t b, int64_t h, int64_t panel, const Run& everything) {
  const Cover& c = p.cover;
  if (!c.starts) return {&everything, &everything + 1};
  const int64_t list = (b % c.batch * c.heads + h % c.heads) * c.panels + panel;
  return {c.runs + c.starts[list], c.runs + c.starts[list + 1]};
}

// Keys side by side that the same vectors of a panel see, in `hide_from` to `hide_to` perhaps not all of them.
struct Piece {
  int64_t from, to, hide_from, hide_to;
  int64_t low, high;  // vectors
  const float *k, *v;
  int64_t k_row, v_row;
  Raised raised;  // the keys, where scores are additive
  Soon soon_k, soon_v;  // the rows after these
  SoonLookedUp looked_up;  // by the rule, of these keys
  float* scores;

  bool partial() const { return hide_from < hide_to; }

  // The next piece of keys from `key` on and below `until`; runs that end in it are left behind.
  bool next(Runs& runs, int64_t key, int64_t until) {
    from = to = runs.seen_from(key, until);
    if (from >= until) return false;
    const Run*& run = runs.next;
    const Run* const end = runs.end;
    hide_from = hide_to = 0;
    low = run->low, high = run->high;
    for (; run < end && run->first <= to && to < until && run->low == low && run->high == high; ++run) {
      const int64_t first = to;
      to = std::min<int64_t>(until, run->last);
      if (run->partial) {
        if (!partial()) hide_from = first;
        hide_to = to;
      }
      if (run->last > until) break;
    }
    return true;
  }
};

// The queries of a panel, (width, lanes): ready for products, or as they are, and their e^2x, for additive scores.
struct Queries {
  float* at;
  int64_t lanes;
  Raised raised;
  const Additive* additive;

  static int64_t space(const Problem& p, int64_t lanes) { return p.width * (p.u ? 2 * lanes + LANES : lanes); }

  static Queries of(const Problem& p, const Floats& rows, int64_t count, int64_t lanes, double unit,
                    const Additive& additive, float* space) {
    gather_lanes(rows.at, rows.row, count, p.width, p.u ? 1.0f : float(p.scale * unit), space, lanes);
    float* beside = space + p.width * lanes;
    return {space, lanes, p.u ? raised_queries(space, p.width, lanes, beside) : Raised{}, &additive};
  }
};

// The scores of a piece, before its rule; `top` grows to their maxima.
template <int N, bool TOPS = false>
static void score_keys(const Problem& p, const Queries& queries, const Piece& piece, float* scores, Vec* top = nullptr) {
  const int64_t count = piece.to - piece.from, low = piece.low * LANES;
  if (piece.soon_k.at)
    return products<N, TOPS>(queries.at + low, queries.lanes, p.width, piece.k, piece.k_row, count, scores, top,
                             piece.soon_k);
  if (piece.looked_up.table)
    return products<N, TOPS>(queries.at + low, queries.lanes, p.width, piece.k, piece.k_row, count, scores, top,
                             piece.looked_up);
  if (!p.u)
    return products<N, TOPS>(queries.at + low, queries.lanes, p.width, piece.k, piece.k_row, count, scores, top);
  additive_scores<N>(*queries.additive, queries.raised.from(0, low), piece.raised, p.width, count, scores);
  for (int64_t t = 0; TOPS && t < count; ++t)
    REGARD_UNROLL for (int j = 0; j < N; ++j) top[j] = larger(load(scores + (t * N + j) * LANES), top[j]);
}

// Changes the scores of a piece by the rule, and hides.
template <int N>
static void apply_program(const Piece& piece, Machine& machine) {
  const Program& program = machine.program;
  const auto run = [&](int64_t first, int64_t last, int64_t from, int64_t to) {
    if (first == last) return;
    for (int64_t key = from; key < to; key += ROWS)
      machine.run<N>(first, last, key, std::min<int64_t>(ROWS, to - key), piece.scores + (key - piece.from) * N * LANES);
  };
  run(0, program.rule, piece.from, piece.to);
  run(program.rule, program.hiding, piece.hide_from, piece.hide_to);
}

