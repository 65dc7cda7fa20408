#include "paths.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fused {

#define FUSED_DECLARE_PATH(name)                      \
  namespace name {                                    \
  int64_t forward_scratch_bytes(const Problem&);      \
  void forward(const Problem&);                       \
  }                                                   \
  static const Kernels k_##name{name::forward_scratch_bytes, name::forward};

FUSED_DECLARE_PATH(portable)
#if defined(__x86_64__)
FUSED_DECLARE_PATH(avx2)
FUSED_DECLARE_PATH(avx512)
#endif

const Kernels* kernels_of(int64_t path) {
  switch (path) {
    case kPortable: return &k_portable;
#if defined(__x86_64__)
    case kAvx2: return &k_avx2;
    case kAvx512: return &k_avx512;
#endif
  }
  return nullptr;
}

#if defined(__x86_64__)
bool can_run(int64_t path) {
  __builtin_cpu_init();
  switch (path) {
    case kPortable: return true;
    case kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
  return false;
}
#else
bool can_run(int64_t path) { return path == kPortable; }
#endif

}  // namespace fused
