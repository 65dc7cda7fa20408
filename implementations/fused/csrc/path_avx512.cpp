// AVX-512 path: 32 registers of 16 floats; 8 x 3 hold sums.
#if defined(__x86_64__)
#include "system_headers.h"

#define FUSED_LANES 16
#define FUSED_PANEL_ROWS 8

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")
namespace fused::avx512 {
#include "lanes/all_kernels.h"
}
#pragma GCC pop_options
#endif
