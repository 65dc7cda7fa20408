// The two ends of a block of queries: loading it, and writing its output.

template <class Element, int Parts>
class TileQueryBlock {
 public:
  TileQueryBlock(const Problem& p, const TileWorkspace<Parts>& w, const PackedTiles<Parts>& packed, TileQueries& block)
      : p_(p),
        w_(w),
        packed_(packed),
        at_(block.at),
        block_(block),
        state_(block.softmax),
        queries_(block.tiles) {}

  // False if a query does not fit tiles; the output is then incomplete. Keys outside of kept matter to
  // no query.
  bool begin(const float* key_norms, Range kept) {
    const StageClock clock(kLoadQueries);
    state_.reset();
    block_.num_unsettled = 0;
    if (!load_queries()) return false;
    bound_scores(key_norms, kept);
    prefetch_output();
    return true;
  }

  void finish() {
    const StageClock clock(kWriteOutput);
    complete();
    write_output();
    if (p_.log_sum_exp) write_log_sum_exp();
  }

  // Output and sums are then those of all keys.
  void complete() {
    if (state_.has_settled) take_settled();
  }

  // Query i of the block, complete, which saw a part of its keys.
  void give_partial(int64_t i, const PartialResult& target) const {
    const int64_t group = i / kTileRows;
    *target.maximum = state_.maximum[i];
    *target.sum = sum_of_lanes(load(state_.sum[i]));
    for (int64_t c = 0; c < padded_to_lanes(p_.v_dim); c += kLanes)
      store(target.output + c, state_.has_output ? load(output_row(c / kLanes, group, i % kTileRows)) : Vec{});
  }

 private:
  Rows<Element> block_rows(const Tensor& t, int64_t channels) const {
    return rows_of<Element>(t, at_.batch, at_.head, at_.first_query, at_.num_queries, channels);
  }

  // Queries that parts hold exactly stay as they came, and scores are scaled later; a sign or a zero
  // scale goes into the queries all the same, for the maxima need a positive factor. Elsewhere the
  // whole scale goes into the queries.
  bool load_queries() {
    const float scale = float(p_.scale) * kLog2E;
    constexpr bool exact = kSplitsExactly<Element, Parts>;
    const float query_factor = !exact ? scale : scale > 0 ? 1.0f : scale < 0 ? -1.0f : 0.0f;
    state_.score_factor = exact && scale != 0 ? __builtin_fabsf(scale) : 1.0f;
    bool fits = true;
    for (int group = 0; group < kRowGroups; ++group) {
      const auto rows = block_rows(p_.query, p_.qk_dim).from(group * kTileRows);
      fits &= TilePacker<Parts>::pack_left(rows, query_factor, packed_.channel_chunks, Parts * kTileElements,
                                           query_tile(group, 0));
    }
    // A tiny bfloat16 query only makes scores that are 0 anyway.
    return fits || Parts == 1;
  }

