// Forward pass on tiles. One thread takes 32 queries through all their keys:
//
//   queries  left tiles, in memory; for 64 channels or fewer of bfloat16, in tile registers
//   scores   sum tiles, stored to score slots in L1; become left tiles of probabilities in place
//   output   sum tiles [channel group][row group] in memory, unnormalised; loaded to registers,
//            added to and stored once per block of keys
//   keys, values   right tiles, packed once per call (PackedTiles), streamed from L2

constexpr int64_t kSlotsPerGroup = 2;  // 64 keys per block: scores and probabilities stay in L1
constexpr int64_t kTileBlockKeys = kSlotsPerGroup * kTileSteps;

// Fetches this block's values and the next block's keys to L1 while the exponentials keep the
// arithmetic units, but not the memory, busy: a share with each row.
class TilePrefetch {
 public:
  TilePrefetch(const TileElement* values, int64_t value_elements, const TileElement* keys, int64_t key_elements)
      : values_(values), keys_(keys) {
    // Only what fits beside the scores, and values first, since they are used first.
    constexpr int64_t kFitting = kL1Bytes * 3 / 4 / sizeof(TileElement);
    values_per_row_ = value_elements <= kFitting ? value_elements / kBlockRows : 0;
    keys_per_row_ = value_elements + key_elements <= kFitting ? key_elements / kBlockRows : 0;
  }

  // Inlined by force: gcc 12 takes a function of nothing but prefetches for one without effect.
  __attribute__((always_inline)) void on_row(int row) const {
    constexpr int64_t kLineElements = 64 / sizeof(TileElement);
    for (int64_t i = 0; i < values_per_row_; i += kLineElements)
      __builtin_prefetch(values_ + row * values_per_row_ + i, 0, 3);
    for (int64_t i = 0; i < keys_per_row_; i += kLineElements)
      __builtin_prefetch(keys_ + row * keys_per_row_ + i, 0, 3);
  }

 private:
  const TileElement *values_, *keys_;
  int64_t values_per_row_, keys_per_row_;  // whole cache lines: tiles have 32 rows' worth of them
};

// Memory of the blocks of one item of work. Each block has its own queries, output and state; scores
// are shared, for a block is done with them before the next one starts.
template <int Parts>
struct TileWorkspace {
  TileElement* queries;
  float *scores, *output, *staging;
  TileSoftmaxState* state;
  int64_t queries_per_block, output_per_block;

  TileWorkspace(const Problem& p, int64_t blocks, Arena& arena) {
    const int64_t chunks = divide_up(p.qk_dim, kTileSteps), groups = divide_up(p.v_dim, kTileSteps) * 2;
    queries_per_block = kRowGroups * chunks * Parts * kTileElements;
    output_per_block = kRowGroups * groups * kSumElements;
    scores = arena.take<float>(kRowGroups * kSlotsPerGroup * kSlotFloats<Parts>);
    staging = arena.take<float>(std::max(kTileBlockKeys, groups * 16));
    state = arena.take<TileSoftmaxState>(blocks);
    queries = arena.take<TileElement>(blocks * queries_per_block);
    output = arena.take<float>(blocks * output_per_block);
  }

  float* slot(int group, int64_t slot) const {
    return scores + (group * kSlotsPerGroup + slot) * kSlotFloats<Parts>;
  }
};

template <class Element, int Parts>
class TileQueryBlock {
 public:
  TileQueryBlock(const Problem& p, const TileWorkspace<Parts>& w, const PackedTiles<Parts>& packed, int64_t slot,
                 const BlockPlace& at, int64_t block)
      : p_(p), w_(w), packed_(packed), at_(at), state_(w.state[block]) {
    queries_ = w.queries + block * w.queries_per_block;
    output_ = w.output + block * w.output_per_block;
    keys_ = packed.keys + slot * packed.keys_per_head();
    values_ = packed.values + slot * packed.values_per_head();
  }

  // False if a query does not fit tiles; the output is then incomplete.
  bool begin(float largest_key_norm) {
    state_.reset();
    if (!load_queries()) return false;
    bound_scores(largest_key_norm);
    prefetch_rows<Intent::kWrite>(block_rows(p_.output, p_.v_dim), kBlockRows);
    return true;
  }

  void attend_to(Range keys, const KeptKeys& kept) {
    at_.first_key = keys.begin;
    at_.num_keys = keys.end - keys.begin;
    if (keeps_any(p_, at_)) attend_to_block(mask_work(p_, at_, kept));
  }

  void finish() {
    write_output();
    if (p_.log_sum_exp) write_log_sum_exp();
  }

 private:
  Rows<Element> block_rows(const Tensor& t, int64_t channels) const {
    return rows_of<Element>(t, at_.batch, at_.head, at_.first_query, at_.num_queries, channels);
  }

