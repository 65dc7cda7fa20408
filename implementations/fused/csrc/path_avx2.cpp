// AVX2 path: 16 registers of 8 floats; 4 x 3 hold sums.
#if defined(__x86_64__)
#include "system_headers.h"

#define FUSED_LANES 8
#define FUSED_PANEL_ROWS 4

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
namespace fused::avx2 {
#include "lanes/all_kernels.h"
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
