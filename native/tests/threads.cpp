// The thread layer and the kernels on several threads, for ThreadSanitizer.
//
// The core runs on the threads of an OpenMP runtime that it finds in the process. ThreadSanitizer does not see how such
// a runtime waits for its threads and would report every answer as a race; so this program brings the one function that
// is looked up, made of threads that ThreadSanitizer knows.
#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "cases.h"
#include "found.h"
#include "parallel.h"

#define VISIBLE extern "C" __attribute__((visibility("default")))

// It ends a program that asks for too much memory, unless it is told not to.
VISIBLE const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

VISIBLE void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> team;
  for (unsigned n = 1; n < threads; ++n) team.emplace_back(body, data);
  body(data);
  for (std::thread& member : team) member.join();
}

namespace {

struct Items {
  size_t floats;
  std::vector<int> done;
};

void every_item_is_done_once_in_space_of_its_own() {
  Items items{1000, std::vector<int>(40)};
  const auto work = [](void* context, int64_t item, float* space) {
    Items& all = *static_cast<Items*>(context);
    CHECK(reinterpret_cast<uintptr_t>(space) % 64 == 0, "item %d works at %p", int(item), static_cast<void*>(space));
    std::fill_n(space, all.floats, float(item));
    std::this_thread::yield();
    for (size_t n = 0; n < all.floats; ++n)
      if (space[n] != float(item)) return;  // somebody else works here too
    ++all.done[item];
  };
  CHECK(regard::has_threads(), "the team is not found");
  for (const int64_t threads : {1, 2, 3, 7, 1000}) {
    std::fill(items.done.begin(), items.done.end(), 0);
    items.floats += 3000;  // space grows from call to call
    const bool finished = regard::parallel(int64_t(items.done.size()), threads, items.floats, work, &items, nullptr);
    CHECK(finished, "%d threads: unfinished", int(threads));
    for (size_t n = 0; n < items.done.size(); ++n)
      CHECK(items.done[n] == 1, "%d threads: item %zu is done %d times", int(threads), n, items.done[n]);
  }
  CHECK(regard::parallel(0, 4, 1, work, &items, nullptr), "nothing to do is done");
}

std::thread::id caller;

void a_pause_ends_a_call_before_its_end() {
  std::vector<int> done(100000);
  caller = std::this_thread::get_id();
  const bool finished = regard::parallel(
      int64_t(done.size()), 3, 16,
      [](void* context, int64_t item, float*) {
        (*static_cast<std::vector<int>*>(context))[item] = 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      &done,
      [] {
        CHECK(std::this_thread::get_id() == caller, "the caller's own thread must be asked");
        return true;
      });
  const int64_t count = std::count(done.begin(), done.end(), 1);
  CHECK(!finished && count > 0 && count < int64_t(done.size()), "%d of %zu items done", int(count), done.size());
  const auto end = std::find(done.begin(), done.end(), 0);
  CHECK(end - done.begin() == count, "items are begun in order");
}

void too_little_memory_is_an_exception() {
#if !defined(__SANITIZE_ADDRESS__)  // which warns, though nothing is wrong
  for (const int64_t threads : {1, 3}) {
    bool starved = false;
    try {
      regard::parallel(10, threads, size_t(1) << 58, [](void*, int64_t, float*) {}, nullptr, nullptr);
    } catch (const std::bad_alloc&) {
      starved = true;
    }
    CHECK(starved, "%d threads: no exception", int(threads));
  }
#endif
}

void the_number_of_threads_changes_no_bit(const check::Sizes& sizes, const std::vector<check::Case>& cases) {
  for (const regard::Kernels* build : check::builds())
    for (const check::Case& asked : cases) {
      const check::Question question(sizes, asked);
      const check::Found alone(question, *build, 1);
      for (const int64_t threads : {2, 3, 8}) {
        const check::Found found(question, *build, threads);
        CHECK(found.finished && found == alone, "%s: %s on %d threads", build->name, asked.name, int(threads));
      }
    }
}

// As from many threads of Python.
void callers_do_not_disturb_each_other(const check::Sizes& sizes, const check::Case& asked) {
  const regard::Kernels& build = *check::builds().front();
  const check::Question question(sizes, asked);
  const check::Found alone(question, build, 1);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int n = 0; n < 3; ++n)
    callers.emplace_back([&] {
      for (int again = 0; again < 3; ++again) wrong += !(check::Found(question, build, 2) == alone);
    });
  for (std::thread& each : callers) each.join();
  CHECK(wrong == 0, "%d answers are wrong", wrong.load());
}

}  // namespace

int main() {
  const std::vector<check::Case> cases = check::cases();
  every_item_is_done_once_in_space_of_its_own();
  a_pause_ends_a_call_before_its_end();
  too_little_memory_is_an_exception();
  // heads that share keys, several blocks of panels and several tiles of keys: every sum has many turns
  the_number_of_threads_changes_no_bit({2, 4, 2, 193, 391, 8, 5}, cases);
  the_number_of_threads_changes_no_bit({1, 1, 1, 25, 7, 24, 8}, cases);
  callers_do_not_disturb_each_other({1, 4, 1, 97, 193, 8, 8}, check::causal());
  return check::verdict("threads");
}
