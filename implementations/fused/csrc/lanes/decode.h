// Few queries on many keys, as when a model generates text. Every key and value is used only a few
// times, so that memory sets the pace: nothing is packed, rows are read where they lie, channels
// across the lanes, and the keys of a head are split over the threads.
//
//   phase 1   one item: the queries of one key/value head's group, one split of its keys; gives a
//             partial result per query (maximum, sum, unnormalised output) in scratch memory
//   phase 2   one item: one query; merges the partial results of all splits
//
// All queries of a group share each row that is loaded. A split goes past its keys in blocks: scores
// for all queries, one step of the online softmax for each, values for all queries.

// Queries per head up to which this pays, with few keys, which packing hardly costs, and with many.
constexpr int64_t kMostDecodeQueries = 4, kMostQueriesOnManyKeys = 16;
constexpr int64_t kManyKeys = 64;
constexpr int64_t kMostGroupedQueries = 64;  // of all heads of a group
constexpr int64_t kDecodeBlockKeys = 64;     // scores of a block: 16 KiB at most

// Keys per split. Not derived from the number of threads, so that results do not depend on it: long
// enough to stream, short enough that a single head is work for many threads.
constexpr int64_t kKeysPerSplit = 512;

// What one thread needs for a split.
struct DecodeWorkspace {
  float *queries, *scores, *sums, *rows;

  DecodeWorkspace(const Problem& p, Arena& arena) {
    const int64_t num_queries = p.group_size() * p.seq_len;
    queries = arena.take<float>(num_queries * padded_to_lanes(p.qk_dim));
    scores = arena.take<float>(num_queries * kDecodeBlockKeys);
    sums = arena.take<float>(num_queries * kLanes);
    rows = arena.take<float>(kDecodeBlockKeys * padded_to_lanes(std::max(p.qk_dim, p.v_dim)));
  }
};

// Rows of whole vectors of contiguous channels are read in place, any others are staged as float32.
inline bool reads_in_place(const Problem& p) {
  return p.key.column == 1 && p.value.column == 1 && p.qk_dim % kLanes == 0 && p.v_dim % kLanes == 0;
}

// One item of phase 1.
template <class Element, bool InPlace>
class DecodeSplit {
 public:
  // What the products read.
  using Source = std::conditional_t<InPlace, Element, Float32>;

  DecodeSplit(const Problem& p, const PartialResults& results, const DecodeWorkspace& w, const KeptKeys& kept,
              int64_t kv_head, int64_t split)
      : p_(p), results_(results), w_(w), kept_(kept), batch_(kv_head / p.num_kv_heads),
        head_(kv_head % p.num_kv_heads), split_(split), num_queries_(p.group_size() * p.seq_len),
        qk_width_(padded_to_lanes(p.qk_dim)), v_width_(padded_to_lanes(p.v_dim)) {}

  void run(Range keys) {
    for (int64_t q = 0; q < num_queries_; ++q) begin(q);
    keys = intersect(intersect(keys, kept_.range), keys_seen_by_any(p_, 0, p_.seq_len));
    for (int64_t key = keys.begin; key < keys.end; key += kDecodeBlockKeys)
      attend_to_block(key, std::min(kDecodeBlockKeys, keys.end - key));
    for (int64_t q = 0; q < num_queries_; ++q) *result(q).sum = sum_of_lanes(load(w_.sums + q * kLanes));
  }

 private:
  PartialResult result(int64_t q) const { return results_.of(batch_ * p_.num_kv_heads + head_, split_, q); }
  float* scores(int64_t q) const { return w_.scores + q * kDecodeBlockKeys; }
  float* query(int64_t q) const { return w_.queries + q * qk_width_; }
  int64_t head_of(int64_t q) const { return head_ * p_.group_size() + q / p_.seq_len; }
  int64_t position_of(int64_t q) const { return q % p_.seq_len; }

  void begin(int64_t q) {
    load_row(row_of<Element>(p_.query, batch_, head_of(q), position_of(q)), p_.query.column, p_.qk_dim, query(q));
    for (int64_t c = 0; c < qk_width_; c += kLanes) store(query(q) + c, load(query(q) + c) * (float(p_.scale) * kLog2E));
    to_order_of_two<Source>(query(q), qk_width_);
    *result(q).maximum = kMinusInfinity;
    __builtin_memset(result(q).output, 0, v_width_ * sizeof(float));
    store(w_.sums + q * kLanes, Vec{});
  }

  void attend_to_block(int64_t first_key, int64_t count) {
    const Rows<Source> keys = source_rows(p_.key, first_key, count, p_.qk_dim);
    for_queries_together(num_queries_, [&](int64_t q, auto number) {
      score_rows<number>(keys, query(q), qk_width_, kDecodeBlockKeys, scores(q));
    });
    for (int64_t q = 0; q < num_queries_; ++q) {
      mask(q, first_key, count);
      exponentiate(q, count);
    }
    const Rows<Source> values = source_rows(p_.value, first_key, count, p_.v_dim);
    for_queries_together(num_queries_, [&](int64_t q, auto number) {
      add_rows<number>(values, scores(q), kDecodeBlockKeys, result(q).output, v_width_);
    });
  }