  // One part holds the queries as they came, so scores are scaled later; a sign or a zero scale goes
  // into the queries all the same, for the maxima need a positive factor. With more parts the whole
  // scale goes into the queries.
  bool load_queries() {
    const float scale = float(p_.scale) * kLog2E;
    const bool exact = Parts == 1;
    const float query_factor = !exact ? scale : scale > 0 ? 1.0f : scale < 0 ? -1.0f : 0.0f;
    state_.score_factor = exact && scale != 0 ? __builtin_fabsf(scale) : 1.0f;
    prefetch_rows<Intent::kRead>(block_rows(p_.query, p_.qk_dim), kBlockRows);
    bool fits = true;
    for (int group = 0; group < kRowGroups; ++group) {
      const int64_t first = group * kTileRows;
      const auto rows = block_rows(p_.query, p_.qk_dim).from(first);
      for (int64_t c = 0; c < packed_.channel_chunks; ++c)
        fits &= TilePacker<Parts>::pack_left(rows, c * kTileSteps, query_factor, query_tile(group, c));
    }
    // A tiny bfloat16 query only makes scores that are 0 anyway.
    return fits || Parts == 1;
  }

  // Rows whose scores are bounded start with their bound as maximum, whatever their neighbours do.
  // Norms are those of the leading parts; the others add less than a hundredth.
  void bound_scores(float largest_key_norm) {
    constexpr float kOtherParts = 1.02f;
    IntVec beyond = {};
    if (p_.bias.data) largest_key_norm = __builtin_inff();
    for (int group = 0; group < kRowGroups; ++group) {
      const __m512 product = (__m512)(squared_norms(group) * largest_key_norm);
      const Vec bound = (Vec)_mm512_sqrt_ps(product) * (state_.score_factor * kOtherParts);
      const IntVec is_bounded = bound <= kBoundedScore;  // not so where it is NaN
      store(state_.maximum + group * kTileRows, is_bounded ? bound : broadcast(kMinusInfinity));
      beyond |= ~is_bounded;
    }
    state_.is_bounded = !any(beyond);
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

  void attend_to_block(MaskWork work) {
    slots_ = divide_up(at_.num_keys, kTileSteps);
    factor_ = state_.score_factor;
    score();
    mask(work);
    if (!state_.is_bounded) raise_maxima();
    exponentiate();
    add_values();
    state_.has_output = true;
  }

  // S = Q K^T into the score slots.
  void score() {
    const TileElement* key_tiles = keys_ + at_.first_key / kTileRows * packed_.key_tile_size();
    if (Parts == 1 && packed_.channel_chunks == 2) return score_with_resident_queries(key_tiles);
    for (int64_t slot = 0; slot < slots_; ++slot) {
      const TileElement* key0 = key_tiles + 2 * slot * packed_.key_tile_size();
      const TileElement* key1 = key0 + packed_.key_tile_size();
      zero_sums();
      for (int64_t c = 0; c < packed_.channel_chunks; ++c) {
        const int64_t offset = c * Parts * kTileElements;
        multiply_2x2<Parts>(query_tile(0, c), query_tile(1, c), key0 + offset, key1 + offset);
      }
      store_tile<0>(w_.slot(0, slot));
      store_tile<1>(w_.slot(1, slot));
      store_tile<2>(w_.slot(0, slot) + kSumElements);
      store_tile<3>(w_.slot(1, slot) + kSumElements);
    }
  }

  // Two channel chunks of one part: the four query tiles stay in registers 4 to 7.
  void score_with_resident_queries(const TileElement* key_tiles) {
    load_tile<4>(query_tile(0, 0));
    load_tile<5>(query_tile(0, 1));
    load_tile<6>(query_tile(1, 0));
    load_tile<7>(query_tile(1, 1));
    for (int64_t tile = 0; tile < 2 * slots_; ++tile) {
      const TileElement* key = key_tiles + tile * packed_.key_tile_size();
      load_tile_streaming<2>(key);
      load_tile_streaming<3>(key + kTileElements);
      zero_tile<0>();
      zero_tile<1>();
      multiply<0, 4, 2>();
      multiply<1, 6, 2>();
      multiply<0, 5, 3>();
      multiply<1, 7, 3>();
      store_tile<0>(w_.slot(0, tile / 2) + tile % 2 * kSumElements);
      store_tile<1>(w_.slot(1, tile / 2) + tile % 2 * kSumElements);
    }
  }

  void mask(MaskWork work) {
    const bool has_padding_keys = at_.num_keys % kTileSteps != 0;
    const TileMask<Parts> mask(p_, at_, w_.scores, kSlotsPerGroup);
    if (work.by_padding || work.by_tensors) {
      mask.template by_tensors<Element>(factor_);
      factor_ = 1.0f;
    }
    if (work.by_position || has_padding_keys) mask.by_position();
  }

  void raise_maxima() {
    for (int group = 0; group < kRowGroups; ++group)
      raise_row_maxima<Parts>(w_.slot(group, 0), slots_, factor_, group, state_, output_, packed_.channel_groups);
  }

  void exponentiate() {
    const Vec factor = broadcast(factor_);
    const TilePrefetch prefetch(value_block(), slots_ * packed_.value_chunk_size(), next_keys(),
                                2 * slots_ * packed_.key_tile_size());
    for (int row = 0; row < kBlockRows; ++row) {
      // A query that has seen no key yet has maximum -inf; -inf - -inf would be NaN.
      const float maximum = state_.maximum[row] == kMinusInfinity ? 0.0f : state_.maximum[row];
      float* scores = w_.slot(row / kTileRows, 0) + row % kTileRows * 16;
      prefetch.on_row(row);
      Vec sum = Vec{};
      for (int64_t slot = 0; slot < slots_; ++slot)
        sum = exponentiate_slot_row<Parts>(scores + slot * kSlotFloats<Parts>, factor, broadcast(maximum), sum);
      store(state_.sum[row], load(state_.sum[row]) + sum);
    }
  }

  const TileElement* value_block() const {
    return values_ + at_.first_key / kTileSteps * packed_.value_chunk_size();
  }

  const TileElement* next_keys() const {
    return keys_ + (at_.first_key + kTileBlockKeys) / kTileRows * packed_.key_tile_size();
  }

  // O += P V, two channel groups at a time.
  void add_values() {
    const TileElement* values = value_block();
    if (Parts == 1 && slots_ == 2) return add_values_with_resident_probabilities(values);
    for (int64_t g = 0; g < packed_.channel_groups; g += 2) {
      float* output = output_ + g * kRowGroups * kSumElements;
      load_output(output);
      for (int64_t slot = 0; slot < slots_; ++slot) {
        const TileElement* value = values + slot * packed_.value_chunk_size() + g * Parts * kTileElements;
        multiply_2x2<Parts>(probabilities(0, slot), probabilities(1, slot), value, value + Parts * kTileElements);
      }
      store_tile<0>(output);
      store_tile<1>(output + kSumElements);
      store_tile<2>(output + 2 * kSumElements);
      store_tile<3>(output + 3 * kSumElements);
    }
  }

  void load_output(const float* output) {
    if (!state_.has_output) return zero_sums();
    load_tile<0>(output);
    load_tile<1>(output + kSumElements);
    load_tile<2>(output + 2 * kSumElements);
    load_tile<3>(output + 3 * kSumElements);
  }

  // 64 keys of one part: the four probability tiles stay in registers 4 to 7.
  void add_values_with_resident_probabilities(const TileElement* values) {
    load_tile<4>(probabilities(0, 0));
    load_tile<5>(probabilities(0, 1));
    load_tile<6>(probabilities(1, 0));
    load_tile<7>(probabilities(1, 1));
    for (int64_t g = 0; g < packed_.channel_groups; ++g) {
      const TileElement* value = values + g * kTileElements;
      float* output = output_ + g * kRowGroups * kSumElements;
      load_tile_streaming<2>(value);
      load_tile_streaming<3>(value + packed_.value_chunk_size());
      if (state_.has_output) {
        load_tile<0>(output);
        load_tile<1>(output + kSumElements);
      } else {
        zero_tile<0>();
        zero_tile<1>();
      }
      multiply<0, 4, 2>();
      multiply<1, 6, 2>();
      multiply<0, 5, 3>();
      multiply<1, 7, 3>();
      store_tile<0>(output);
      store_tile<1>(output + kSumElements);
    }
  }

  const TileElement* probabilities(int group, int64_t slot) const {
    return reinterpret_cast<const TileElement*>(w_.slot(group, slot));
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

  void write_row(const Rows<Element>& rows, int group, int64_t i, float factor) {
    for (int64_t g = 0; g < packed_.channel_groups; ++g) {
      const Vec o = load(output_ + (g * kRowGroups + group) * kSumElements + i * 16);
      store(w_.staging + g * 16, state_.has_output ? o * factor : Vec{});
    }
    store_row(const_cast<Element*>(rows.base) + (group * kTileRows + i) * rows.row_stride, rows.column_stride,
              rows.channels, w_.staging);
  }

  void write_log_sum_exp() {
    float* out = p_.log_sum_exp + (at_.batch * p_.num_heads + at_.head) * p_.seq_len + at_.first_query;
    for (int64_t i = 0; i < at_.num_queries; ++i) {
      const float sum = sum_of_lanes(load(state_.sum[i]));
      out[i] = sum == 0.0f ? kMinusInfinity : (state_.maximum[i] + __builtin_log2f(sum)) * kLn2;
    }
  }

  const Problem& p_;
  const TileWorkspace<Parts>& w_;
  const PackedTiles<Parts>& packed_;
  BlockPlace at_;
  TileSoftmaxState& state_;
  const TileElement *keys_, *values_;
  TileElement* queries_;
  float* output_;
  float factor_ = 1.0f;  // from the scores of the block in hand to base 2
  int64_t slots_ = 0;
};

// All memory of a forward call, and its two phases: pack, attend.
template <int Parts>
class TileForward {
 public:
  TileForward(const Problem& p, Arena arena)
      : p_(p),
        padding_(p, arena),
        packed_(p),
        schedule_(p, packed_.bytes_per_head(), arena),
        blocks_per_item_(tile_blocks_per_item(p, packed_.bytes_per_head(), kBlockRows)) {
    packed_.place(schedule_.slots(), arena);
    first_workspace_ = round_up(arena.used_bytes(), kPageBytes);
    Arena one(nullptr);
    TileWorkspace<Parts>(p, blocks_per_item_, one);
    workspace_bytes_ = round_up(one.used_bytes(), kPageBytes);
  }

  int64_t scratch_bytes() const { return first_workspace_ + workspace_bytes_ * p_.threads; }

  // False if the input holds values that tiles cannot hold; the output is then incomplete.
  template <class Element>
  bool run() {
    padding_.fill(p_);
    schedule_.reset();
    const int64_t items = divide_up(p_.seq_len, blocks_per_item_ * kBlockRows);
    std::atomic<bool> fits{true};
    on_threads(p_.threads, [&](int64_t thread) {
      Arena arena(static_cast<char*>(p_.scratch) + first_workspace_ + thread * workspace_bytes_);
      const TileWorkspace<Parts> workspace(p_, blocks_per_item_, arena);
      const TileRegisters registers;
      schedule_.run(
          thread, divide_up(packed_.key_chunks, kChunksPerItem), items * p_.group_size(),
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            if (!pack<Element>(kv_head, slot, item)) fits = false;
          },
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            // Later blocks of a causal problem see more keys: they come first, short ones fill gaps.
            const int64_t first = (items - 1 - item % items) * blocks_per_item_ * kBlockRows;
            if (fits && !attend<Element>(kv_head, slot, item / items, first, workspace)) fits = false;
          });
    });
    return fits;
  }

