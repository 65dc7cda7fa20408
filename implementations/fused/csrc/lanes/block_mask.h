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
FUSED_INLINE float to_base_2(float bias) {
  const float scaled = bias * kLog2E;
  const bool overflowed = __builtin_isinf(scaled) && !__builtin_isinf(bias);
  return overflowed ? __builtin_copysignf(__FLT_MAX__, bias) : scaled;
}

// One query's row of keep-mask and bias as terms to add to base-2 scores.
template <class Element>
static void load_mask_terms(const Problem& p, const BlockPlace& at, int64_t query, float* terms) {
  if (p.bias.data) {
    const Element* bias = row_of<Element>(p.bias, at.batch, at.head, query) + at.first_key * p.bias.column;
    load_row(bias, p.bias.column, at.num_keys, terms);
    for (int64_t i = 0; i < at.num_keys; ++i) terms[i] = to_base_2(terms[i]);
  } else {
    __builtin_memset(terms, 0, at.num_keys * sizeof(float));
  }
  if (p.keep.data) {
    const uint8_t* keep = row_of<uint8_t>(p.keep, at.batch, at.head, query) + at.first_key * p.keep.column;
    if (p.keep.column == 1)
      for (int64_t i = 0; i < at.num_keys; ++i) terms[i] = keep[i] ? terms[i] : kMinusInfinity;
    else
      for (int64_t i = 0; i < at.num_keys; ++i) terms[i] = keep[i * p.keep.column] ? terms[i] : kMinusInfinity;
  }
}

FUSED_INLINE Vec add_terms(Vec scores, Vec terms) {
  // Not a plain sum: an excluded score may be NaN or +inf, and must not reach the output.
  return terms == kMinusInfinity ? broadcast(kMinusInfinity) : scores + terms;
}

// Keep-mask and bias lie in memory with keys contiguous: staged a vector of queries at a time, then
// transposed. staging holds kLanes rows of padded_to_lanes(num_keys).
template <class Element, int Vectors>
static void mask_by_tensors(const Problem& p, const BlockPlace& at, float* staging, float* scores) {
  const int64_t width = padded_to_lanes(at.num_keys);
  for (int j = 0; j < Vectors && j * kLanes < at.num_queries; ++j) {
    const int64_t rows = std::min<int64_t>(kLanes, at.num_queries - j * kLanes);
    for (int64_t i = 0; i < rows; ++i)
      load_mask_terms<Element>(p, at, at.first_query + j * kLanes + i, staging + i * width);
    for (int64_t first = 0; first < at.num_keys; first += kLanes) {
      Vec terms[kLanes];
      load_transposed(staging, width, first, terms);
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
static void apply_masks(const Problem& p, const BlockPlace& at, MaskWork work, float* staging, float* scores) {
  if (work.by_position) mask_by_position<Vectors>(p, at, scores);
  if (work.by_padding) mask_by_padding<Vectors>(p, at, scores);
  if (work.by_tensors) mask_by_tensors<Element, Vectors>(p, at, staging, scores);
}

// The same masks on a block the other way round: rows are queries, keys across the lanes.
template <class Element, int Vectors>
static void mask_rows(const Problem& p, const BlockPlace& at, MaskWork work, float* terms, float* scores) {
  if (!work.any()) return;
  const IntVec indices = lane_indices();
  const int64_t width = padded_to_lanes(at.num_keys);
  for (int64_t i = 0; i < at.num_queries; ++i) {
    const int64_t query = at.first_query + i;
    const Range seen = keys_seen_by_any(p, query, 1);
    const int32_t begin = int32_t(std::clamp<int64_t>(seen.begin - at.first_key, 0, width));
    const int32_t end = int32_t(std::clamp<int64_t>(seen.end - at.first_key, 0, width));
    if (work.by_tensors) load_mask_terms<Element>(p, at, query, terms);
    for (int j = 0; j < Vectors && j * kLanes < at.num_keys; ++j) {
      float* s = scores + (i * Vectors + j) * kLanes;
      const IntVec lane = indices + j * kLanes;
      const Vec score = work.by_tensors ? add_terms(load(s), load(terms + j * kLanes)) : load(s);
      store(s, (lane >= begin) & (lane < end) ? score : broadcast(kMinusInfinity));
    }
    if (work.by_padding)
      for (int64_t key = 0; key < at.num_keys; ++key)
        if (!is_kept(p, at.batch, at.first_key + key)) scores[i * Vectors * kLanes + key] = kMinusInfinity;
  }
}
