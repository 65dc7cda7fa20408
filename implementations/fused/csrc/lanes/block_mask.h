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
  if (__builtin_expect(!any_infinite(scaled), 1)) return scaled;
  const Vec largest = (Vec)(((IntVec)bias & INT32_MIN) | (IntVec)broadcast(__FLT_MAX__));
  return is_infinite(scaled) ? (is_infinite(bias) ? scaled : largest) : scaled;
}

FUSED_INLINE Vec add_terms(Vec scores, Vec terms) {
  // Not a plain sum: an excluded score may be NaN or +inf, and must not reach the output.
  return terms == kMinusInfinity ? broadcast(kMinusInfinity) : scores + terms;
}

// Which tensors a call's mask has: known at compile time inside the loops.
template <bool Bias, bool Keep>
struct MaskTensors {
  static constexpr bool has_bias = Bias, has_keep = Keep;
};

template <class Body>
FUSED_INLINE void with_mask_tensors(const Problem& p, Body body) {
  if (p.bias.data && p.keep.data) return body(MaskTensors<true, true>{});
  if (p.bias.data) return body(MaskTensors<true, false>{});
  if (p.keep.data) return body(MaskTensors<false, true>{});
  body(MaskTensors<false, false>{});
}

// Keep-mask and bias of one query, from the block's first key on.
template <class Element, class Tensors>
class MaskRow {
 public:
  FUSED_MEMBER MaskRow(const Problem& p, const BlockPlace& at, int64_t query)
      : bias_(row_of<Element>(p.bias, at.batch, at.head, query) + at.first_key * p.bias.column),
        keep_(row_of<uint8_t>(p.keep, at.batch, at.head, query) + at.first_key * p.keep.column),
        bias_stride_(p.bias.column),
        keep_stride_(p.keep.column) {}

  // Terms to add to the base-2 scores of kLanes keys, of which the first count exist.
  FUSED_MEMBER Vec terms(int64_t key, int64_t count) const {
    if (__builtin_expect(count < kLanes || !is_contiguous(), 0)) return collect_terms(key, count);
    Vec terms = {};
    if (Tensors::has_bias) terms = to_base_2(load_vector(bias_ + key));
    if (Tensors::has_keep) terms = load_bytes(keep_ + key) == 0 ? broadcast(kMinusInfinity) : terms;
    return terms;
  }

  // Asks for a part of the row ahead of its use: rows are far apart, and no hardware prefetching follows
  // jumps from row to row.
  FUSED_MEMBER void prefetch(int64_t key, int64_t num_keys) const {
    constexpr int64_t kLineElements = 64 / int64_t(sizeof(Element)), kLineBytes = 64;
    if (Tensors::has_bias)
      for (int64_t i = 0; i < num_keys; i += kLineElements) __builtin_prefetch(bias_ + (key + i) * bias_stride_);
    if (Tensors::has_keep)
      for (int64_t i = 0; i < num_keys; i += kLineBytes) __builtin_prefetch(keep_ + (key + i) * keep_stride_);
  }

 private:
  FUSED_MEMBER bool is_contiguous() const {
    return (!Tensors::has_bias || bias_stride_ == 1) && (!Tensors::has_keep || keep_stride_ == 1);
  }

  __attribute__((noinline, cold)) Vec collect_terms(int64_t key, int64_t count) const {
    Vec terms = {}, keep = {};
    for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); ++i) {
      if (Tensors::has_bias) terms[i] = load_one(bias_ + (key + i) * bias_stride_);
      if (Tensors::has_keep && !keep_[(key + i) * keep_stride_]) keep[i] = kMinusInfinity;
    }
    return keep == kMinusInfinity ? keep : to_base_2(terms);
  }

  const Element* bias_;
  const uint8_t* keep_;
  int64_t bias_stride_, keep_stride_;
};

// Keep-mask and bias lie in memory with keys contiguous: squares of keys and queries are transposed.
template <class Element, int Vectors>
static void mask_by_tensors(const Problem& p, const BlockPlace& at, float* scores) {
  with_mask_tensors(p, [&](auto tensors) __attribute__((always_inline)) {
    using Row = MaskRow<Element, decltype(tensors)>;
    for (int64_t lane = 0; lane < at.num_queries; lane += kLanes) {
      const int64_t num_rows = std::min<int64_t>(kLanes, at.num_queries - lane);
      for (int64_t first = 0; first < at.num_keys; first += kLanes) {
        Vec terms[kLanes] = {};
        for (int64_t i = 0; i < num_rows; ++i)
          terms[i] = Row(p, at, at.first_query + lane + i).terms(first, at.num_keys - first);
        transpose(terms);
        for (int64_t i = 0; i < kLanes && first + i < at.num_keys; ++i) {
          float* s = scores + (first + i) * Vectors * kLanes + lane;
          store(s, add_terms(load(s), terms[i]));
        }
      }
      for (int64_t i = 0; i < num_rows; ++i) Row(p, at, at.first_query + lane + i).prefetch(at.num_keys, at.num_keys);
    }
  });
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
static void mask_rows_by_tensors(const Problem& p, const BlockPlace& at, float* scores) {
  with_mask_tensors(p, [&](auto tensors) __attribute__((always_inline)) {
    for (int64_t i = 0; i < at.num_queries; ++i) {
      const MaskRow<Element, decltype(tensors)> row(p, at, at.first_query + i);
      float* s = scores + i * Vectors * kLanes;
      for (int64_t key = 0; key < at.num_keys; key += kLanes)
        store(s + key, add_terms(load(s + key), row.terms(key, at.num_keys - key)));
    }
  });
}

template <int Vectors>
static void mask_rows_by_position(const Problem& p, const BlockPlace& at, float* scores) {
  const int64_t width = padded_to_lanes(at.num_keys);
  for (int64_t i = 0; i < at.num_queries; ++i) {
    const Range seen = keys_seen_by_any(p, at.first_query + i, 1);
    const int32_t begin = int32_t(std::clamp<int64_t>(seen.begin - at.first_key, 0, width));
    const int32_t end = int32_t(std::clamp<int64_t>(seen.end - at.first_key, 0, width));
    float* s = scores + i * Vectors * kLanes;
    for (int64_t key = 0; key < at.num_keys; key += kLanes) {
      const IntVec lane = lane_indices() + int32_t(key);
      const IntVec sees = (lane >= begin) & (lane < end);
      store(s + key, sees ? load(s + key) : broadcast(kMinusInfinity));
    }
  }
}

template <int Vectors>
static void mask_rows_by_padding(const Problem& p, const BlockPlace& at, float* scores) {
  for (int64_t key = 0; key < at.num_keys; ++key)
    if (!is_kept(p, at.batch, at.first_key + key))
      for (int64_t i = 0; i < at.num_queries; ++i) scores[i * Vectors * kLanes + key] = kMinusInfinity;
}

template <class Element, int Vectors>
static void mask_rows(const Problem& p, const BlockPlace& at, MaskWork work, float* scores) {
  if (work.by_tensors) mask_rows_by_tensors<Element, Vectors>(p, at, scores);
  if (work.by_position) mask_rows_by_position<Vectors>(p, at, scores);
  if (work.by_padding) mask_rows_by_padding<Vectors>(p, at, scores);
}
