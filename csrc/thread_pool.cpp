#include "thread_pool.h"

#include <system_error>
#include <thread>

namespace regard {

void ThreadPool::run(void (*body)(void*), void* data, int num_threads) {
  const std::unique_lock<std::mutex> usage(is_in_use_, std::try_to_lock);
  if (!usage) return body(data);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    start_workers(num_threads - 1);
    body_ = body, data_ = data;
    num_to_start_ = num_threads - 1 < num_workers_ ? num_threads - 1 : num_workers_;
  }
  job_is_ready_.notify_all();
  body(data);
  std::unique_lock<std::mutex> lock(mutex_);
  num_to_start_ = 0;  // all items have begun: a worker that has not woken up yet is not needed
  job_is_done_.wait(lock, [this] { return num_running_ == 0; });
}

void ThreadPool::start_workers(int count) {
  try {
    for (; num_workers_ < count; ++num_workers_) std::thread([this] { run_worker(); }).detach();
  } catch (const std::system_error&) {  // the system has no more threads: the job runs on fewer
  }
}

void ThreadPool::run_worker() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    job_is_ready_.wait(lock, [this] { return num_to_start_ > 0; });
    --num_to_start_, ++num_running_;
    void (*const body)(void*) = body_;
    void* const data = data_;
    lock.unlock();
    body(data);
    lock.lock();
    if (--num_running_ == 0) job_is_done_.notify_one();
  }
}

}  // namespace regard
