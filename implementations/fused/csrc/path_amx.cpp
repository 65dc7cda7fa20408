// AMX path: products of bfloat16 tiles, 16 x 16 sums each; everything else as on AVX-512.
#if defined(__x86_64__) && defined(__linux__)
#include "system_headers.h"

#define FUSED_LANES 16
#define FUSED_PANEL_ROWS 8

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,fma,prefer-vector-width=512")
#endif
namespace fused::amx {
#include "lanes/lanes.h"
#include "lanes/exp2.h"
#include "lanes/elements.h"
#include "lanes/pack.h"
#include "lanes/block_mask.h"
#include "lanes/softmax.h"
#include "lanes/partial_results.h"

#include "amx/tiles.h"
#include "amx/split.h"
#include "amx/packed_tiles.h"
#include "amx/tile_products.h"
#include "amx/tile_softmax.h"
#include "amx/tile_mask.h"
#include "amx/tile_workspace.h"
#include "amx/tile_queries.h"
#include "amx/tile_steps.h"
#include "amx/tile_pipeline.h"
#include "amx/tile_forward.h"
#include "amx/tile_decode.h"

// The number of products tells the number of parts.
template <class Body>
static auto with_parts(const Problem& p, Body body) {
  if (p.products == 1) return body(std::integral_constant<int, 1>{});
  if (p.products == 3 || p.products == 4) return body(std::integral_constant<int, 2>{});
  return body(std::integral_constant<int, 3>{});
}

template <class Pass>
static bool run_pass(const Problem& p) {
  Pass pass(p, Arena(p.scratch));
  switch (p.element_type) {
    case kFloat32: return pass.template run<Float32>();
    case kBFloat16: return pass.template run<BFloat16>();
    default: return pass.template run<Float16>();
  }
}

int64_t forward_scratch_bytes(const Problem& p) {
  return with_parts(p, [&](auto parts) {
    return TileDecode<parts>::suits(p) ? TileDecode<parts>(p, Arena(nullptr)).scratch_bytes()
                                       : TileForward<parts>(p, Arena(nullptr)).scratch_bytes();
  });
}

bool forward(const Problem& p) {
  const StageClock clock(kWholeCall);
  return with_parts(p, [&](auto parts) {
    return TileDecode<parts>::suits(p) ? run_pass<TileDecode<parts>>(p) : run_pass<TileForward<parts>>(p);
  });
}
}  // namespace fused::amx
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
