// Queries, keys and values in the order in which tiles are loaded, split into Parts.
//
//   queries  left tiles   [row group][channel chunk][part]   16 rows x 32 channels
//   keys     right tiles  [pair of key tiles][channel chunk][key tile of the pair][part]
//                                                           32 channels x 16 keys
//   values   right tiles  [key chunk][channel group][part]   32 keys x 16 channels
//
// Rows, keys and channels beyond the last are 0.

template <int Parts>
class TilePacker {
 public:
  // Left tile: rows as they are.
  template <class Element>
  static bool pack_left(const Rows<Element>& rows, int64_t first_channel, float factor, TileElement* tiles) {
    bool fits = true;
    for (int64_t i = 0; i < kTileRows; ++i) {
      __m512i parts[Parts];
      fits &= load_split(rows, i, first_channel, factor, parts);
      for (int part = 0; part < Parts; ++part) _mm512_store_si512(tiles + part * kTileElements + i * 32, parts[part]);
    }
    return fits;
  }

  // Right tile of a transposed matrix: pairs of channels are 32-bit units, transposed as such.
  template <class Element>
  static bool pack_right_transposed(const Rows<Element>& rows, int64_t first_channel, TileElement* tiles) {
    bool fits = true;
    Vec square[Parts][kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) {
      __m512i parts[Parts];
      fits &= load_split(rows, i, first_channel, 1.0f, parts);
      for (int part = 0; part < Parts; ++part) square[part][i] = (Vec)parts[part];
    }
    for (int part = 0; part < Parts; ++part) {
      transpose(square[part]);
      for (int i = 0; i < kTileRows; ++i)
        _mm512_store_si512(tiles + part * kTileElements + i * 32, (__m512i)square[part][i]);
    }
    return fits;
  }

  // Two right tiles, channels first_channel + [0, 16) and + [16, 32): rows 2p and 2p + 1 interleaved.
  template <class Element>
  static bool pack_right(const Rows<Element>& rows, int64_t first_channel, TileElement* tiles) {
    const __m512i first_half = interleaving(0), second_half = interleaving(16);
    bool fits = true;
    for (int64_t pair = 0; pair < kTileSteps / 2; ++pair) {
      __m512i even[Parts], odd[Parts];
      fits &= load_split(rows, 2 * pair, first_channel, 1.0f, even);
      fits &= load_split(rows, 2 * pair + 1, first_channel, 1.0f, odd);
      for (int part = 0; part < Parts; ++part) {
        TileElement* row = tiles + part * kTileElements + pair * 32;
        _mm512_store_si512(row, _mm512_permutex2var_epi16(even[part], first_half, odd[part]));
        _mm512_store_si512(row + Parts * kTileElements, _mm512_permutex2var_epi16(even[part], second_half, odd[part]));
      }
    }
    return fits;
  }

 private:
  template <class Element>
  FUSED_INLINE bool load_split(const Rows<Element>& rows, int64_t row, int64_t channel, float factor, __m512i* parts) {
    if (row >= rows.count) {
      for (int part = 0; part < Parts; ++part) parts[part] = _mm512_setzero_si512();
      return true;
    }
    const Element* source = rows.base + row * rows.row_stride + channel * rows.column_stride;
    if constexpr (Parts == 1 && std::is_same_v<Element, BFloat16>) {
      if (rows.column_stride == 1 && factor == 1.0f) {
        parts[0] = _mm512_maskz_loadu_epi16(first_halves(rows.channels - channel), source);
        return bfloat16_fits_tiles(parts[0]);
      }
    }
    Pair x = load_pair(source, rows.column_stride, rows.channels - channel);
    const bool fits = fits_tiles<Parts>(x);
    const __m512 scale = _mm512_set1_ps(factor);
    x = {_mm512_mul_ps(x.low, scale), _mm512_mul_ps(x.high, scale)};
    split<Parts>(x, parts);
    return fits;
  }

  // Index for a 16-bit permutation of two rows: e0 o0 e1 o1 ..., beginning at column first.
  static __m512i interleaving(int first) {
    alignas(64) uint16_t index[32];
    for (int i = 0; i < 32; ++i) index[i] = uint16_t(first + i / 2 + (i % 2) * 32);
    return _mm512_load_si512(index);
  }
};

