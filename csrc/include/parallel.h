// Threads: those of the OpenMP runtime that torch has already loaded, else those of a pool. The core links no runtime
// of its own, because two runtimes in one process make both of them many times slower.
#pragma once

#include <cstddef>
#include <cstdint>

namespace regard {

// Runs items 0 to num_items - 1, each once, on up to num_threads threads. `work(context, item, scratch)` must not
// throw; its scratch buffer has scratch_floats floats, is aligned to a cache line, and is reused by the thread's next
// call. Items begin in order. The calling thread polls should_stop now and then; once it returns true, no further item
// begins and parallel_for returns false.
bool parallel_for(int64_t num_items, int64_t num_threads, size_t scratch_floats, void (*work)(void*, int64_t, float*),
                  void* context, bool (*should_stop)());

// Where the threads come from: "GNU OpenMP", "LLVM OpenMP", "thread pool", or "one thread" in a forked child.
const char* thread_runtime();

}  // namespace regard
