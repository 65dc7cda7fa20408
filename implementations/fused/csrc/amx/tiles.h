// The eight tile registers: 16 rows of 64 bytes each.
//
//   sum    16 x 16 float32
//   left   16 rows x 32 bfloat16: 16 rows of the left matrix, 32 steps of the summed index
//   right  16 pairs x 16 columns x 2 bfloat16: row p holds steps 2p and 2p + 1, interleaved
//
// multiply<S, L, R> adds left L times right R to sum S: 8192 multiply-adds in 16 cycles, 52 cycles
// until the sum can be added to again, so four sums are kept in flight. Every tile in memory is
// 1 KiB, contiguous.

constexpr int kTileRows = 16;
constexpr int kTileSteps = 32;
constexpr int64_t kSumElements = 16 * 16;   // float32
constexpr int64_t kTileElements = 16 * 32;  // bfloat16

typedef uint16_t TileElement;  // bits of a bfloat16

// The assembler mnemonics instead of the compiler's intrinsics: those need -mamx for the whole
// file, and gcc 12 does not see that they read and write memory.
template <int Tile>
FUSED_INLINE void load_tile(const void* p) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(64L), "i"(Tile) : "memory");
}

// For operands that are used once per pass over the keys: a hint not to displace the scores in L1.
template <int Tile>
FUSED_INLINE void load_tile_streaming(const void* p) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(64L), "i"(Tile) : "memory");
}

template <int Tile>
FUSED_INLINE void store_tile(void* p) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(64L), "i"(Tile) : "memory");
}

template <int Tile>
FUSED_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}

template <int Sum, int Left, int Right>
FUSED_INLINE void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right));
}

// All eight tiles at full size, for the life of this object, on this thread.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) Configuration {
      uint8_t palette, start_row, reserved[14];
      uint16_t bytes_per_row[16];
      uint8_t rows[16];
    } configuration = {};
    configuration.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      configuration.bytes_per_row[tile] = 64;
      configuration.rows[tile] = kTileRows;
    }
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  ~TileRegisters() { asm volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};
