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
  // to scaled scores. staging holds one row of keys.
  template <class Element>
  void by_tensors(float factor, float* staging) const {
    const int64_t rows = std::min<int64_t>(kBlockRows, at_.num_queries);
    for (int64_t i = 0; i < rows; ++i) {
      load_mask_terms<Element>(p_, at_, at_.first_query + i, staging);
      add_padding(staging);
      for (int64_t key = 0; key < at_.num_keys; key += kLanes) {
        float* s = vector_of(i, key);
        store(s, add_terms(load(s) * factor, load(staging + key)));
      }
    }
  }

 private:
  float* vector_of(int64_t row, int64_t key) const {
    const int64_t slot = row / kTileRows * slots_per_group_ + key / kTileSteps;
    return scores_ + slot * kSlotFloats<Parts> + key / kLanes % 2 * kSumElements + row % kTileRows * 16;
  }

  // Also excludes what the last vector holds beyond the block's keys.
  void add_padding(float* terms) const {
    if (p_.key_padding.data)
      for (int64_t key = 0; key < at_.num_keys; ++key)
        if (!is_kept(p_, at_.batch, at_.first_key + key)) terms[key] = kMinusInfinity;
    for (int64_t key = at_.num_keys; key % kLanes; ++key) terms[key] = kMinusInfinity;
  }

  const Problem& p_;
  const BlockPlace& at_;
  float* scores_;
  int64_t slots_per_group_;
};
