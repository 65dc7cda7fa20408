#include "paths.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fused {

#define FUSED_DECLARE(path, pass)                       \
  namespace path {                                      \
  int64_t pass##_scratch_bytes(const Problem&);         \
  bool pass(const Problem&);                            \
  }
#define FUSED_KERNEL(path, pass) \
  { path::pass##_scratch_bytes, path::pass }

FUSED_DECLARE(portable, forward)
FUSED_DECLARE(portable, backward)
static const Kernels k_portable{FUSED_KERNEL(portable, forward), FUSED_KERNEL(portable, backward)};
#if defined(__x86_64__)
FUSED_DECLARE(avx2, forward)
FUSED_DECLARE(avx2, backward)
FUSED_DECLARE(avx512, forward)
FUSED_DECLARE(avx512, backward)
static const Kernels k_avx2{FUSED_KERNEL(avx2, forward), FUSED_KERNEL(avx2, backward)};
static const Kernels k_avx512{FUSED_KERNEL(avx512, forward), FUSED_KERNEL(avx512, backward)};
#if defined(__linux__)
// Gradients have no tile kernel: the tile path takes those of AVX-512, which it includes.
FUSED_DECLARE(amx, forward)
static const Kernels k_amx{FUSED_KERNEL(amx, forward), FUSED_KERNEL(avx512, backward)};
#endif
#endif

const Kernels* kernels_of(int64_t path) {
  switch (path) {
    case kPortable: return &k_portable;
#if defined(__x86_64__)
    case kAvx2: return &k_avx2;
    case kAvx512: return &k_avx512;
#if defined(__linux__)
    case kAmx: return &k_amx;
#endif
#endif
  }
  return nullptr;
}

#if defined(__x86_64__)
static bool processor_has_amx() {
  unsigned a, b, c, d;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (kAmxBf16 | kAmxTile))) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvx512Bf16);
}

static bool processor_has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

// Linux saves tile registers only for processes that have asked (once) for permission.
static bool system_allows_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool can_run(int64_t path) {
  __builtin_cpu_init();
  switch (path) {
    case kPortable: return true;
    case kAvx2: {
      // Kept, since cpuid takes microseconds in a virtual machine.
      static const bool has_f16c = processor_has_f16c();
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c;
    }
    case kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    case kAmx: {
      static const bool runnable = can_run(kAvx512) && processor_has_amx() && system_allows_tiles();
      return runnable;
    }
  }
  return false;
}
#else
bool can_run(int64_t path) { return path == kPortable; }
#endif

}  // namespace fused
