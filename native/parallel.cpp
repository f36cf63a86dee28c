#include "parallel.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

namespace regard {
namespace {

typedef void (*RunTeam)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

RunTeam find_team() {
  static const RunTeam found = reinterpret_cast<RunTeam>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
}

constexpr size_t MUCH = 1 << 20;  // floats

// Scratch space of one thread. It grows to the largest call, but for those that take much, and is given back when the
// thread ends.
class Scratch {
 public:
  ~Scratch() { std::free(space_); }
  float* at_least(size_t floats) {
    if (floats > size_) {
      std::free(space_);
      const size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
      space_ = static_cast<float*>(std::aligned_alloc(4096, bytes));
      size_ = space_ ? floats : 0;
    }
    return space_;
  }
  void give_back_much() {
    if (size_ <= MUCH) return;
    std::free(space_);
    space_ = nullptr;
    size_ = 0;
  }

 private:
  float* space_ = nullptr;
  size_t size_ = 0;
};

thread_local Scratch scratch;

// The runtime's threads do not survive a fork, and it would wait for them: a child works alone.
std::atomic<bool> is_child{false};

bool works_alone() {
  static const int watching = pthread_atfork(nullptr, nullptr, [] { is_child = true; });
  return watching != 0 || is_child || !find_team();
}

struct Job {
  int64_t count;
  size_t floats;
  void (*work)(void*, int64_t, float*);
  void* context;
  bool (*pause)();
  std::atomic<int64_t> next{0};
  std::atomic<bool> stopped{false};
  std::atomic<bool> starved{false};
};

void do_items(Job& job, bool asks, float* space) {
  auto asked = std::chrono::steady_clock::now();
  while (!job.stopped.load(std::memory_order_relaxed)) {
    const int64_t item = job.next.fetch_add(1, std::memory_order_relaxed);
    if (item >= job.count) return;
    job.work(job.context, item, space);
    if (asks && job.pause) {
      const auto now = std::chrono::steady_clock::now();
      if (now - asked > std::chrono::milliseconds(100)) {
        asked = now;
        if (job.pause()) job.stopped = true;
      }
    }
  }
}

void take_items(Job& job, bool asks) {
  float* space = scratch.at_least(job.floats);
  if (space) {
    do_items(job, asks, space);
  } else {
    job.starved = true;
  }
  scratch.give_back_much();
}

thread_local bool is_caller = false;

void team_member(void* data) { take_items(*static_cast<Job*>(data), is_caller); }

}  // namespace

bool has_threads() { return !works_alone(); }

bool parallel(int64_t count, int64_t threads, size_t floats, void (*work)(void*, int64_t, float*), void* context,
              bool (*pause)()) {
  Job job{count, floats, work, context, pause};
  if (threads > count) threads = count;
  if (works_alone() || threads <= 1) {
    take_items(job, true);
  } else {
    is_caller = true;
    find_team()(team_member, &job, static_cast<unsigned>(threads), 0);
    is_caller = false;
  }
  if (job.starved) throw std::bad_alloc();
  return !job.stopped;
}

}  // namespace regard
