// The instruction-set paths: which can run here, and what each offers.
#pragma once
#include "problem.h"

namespace fused {

struct Kernels {
  int64_t (*forward_scratch_bytes)(const Problem&);
  void (*forward)(const Problem&);
};

// Null where the path is not compiled in.
const Kernels* kernels_of(int64_t path);

// Whether processor and operating system allow the path. The first call for AMX asks the operating
// system for the use of its registers.
bool can_run(int64_t path);

}  // namespace fused
