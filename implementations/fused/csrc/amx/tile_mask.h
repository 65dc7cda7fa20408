// Masking score tiles: rows are queries, 16 keys to a vector. Excluded scores become -inf.

template <int Parts>
class TileMask {
 public:
  TileMask(const Problem& p, const BlockPlace& at, float* scores, int64_t slots_per_group)
      : p_(p), at_(at), scores_(scores), slots_per_group_(slots_per_group) {}

  // Causal triangle, window and the end of the keys: an interval of keys per row.
  void by_position() const {
    const int64_t width = divide_up(at_.num_keys, kTileSteps) * kTileSteps;
    for (int64_t i = 0; i < kBlockRows; ++i) {
      const Range seen = keys_seen_by_any(p_, at_.first_query + i, 1);
      const int64_t begin = seen.begin - at_.first_key;
      const int64_t end = std::min(seen.end - at_.first_key, at_.num_keys);
      for (int64_t key = 0; key < width; key += kLanes) {
        const __mmask16 excluded = ~(first_lanes(end - key) & ~first_lanes(begin - key));
        if (excluded) _mm512_mask_store_ps(vector_of(i, key), excluded, _mm512_set1_ps(kMinusInfinity));
      }
    }
  }

  // Key padding, keep-mask and bias; scores are multiplied with factor first, since a bias is added
  // to scaled scores. Also excludes what the last vector holds beyond the block's keys.
  template <class Element>
  void by_tensors(float factor) const {
    __mmask16 kept[kMostVectors];
    const uint32_t vectors = uint32_t(divide_up(at_.num_keys, kLanes));
    for (uint32_t v = 0; v < vectors; ++v) kept[v] = kept_keys(v * kLanes);
    with_mask_tensors(p_, [&](auto tensors) __attribute__((always_inline)) {
      for (int64_t i = 0; i < std::min<int64_t>(kBlockRows, at_.num_queries); ++i) {
        const MaskRow<Element, decltype(tensors)> row(p_, at_, at_.first_query + i);
        float* scores = vector_of(i, 0);
        for (uint32_t v = 0; v < vectors; ++v) {
          float* s = scores + v / 2 * kSlotFloats<Parts> + v % 2 * kSumElements;
          const Vec masked = add_terms(load(s) * factor, row.terms(v * kLanes, at_.num_keys - int64_t(v) * kLanes));
          _mm512_store_ps(s, _mm512_mask_mov_ps(_mm512_set1_ps(kMinusInfinity), kept[v], (__m512)masked));
        }
      }
    });
  }

 private:
  float* vector_of(int64_t row, int64_t key) const {
    const int64_t slot = row / kTileRows * slots_per_group_ + key / kTileSteps;
    return scores_ + slot * kSlotFloats<Parts> + key / kLanes % 2 * kSumElements + row % kTileRows * 16;
  }

  static constexpr int64_t kMostVectors = 16;  // of keys in any block

  // Which of the keys [key, + 16) exist and are no padding.
  __mmask16 kept_keys(int64_t key) const {
    const int64_t count = at_.num_keys - key;
    __mmask16 kept = first_lanes(count);
    if (p_.key_padding.data)
      for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); ++i)
        if (!is_kept(p_, at_.batch, at_.first_key + key + i)) kept &= ~(1u << i);
    return kept;
  }

  const Problem& p_;
  const BlockPlace& at_;
  float* scores_;
  int64_t slots_per_group_;
};

// Asks for the mask tensors of a block a turn before they are used, a few rows at a time: all at once, they
// would wait for each other.
template <class Element>
class TileMaskAhead {
 public:
  TileMaskAhead(const Problem& p, const BlockPlace& at, bool has_tensors)
      : p_(p), at_(at), num_rows_(has_tensors ? int(at.num_queries) : 0) {}

  void ask_until(int end) {
    end = std::min(end, num_rows_);
    if (row_ >= end) return;
    with_mask_tensors(p_, [&](auto tensors) __attribute__((always_inline)) {
      for (; row_ < end; ++row_)
        MaskRow<Element, decltype(tensors)>(p_, at_, at_.first_query + row_).prefetch(0, at_.num_keys);
    });
  }

 private:
  const Problem& p_;
  const BlockPlace& at_;
  int num_rows_, row_ = 0;
};