 private:
  static constexpr int64_t kChunksPerItem = 4;
  static constexpr int64_t kPageBytes = 4096;  // workspaces of two threads never share a page

  template <class Element>
  bool pack(int64_t kv_head, int64_t slot, int64_t item) {
    const int64_t first = item * kChunksPerItem, end = std::min(first + kChunksPerItem, packed_.key_chunks);
    bool fits = true;
    for (int64_t chunk = first; chunk < end; ++chunk) fits &= packed_.template pack<Element>(p_, kv_head, slot, chunk);
    return fits;
  }

  // Blocks of queries side by side: each block of keys is fetched once for all of them.
  template <class Element>
  bool attend(int64_t kv_head, int64_t slot, int64_t head_in_group, int64_t first_query, const TileWorkspace<Parts>& w) {
    const int64_t batch = kv_head / p_.num_kv_heads;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + head_in_group;
    const int64_t end_query = std::min(first_query + blocks_per_item_ * kBlockRows, p_.seq_len);
    const KeptKeys& kept = padding_.of(batch);
    const auto block_at = [&](int64_t first) {
      const BlockPlace at{batch, head, first, std::min<int64_t>(kBlockRows, end_query - first), 0, 0};
      return TileQueryBlock<Element, Parts>(p_, w, packed_, slot, at, (first - first_query) / kBlockRows);
    };
    const float largest_key_norm = packed_.largest_key_norm(slot);
    for (int64_t first = first_query; first < end_query; first += kBlockRows)
      if (!block_at(first).begin(largest_key_norm)) return false;
    const Range keys = intersect(keys_seen_by_any(p_, first_query, end_query - first_query), kept.range);
    for (int64_t key = keys.begin / kTileSteps * kTileSteps; key < keys.end; key += kTileBlockKeys)
      for (int64_t first = first_query; first < end_query; first += kBlockRows) {
        const int64_t count = std::min<int64_t>(kBlockRows, end_query - first);
        const Range seen = intersect(keys_seen_by_any(p_, first, count), kept.range);
        const Range block = {key, std::min(key + kTileBlockKeys, seen.end)};
        if (!intersect(block, seen).empty()) block_at(first).attend_to(block, kept);
      }
    for (int64_t first = first_query; first < end_query; first += kBlockRows) block_at(first).finish();
    return true;
  }

  const Problem& p_;
  PaddingSummary padding_;
  PackedTiles<Parts> packed_;
  HeadSchedule schedule_;
  int64_t blocks_per_item_;
  int64_t first_workspace_, workspace_bytes_;
};
