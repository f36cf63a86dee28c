// The part of a tile of keys that a panel of queries sees, and what the program does to its scores.

// Keys that a panel sees, run by run.
struct Runs {
  const Run* next;
  const Run* end;
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
  float* scores;

  bool partial() const { return hide_from < hide_to; }

  // The next piece of keys from `key` on and below `until`; runs that end in it are left behind.
  bool next(Runs& runs, int64_t key, int64_t until) {
    const Run*& run = runs.next;
    const Run* const end = runs.end;
    while (run < end && run->last <= key) ++run;
    if (run == end || run->first >= until || key >= until) return false;
    from = to = std::max<int64_t>(key, run->first);
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

