// Threads: those of the OpenMP runtime that torch has already loaded, found at run time. A second runtime in one process
// makes both many times slower, so none is linked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

// Does items 0 to count - 1, each once, on up to `threads` threads. A thread works in `floats` numbers of scratch space,
// aligned to a cache line and kept for its next call; `work(context, item, scratch)` must not throw. Items begin in
// order. `pause` is asked now and then on the calling thread; once it says true no further item begins, and false
// comes back.
bool parallel(int64_t count, int64_t threads, size_t floats, void (*work)(void*, int64_t, float*), void* context,
              bool (*pause)());

// Whether work is shared out; otherwise every call runs on its own thread.
bool has_threads();

}  // namespace regard
