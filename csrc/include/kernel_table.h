// The entry points of the kernels for one instruction set.
#pragma once

#include <cstdint>

#include "abi.h"

namespace regard {

struct KernelTable {
  const char* name;
  int64_t panel_queries;  // queries in a panel
  int64_t lanes;          // queries in a vector
  int64_t chunk_keys;     // granularity of a mask's runs, in keys
  // Each kernel polls should_stop now and then, stops early once it returns true, and returns false then.
  bool (*forward)(const AttentionParams&, bool (*should_stop)());
  bool (*backward)(const AttentionParams&, bool (*should_stop)());
  bool (*weights)(const AttentionParams&, const WeightTileParams&, bool (*should_stop)());
  bool (*thresholded)(const AttentionParams&, const ThresholdParams&, bool (*should_stop)());
};

}  // namespace regard
