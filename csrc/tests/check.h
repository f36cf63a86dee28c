// Shared by all tests of the core: a check with a message, random numbers, and rows with gaps between them.
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

// CHECK(condition, "printf format of the message", ...)
#define CHECK(condition, ...) \
  do { \
    if (!(condition)) check::report_failure(__FILE__, __LINE__, __VA_ARGS__); \
  } while (0)

namespace check {

inline int failures = 0;

__attribute__((format(printf, 3, 4))) inline void report_failure(const char* file, int line, const char* format, ...) {
  if (++failures > 20) return;  // one mistake can fail thousands of checks
  va_list values;
  va_start(values, format);
  std::fprintf(stderr, "%s:%d: ", file, line);
  std::vfprintf(stderr, format, values);
  std::fputc('\n', stderr);
  va_end(values);
}

// Prints the result of a test program, and returns its exit status.
inline int exit_status(const char* name) {
  if (failures) {
    std::fprintf(stderr, "%s: %d checks failed\n", name, failures);
  } else {
    std::printf("%s: ok\n", name);
  }
  return failures != 0;
}

inline bool is_close(double actual, double expected, double relative, double absolute) {
  if (std::isnan(expected) || std::isinf(expected))
    return std::isnan(expected) ? std::isnan(actual) : actual == expected;
  return std::abs(actual - expected) <= absolute + relative * std::abs(expected);
}

// Random numbers from -1 to 1, the same in every run.
struct RandomFloats {
  uint64_t state = 1;

  float operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return float(state >> 40) / float(1 << 23) - 1.0f;
  }
};

inline std::vector<float> random_floats(int64_t count, RandomFloats& random) {
  std::vector<float> values(count);
  for (float& x : values) x = random();
  return values;
}

// Rows of floats with gaps between them. The gaps hold NaN, and reading them is an error under AddressSanitizer. No
// memory follows the last row.
class PaddedRows {
 public:
  // AddressSanitizer can guard a gap if the next row begins at a multiple of eight bytes.
  static int64_t padded_row_stride(int64_t num_channels, int64_t gap) { return (num_channels + gap + 1) / 2 * 2; }

  PaddedRows(int64_t count, int64_t num_channels, int64_t gap)
      : row_stride(padded_row_stride(num_channels, gap)),
        values_(count && num_channels ? (count - 1) * row_stride + num_channels : 0) {
    for (int64_t i = 0; i + 1 < count && num_channels; ++i) {
      float* end = values_.data() + i * row_stride + num_channels;
      for (int64_t c = num_channels; c < row_stride; ++c)
        end[c - num_channels] = std::numeric_limits<float>::quiet_NaN();
      ASAN_POISON_MEMORY_REGION(end, (row_stride - num_channels) * sizeof(float));
    }
  }
  PaddedRows(int64_t count, int64_t num_channels, int64_t gap, RandomFloats& random)
      : PaddedRows(count, num_channels, gap) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < num_channels; ++c) row_data(i)[c] = random();
  }
  PaddedRows(PaddedRows&&) = default;
  PaddedRows(const PaddedRows&) = delete;  // a copy would read the gaps

  float* row_data(int64_t i) { return values_.data() + i * row_stride; }
  const float* row_data(int64_t i) const { return values_.data() + i * row_stride; }
  float* data() { return values_.empty() ? nullptr : values_.data(); }  // as in torch, an empty tensor has no address
  const float* data() const { return values_.empty() ? nullptr : values_.data(); }

  const int64_t row_stride;

 private:
  std::vector<float> values_;
};

}  // namespace check
