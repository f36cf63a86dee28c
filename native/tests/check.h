// What the tests of the core share: a check that says what it saw, numbers to test with, and rows with gaps.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes) (static_cast<void>(from), static_cast<void>(bytes))
#endif

// CHECK(holds, "what was seen, as printf writes it", ...)
#define CHECK(holds, ...) \
  do { \
    if (!(holds)) check::failed(__FILE__, __LINE__, __VA_ARGS__); \
  } while (0)

namespace check {

inline int failures = 0;

__attribute__((format(printf, 3, 4))) inline void failed(const char* file, int line, const char* seen, ...) {
  if (++failures > 20) return;  // one mistake shows in thousands of numbers
  va_list values;
  va_start(values, seen);
  std::fprintf(stderr, "%s:%d: ", file, line);
  std::vfprintf(stderr, seen, values);
  std::fputc('\n', stderr);
  va_end(values);
}

// What a program ends with.
inline int verdict(const char* name) {
  if (failures) {
    std::fprintf(stderr, "%s: %d checks failed\n", name, failures);
  } else {
    std::printf("%s: fine\n", name);
  }
  return failures != 0;
}

inline bool close(double found, double expected, double relative, double absolute) {
  if (std::isnan(expected) || std::isinf(expected)) return std::isnan(expected) ? std::isnan(found) : found == expected;
  return std::abs(found - expected) <= absolute + relative * std::abs(expected);
}

// Numbers from -1 to 1, the same in every run.
struct Dice {
  uint64_t state = 1;

  float operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return float(state >> 40) / float(1 << 23) - 1.0f;
  }
};

inline std::vector<float> thrown(int64_t count, Dice& dice) {
  std::vector<float> numbers(count);
  for (float& x : numbers) x = dice();
  return numbers;
}

// Rows of numbers with gaps between them: NaN, and under AddressSanitizer nobody may even read them. Nothing follows
// the last row.
class Rows {
 public:
  // A gap can be guarded if the next row begins at a multiple of eight bytes.
  static int64_t row_for(int64_t width, int64_t gap) { return (width + gap + 1) / 2 * 2; }

  Rows(int64_t count, int64_t width, int64_t gap)
      : row(row_for(width, gap)), numbers_(count && width ? (count - 1) * row + width : 0) {
    for (int64_t i = 0; i + 1 < count && width; ++i) {
      float* end = numbers_.data() + i * row + width;
      for (int64_t c = width; c < row; ++c) end[c - width] = std::numeric_limits<float>::quiet_NaN();
      ASAN_POISON_MEMORY_REGION(end, (row - width) * sizeof(float));
    }
  }
  Rows(int64_t count, int64_t width, int64_t gap, Dice& dice) : Rows(count, width, gap) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < width; ++c) at(i)[c] = dice();
  }
  Rows(Rows&&) = default;
  Rows(const Rows&) = delete;  // would read the gaps

  float* at(int64_t i) { return numbers_.data() + i * row; }
  const float* at(int64_t i) const { return numbers_.data() + i * row; }
  float* data() { return numbers_.empty() ? nullptr : numbers_.data(); }  // torch has no address for nothing either
  const float* data() const { return numbers_.empty() ? nullptr : numbers_.data(); }

  const int64_t row;

 private:
  std::vector<float> numbers_;
};

}  // namespace check
