// Portable path: 128-bit vectors, whatever the machine (SSE2 on x86-64, NEON on aarch64).
#include "system_headers.h"

#define FUSED_LANES 4
#define FUSED_PANEL_ROWS 4

namespace fused::portable {
#include "lanes/all_kernels.h"
}