  Rows<Source> source_rows(const Tensor& t, int64_t first, int64_t count, int64_t channels) const {
    const auto rows = rows_of<Element>(t, batch_, head_, first, count, channels);
    if constexpr (InPlace) {
      return rows;
    } else {
      const int64_t width = padded_to_lanes(channels);
      for (int64_t i = 0; i < count; ++i)
        load_row(rows.base + i * rows.row_stride, rows.column_stride, channels, w_.rows + i * width);
      return {reinterpret_cast<const Float32*>(w_.rows), width, 1, count, channels};
    }
  }

  // Also excludes what the last vector holds beyond the block's keys.
  void mask(int64_t q, int64_t first_key, int64_t count) const {
    const int64_t width = padded_to_lanes(count), position = position_of(q);
    float* s = scores(q);
    if (p_.keep.data || p_.bias.data)
      mask_rows_by_tensors<Element, kDecodeBlockKeys / kLanes>(
          p_, {batch_, head_of(q), position, 1, first_key, count}, s);
    if (kept_.has_holes)
      for (int64_t i = 0; i < count; ++i)
        if (!is_kept(p_, batch_, first_key + i)) s[i] = kMinusInfinity;
    const Range seen = keys_seen_by_any(p_, position, 1);
    const int32_t begin = int32_t(std::clamp<int64_t>(seen.begin - first_key, 0, width));
    const int32_t end = int32_t(std::clamp<int64_t>(seen.end - first_key, 0, count));
    if (begin == 0 && end == width) return;
    for (int64_t i = 0; i < width; i += kLanes) {
      const IntVec key = lane_indices() + int32_t(i);
      const IntVec sees = (key >= begin) & (key < end);
      store(s + i, sees ? load(s + i) : broadcast(kMinusInfinity));
    }
  }

  // Online softmax of one query's scores; softmax.h explains maxima and slack.
  void exponentiate(int64_t q, int64_t count) {
    float* s = scores(q);
    Vec largest = load(s);
    for (int64_t i = kLanes; i < count; i += kLanes) largest = max(load(s + i), largest);
    raise_maximum(q, largest_lane(largest));
    const float maximum = *result(q).maximum;
    const Vec shift = broadcast(maximum == kMinusInfinity ? 0.0f : maximum);
    Vec sum = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      const Vec probabilities = exp2(load(s + i) - shift);
      sum += probabilities;
      store(s + i, probabilities);
    }
    store(w_.sums + q * kLanes, load(w_.sums + q * kLanes) + sum);
  }

  void raise_maximum(int64_t q, float largest) {
    float& maximum = *result(q).maximum;
    if (!(largest > maximum + kSlack)) return;
    const Vec factor = exp2(broadcast(maximum - largest));
    for (int64_t c = 0; c < v_width_; c += kLanes) store(result(q).output + c, load(result(q).output + c) * factor);
    store(w_.sums + q * kLanes, load(w_.sums + q * kLanes) * factor);
    maximum = largest;
  }

  const Problem& p_;
  const PartialResults& results_;
  const DecodeWorkspace& w_;
  const KeptKeys& kept_;
  int64_t batch_, head_, split_, num_queries_, qk_width_, v_width_;
};

class Decode {
 public:
  // Whether this kernel is meant for the problem.
  static bool suits(const Problem& p) {
    const int64_t most = p.kv_seq_len < kManyKeys ? kMostDecodeQueries : kMostQueriesOnManyKeys;
    return p.seq_len <= most && p.group_size() * p.seq_len <= kMostGroupedQueries;
  }

  Decode(const Problem& p, Arena arena) : p_(p), pass_(p, kKeysPerSplit, arena) {}

  int64_t scratch_bytes() const { return pass_.scratch_bytes(); }

  template <class Element>
  void run() {
    reads_in_place(p_) ? run_with<Element, true>() : run_with<Element, false>();
  }

 private:
  template <class Element, bool InPlace>
  void run_with() {
    using Split = DecodeSplit<Element, InPlace>;
    const auto attend = [&](int64_t kv_head, int64_t split, Range keys, const KeptKeys& kept, DecodeWorkspace& w) {
      Split(p_, pass_.results(), w, kept, kv_head, split).run(keys);
    };
    pass_.reset();
    on_threads(p_.threads,
               [&](int64_t thread) { pass_.template run_on<Element, typename Split::Source>(thread, attend); });
  }

  const Problem& p_;
  KeySplitPass<DecodeWorkspace> pass_;
};
