// The library's kernels with four handwritten masks and score modifiers, and a loop of multiply-adds that measures peak
// FLOP/s. The compiler's command line includes the header of the instruction set first.
#include <chrono>
#include <cstdint>

namespace regard {

enum Modifier : int64_t { CAUSAL, ALIBI, SOFTCAP, WINDOW };

// The modifier of the next call, with its parameters.
static struct {
  int64_t modifier;
  int64_t window;
  float cap;
  const float* slopes;  // one per head
} active_modifier;

}  // namespace regard

#define REGARD_INTERPRETER "modifiers.h"
#include "kernels/kernels.h"

namespace regard {
namespace REGARD_ISA {
namespace {

constexpr int NUM_FMA_CHAINS = 12;                                         // more than a processor executes at once
constexpr int64_t FMA_STEPS = 100'000'000 / (2 * NUM_FMA_CHAINS * LANES);  // about a millisecond

void fma_item(void*, int64_t, float* scratch) {
  Vec sum[NUM_FMA_CHAINS];
  for (int i = 0; i < NUM_FMA_CHAINS; ++i) sum[i] = broadcast(float(i));
  volatile float half = 0.5f;  // keeps the compiler from computing the result
  const Vec factor = broadcast(half), one = broadcast(1.0f);
  for (int64_t step = 0; step < FMA_STEPS; ++step)
    REGARD_UNROLL for (int i = 0; i < NUM_FMA_CHAINS; ++i) sum[i] = fma(sum[i], factor, one);
  for (int i = 0; i < NUM_FMA_CHAINS; ++i) store(scratch + i * LANES, sum[i]);
}

}  // namespace
}  // namespace REGARD_ISA
}  // namespace regard

extern "C" {

#define REGARD_EXPORT __attribute__((visibility("default")))

REGARD_EXPORT void set_modifier(int64_t modifier, int64_t window, float cap, const float* slopes) {
  regard::active_modifier = {modifier, window, cap, slopes};
}

REGARD_EXPORT int64_t params_bytes() { return sizeof(regard::AttentionParams); }

static regard::AttentionParams read_params(const char* bytes) {
  regard::AttentionParams params;
  std::memcpy(&params, bytes, sizeof params);
  return params;
}

REGARD_EXPORT void run_forward(const char* params) {
  regard::REGARD_ISA::kernels.forward(read_params(params), nullptr);
}

REGARD_EXPORT void run_backward(const char* params) {
  regard::REGARD_ISA::kernels.backward(read_params(params), nullptr);
}

// Floating-point operations per second of all threads together.
REGARD_EXPORT double peak_flops(int64_t num_threads) {
  using namespace regard::REGARD_ISA;
  const auto begin = std::chrono::steady_clock::now();
  regard::parallel_for(num_threads, num_threads, NUM_FMA_CHAINS * LANES, fma_item, nullptr, nullptr);
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  return double(num_threads) * FMA_STEPS * 2 * NUM_FMA_CHAINS * LANES / duration.count();
}

}  // extern "C"
