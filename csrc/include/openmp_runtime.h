// The OpenMP runtime of the process, if there is one. It is found at run time, among the libraries that are loaded.
#pragma once

namespace regard {

struct OpenMpRuntime {
  // Runs body(data) on num_threads threads, the calling one among them. Null if no runtime is loaded.
  void (*run)(void (*body)(void*), void* data, int num_threads);
  const char* name;
};

OpenMpRuntime find_openmp_runtime();

}  // namespace regard
