// The instruction-set paths: which can run here, and what each offers.
#pragma once
#include "problem.h"

namespace fused {

// A pass returns false where its path cannot hold the input's values (AMX: infinities, subnormal
// numbers); the output is then incomplete, and another path has to be asked.
struct Kernel {
  int64_t (*scratch_bytes)(const Problem&);
  bool (*run)(const Problem&);
};

struct Kernels {
  Kernel forward, backward;
};

// Null where the path is not compiled in.
const Kernels* kernels_of(int64_t path);

// Whether processor and operating system allow the path. The first call for AMX asks the operating
// system for the use of its registers.
bool can_run(int64_t path);

}  // namespace fused
