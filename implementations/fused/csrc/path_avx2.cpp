// AVX2 path: 16 registers of 8 floats; 4 x 3 hold sums.
#if defined(__x86_64__)
#include "system_headers.h"

#define FUSED_LANES 8
#define FUSED_PANEL_ROWS 4

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace fused::avx2 {
#include "lanes/all_kernels.h"
}
#pragma GCC pop_options
#endif
