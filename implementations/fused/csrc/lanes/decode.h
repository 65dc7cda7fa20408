// Few queries on many keys, as when a model generates text. Every key and value is used only a few
// times, so that memory sets the pace: nothing is packed, rows are read where they lie, channels
// across the lanes, and the keys of a head are split over the threads.
//
//   phase 1   one item: the queries of one key/value head's group, one split of its keys; gives a
//             partial result per query (maximum, sum, unnormalised output) in scratch memory
//   phase 2   one item: one query; merges the partial results of all splits

constexpr int64_t kMostDecodeQueries = 4;    // per head; with more, packing pays
constexpr int64_t kMostGroupedQueries = 64;  // of all heads of a group

// Keys per split: long enough to stream, short enough that all threads get some.
inline int64_t keys_per_split(const Problem& p) {
  constexpr int64_t kLeastKeys = 256, kItemsPerThread = 4;
  const int64_t heads = std::max<int64_t>(p.batch_size * p.num_kv_heads, 1);
  const int64_t splits = divide_up(kItemsPerThread * p.threads, heads);
  return round_up(std::max(divide_up(p.kv_seq_len, splits), kLeastKeys), kLanes);
}

struct PartialResult {
  float *maximum, *sum;  // one number each
  float* output;         // [padded v_dim]
};

// Partial results by key/value head, split, and query of the group (head in group, then position).
class PartialResults {
 public:
  PartialResults(const Problem& p, int64_t splits, Arena& arena)
      : queries_(p.group_size() * p.seq_len), splits_(splits), width_(padded_to_lanes(p.v_dim)) {
    const int64_t count = p.batch_size * p.num_kv_heads * splits * queries_;
    numbers_ = arena.take<float>(2 * count);
    outputs_ = arena.take<float>(count * width_);
  }

  PartialResult of(int64_t kv_head, int64_t split, int64_t query) const {
    const int64_t index = (kv_head * splits_ + split) * queries_ + query;
    return {numbers_ + 2 * index, numbers_ + 2 * index + 1, outputs_ + index * width_};
  }

 private:
  int64_t queries_, splits_, width_;
  float *numbers_, *outputs_;
};

// Scores of up to kLanes keys, one per lane: products with the query, then one joint reduction.
template <class Element>
FUSED_INLINE Vec score_rows(const Rows<Element>& keys, const float* query) {
  Vec products[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    products[i] = Vec{};
    if (i >= keys.count) continue;
    const Element* key = keys.base + i * keys.row_stride;
    for (int64_t c = 0; c < keys.channels; c += kLanes) products[i] += load_vector(key + c) * load(query + c);
  }
  return reduce_each(products, [](Vec a, Vec b) __attribute__((always_inline)) { return a + b; });
}

// output += probabilities times values, four vectors of channels at a time in registers.
template <class Element>
FUSED_INLINE void add_rows(const Rows<Element>& values, const float* probabilities, float* output) {
  constexpr int kTogether = 4;
  const int64_t count = std::min<int64_t>(values.count, kLanes);
  int64_t c = 0;
  for (; c + kTogether * kLanes <= values.channels; c += kTogether * kLanes) {
    Vec sums[kTogether];
    for (int j = 0; j < kTogether; ++j) sums[j] = load(output + c + j * kLanes);
    for (int64_t i = 0; i < count; ++i)
      for (int j = 0; j < kTogether; ++j)
        sums[j] += probabilities[i] * load_vector(values.base + i * values.row_stride + c + j * kLanes);
    for (int j = 0; j < kTogether; ++j) store(output + c + j * kLanes, sums[j]);
  }
  for (; c < values.channels; c += kLanes) {
    Vec sum = load(output + c);
    for (int64_t i = 0; i < count; ++i) sum += probabilities[i] * load_vector(values.base + i * values.row_stride + c);
    store(output + c, sum);
  }
}

// One item of phase 1.
template <class Element>
class DecodeSplit {
 public:
  DecodeSplit(const Problem& p, const PartialResults& results, float* staging, const KeptKeys& kept, int64_t kv_head,
              int64_t split)
      : p_(p), results_(results), kept_(kept), kv_head_(kv_head), split_(split) {
    queries_ = staging;
    rows_ = queries_ + p.group_size() * p.seq_len * padded_to_lanes(p.qk_dim);
    terms_ = rows_ + kLanes * padded_to_lanes(std::max(p.qk_dim, p.v_dim));
  }

  static int64_t staging_floats(const Problem& p) {
    return p.group_size() * p.seq_len * padded_to_lanes(p.qk_dim) +
           kLanes * padded_to_lanes(std::max(p.qk_dim, p.v_dim)) + 2 * kLanes;
  }

