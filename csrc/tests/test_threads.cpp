// The thread layer and the kernels on several threads, also for ThreadSanitizer.
//
// Without an OpenMP runtime in the process, the threads are those of the pool. LD_PRELOAD adds a runtime.
// ThreadSanitizer does not see how a runtime waits for its threads, and would report every result as a race.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>

#include "cases.h"
#include "dispatch.h"
#include "kernel_output.h"
#include "parallel.h"

// By default, ThreadSanitizer ends a program that requests too much memory.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace {

struct ItemCounts {
  size_t scratch_floats;
  std::vector<int> run_counts;
};

void every_item_runs_once_in_a_scratch_buffer_of_its_own() {
  ItemCounts items{1000, std::vector<int>(40)};
  const auto work = [](void* context, int64_t item, float* scratch) {
    ItemCounts& counts = *static_cast<ItemCounts*>(context);
    CHECK(reinterpret_cast<uintptr_t>(scratch) % 64 == 0, "scratch of item %d is at %p", int(item),
          static_cast<void*>(scratch));
    std::fill_n(scratch, counts.scratch_floats, float(item));
    std::this_thread::yield();
    for (size_t n = 0; n < counts.scratch_floats; ++n)
      if (scratch[n] != float(item)) return;  // another item uses the same buffer
    ++counts.run_counts[item];
  };
  for (const int64_t num_threads : {1, 2, 3, 7, 1000}) {
    std::fill(items.run_counts.begin(), items.run_counts.end(), 0);
    items.scratch_floats += 3000;  // the buffer grows from call to call
    const bool is_complete = regard::parallel_for(int64_t(items.run_counts.size()), num_threads, items.scratch_floats,
                                                  work, &items, nullptr);
    CHECK(is_complete, "%d threads: not complete", int(num_threads));
    for (size_t n = 0; n < items.run_counts.size(); ++n)
      CHECK(items.run_counts[n] == 1, "%d threads: item %zu runs %d times", int(num_threads), n, items.run_counts[n]);
  }
  CHECK(regard::parallel_for(0, 4, 1, work, &items, nullptr), "a call without items is complete");
}

std::thread::id caller;

void should_stop_ends_a_call_early() {
  std::vector<int> is_done(100000);
  caller = std::this_thread::get_id();
  const bool is_complete = regard::parallel_for(
      int64_t(is_done.size()), 3, 16,
      [](void* context, int64_t item, float*) {
        (*static_cast<std::vector<int>*>(context))[item] = 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      &is_done,
      [] {
        CHECK(std::this_thread::get_id() == caller, "should_stop must run on the calling thread");
        return true;
      });
  const int64_t count = std::count(is_done.begin(), is_done.end(), 1);
  CHECK(!is_complete && count > 0 && count < int64_t(is_done.size()), "%d of %zu items done", int(count),
        is_done.size());
  const auto end = std::find(is_done.begin(), is_done.end(), 0);
  CHECK(end - is_done.begin() == count, "items begin in order");
}

void lack_of_memory_raises_an_exception() {
#if !defined(__SANITIZE_ADDRESS__)  // which warns about the request itself
  for (const int64_t num_threads : {1, 3}) {
    bool is_out_of_memory = false;
    try {
      regard::parallel_for(
          10, num_threads, size_t(1) << 58, [](void*, int64_t, float*) {}, nullptr, nullptr);
    } catch (const std::bad_alloc&) {
      is_out_of_memory = true;
    }
    CHECK(is_out_of_memory, "%d threads: no exception", int(num_threads));
  }
#endif
}

void results_do_not_depend_on_the_number_of_threads(const check::CallSizes& sizes,
                                                    const std::vector<check::TestCase>& cases) {
  for (const regard::KernelTable* build : regard::supported_builds())
    for (const check::TestCase& test_case : cases) {
      const check::ReferenceCall call(sizes, test_case);
      const check::KernelOutput single_threaded(call, *build, 1);
      for (const int64_t num_threads : {2, 3, 8}) {
        const check::KernelOutput output(call, *build, num_threads);
        CHECK(output.is_complete && output == single_threaded, "%s: %s on %d threads", build->name, test_case.name,
              int(num_threads));
      }
    }
}

// Calls from several threads of Python.
void callers_do_not_disturb_each_other(const check::CallSizes& sizes, const check::TestCase& test_case) {
  const regard::KernelTable& build = *regard::supported_builds().front();
  const check::ReferenceCall call(sizes, test_case);
  const check::KernelOutput single_threaded(call, build, 1);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> callers;
  for (int n = 0; n < 3; ++n)
    callers.emplace_back([&] {
      for (int repetition = 0; repetition < 3; ++repetition)
        num_wrong += !(check::KernelOutput(call, build, 2) == single_threaded);
    });
  for (std::thread& each : callers) each.join();
  CHECK(num_wrong == 0, "%d results are wrong", num_wrong.load());
}

}  // namespace

void threads_come_from_the_loaded_runtime() {
  const char* preload = std::getenv("LD_PRELOAD");
  const std::string library = preload ? preload : "";
  const std::string expected = library.find("gomp") != std::string::npos  ? "GNU OpenMP"
                               : library.find("omp") != std::string::npos ? "LLVM OpenMP"
                                                                          : "thread pool";
  CHECK(regard::thread_runtime() == expected, "the threads are those of %s, not %s", regard::thread_runtime(),
        expected.c_str());
}

// Several items run at the same time: each of two waits for the other one.
void items_run_at_the_same_time() {
  std::atomic<int> num_begun{0};
  regard::parallel_for(
      2, 2, 16,
      [](void* context, int64_t, float*) {
        std::atomic<int>& begun = *static_cast<std::atomic<int>*>(context);
        ++begun;
        for (int n = 0; n < 5000 && begun < 2; ++n) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(begun == 2, "only one item runs at a time");
      },
      &num_begun, nullptr);
}

// A child has none of its parent's threads.
void a_forked_child_uses_one_thread() {
#if !defined(__SANITIZE_THREAD__)  // which does not support a fork of a process with threads
  const pid_t child = fork();
  if (child == 0) {
    std::vector<int> counts(10);
    const bool is_complete = regard::parallel_for(
        10, 4, 16, [](void* context, int64_t item, float*) { ++(*static_cast<std::vector<int>*>(context))[item]; },
        &counts, nullptr);
    const bool is_right = is_complete && std::count(counts.begin(), counts.end(), 1) == 10;
    _exit(is_right && std::string(regard::thread_runtime()) == "one thread" ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %d", status);
#endif
}

int main() {
  const std::vector<check::TestCase> cases = check::cases();
  threads_come_from_the_loaded_runtime();
  items_run_at_the_same_time();
  every_item_runs_once_in_a_scratch_buffer_of_its_own();
  should_stop_ends_a_call_early();
  lack_of_memory_raises_an_exception();
  // heads that share keys, several blocks of panels and several tiles of keys: every sum has many writers
  results_do_not_depend_on_the_number_of_threads({2, 4, 2, 193, 391, 8, 5}, cases);
  results_do_not_depend_on_the_number_of_threads({1, 1, 1, 25, 7, 24, 8}, cases);
  callers_do_not_disturb_each_other({1, 4, 1, 97, 193, 8, 8}, check::causal());
  a_forked_child_uses_one_thread();
  return check::exit_status((std::string("threads of ") + regard::thread_runtime()).c_str());
}
