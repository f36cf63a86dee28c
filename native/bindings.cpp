// What Python sees: the names of the builds that this processor can run, and a call of each kernel on a packed problem.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cstring>
#include <new>

#include "parallel.h"
#include "problem.h"

namespace {

using regard::Kernels;
using regard::Leveled;
using regard::Part;
using regard::Problem;

const Kernels* const* builds() {
  static const Kernels* const found[] = {regard::avx512_kernels(), regard::avx2_kernels(), regard::portable_kernels()};
  return found;
}

// Whether a signal wants to stop the call; asked on the calling thread, which has given the interpreter away.
bool interrupted() {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool stop = PyErr_CheckSignals() != 0;
  PyGILState_Release(state);
  return stop;
}

// What is packed in bytes; false where they are not as many as they must be, with an error set.
template <class What>
bool unpack(PyObject* packed, What& into) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(packed, &bytes, &size) < 0) return false;
  if (size != Py_ssize_t(sizeof(What))) {
    PyErr_Format(PyExc_ValueError, "%zd bytes where %zu are due", size, sizeof(What));
    return false;
  }
  std::memcpy(&into, bytes, sizeof(What));
  return true;
}

// Runs a kernel of a build, without the interpreter.
template <class Run>
PyObject* call(PyObject* const* args, Py_ssize_t count, Py_ssize_t due, const Run& run) {
  if (count != due) {
    PyErr_Format(PyExc_TypeError, "%zd arguments where %zd are due: a build's number, then what is packed", count, due);
    return nullptr;
  }
  const long build = PyLong_AsLong(args[0]);
  if (PyErr_Occurred()) return nullptr;
  if (build < 0 || build > 2 || !builds()[build]) {
    PyErr_Format(PyExc_ValueError, "there is no build %ld", build);
    return nullptr;
  }
  Problem problem;
  if (!unpack(args[1], problem)) return nullptr;
  if (problem.n_q > regard::MAX_LENGTH || problem.n_k > regard::MAX_LENGTH) {
    PyErr_Format(PyExc_ValueError, "n_q and n_k must be at most %lld, got %lld and %lld", (long long)regard::MAX_LENGTH,
                 (long long)problem.n_q, (long long)problem.n_k);
    return nullptr;
  }
  bool done = false, starved = false;
  Py_BEGIN_ALLOW_THREADS;
  try {
    done = run(*builds()[build], problem);
  } catch (const std::bad_alloc&) {
    starved = true;
  }
  Py_END_ALLOW_THREADS;
  if (starved) return PyErr_NoMemory();
  if (!done) {
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* forward(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return call(args, count, 2, [](const Kernels& build, const Problem& p) { return build.forward(p, interrupted); });
}

PyObject* backward(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return call(args, count, 2, [](const Kernels& build, const Problem& p) { return build.backward(p, interrupted); });
}

PyObject* weights(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Part part;
  if (count == 3 && !unpack(args[2], part)) return nullptr;
  return call(args, count, 3, [&](const Kernels& build, const Problem& p) { return build.weights(p, part, interrupted); });
}

PyObject* leveled(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Leveled how;
  if (count == 3 && !unpack(args[2], how)) return nullptr;
  return call(args, count, 3, [&](const Kernels& build, const Problem& p) { return build.leveled(p, how, interrupted); });
}

PyObject* list_builds(PyObject*, PyObject*) {
  PyObject* result = PyList_New(0);
  for (long n = 0; result && n < 3; ++n) {
    const Kernels* build = builds()[n];
    if (!build) continue;
    PyObject* entry = Py_BuildValue("(lsLLL)", n, build->name, static_cast<long long>(build->panel),
                                    static_cast<long long>(build->lanes), static_cast<long long>(build->chunk));
    if (!entry || PyList_Append(result, entry) < 0) Py_CLEAR(result);
    Py_XDECREF(entry);
  }
  return result;
}

PyObject* has_threads(PyObject*, PyObject*) { return PyBool_FromLong(regard::has_threads()); }

template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"forward", as_method(forward), METH_FASTCALL, "forward(build, problem): fills the output and the lse."},
    {"backward", as_method(backward), METH_FASTCALL, "backward(build, problem): adds up the gradients."},
    {"weights", as_method(weights), METH_FASTCALL, "weights(build, problem, part): fills a part of the matrix."},
    {"leveled", as_method(leveled), METH_FASTCALL, "leveled(build, problem, how): fills the output and the levels."},
    {"builds", list_builds, METH_NOARGS, "(number, name, queries a panel, queries a vector, keys a chunk), the best first."},
    {"has_threads", has_threads, METH_NOARGS, "Whether an OpenMP runtime is there to share work with."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", "The compiled core of regard.", -1, methods,
                          nullptr,               nullptr, nullptr,                        nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__core() {
  PyObject* module = PyModule_Create(&definition);
  if (module && PyModule_AddIntConstant(module, "PROBLEM_BYTES", sizeof(Problem)) < 0) Py_CLEAR(module);
  if (module && PyModule_AddIntConstant(module, "MAX_LENGTH", long(regard::MAX_LENGTH)) < 0) Py_CLEAR(module);
  return module;
}
