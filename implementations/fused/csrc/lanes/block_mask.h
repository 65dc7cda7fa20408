// Masking one block of scores [keys][W], queries across the lanes. Excluded scores become -inf.

// A block of scores: queries [first_query, + num_queries), keys [first_key, + num_keys).
struct BlockPlace {
  int64_t batch, head, first_query, num_queries, first_key, num_keys;
};

// Causal triangle and window: key row i is seen by the lanes in an interval that moves with i.
template <int Vectors>
static void mask_by_position(const Problem& p, const BlockPlace& at, float* scores) {
  const IntVec indices = lane_indices();
  for (int64_t i = 0; i < at.num_keys; ++i) {
    const int64_t distance = at.first_key + i - (at.first_query + p.causal_offset);
    const int64_t first_lane = distance - p.keys_after, last_lane = distance + p.keys_before;
    if (first_lane <= 0 && last_lane >= at.num_queries - 1) continue;
    const int32_t first = int32_t(std::clamp<int64_t>(first_lane, 0, Vectors * kLanes));
    const int32_t last = int32_t(std::clamp<int64_t>(last_lane, -1, Vectors * kLanes));
    for (int j = 0; j < Vectors; ++j) {
      float* s = scores + (i * Vectors + j) * kLanes;
      const IntVec lane = indices + j * kLanes;
      const IntVec seen = (lane >= first) & (lane <= last);
      store(s, seen ? load(s) : broadcast(kMinusInfinity));
    }
  }
}

// Key padding excludes whole key rows.
template <int Vectors>
static void mask_by_padding(const Problem& p, const BlockPlace& at, float* scores) {
  for (int64_t i = 0; i < at.num_keys; ++i)
    if (!is_kept(p, at.batch, at.first_key + i))
      for (int j = 0; j < Vectors; ++j)
        store(scores + (i * Vectors + j) * kLanes, broadcast(kMinusInfinity));
}

// A bias in base 2. The lowest finite number means a uniform row, not an excluded one: it must not
// overflow to -inf.
FUSED_INLINE Vec to_base_2(Vec bias) {
  const Vec scaled = bias * kLog2E;
  const Vec largest = (Vec)(((IntVec)bias & INT32_MIN) | (IntVec)broadcast(__FLT_MAX__));
  return is_infinite(scaled) ? (is_infinite(bias) ? scaled : largest) : scaled;
}

FUSED_INLINE Vec add_terms(Vec scores, Vec terms) {
  // Not a plain sum: an excluded score may be NaN or +inf, and must not reach the output.
  return terms == kMinusInfinity ? broadcast(kMinusInfinity) : scores + terms;
}

// Keep-mask and bias of one query as terms to add to its base-2 scores, from the block's first key on.
template <class Element>
class MaskRow {
 public:
  MaskRow(const Problem& p, const BlockPlace& at, int64_t query)
      : bias_(p.bias.data ? row_of<Element>(p.bias, at.batch, at.head, query) + at.first_key * p.bias.column : nullptr),
        keep_(p.keep.data ? row_of<uint8_t>(p.keep, at.batch, at.head, query) + at.first_key * p.keep.column : nullptr),
        bias_stride_(p.bias.column),
        keep_stride_(p.keep.column),
        is_contiguous_((!bias_ || bias_stride_ == 1) && (!keep_ || keep_stride_ == 1)) {}

  // Terms of kLanes keys, of which the first count exist.
  FUSED_MEMBER Vec terms(int64_t key, int64_t count) const {
    if (count < kLanes || !is_contiguous_) return collect_terms(key, count);
    const Vec bias = bias_ ? to_base_2(load_vector(bias_ + key)) : Vec{};
    return keep_ ? (load_bytes(keep_ + key) == 0 ? broadcast(kMinusInfinity) : bias) : bias;
  }

  // Asks for the same keys of the block that comes block_keys later: rows are far apart, each block
  // takes only a piece of each, and no hardware prefetching follows that.
  FUSED_MEMBER void prefetch(int64_t key, int64_t block_keys) const {
    if (bias_) __builtin_prefetch(bias_ + (key + block_keys) * bias_stride_);
    if (keep_) __builtin_prefetch(keep_ + (key + block_keys) * keep_stride_);
  }

 private:
  __attribute__((noinline)) Vec collect_terms(int64_t key, int64_t count) const {
    Vec terms = {}, keep = {};
    for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); ++i) {
      if (bias_) terms[i] = load_one(bias_ + (key + i) * bias_stride_);
      if (keep_ && !keep_[(key + i) * keep_stride_]) keep[i] = kMinusInfinity;
    }
    return keep == kMinusInfinity ? keep : to_base_2(terms);
  }

  const Element* bias_;
  const uint8_t* keep_;
  int64_t bias_stride_, keep_stride_;
  bool is_contiguous_;
};

