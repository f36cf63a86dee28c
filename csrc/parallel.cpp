#include "parallel.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

#include "openmp_runtime.h"
#include "thread_pool.h"

namespace regard {
namespace {

const OpenMpRuntime& openmp_runtime() {
  static const OpenMpRuntime runtime = find_openmp_runtime();
  return runtime;
}

// Never destroyed: its threads may outlive static objects.
ThreadPool& thread_pool() {
  static ThreadPool* const pool = new ThreadPool;
  return *pool;
}

constexpr size_t MAX_CACHED_SCRATCH_FLOATS = 1 << 20;

// The scratch buffer of one thread. It grows to the largest call, but a large buffer is released after the call. It is
// freed when the thread ends.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  float* reserve(size_t floats) {
    if (floats > size_) {
      std::free(data_);
      const size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
      data_ = static_cast<float*>(std::aligned_alloc(4096, bytes));
      size_ = data_ ? floats : 0;
    }
    return data_;
  }
  void release_if_large() {
    if (size_ <= MAX_CACHED_SCRATCH_FLOATS) return;
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
  }

 private:
  float* data_ = nullptr;
  size_t size_ = 0;
};

thread_local Scratch thread_scratch;

// Threads do not survive a fork, and a call would wait for them: a forked child uses one thread.
std::atomic<bool> is_forked_child{false};

bool is_single_threaded() {
  static const int atfork_error = pthread_atfork(nullptr, nullptr, [] { is_forked_child = true; });
  return atfork_error != 0 || is_forked_child;
}

struct ParallelJob {
  int64_t num_items;
  size_t scratch_floats;
  void (*work)(void*, int64_t, float*);
  void* context;
  bool (*should_stop)();
  std::atomic<int64_t> next_item{0};
  std::atomic<bool> is_stopped{false};
  std::atomic<bool> is_out_of_memory{false};
};

void run_items(ParallelJob& job, bool polls_should_stop, float* scratch) {
  auto last_poll = std::chrono::steady_clock::now();
  while (!job.is_stopped.load(std::memory_order_relaxed)) {
    const int64_t item = job.next_item.fetch_add(1, std::memory_order_relaxed);
    if (item >= job.num_items) return;
    job.work(job.context, item, scratch);
    if (polls_should_stop && job.should_stop) {
      const auto now = std::chrono::steady_clock::now();
      if (now - last_poll > std::chrono::milliseconds(100)) {
        last_poll = now;
        if (job.should_stop()) job.is_stopped = true;
      }
    }
  }
}

void run_items_in_scratch(ParallelJob& job, bool polls_should_stop) {
  float* scratch = thread_scratch.reserve(job.scratch_floats);
  if (scratch) {
    run_items(job, polls_should_stop, scratch);
  } else {
    job.is_out_of_memory = true;
  }
  thread_scratch.release_if_large();
}

thread_local bool is_calling_thread = false;

void thread_main(void* data) { run_items_in_scratch(*static_cast<ParallelJob*>(data), is_calling_thread); }

}  // namespace

const char* thread_runtime() {
  if (is_single_threaded()) return "one thread";
  return openmp_runtime().run ? openmp_runtime().name : "thread pool";
}

bool parallel_for(int64_t num_items, int64_t num_threads, size_t scratch_floats, void (*work)(void*, int64_t, float*),
                  void* context, bool (*should_stop)()) {
  ParallelJob job{num_items, scratch_floats, work, context, should_stop};
  if (num_threads > num_items) num_threads = num_items;
  if (is_single_threaded() || num_threads <= 1) {
    run_items_in_scratch(job, true);
  } else {
    is_calling_thread = true;
    if (openmp_runtime().run) {
      openmp_runtime().run(thread_main, &job, int(num_threads));
    } else {
      thread_pool().run(thread_main, &job, int(num_threads));
    }
    is_calling_thread = false;
  }
  if (job.is_out_of_memory) throw std::bad_alloc();
  return !job.is_stopped;
}

}  // namespace regard
