// What is asked of the core: numbers, and pointers into memory that the caller keeps. Strides count numbers; the last
// dimension of every tensor is contiguous. `Problem` in engine/native.py has the same fields in the same order.
#pragma once

#include <cstdint>

#include "program.h"

namespace regard {

// Queries and keys at most: positions have 32 bits, and a tile may reach a little beyond the last key.
constexpr int64_t MAX_LENGTH = (int64_t(1) << 31) - 1024;

// What q, k, v, the output and its gradient are made of. All else is floats: the lse, and the gradients of q, k and v.
enum Kind : int64_t { FLOAT, BRAIN, HALF };

// Rows of numbers: strides by batch element, head and row.
struct Rows {
  const void* at;
  int64_t batch, head, row;
};

// Which keys each panel of queries sees: list number n has the runs from starts[n] to starts[n + 1], in order; list
// numbers count (batch or 1) x (heads or 1) x panels. Without `starts` every query sees every key.
struct Run {
  int32_t first, last;  // keys
  int32_t partial;      // whether some pair in it is hidden
  int32_t low, high;    // the panel's vectors of queries that see something in it
};

struct Cover {
  int64_t batch, heads, panels;
  const int64_t* starts;
  const Run* runs;
};

struct Problem {
  int64_t batch, heads, key_heads, n_q, n_k, width, value_width;
  int64_t threads;
  double scale;
  Kind kind;
  Rows q, k, v;
  Cover cover;
  const Program* program;  // what partial runs hide, and what changes the scores; null where there is neither
  int64_t seed;
  int64_t dropped;     // a weight is left out where its word is below this: dropout * 2^32
  double kept_factor;  // 1 / (1 - dropout)
  void* output;        // contiguous, as everything below
  float* lse;
  // backward: the gradients that reach the output and the lse, and those of q, k and v, of which every number is written
  Rows d_output;
  const float* d_lse;
  float* d_q;
  float* d_k;
  float* d_v;
  // additive scores: u, (heads, width), and its gradient; null where scores are products
  const float* u;
  double* d_u;
  // backward: one a head where weights are powers, (s - level)^power, and the level stands in place of the lse; or null
  const float* powers;
  // where a part of a larger call stands in it, as dropout counts: this is added to its heads, and its queries and keys
  // are `first_` + `step_` times their number
  int64_t first_head = 0, first_query = 0, step_query = 1, first_key = 0, step_key = 1;
};

static_assert(sizeof(Problem) == 8 * 49, "every field has eight bytes, so that a caller can pack it");

// A part of the matrix of weights: some queries and keys of some batch elements and heads, each from `first` to below
// `last`. The first query begins a panel.
struct Part {
  struct Range {
    int64_t first, last;
    int64_t size() const { return last - first; }
  };
  Range b, h, i, j;
  int64_t hides;  // whether some pair in it is hidden
  // what is wanted, contiguous; null where it is not. (b, h, i, j), changed by the rule and -inf where hidden;
  // (b, h, i, j); and (b, h, i), the sum of -w log w over these keys
  float *scores, *weights, *entropy;
  // cells of so many keys, counted from the first key of all, or 0; and (b, h, i, cells of these keys), the sum and the
  // maximum of a row's weights in each
  int64_t cell;
  float *cell_sums, *cell_tops;
  float* received;  // (b, h, panels, j): the sum of a panel's weights for each key
  float* largest;   // (b, h, i): a row's largest weight, and the first key that has it; -1 where nothing is seen
  int32_t* at;

  int64_t cells() const { return cell && j.size() ? (j.last - 1) / cell - j.first / cell + 1 : 0; }
};

static_assert(sizeof(Part) == 8 * 18, "every field has eight bytes");

// A weighing with a level: one number a row, below which nothing weighs anything. It is written in place of the lse.
struct Leveled {
  enum Kind : int64_t {
    POWERS,  // (s - level)^power, with the level at which a row sums to 1
    LARGEST,  // softmax of the `count` largest
    HARD,  // the same weight for all that are the largest
    SLOPES,  // (s - level)^(power - 1), with the level given, divided by their sum; its logarithm is written, no level
    RECEIVED,  // softmax, no output: its lse is written, and what each key receives
  } kind;
  int64_t count;
  const float* powers;  // one a head
  const float* levels;  // one a row
  float* received;  // (batch, heads, `count`, n_k): sums over the rows of each of so many groups of panels
};

static_assert(sizeof(Leveled) == 8 * 5, "every field has eight bytes");

// One build of the kernels for one instruction set.
struct Kernels {
  const char* name;
  int64_t panel;  // queries side by side
  int64_t lanes;  // queries in a vector
  int64_t chunk;  // keys by which a mask is cut
  bool (*forward)(const Problem&, bool (*pause)());
  bool (*backward)(const Problem&, bool (*pause)());
  bool (*weights)(const Problem&, const Part&, bool (*pause)());
  bool (*leveled)(const Problem&, const Leveled&, bool (*pause)());
};

const Kernels* avx512_kernels();  // null where the processor lacks it
const Kernels* avx2_kernels();
const Kernels* portable_kernels();

}  // namespace regard
