// Queries, keys and values in the order in which tiles are loaded, split into Parts.
//
//   queries  left tiles   [row group][channel chunk][part]   16 rows x 32 channels
//   keys     right tiles  [pair of key tiles][channel chunk][key tile of the pair][part]
//                                                           32 channels x 16 keys
//   values   right tiles  [key chunk][channel group][part]   32 keys x 16 channels
//
// Rows, keys and channels beyond the last are 0.

// Loads rows in parts of 32 channels, times factor, checks that they fit, and asks for rows further on. A
// row is loaded whole before the next one: the hardware's own prefetching follows that order, and where
// rows are a power of two apart, few of their lines fit the first cache at the same time.
template <class Element, int Parts>
class TileRowLoader {
 public:
  FUSED_MEMBER TileRowLoader(const Rows<Element>& rows, float factor) : rows_(rows), factor_(factor) {}

  FUSED_MEMBER void load(int64_t row, int64_t chunk, __m512i* parts) {
    if (row >= rows_.count) {
      for (int part = 0; part < Parts; ++part) parts[part] = _mm512_setzero_si512();
      return;
    }
    const int64_t channel = chunk * kTileSteps, num_channels = rows_.channels - channel;
    const Element* source = rows_.base + row * rows_.row_stride + channel * rows_.column_stride;
    prefetch(source + kRowsAhead * rows_.row_stride);
    if constexpr (Parts == 1 && std::is_same_v<Element, BFloat16>) {
      if (rows_.column_stride == 1 && factor_ == 1.0f) {
        parts[0] = _mm512_maskz_loadu_epi16(first_halves(num_channels), source);
        return check_.see_halves(parts[0]);
      }
    }
    Pair x = load_pair(source, rows_.column_stride, num_channels);
    check_.see(x);
    const __m512 scale = _mm512_set1_ps(factor_);
    x = {_mm512_mul_ps(x.low, scale), _mm512_mul_ps(x.high, scale)};
    split<Parts>(x, parts);
  }

  FUSED_MEMBER bool fits() const { return check_.fits(); }

 private:
  static constexpr int64_t kRowsAhead = 8;

  static FUSED_MEMBER void prefetch(const Element* source) {
    constexpr int64_t kLineElements = 64 / int64_t(sizeof(Element));
    for (int64_t i = 0; i < kTileSteps; i += kLineElements) __builtin_prefetch(source + i, 0, 3);
  }

  const Rows<Element> rows_;
  const float factor_;
  FitCheck<Parts> check_;
};

// All packing returns false if a value does not fit tiles.
template <int Parts>
class TilePacker {
 public:
  // Left tiles of 16 rows, as they are, times factor; those of a chunk of channels chunk_size apart.
  template <class Element>
  static bool pack_left(const Rows<Element>& rows, float factor, int64_t chunks, int64_t chunk_size,
                        TileElement* tiles) {
    TileRowLoader<Element, Parts> loader(rows, factor);
    for (int64_t i = 0; i < kTileRows; ++i)
      for (int64_t c = 0; c < chunks; ++c) {
        __m512i parts[Parts];
        loader.load(i, c, parts);
        TileElement* target = tiles + c * chunk_size + i * 32;
        for (int part = 0; part < Parts; ++part) _mm512_store_si512(target + part * kTileElements, parts[part]);
      }
    return loader.fits();
  }

  // A left tile becomes the right tile of the transposed matrix: pairs of channels are 32-bit units,
  // transposed as such.
  static void left_to_right(TileElement* tile) {
    Vec square[kTileRows];
    FUSED_UNROLL
    for (int i = 0; i < kTileRows; ++i) square[i] = (Vec)_mm512_load_si512(tile + i * 32);
    transpose(square);
    FUSED_UNROLL
    for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(tile + i * 32, (__m512i)square[i]);
  }

  // Right tiles of 32 rows, two for each chunk of channels: rows 2p and 2p + 1 interleaved.
  template <class Element>
  static bool pack_right(const Rows<Element>& rows, int64_t chunks, TileElement* tiles) {
    const __m512i first_half = interleaving(0), second_half = interleaving(16);
    TileRowLoader<Element, Parts> loader(rows, 1.0f);
    for (int64_t pair = 0; pair < kTileSteps / 2; ++pair)
      for (int64_t c = 0; c < chunks; ++c) {
        __m512i even[Parts], odd[Parts];
        loader.load(2 * pair, c, even);
        loader.load(2 * pair + 1, c, odd);
        TileElement* target = tiles + c * 2 * Parts * kTileElements + pair * 32;
        for (int part = 0; part < Parts; ++part) {
          TileElement* row = target + part * kTileElements;
          _mm512_store_si512(row, _mm512_permutex2var_epi16(even[part], first_half, odd[part]));
          _mm512_store_si512(row + Parts * kTileElements, _mm512_permutex2var_epi16(even[part], second_half, odd[part]));
        }
      }
    return loader.fits();
  }

 private:
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

  // Of all keys of p, or of so many of them.
  explicit PackedTiles(const Problem& p) : PackedTiles(p, p.kv_seq_len) {}

  PackedTiles(const Problem& p, int64_t num_keys)
      : keys(nullptr),
        values(nullptr),
        key_norms(nullptr),
        channel_chunks(divide_up(p.qk_dim, kTileSteps)),
        channel_groups(divide_up(p.v_dim, kTileSteps) * 2),
        key_chunks(divide_up(num_keys, kTileSteps)) {}

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
    const bool keys_fit = pack_keys(key_rows, keys + slot * keys_per_head() + 2 * chunk * key_tile_size(),
                                    key_norms + (slot * key_chunks + chunk) * kTileSteps);
    TileElement* value_tiles = values + slot * values_per_head() + chunk * value_chunk_size();
    return TilePacker<Parts>::pack_right(value_rows, channel_groups / 2, value_tiles) && keys_fit;
  }

 private:
  // Two tiles of 16 keys, side by side for each chunk of channels.
  template <class Element>
  bool pack_keys(const Rows<Element>& rows, TileElement* tiles, float* squared_norms) {
    constexpr int64_t kOneTile = Parts * kTileElements, kPair = 2 * kOneTile;
    bool fits = true;
    for (int64_t tile = 0; tile < 2; ++tile) {
      TileElement* target = tiles + tile * kOneTile;
      fits &= TilePacker<Parts>::pack_left(rows.from(tile * kTileRows), 1.0f, channel_chunks, kPair, target);
      Vec sums[kNormSums] = {};
      for (int64_t c = 0; c < channel_chunks; ++c) {
        for (int part = 0; part < Parts; ++part)
          TilePacker<Parts>::left_to_right(target + c * kPair + part * kTileElements);
        add_squares(target + c * kPair, sums);
      }
      const Vec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      store(squared_norms + tile * kTileRows, sum == sum ? sum : broadcast(__builtin_inff()));
    }
    return fits;
  }

  static constexpr int kNormSums = 4;  // of which none waits for another

  // Lanes are keys in a right tile; its rows hold pairs of channels.
  FUSED_MEMBER void add_squares(const TileElement* tile, Vec* sums) {
    FUSED_UNROLL
    for (int i = 0; i < kTileRows; ++i) {
      const __m512bh row = (__m512bh)_mm512_load_si512(tile + i * 32);
      sums[i % kNormSums] = (Vec)_mm512_dpbf16_ps((__m512)sums[i % kNormSums], row, row);
    }
  }
};
