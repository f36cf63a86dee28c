// A pool of threads, for processes without an OpenMP runtime.
#pragma once

#include <condition_variable>
#include <mutex>

namespace regard {

class ThreadPool {
 public:
  // Runs body(data) on up to num_threads threads, the calling one among them, and waits for all of them. If another
  // thread uses the pool, only the calling thread runs it.
  void run(void (*body)(void*), void* data, int num_threads);

 private:
  void start_workers(int count);
  void run_worker();

  std::mutex is_in_use_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable job_is_ready_, job_is_done_;
  void (*body_)(void*) = nullptr;
  void* data_ = nullptr;
  int num_workers_ = 0;
  int num_to_start_ = 0;  // workers that may still join the job
  int num_running_ = 0;   // workers that run the job
};

}  // namespace regard