// Keep-mask and bias lie in memory with keys contiguous: squares of keys and queries are transposed.
template <class Element, int Vectors>
static void mask_by_tensors(const Problem& p, const BlockPlace& at, float* scores) {
  for (int j = 0; j < Vectors && j * kLanes < at.num_queries; ++j) {
    const int64_t num_rows = std::min<int64_t>(kLanes, at.num_queries - j * kLanes);
    for (int64_t first = 0; first < at.num_keys; first += kLanes) {
      Vec terms[kLanes] = {};
      for (int64_t i = 0; i < num_rows; ++i) {
        const MaskRow<Element> row(p, at, at.first_query + j * kLanes + i);
        terms[i] = row.terms(first, at.num_keys - first);
        row.prefetch(first, at.num_keys);
      }
      transpose(terms);
      for (int64_t i = 0; i < kLanes && first + i < at.num_keys; ++i) {
        float* s = scores + ((first + i) * Vectors + j) * kLanes;
        store(s, add_terms(load(s), terms[i]));
      }
    }
  }
}

// Whether the keep-mask lets any pair of the block through; packed documents skip most blocks.
static bool keeps_any(const Problem& p, const BlockPlace& at) {
  if (!p.keep.data) return true;
  const int64_t rows = p.keep.row ? at.num_queries : 1, keys = p.keep.column ? at.num_keys : 1;
  for (int64_t i = 0; i < rows; ++i) {
    const uint8_t* keep =
        row_of<uint8_t>(p.keep, at.batch, at.head, at.first_query + i) + at.first_key * p.keep.column;
    uint8_t found = 0;
    for (int64_t j = 0; j < keys; ++j) found |= keep[j * p.keep.column];
    if (found) return true;
  }
  return false;
}

// What has to be done to a block's scores.
struct MaskWork {
  bool by_position, by_padding, by_tensors;
  bool any() const { return by_position || by_padding || by_tensors; }
};

static MaskWork mask_work(const Problem& p, const BlockPlace& at, const KeptKeys& kept) {
  const Range clean = keys_seen_by_all(p, at.first_query, at.num_queries);
  const bool inside = clean.begin <= at.first_key && at.first_key + at.num_keys <= clean.end;
  const bool all_kept = !kept.has_holes && at.first_key + at.num_keys <= kept.range.end;
  return {!inside, !all_kept, p.keep.data != nullptr || p.bias.data != nullptr};
}

template <class Element, int Vectors>
static void apply_masks(const Problem& p, const BlockPlace& at, MaskWork work, float* scores) {
  if (work.by_position) mask_by_position<Vectors>(p, at, scores);
  if (work.by_padding) mask_by_padding<Vectors>(p, at, scores);
  if (work.by_tensors) mask_by_tensors<Element, Vectors>(p, at, scores);
}

// The same masks on a block the other way round: rows are queries, keys across the lanes.
template <class Element, int Vectors>
static void mask_rows(const Problem& p, const BlockPlace& at, MaskWork work, float* scores) {
  if (!work.any()) return;
  const IntVec indices = lane_indices();
  const int64_t width = padded_to_lanes(at.num_keys);
  for (int64_t i = 0; i < at.num_queries; ++i) {
    const int64_t query = at.first_query + i;
    float* row_scores = scores + i * Vectors * kLanes;
    if (work.by_tensors) {
      const MaskRow<Element> row(p, at, query);
      for (int64_t key = 0; key < at.num_keys; key += kLanes)
        store(row_scores + key, add_terms(load(row_scores + key), row.terms(key, at.num_keys - key)));
    }
    if (work.by_position) {
      const Range seen = keys_seen_by_any(p, query, 1);
      const int32_t begin = int32_t(std::clamp<int64_t>(seen.begin - at.first_key, 0, width));
      const int32_t end = int32_t(std::clamp<int64_t>(seen.end - at.first_key, 0, width));
      for (int64_t key = 0; key < at.num_keys; key += kLanes) {
        const IntVec lane = indices + int32_t(key);
        store(row_scores + key, (lane >= begin) & (lane < end) ? load(row_scores + key) : broadcast(kMinusInfinity));
      }
    }
    if (work.by_padding)
      for (int64_t key = 0; key < at.num_keys; ++key)
        if (!is_kept(p, at.batch, at.first_key + key)) row_scores[key] = kMinusInfinity;
  }
}
