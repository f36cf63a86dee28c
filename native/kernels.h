// All kernels, built once for each instruction set in a namespace of its own. The standard headers come before the
// instruction set is chosen, so that nothing of theirs is compiled for it.
#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#if REGARD_LANES > 4
#include <immintrin.h>
#endif

#include "parallel.h"
#include "problem.h"

#if REGARD_LANES == 16
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma")
#elif REGARD_LANES == 8
#pragma GCC target("avx2,fma,f16c")
#endif

#ifndef REGARD_MACHINE  // benchmarks/twins puts rules written by hand in its place
#define REGARD_MACHINE "machine.h"
#endif

namespace regard {
namespace REGARD_BUILD {
namespace {

#include "simd.h"
#include "panel.h"
#include REGARD_MACHINE
#include "halves.h"
#include "additive.h"
#include "piece.h"
#include "dropout.h"
#include "forward.h"
#include "decode.h"
#include "powers.h"
#include "backward.h"
#include "weights.h"
#include "leveled.h"
#include "empty.h"

static bool forward(const Problem& problem, bool (*pause)()) {
  if (!has_pairs(problem)) return forward_without_pairs(problem);
  return Decode::suits(problem) ? decode(problem, pause) : forward_in_panels(problem, pause);
}

static bool backward(const Problem& problem, bool (*pause)()) {
  return has_pairs(problem) ? backward_in_panels(problem, pause) : backward_without_pairs(problem);
}

static bool leveled(const Problem& problem, const Leveled& how, bool (*pause)()) {
  return has_pairs(problem) ? leveled_in_panels(problem, how, pause) : leveled_without_pairs(problem, how);
}

}  // namespace

const Kernels kernels{REGARD_NAME, PANEL, LANES, CHUNK, forward, backward, weights, leveled};

}  // namespace REGARD_BUILD
}  // namespace regard
