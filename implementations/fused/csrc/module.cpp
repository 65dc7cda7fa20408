// The Python module _kernels: three functions over plain integers, no torch headers, stable ABI.
//
//   runnable_paths() -> list of path numbers
//   scratch_bytes(pass, problem, threads) -> int
//   run(pass, problem, threads, scratch, log_sum_exp, query, strides, key, strides, ...) -> bool
//
// problem is any buffer that holds one Problem (problem.h; native.py mirrors it): what stays the
// same from call to call. Addresses and strides are given with each call, in the order of
// k_tensors. run releases the interpreter lock; it returns false where the path cannot hold the
// input's values.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstring>
#include <iterator>

#include "blocking.h"
#include "paths.h"
#include "stage_clock.h"

namespace {

using fused::Kernel;
using fused::Kernels;
using fused::Problem;

enum Pass : long { kForward = 0, kBackward = 1 };

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

const Kernel* runnable_kernel(long pass, const Problem& problem) {
  const Kernels* kernels = fused::can_run(problem.path) ? fused::kernels_of(problem.path) : nullptr;
  if (!kernels) {
    PyErr_SetString(PyExc_ValueError, "this machine cannot run the problem's path");
    return nullptr;
  }
  return pass == kForward ? &kernels->forward : &kernels->backward;
}

// The tensors of a call, in the order of run's arguments; a forward call ends after output.
constexpr fused::Tensor Problem::*k_tensors[] = {
    &Problem::query,       &Problem::key,        &Problem::value,    &Problem::output,
    &Problem::grad_output, &Problem::grad_query, &Problem::grad_key, &Problem::grad_value};

bool read_tensor(PyObject* address, PyObject* strides, fused::Tensor* tensor) {
  long long numbers[4];
  tensor->data = PyLong_AsVoidPtr(address);
  for (int i = 0; i < 4; ++i) {
    PyObject* stride = PyTuple_GetItem(strides, i);
    if (!stride) return false;
    numbers[i] = PyLong_AsLongLong(stride);
  }
  tensor->batch = numbers[0], tensor->head = numbers[1], tensor->row = numbers[2], tensor->column = numbers[3];
  return !PyErr_Occurred();
}

// The first three arguments, which both functions share. Null with a Python error set.
const Kernel* read_call(PyObject* const* args, Py_ssize_t count, Py_ssize_t least, long* pass, Problem* problem) {
  if (count < least) {
    PyErr_Format(PyExc_TypeError, "expected at least %zd arguments, got %zd", least, count);
    return nullptr;
  }
  *pass = PyLong_AsLong(args[0]);
  if (!read_problem(args[1], problem)) return nullptr;
  problem->threads = PyLong_AsLong(args[2]);
  if (PyErr_Occurred()) return nullptr;
  problem->threads = fused::useful_threads(*problem);
  return runnable_kernel(*pass, *problem);
}

PyObject* scratch_bytes(PyObject*, PyObject* const* args, Py_ssize_t count) {
  long pass;
  Problem problem;
  const Kernel* kernel = read_call(args, count, 3, &pass, &problem);
  if (!kernel) return nullptr;
  return PyLong_FromLongLong(kernel->scratch_bytes(problem));
}

PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t kFirstTensor = 5;
  long pass;
  Problem problem;
  const Kernel* kernel = read_call(args, count, kFirstTensor, &pass, &problem);
  if (!kernel) return nullptr;
  problem.scratch = PyLong_AsVoidPtr(args[3]);
  problem.log_sum_exp = static_cast<float*>(PyLong_AsVoidPtr(args[4]));
  auto tensor = std::begin(k_tensors);
  for (Py_ssize_t i = kFirstTensor; i + 1 < count && tensor != std::end(k_tensors); i += 2)
    if (!read_tensor(args[i], args[i + 1], &(problem.*(*tensor++)))) return nullptr;
  bool done;
  Py_BEGIN_ALLOW_THREADS
  done = kernel->run(problem);
  Py_END_ALLOW_THREADS
  return PyBool_FromLong(done);
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

#ifdef FUSED_STAGE_COSTS
// Ticks of each stage since the last call.
PyObject* stage_ticks(PyObject*, PyObject*) {
  PyObject* ticks = PyList_New(0);
  for (uint64_t& count : fused::stage_ticks) {
    PyObject* number = PyLong_FromUnsignedLongLong(count);
    PyList_Append(ticks, number);
    Py_DECREF(number);
    count = 0;
  }
  return ticks;
}
#endif

PyMethodDef methods[] = {
#ifdef FUSED_STAGE_COSTS
    {"stage_ticks", stage_ticks, METH_NOARGS, "Processor ticks of each stage since the last call."},
#endif
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
