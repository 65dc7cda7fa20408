// The Python module _kernels: three functions over plain integers, no torch headers, stable ABI.
//
//   runnable_paths() -> tuple of path numbers
//   scratch_bytes(pass, problem) -> int
//   run(pass, problem) -> None, without the interpreter lock
//
// problem is any buffer that holds one Problem (problem.h); native.py owns its layout.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>

#include "paths.h"

namespace {

using fused::Kernels;
using fused::Problem;

enum Pass : long { kForward = 0 };

// Copies the problem out of the caller's buffer; false with a Python error set.
bool read_problem(PyObject* buffer, Problem* problem) {
  Py_buffer view;
  if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) != 0) return false;
  const bool fits = view.len == static_cast<Py_ssize_t>(sizeof(Problem));
  if (fits) std::memcpy(problem, view.buf, sizeof(Problem));
  PyBuffer_Release(&view);
  if (!fits) PyErr_SetString(PyExc_ValueError, "the buffer does not hold one Problem");
  return fits;
}

const Kernels* runnable_kernels(const Problem& problem) {
  const Kernels* kernels = fused::can_run(problem.path) ? fused::kernels_of(problem.path) : nullptr;
  if (!kernels) PyErr_SetString(PyExc_ValueError, "this machine cannot run the problem's path");
  return kernels;
}

bool read_call(PyObject* const* args, Py_ssize_t count, long* pass, Problem* problem) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "expected (pass, problem)");
    return false;
  }
  *pass = PyLong_AsLong(args[0]);
  if (*pass == -1 && PyErr_Occurred()) return false;
  return read_problem(args[1], problem);
}

PyObject* scratch_bytes(PyObject*, PyObject* const* args, Py_ssize_t count) {
  long pass;
  Problem problem;
  if (!read_call(args, count, &pass, &problem)) return nullptr;
  const Kernels* kernels = runnable_kernels(problem);
  if (!kernels) return nullptr;
  return PyLong_FromLongLong(kernels->forward_scratch_bytes(problem));
}

PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  long pass;
  Problem problem;
  if (!read_call(args, count, &pass, &problem)) return nullptr;
  const Kernels* kernels = runnable_kernels(problem);
  if (!kernels) return nullptr;
  Py_BEGIN_ALLOW_THREADS
  kernels->forward(problem);
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

PyObject* runnable_paths(PyObject*, PyObject*) {
  PyObject* paths = PyList_New(0);
  for (long path = fused::kPortable; paths && path <= fused::kAmx; ++path) {
    if (!fused::kernels_of(path) || !fused::can_run(path)) continue;
    PyObject* number = PyLong_FromLong(path);
    PyList_Append(paths, number);
    Py_DECREF(number);
  }
  return paths;
}

PyMethodDef methods[] = {
    {"runnable_paths", runnable_paths, METH_NOARGS, "Numbers of the paths that can run here."},
    {"scratch_bytes", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(scratch_bytes)), METH_FASTCALL,
     "Bytes of scratch memory that a pass over the problem needs."},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL,
     "Runs a pass over the problem."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", "Fused attention kernels.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() { return PyModule_Create(&definition); }