// Keys and values of the heads of one group, by slot.
template <int Parts>
struct PackedTiles {
  TileElement *keys, *values;
  float* key_norms;
  int64_t channel_chunks, channel_groups, key_chunks;

  explicit PackedTiles(const Problem& p)
      : keys(nullptr),
        values(nullptr),
        key_norms(nullptr),
        channel_chunks(divide_up(p.qk_dim, kTileSteps)),
        channel_groups(divide_up(p.v_dim, kTileSteps) * 2),
        key_chunks(divide_up(p.kv_seq_len, kTileSteps)) {}

  // Takes its memory; returns the arena, in which what comes next lies behind it.
  const Arena& place(int64_t slots, Arena& arena) {
    keys = arena.take<TileElement>(slots * keys_per_head());
    values = arena.take<TileElement>(slots * values_per_head());
    key_norms = arena.take<float>(slots * key_chunks * kTileSteps);
    return arena;
  }

  int64_t key_tile_size() const { return channel_chunks * Parts * kTileElements; }
  int64_t value_chunk_size() const { return channel_groups * Parts * kTileElements; }
  int64_t keys_per_head() const { return 2 * key_chunks * key_tile_size(); }
  int64_t values_per_head() const { return key_chunks * value_chunk_size(); }
  int64_t bytes_per_head() const { return (keys_per_head() + values_per_head()) * int64_t(sizeof(TileElement)); }

  // Squared norms of a head's keys; infinite where a key is not a number.
  const float* key_norms_of(int64_t slot) const { return key_norms + slot * key_chunks * kTileSteps; }

  // Packs keys and values [32 * chunk, + 32) of one head; false if a value does not fit tiles.
  template <class Element>
  bool pack(const Problem& p, int64_t kv_head, int64_t slot, int64_t chunk) {
    const int64_t batch = kv_head / p.num_kv_heads, head = kv_head % p.num_kv_heads;
    const int64_t first = chunk * kTileSteps, count = p.kv_seq_len - first;
    const auto key_rows = rows_of<Element>(p.key, batch, head, first, count, p.qk_dim);
    const auto value_rows = rows_of<Element>(p.value, batch, head, first, count, p.v_dim);
    prefetch_rows<Intent::kRead>(key_rows.from(kTileSteps), kTileSteps);
    prefetch_rows<Intent::kRead>(value_rows.from(kTileSteps), kTileSteps);
    const bool keys_fit = pack_keys(key_rows, keys + slot * keys_per_head() + 2 * chunk * key_tile_size(),
                                    key_norms + (slot * key_chunks + chunk) * kTileSteps);
    return pack_values(value_rows, values + slot * values_per_head() + chunk * value_chunk_size()) && keys_fit;
  }

 private:
  template <class Element>
  bool pack_keys(const Rows<Element>& rows, TileElement* tiles, float* squared_norms) {
    bool fits = true;
    for (int64_t tile = 0; tile < 2; ++tile) {
      Vec sums = {};
      for (int64_t c = 0; c < channel_chunks; ++c) {
        TileElement* target = tiles + (2 * c + tile) * Parts * kTileElements;
        fits &= TilePacker<Parts>::pack_right_transposed(rows.from(tile * kTileRows), c * kTileSteps, target);
        sums = add_squares(target, sums);
      }
      store(squared_norms + tile * kTileRows, sums == sums ? sums : broadcast(__builtin_inff()));
    }
    return fits;
  }

  // Lanes are keys in a right tile; its rows hold pairs of channels.
  FUSED_INLINE Vec add_squares(const TileElement* tile, Vec sums) {
    for (int i = 0; i < kTileRows; ++i) {
      const __m512bh row = (__m512bh)_mm512_load_si512(tile + i * 32);
      sums = (Vec)_mm512_dpbf16_ps((__m512)sums, row, row);
    }
    return sums;
  }

  template <class Element>
  bool pack_values(const Rows<Element>& rows, TileElement* tiles) {
    bool fits = true;
    for (int64_t g = 0; g < channel_groups; g += 2)
      fits &= TilePacker<Parts>::pack_right(rows, g * 16, tiles + g * Parts * kTileElements);
    return fits;
  }
};