  // Rows that will be written: the hardware's own prefetching does not follow jumps from row to row.
  // Inlined, for gcc 12 drops a call of a function that does nothing else.
  FUSED_MEMBER void prefetch_output() const {
    if (p_.output.column != 1) return;
    constexpr int64_t kLineElements = 64 / int64_t(sizeof(Element));
    const auto rows = block_rows(p_.output, p_.v_dim);
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t c = 0; c < rows.channels; c += kLineElements)
        __builtin_prefetch(rows.base + i * rows.row_stride + c, 1, 2);
  }

  // Rows whose scores are bounded keep what they start with, whatever their neighbours do.
  // Norms are those of the leading parts; the others add less than a hundredth.
  void bound_scores(const float* key_norms, Range kept) {
    constexpr float kOtherParts = 1.02f;
    IntVec beyond = {};
    for (int group = 0; group < kRowGroups; ++group) {
      const __m512 product = (__m512)(squared_norms(group) * largest_key_norms(key_norms, kept, group));
      const Vec bound = (Vec)_mm512_sqrt_ps(product) * (state_.score_factor * kOtherParts);
      IntVec is_bounded = bound <= kBoundedScore;  // not so where it is NaN
      if (p_.bias.data) is_bounded = IntVec{};
      const Vec in_place_of_maximum = Parts == 1 ? bound : Vec{};
      store(state_.maximum + group * kTileRows, is_bounded ? in_place_of_maximum : broadcast(kMinusInfinity));
      store(state_.slack + group * kTileRows, is_bounded ? broadcast(2 * kBoundedScore) : broadcast(kSlack));
      beyond |= ~is_bounded;
    }
    state_.is_bounded = !any(beyond);
  }

  // Of the keys that each row of a group sees by position, and of no others: what a query cannot see
  // must not change its result, not even by a rounding.
  Vec largest_key_norms(const float* key_norms, Range kept, int group) const {
    const int64_t first = at_.first_query + group * kTileRows;
    const Range common = intersect(keys_seen_by_all(p_, first, kTileRows), kept);
    const Range all = intersect(keys_seen_by_any(p_, first, kTileRows), kept);
    const Vec of_common = largest_by_lane(key_norms, common, Vec{});
    if (common.begin == all.begin && common.end == all.end) return broadcast(largest_lane(of_common));
    Vec rows[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      const Range seen = intersect(keys_seen_by_any(p_, first + i, 1), kept);
      if (common.empty()) {
        rows[i] = largest_by_lane(key_norms, seen, Vec{});
      } else {
        rows[i] = largest_by_lane(key_norms, {seen.begin, common.begin}, of_common);
        rows[i] = largest_by_lane(key_norms, {common.end, seen.end}, rows[i]);
      }
    }
    return reduce_each(rows, [](Vec a, Vec b) __attribute__((always_inline)) { return max(a, b); });
  }

  static Vec largest_by_lane(const float* key_norms, Range keys, Vec largest) {
    constexpr int kChains = 4;  // of which none waits for another
    Vec chains[kChains] = {largest, largest, largest, largest};
    int64_t key = keys.begin;
    for (; key + kChains * kLanes <= keys.end; key += kChains * kLanes) {
      FUSED_UNROLL
      for (int i = 0; i < kChains; ++i) chains[i] = max(load_unaligned(key_norms + key + i * kLanes), chains[i]);
    }
    largest = max(max(chains[0], chains[1]), max(chains[2], chains[3]));
    for (; key < keys.end; key += kLanes)
      largest = max((Vec)_mm512_maskz_loadu_ps(first_lanes(keys.end - key), key_norms + key), largest);
    return largest;
  }

  Vec squared_norms(int group) const {
    Vec sums[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      __m512 sum = _mm512_setzero_ps();
      for (int64_t c = 0; c < packed_.channel_chunks; ++c) {
        const __m512bh row = (__m512bh)_mm512_load_si512(query_tile(group, c) + i * 32);
        sum = _mm512_dpbf16_ps(sum, row, row);
      }
      sums[i] = (Vec)sum;
    }
    return reduce_each(sums, [](Vec a, Vec b) __attribute__((always_inline)) { return a + b; });
  }

  TileElement* query_tile(int group, int64_t chunk) const {
    return queries_ + (group * packed_.channel_chunks + chunk) * Parts * kTileElements;
  }

  void take_settled() {
    if (state_.has_output) settle(block_, packed_.channel_groups);
    std::swap(block_.output, block_.settled);
    std::memcpy(state_.sum, state_.settled_sum, sizeof state_.sum);
    state_.has_output = true;
  }

  // A query that saw no key has sum 0, and its output is 0 by definition.
  void write_output() {
    const auto rows = block_rows(p_.output, p_.v_dim);
    for (int group = 0; group < kRowGroups; ++group) {
      const Vec sums = state_.row_sums(group);
      alignas(64) float factors[kLanes];
      store(factors, sums == 0.0f ? Vec{} : 1.0f / sums);
      for (int64_t i = 0; i < kTileRows && group * kTileRows + i < rows.count; ++i)
        write_row(rows, group, i, state_.has_output ? factors[i] : 0.0f);
    }
  }

  // Row i of a row group, 16 channels.
  const float* output_row(int64_t channel_group, int64_t group, int64_t i) const {
    return block_.output + (channel_group * kRowGroups + group) * kSumElements + i * 16;
  }

  void write_row(const Rows<Element>& rows, int group, int64_t i, float factor) {
    Element* target = const_cast<Element*>(rows.base) + (group * kTileRows + i) * rows.row_stride;
    const auto output = [&](int64_t g) {
      return state_.has_output ? load(output_row(g, group, i)) * factor : Vec{};
    };
    if (std::is_same_v<Element, BFloat16> && rows.column_stride == 1) {
      for (int64_t g = 0; g < packed_.channel_groups; g += 2)
        _mm512_mask_storeu_epi16(target + g * 16, first_halves(rows.channels - g * 16),
                                 round_to_bfloat16({(__m512)output(g), (__m512)output(g + 1)}));
      return;
    }
    for (int64_t g = 0; g < packed_.channel_groups; ++g) store(w_.staging + g * 16, output(g));
    store_row(target, rows.column_stride, rows.channels, w_.staging);
  }

  void write_log_sum_exp() {
    float* out = p_.log_sum_exp + (at_.batch * p_.num_heads + at_.head) * p_.seq_len + at_.first_query;
    for (int64_t i = 0; i < at_.num_queries; ++i) {
      const float sum = sum_of_lanes(load(state_.sum[i]));
      out[i] = log_sum_exp(state_.maximum[i], sum);
    }
  }

  const Problem& p_;
  const TileWorkspace<Parts>& w_;
  const PackedTiles<Parts>& packed_;
  const BlockPlace& at_;
  TileQueries& block_;
  TileSoftmaxState& state_;
  TileElement* queries_;
};
