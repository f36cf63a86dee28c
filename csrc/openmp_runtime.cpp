#include "openmp_runtime.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

namespace regard {
namespace {

// The entry points that GCC and Clang call for `#pragma omp parallel`. LLVM's runtime has both on Linux.
typedef void (*GompParallel)(void (*body)(void*), void* data, unsigned num_threads, unsigned flags);
typedef void (*KmpcMicrotask)(int32_t* thread_id, int32_t* bound_thread_id, ...);
typedef void (*KmpcForkCall)(void* location, int32_t num_args, KmpcMicrotask body, ...);
typedef int32_t (*KmpcGlobalThreadNum)(void* location);
typedef void (*KmpcPushNumThreads)(void* location, int32_t thread_id, int32_t num_threads);

template <class Function>
Function find_function(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

GompParallel gomp_parallel;
KmpcForkCall kmpc_fork_call;
KmpcGlobalThreadNum kmpc_global_thread_num;
KmpcPushNumThreads kmpc_push_num_threads;

void run_with_gomp(void (*body)(void*), void* data, int num_threads) {
  gomp_parallel(body, data, static_cast<unsigned>(num_threads), 0);
}

// LLVM's description of a place in the source; the runtime reads it for messages.
struct KmpcLocation {
  int32_t reserved_1 = 0, flags = 2, reserved_2 = 0, reserved_3 = 0;
  const char* source = ";regard;parallel_for;0;0;;";
};

struct KmpcJob {
  void (*body)(void*);
  void* data;
};

void kmpc_microtask(int32_t*, int32_t*, KmpcJob* job) { job->body(job->data); }

void run_with_kmpc(void (*body)(void*), void* data, int num_threads) {
  KmpcLocation location;
  KmpcJob job{body, data};
  kmpc_push_num_threads(&location, kmpc_global_thread_num(&location), num_threads);
  kmpc_fork_call(&location, 1, reinterpret_cast<KmpcMicrotask>(reinterpret_cast<void (*)()>(kmpc_microtask)), &job);
}

bool is_gnu_library(void* function) {
  Dl_info info;
  return dladdr(function, &info) && info.dli_fname && std::strstr(info.dli_fname, "gomp");
}

}  // namespace

OpenMpRuntime find_openmp_runtime() {
  gomp_parallel = find_function<GompParallel>("GOMP_parallel");
  if (gomp_parallel && is_gnu_library(reinterpret_cast<void*>(gomp_parallel))) return {run_with_gomp, "GNU OpenMP"};
  kmpc_fork_call = find_function<KmpcForkCall>("__kmpc_fork_call");
  kmpc_global_thread_num = find_function<KmpcGlobalThreadNum>("__kmpc_global_thread_num");
  kmpc_push_num_threads = find_function<KmpcPushNumThreads>("__kmpc_push_num_threads");
  if (kmpc_fork_call && kmpc_global_thread_num && kmpc_push_num_threads) return {run_with_kmpc, "LLVM OpenMP"};
  return {nullptr, nullptr};
}

}  // namespace regard
