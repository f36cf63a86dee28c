// The library's kernels with four rules written by hand, and a burst of multiply-adds to know the processor's pace by.
// REGARD_LANES comes from the compiler's command line: that of the build they are compared with.
#include <chrono>
#include <cstdint>

namespace regard {

enum Rule : int64_t { CAUSAL, ALIBI, SOFTCAP, WINDOW };

// Which rule the next call runs, with its numbers.
static struct {
  int64_t rule;
  int64_t window;
  float cap;
  const float* slopes;  // one a head
} by_hand;

}  // namespace regard

#define REGARD_BUILD twins
#define REGARD_NAME "by hand"
#define REGARD_MACHINE "by_hand.h"
#include "kernels.h"

namespace regard {
namespace twins {
namespace {

constexpr int CHAINS = 12;  // more than a processor has under way at once
constexpr int64_t STEPS = 100'000'000 / (2 * CHAINS * LANES);  // about a millisecond

void burst_item(void*, int64_t, float* space) {
  Vec sum[CHAINS];
  for (int i = 0; i < CHAINS; ++i) sum[i] = all(float(i));
  volatile float half = 0.5f;  // so that nothing is worked out beforehand
  const Vec factor = all(half), more = all(1.0f);
  for (int64_t step = 0; step < STEPS; ++step)
    REGARD_UNROLL for (int i = 0; i < CHAINS; ++i) sum[i] = fma(sum[i], factor, more);
  for (int i = 0; i < CHAINS; ++i) store(space + i * LANES, sum[i]);
}

}  // namespace
}  // namespace twins
}  // namespace regard

extern "C" {

#define REGARD_EXPORT __attribute__((visibility("default")))

REGARD_EXPORT void choose_rule(int64_t rule, int64_t window, float cap, const float* slopes) {
  regard::by_hand = {rule, window, cap, slopes};
}

REGARD_EXPORT int64_t problem_bytes() { return sizeof(regard::Problem); }

static regard::Problem unpacked(const char* bytes) {
  regard::Problem problem;
  std::memcpy(&problem, bytes, sizeof problem);
  return problem;
}

REGARD_EXPORT void run_forward(const char* problem) { regard::twins::kernels.forward(unpacked(problem), nullptr); }

REGARD_EXPORT void run_backward(const char* problem) { regard::twins::kernels.backward(unpacked(problem), nullptr); }

// Floating point operations a second, of so many threads together.
REGARD_EXPORT double burst(int64_t threads) {
  using namespace regard::twins;
  const auto begin = std::chrono::steady_clock::now();
  regard::parallel(threads, threads, CHAINS * LANES, burst_item, nullptr, nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return double(threads) * STEPS * 2 * CHAINS * LANES / took.count();
}

}  // extern "C"