  void run(Range keys) {
    for (int64_t q = 0; q < num_queries(); ++q) begin(q);
    keys = intersect(intersect(keys, kept_.range), keys_seen_by_any(p_, 0, p_.seq_len));
    const int64_t batch = kv_head_ / p_.num_kv_heads, head = kv_head_ % p_.num_kv_heads;
    for (int64_t key = keys.begin; key < keys.end; key += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, keys.end - key);
      attend_to_rows(key, rows_of<Element>(p_.key, batch, head, key, count, p_.qk_dim),
                     rows_of<Element>(p_.value, batch, head, key, count, p_.v_dim));
    }
    for (int64_t q = 0; q < num_queries(); ++q) *result(q).sum = sum_of_lanes(load_unaligned(sums_ + q * kLanes));
  }

 private:
  int64_t num_queries() const { return p_.group_size() * p_.seq_len; }
  PartialResult result(int64_t q) const { return results_.of(kv_head_, split_, q); }
  float* query(int64_t q) const { return queries_ + q * padded_to_lanes(p_.qk_dim); }
  int64_t head_of(int64_t q) const { return kv_head_ % p_.num_kv_heads * p_.group_size() + q / p_.seq_len; }

  void begin(int64_t q) {
    const int64_t batch = kv_head_ / p_.num_kv_heads, width = padded_to_lanes(p_.qk_dim);
    load_row(row_of<Element>(p_.query, batch, head_of(q), q % p_.seq_len), p_.query.column, p_.qk_dim, query(q));
    for (int64_t c = 0; c < width; c += kLanes) store(query(q) + c, load(query(q) + c) * (float(p_.scale) * kLog2E));
    *result(q).maximum = kMinusInfinity;
    __builtin_memset(result(q).output, 0, padded_to_lanes(p_.v_dim) * sizeof(float));
    store_unaligned(sums_ + q * kLanes, Vec{});
  }

  // Whole vectors of contiguous channels are read in place, anything else through staging.
  static bool reads_in_place(const Rows<Element>& rows) {
    return rows.column_stride == 1 && rows.channels % kLanes == 0;
  }

  void attend_to_rows(int64_t first_key, const Rows<Element>& keys, const Rows<Element>& values) {
    prefetch_ahead(keys);
    prefetch_ahead(values);
    Vec scores[kMostGroupedQueries];
    if (reads_in_place(keys)) {
      for (int64_t q = 0; q < num_queries(); ++q) scores[q] = score_rows(keys, query(q));
    } else {
      stage_rows(keys, rows_);
      for (int64_t q = 0; q < num_queries(); ++q) scores[q] = score_rows(staged(keys), query(q));
    }
    if (!reads_in_place(values)) stage_rows(values, rows_);
    for (int64_t q = 0; q < num_queries(); ++q) {
      float* probabilities = terms_ + kLanes;
      store(probabilities, exponentiate(q, masked(q, first_key, keys.count, scores[q])));
      if (reads_in_place(values))
        add_rows(values, probabilities, result(q).output);
      else
        add_rows(staged(values), probabilities, result(q).output);
    }
  }

  // The rows that come kRowsAhead later, as many as are used now.
  static void prefetch_ahead(const Rows<Element>& rows) __attribute__((always_inline)) {
    constexpr int64_t kRowsAhead = 3 * kLanes;
    prefetch_rows<Intent::kRead>(Rows<Element>{rows.base + kRowsAhead * rows.row_stride, rows.row_stride,
                                               rows.column_stride, rows.count, rows.channels}, kLanes);
  }

  Rows<Float32> staged(const Rows<Element>& rows) const {
    return {reinterpret_cast<const Float32*>(rows_), padded_to_lanes(rows.channels), 1, rows.count, rows.channels};
  }

  Vec masked(int64_t q, int64_t first_key, int64_t count, Vec scores) const {
    const int64_t batch = kv_head_ / p_.num_kv_heads, position = q % p_.seq_len;
    const Range seen = keys_seen_by_any(p_, position, 1);
    const int32_t begin = int32_t(std::clamp<int64_t>(seen.begin - first_key, 0, kLanes));
    const int32_t end = int32_t(std::clamp<int64_t>(seen.end - first_key, 0, count));
    if (p_.keep.data || p_.bias.data) {
      load_mask_terms<Element>(p_, {batch, head_of(q), position, 1, first_key, count}, position, terms_);
      scores = add_terms(scores, load(terms_));
    }
    if (kept_.has_holes)
      for (int64_t i = 0; i < count; ++i)
        if (!is_kept(p_, batch, first_key + i)) scores[i] = kMinusInfinity;
    const IntVec lane = lane_indices();
    return (lane >= begin) & (lane < end) ? scores : broadcast(kMinusInfinity);
  }

  // Online softmax of one vector of scores; softmax.h explains maxima and slack.
  Vec exponentiate(int64_t q, Vec scores) {
    float& maximum = *result(q).maximum;
    float largest = kMinusInfinity;
    for (int i = 0; i < kLanes; ++i) largest = scores[i] > largest ? scores[i] : largest;
    Vec sum = load_unaligned(sums_ + q * kLanes);
    if (largest > maximum + kSlack) {
      const Vec factor = exp2(broadcast(maximum - largest));
      for (int64_t c = 0; c < p_.v_dim; c += kLanes) store(result(q).output + c, load(result(q).output + c) * factor);
      sum *= factor;
      maximum = largest;
    }
    const Vec probabilities = exp2(scores - (maximum == kMinusInfinity ? 0.0f : maximum));
    store_unaligned(sums_ + q * kLanes, sum + probabilities);
    return probabilities;
  }

  const Problem& p_;
  const PartialResults& results_;
  const KeptKeys& kept_;
  int64_t kv_head_, split_;
  float *queries_, *rows_, *terms_;
  float sums_[kMostGroupedQueries * kLanes];
};

