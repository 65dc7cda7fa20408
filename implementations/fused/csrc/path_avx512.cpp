// AVX-512 path: 32 registers of 16 floats; 8 x 3 hold sums.
#if defined(__x86_64__)
#include "system_headers.h"

#define FUSED_LANES 16
#define FUSED_PANEL_ROWS 8

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
#endif
namespace fused::avx512 {
#include "lanes/all_kernels.h"
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
