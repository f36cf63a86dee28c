// The Python module _core: the builds that this processor can run, a call of each kernel on packed parameters, and a
// description of the packed structs that backends/native/abi.py compares with its own.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cstring>
#include <new>

#include "abi.h"
#include "abi_table.h"
#include "dispatch.h"
#include "kernel_table.h"
#include "parallel.h"

namespace {

using regard::AttentionParams;
using regard::KernelTable;
using regard::supported_builds;
using regard::ThresholdParams;
using regard::WeightTileParams;

// Whether a signal handler has raised an exception. Called on the calling thread, which has released the GIL.
bool has_pending_signal() {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool is_pending = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return is_pending;
}

// Copies a packed struct from a bytes object. Returns false with an exception set where its size is wrong.
template <class Struct>
bool unpack(PyObject* bytes_object, Struct& target) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes_object, &bytes, &size) < 0) return false;
  if (size != Py_ssize_t(sizeof(Struct))) {
    PyErr_Format(PyExc_ValueError, "packed parameters must have %zu bytes, got %zd", sizeof(Struct), size);
    return false;
  }
  std::memcpy(&target, bytes, sizeof(Struct));
  return true;
}

// Runs a kernel of a build without the GIL.
template <class Body>
PyObject* run_kernel(PyObject* const* args, Py_ssize_t count, Py_ssize_t expected_count, const Body& body) {
  if (count != expected_count) {
    PyErr_Format(PyExc_TypeError, "expected %zd arguments (the index of a build, then packed parameters), got %zd",
                 expected_count, count);
    return nullptr;
  }
  const long build = PyLong_AsLong(args[0]);
  if (PyErr_Occurred()) return nullptr;
  if (build < 0 || build >= long(supported_builds().size())) {
    PyErr_Format(PyExc_ValueError, "build must be an index that builds() returns, got %ld", build);
    return nullptr;
  }
  AttentionParams params;
  if (!unpack(args[1], params)) return nullptr;
  if (params.n_q > regard::MAX_LENGTH || params.n_k > regard::MAX_LENGTH) {
    PyErr_Format(PyExc_ValueError, "n_q and n_k must be at most %lld, got %lld and %lld", (long long)regard::MAX_LENGTH,
                 (long long)params.n_q, (long long)params.n_k);
    return nullptr;
  }
  bool is_complete = false, is_out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    is_complete = body(*supported_builds()[build], params);
  } catch (const std::bad_alloc&) {
    is_out_of_memory = true;
  }
  Py_END_ALLOW_THREADS;
  if (is_out_of_memory) return PyErr_NoMemory();
  if (!is_complete) {
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* forward(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return run_kernel(args, count, 2, [](const KernelTable& build, const AttentionParams& params) {
    return build.forward(params, has_pending_signal);
  });
}

PyObject* backward(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return run_kernel(args, count, 2, [](const KernelTable& build, const AttentionParams& params) {
    return build.backward(params, has_pending_signal);
  });
}

PyObject* weights(PyObject*, PyObject* const* args, Py_ssize_t count) {
  WeightTileParams weight_tile;
  if (count == 3 && !unpack(args[2], weight_tile)) return nullptr;
  return run_kernel(args, count, 3, [&](const KernelTable& build, const AttentionParams& params) {
    return build.weights(params, weight_tile, has_pending_signal);
  });
}

PyObject* thresholded(PyObject*, PyObject* const* args, Py_ssize_t count) {
  ThresholdParams threshold_params;
  if (count == 3 && !unpack(args[2], threshold_params)) return nullptr;
  return run_kernel(args, count, 3, [&](const KernelTable& build, const AttentionParams& params) {
    return build.thresholded(params, threshold_params, has_pending_signal);
  });
}

PyObject* builds(PyObject*, PyObject*) {
  PyObject* result = PyList_New(0);
  for (long n = 0; result && n < long(supported_builds().size()); ++n) {
    const KernelTable* build = supported_builds()[n];
    PyObject* entry = Py_BuildValue("(lsLLL)", n, build->name, static_cast<long long>(build->panel_queries),
                                    static_cast<long long>(build->lanes), static_cast<long long>(build->chunk_keys));
    if (!entry || PyList_Append(result, entry) < 0) Py_CLEAR(result);
    Py_XDECREF(entry);
  }
  return result;
}

PyObject* thread_runtime(PyObject*, PyObject*) { return PyUnicode_FromString(regard::thread_runtime()); }

// The description as {group: {name: value}}.
PyObject* abi(PyObject*, PyObject*) {
  PyObject* result = PyDict_New();
  for (const regard::AbiEntry& entry : regard::ABI_TABLE) {
    if (!result) break;
    PyObject* group = PyDict_GetItemString(result, entry.group);  // borrowed
    if (!group) {
      group = PyDict_New();
      const bool is_added = group && PyDict_SetItemString(result, entry.group, group) == 0;
      Py_XDECREF(group);  // the result owns it
      if (!is_added) {
        Py_CLEAR(result);
        break;
      }
    }
    PyObject* value = PyLong_FromLongLong(entry.value);
    if (!value || PyDict_SetItemString(group, entry.name, value) < 0) Py_CLEAR(result);
    Py_XDECREF(value);
  }
  return result;
}

template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"forward", as_method(forward), METH_FASTCALL,
     "forward(build, params): writes the output and the lse of each row."},
    {"backward", as_method(backward), METH_FASTCALL, "backward(build, params): writes the gradients."},
    {"weights", as_method(weights), METH_FASTCALL,
     "weights(build, params, weight_tile): writes a tile of the weights."},
    {"thresholded", as_method(thresholded), METH_FASTCALL,
     "thresholded(build, params, threshold_params): writes the output and the threshold of each row."},
    {"builds", builds, METH_NOARGS,
     "builds(): (index, name, queries in a panel, queries in a vector, keys in a chunk) of each build, best first."},
    {"thread_runtime", thread_runtime, METH_NOARGS,
     "thread_runtime(): 'GNU OpenMP', 'LLVM OpenMP', 'thread pool' or 'one thread'."},
    {"abi", abi, METH_NOARGS,
     "abi(): sizes and offsets of the packed structs, enumerators and constants, as {group: {name: number}}."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", "The compiled core of regard.", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() { return PyModule_Create(&definition); }