class Decode {
 public:
  // Whether this kernel is meant for the problem.
  static bool suits(const Problem& p) {
    return p.seq_len <= kMostDecodeQueries && p.group_size() * p.seq_len <= kMostGroupedQueries;
  }

  Decode(const Problem& p, Arena arena)
      : p_(p),
        split_keys_(keys_per_split(p)),
        splits_(std::max<int64_t>(divide_up(p.kv_seq_len, split_keys_), 1)),
        padding_(p, arena),
        schedule_(p, 1, arena),
        results_(p, splits_, arena) {
    first_workspace_ = round_up(arena.used_bytes(), kPageBytes);
    workspace_bytes_ = round_up(DecodeSplit<Float32>::staging_floats(p) * int64_t(sizeof(float)), kPageBytes);
  }

  int64_t scratch_bytes() const { return first_workspace_ + workspace_bytes_ * p_.threads; }

  template <class Element>
  void run() {
    padding_.fill(p_);
    schedule_.reset();
    on_threads(p_.threads, [&](int64_t thread) {
      float* staging = reinterpret_cast<float*>(static_cast<char*>(p_.scratch) + first_workspace_ + thread * workspace_bytes_);
      schedule_.run(
          thread, splits_, p_.group_size() * p_.seq_len,
          [&](int64_t kv_head, int64_t, int64_t split) {
            const KeptKeys& kept = padding_.of(kv_head / p_.num_kv_heads);
            const Range keys = {split * split_keys_, std::min((split + 1) * split_keys_, p_.kv_seq_len)};
            DecodeSplit<Element>(p_, results_, staging, kept, kv_head, split).run(keys);
          },
          [&](int64_t kv_head, int64_t, int64_t query) { merge<Element>(kv_head, query); });
    });
  }

 private:
  static constexpr int64_t kPageBytes = 4096;  // workspaces of two threads never share a page

  // Adds all splits to the first one's output, each rescaled to the common maximum.
  template <class Element>
  void merge(int64_t kv_head, int64_t query) {
    float maximum = kMinusInfinity, sum = 0.0f;
    for (int64_t split = 0; split < splits_; ++split)
      maximum = std::max(maximum, *results_.of(kv_head, split, query).maximum);
    const PartialResult total = results_.of(kv_head, 0, query);
    const float shift = maximum == kMinusInfinity ? 0.0f : maximum;
    for (int64_t split = 0; split < splits_; ++split) {
      const PartialResult part = results_.of(kv_head, split, query);
      const Vec weight = exp2(broadcast(*part.maximum - shift));
      sum += *part.sum * weight[0];
      for (int64_t c = 0; c < p_.v_dim; c += kLanes) {
        const Vec scaled = load(part.output + c) * weight;
        store(total.output + c, split ? load(total.output + c) + scaled : scaled);
      }
    }
    write<Element>(kv_head, query, total.output, maximum, sum);
  }

  template <class Element>
  void write(int64_t kv_head, int64_t query, float* output, float maximum, float sum) {
    const int64_t batch = kv_head / p_.num_kv_heads, position = query % p_.seq_len;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + query / p_.seq_len;
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int64_t c = 0; c < p_.v_dim; c += kLanes) store(output + c, load(output + c) * factor);
    store_row(row_of<Element>(p_.output, batch, head, position), p_.output.column, p_.v_dim, output);
    if (p_.log_sum_exp)
      p_.log_sum_exp[(batch * p_.num_heads + head) * p_.seq_len + position] =
          sum == 0.0f ? kMinusInfinity : (maximum + __builtin_log2f(sum)) * kLn2;
  }

  const Problem& p_;
  int64_t split_keys_, splits_;
  PaddingSummary padding_;
  HeadSchedule schedule_;
  PartialResults results_;
  int64_t first_workspace_, workspace_bytes_;
};
