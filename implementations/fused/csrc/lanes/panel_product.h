// The one inner loop of all vector kernels: kPanelRows x (Vectors * kLanes) sums in registers.
//
//   sums[i][lane] = sum over t of panel[t][i] * block[t][lane]
//
// With AVX-512 8 x 3 vectors: 24 of the 32 registers hold sums, 3 the block's row, and the panel's
// values are broadcast from memory by the multiplication itself. All five products of attention and
// its gradients have this form; only what becomes of the sums differs: that is the epilogue.

template <int Vectors>
using Sums = Vec[kPanelRows][Vectors];

template <int Vectors, class Epilogue>
FUSED_INLINE void panel_product(const float* __restrict panel, const float* __restrict block, int64_t steps,
                                Epilogue epilogue) {
  constexpr int kWidth = Vectors * kLanes;
  Sums<Vectors> sums;
  FUSED_UNROLL
  for (int i = 0; i < kPanelRows; ++i)
    FUSED_UNROLL
    for (int j = 0; j < Vectors; ++j) sums[i][j] = Vec{};
#pragma GCC unroll 2
  for (int64_t t = 0; t < steps; ++t) {
    Vec row[Vectors];
    FUSED_UNROLL
    for (int j = 0; j < Vectors; ++j) row[j] = load(block + t * kWidth + j * kLanes);
    FUSED_UNROLL
    for (int i = 0; i < kPanelRows; ++i) {
      const Vec value = broadcast(panel[t * kPanelRows + i]);
      FUSED_UNROLL
      for (int j = 0; j < Vectors; ++j) sums[i][j] += value * row[j];
    }
  }
  epilogue(sums);
}

template <int Vectors>
FUSED_INLINE void store_sums(Sums<Vectors>& sums, float* target) {
  FUSED_UNROLL
  for (int i = 0; i < kPanelRows; ++i)
    FUSED_UNROLL
    for (int j = 0; j < Vectors; ++j) store(target + (i * Vectors + j) * kLanes, sums[i][j]);
}

// target [ceil(panels * R)][W] = or += the panels' products with the block.
template <int Vectors>
__attribute__((noinline)) static void multiply_panels(const float* panels, int64_t panel_stride, int64_t num_panels,
                                                      const float* block, int64_t steps, float* target) {
  for (int64_t n = 0; n < num_panels; ++n)
    panel_product<Vectors>(panels + n * panel_stride, block, steps,
                           [&](Sums<Vectors>& sums) __attribute__((always_inline)) {
                             store_sums<Vectors>(sums, target + n * kPanelRows * Vectors * kLanes);
                           });
}

template <int Vectors>
__attribute__((noinline)) static void add_panel_products(const float* panels, int64_t panel_stride,
                                                         int64_t num_panels, const float* block, int64_t steps,
                                                         float* target) {
  for (int64_t n = 0; n < num_panels; ++n)
    panel_product<Vectors>(panels + n * panel_stride, block, steps,
                           [&](Sums<Vectors>& sums) __attribute__((always_inline)) {
                             float* out = target + n * kPanelRows * Vectors * kLanes;
                             FUSED_UNROLL
                             for (int i = 0; i < kPanelRows; ++i)
                               FUSED_UNROLL
                               for (int j = 0; j < Vectors; ++j)
                                 sums[i][j] += load(out + (i * Vectors + j) * kLanes);
                             store_sums<Vectors>(sums, out);
                           });
}
