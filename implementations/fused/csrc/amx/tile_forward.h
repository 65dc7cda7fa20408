// Forward pass on tiles. One thread takes 32 queries through all their keys:
//
//   queries  left tiles, in memory; for 64 channels or fewer of bfloat16, in tile registers
//   scores   sum tiles, stored to score slots in L1; become left tiles of probabilities in place
//   output   sum tiles [channel group][row group] in memory, unnormalised; loaded to registers,
//            added to and stored once per block of keys
//   keys, values   right tiles, packed once per call (PackedTiles), streamed from L2

constexpr int64_t kSlotsPerGroup = 2;  // 64 keys per block: scores and probabilities stay in L1
constexpr int64_t kTileBlockKeys = kSlotsPerGroup * kTileSteps;

template <int Parts>
struct TileWorkspace {
  TileElement* queries;
  float *scores, *output, *staging;
  TileSoftmaxState* state;

  TileWorkspace(const Problem& p, Arena& arena) {
    const int64_t chunks = divide_up(p.qk_dim, kTileSteps), groups = divide_up(p.v_dim, kTileSteps) * 2;
    queries = arena.take<TileElement>(kRowGroups * chunks * Parts * kTileElements);
    scores = arena.take<float>(kRowGroups * kSlotsPerGroup * kSlotFloats<Parts>);
    output = arena.take<float>(kRowGroups * groups * kSumElements);
    staging = arena.take<float>(std::max(kTileBlockKeys, groups * 16));
    state = arena.take<TileSoftmaxState>(1);
  }

  float* slot(int group, int64_t slot) const {
    return scores + (group * kSlotsPerGroup + slot) * kSlotFloats<Parts>;
  }
};

template <class Element, int Parts>
class TileQueryBlock {
 public:
  TileQueryBlock(const Problem& p, const TileWorkspace<Parts>& w, const PackedTiles<Parts>& packed,
                 const BlockPlace& at)
      : p_(p), w_(w), packed_(packed), at_(at), state_(*w.state) {
    const int64_t kv_head = at.batch * p.num_kv_heads + at.head / p.group_size();
    keys_ = packed.keys + kv_head * packed.keys_per_head();
    values_ = packed.values + kv_head * packed.values_per_head();
  }

  // False if a query does not fit tiles; the output is then incomplete.
  bool run(const KeptKeys& kept) {
    state_.reset();
    if (!load_queries()) return false;
    const Range keys = intersect(keys_seen_by_any(p_, at_.first_query, at_.num_queries), kept.range);
    for (int64_t first = keys.begin / kTileSteps * kTileSteps; first < keys.end; first += kTileBlockKeys) {
      at_.first_key = first;
      at_.num_keys = std::min(kTileBlockKeys, keys.end - first);
      if (keeps_any(p_, at_)) attend_to_block(mask_work(p_, at_, kept));
    }
    write_output();
    if (p_.log_sum_exp) write_log_sum_exp();
    return true;
  }

 private:
  // One part holds the queries as they came, so scores are scaled later; a sign or a zero scale goes
  // into the queries all the same, for the maxima need a positive factor. With more parts the whole
  // scale goes into the queries.
  bool load_queries() {
    const float scale = float(p_.scale) * kLog2E;
    const bool exact = Parts == 1;
    const float query_factor = !exact ? scale : scale > 0 ? 1.0f : scale < 0 ? -1.0f : 0.0f;
    score_factor_ = exact && scale != 0 ? __builtin_fabsf(scale) : 1.0f;
    bool fits = true;
    for (int group = 0; group < kRowGroups; ++group) {
      const int64_t first = group * kTileRows;
      const auto rows = rows_of<Element>(p_.query, at_.batch, at_.head, at_.first_query + first,
                                         at_.num_queries - first, p_.qk_dim);
      for (int64_t c = 0; c < packed_.channel_chunks; ++c)
        fits &= TilePacker<Parts>::pack_left(rows, c * kTileSteps, query_factor, query_tile(group, c));
    }
    // A tiny bfloat16 query only makes scores that are 0 anyway.
    return fits || Parts == 1;
  }

  TileElement* query_tile(int group, int64_t chunk) const {
    return w_.queries + (group * packed_.channel_chunks + chunk) * Parts * kTileElements;
  }

  void attend_to_block(MaskWork work) {
    slots_ = divide_up(at_.num_keys, kTileSteps);
    factor_ = score_factor_;
    score();
    mask(work);
    for (int group = 0; group < kRowGroups; ++group)
      raise_row_maxima<Parts>(w_.slot(group, 0), slots_, factor_, group, state_, w_.output, packed_.channel_groups);
    exponentiate();
    add_values();
    has_output_ = true;
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
      mask.template by_tensors<Element>(factor_, w_.staging);
      factor_ = 1.0f;
    }
    if (work.by_position || has_padding_keys) mask.by_position();
  }

  void exponentiate() {
    const Vec factor = broadcast(factor_);
    for (int row = 0; row < kBlockRows; ++row) {
      // A query that has seen no key yet has maximum -inf; -inf - -inf would be NaN.
      const float maximum = state_.maximum[row] == kMinusInfinity ? 0.0f : state_.maximum[row];
      float* scores = w_.slot(row / kTileRows, 0) + row % kTileRows * 16;
      Vec sum = exponentiate_slot_row<Parts>(scores, factor, broadcast(maximum));
      for (int64_t slot = 1; slot < slots_; ++slot)
        sum += exponentiate_slot_row<Parts>(scores + slot * kSlotFloats<Parts>, factor, broadcast(maximum));
      store(state_.sum[row], load(state_.sum[row]) + sum);
    }
  }

  // O += P V, two channel groups at a time.
  void add_values() {
    const TileElement* values = values_ + at_.first_key / kTileSteps * packed_.value_chunk_size();
    if (Parts == 1 && slots_ == 2) return add_values_with_resident_probabilities(values);
    for (int64_t g = 0; g < packed_.channel_groups; g += 2) {
      float* output = w_.output + g * kRowGroups * kSumElements;
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
    if (!has_output_) return zero_sums();
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
      float* output = w_.output + g * kRowGroups * kSumElements;
      load_tile_streaming<2>(value);
      load_tile_streaming<3>(value + packed_.value_chunk_size());
      if (has_output_) {
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
    const auto rows = rows_of<Element>(p_.output, at_.batch, at_.head, at_.first_query, at_.num_queries, p_.v_dim);
    for (int group = 0; group < kRowGroups; ++group) {
      const Vec sums = state_.row_sums(group);
      alignas(64) float factors[kLanes];
      store(factors, sums == 0.0f ? Vec{} : 1.0f / sums);
      for (int64_t i = 0; i < kTileRows && group * kTileRows + i < rows.count; ++i)
        write_row(rows, group, i, has_output_ ? factors[i] : 0.0f);
    }
  }

  void write_row(const Rows<Element>& rows, int group, int64_t i, float factor) {
    for (int64_t g = 0; g < packed_.channel_groups; ++g) {
      const Vec o = load(w_.output + (g * kRowGroups + group) * kSumElements + i * 16);
      store(w_.staging + g * 16, has_output_ ? o * factor : Vec{});
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
  float score_factor_ = 1.0f;  // from stored to base-2 scores
  float factor_ = 1.0f;        // the same for the block in hand
  int64_t slots_ = 0;
  bool has_output_ = false;
};

// All memory of a forward call and its two phases.
template <int Parts>
class TileForward {
 public:
  TileForward(const Problem& p, Arena arena) : p_(p), padding_(p, arena), packed_(p, arena) {
    first_workspace_ = round_up(arena.used_bytes(), kPageBytes);
    Arena one(nullptr);
    TileWorkspace<Parts>(p, one);
    workspace_bytes_ = round_up(one.used_bytes(), kPageBytes);
  }

  int64_t scratch_bytes() const { return first_workspace_ + workspace_bytes_ * p_.threads; }

  // False if the input holds values that tiles cannot hold; the output is then incomplete.
  template <class Element>
  bool run() {
    padding_.fill(p_);
    const int64_t chunks = packed_.key_chunks, blocks = divide_up(p_.seq_len, kBlockRows);
    const int64_t groups = divide_up(chunks, kChunksPerItem);
    WorkQueue packing(p_.batch_size * p_.num_kv_heads * groups), attending(p_.batch_size * p_.num_heads * blocks);
    std::atomic<bool> fits{true};
    on_threads(p_.threads, [&](int64_t thread) {
      Arena arena(static_cast<char*>(p_.scratch) + first_workspace_ + thread * workspace_bytes_);
      const TileWorkspace<Parts> workspace(p_, arena);
      const TileRegisters registers;
      packing.drain([&](int64_t item) {
        const int64_t first = item % groups * kChunksPerItem;
        for (int64_t chunk = first; chunk < std::min(first + kChunksPerItem, chunks); ++chunk)
          if (!packed_.template pack<Element>(p_, item / groups, chunk)) fits = false;
      });
      wait_for_all(p_.threads);
      if (!fits) return;
      attending.drain([&](int64_t item) {
        if (!attend<Element>(item / blocks, blocks - 1 - item % blocks, workspace)) fits = false;
      });
    });
    return fits;
  }

 private:
  static constexpr int64_t kChunksPerItem = 8;
  static constexpr int64_t kPageBytes = 4096;  // workspaces of two threads never share a page

  template <class Element>
  bool attend(int64_t head_index, int64_t block, const TileWorkspace<Parts>& w) {
    const int64_t first = block * kBlockRows, count = std::min<int64_t>(kBlockRows, p_.seq_len - first);
    const BlockPlace at{head_index / p_.num_heads, head_index % p_.num_heads, first, count, 0, 0};
    return TileQueryBlock<Element, Parts>(p_, w, packed_, at).run(padding_.of(at.batch));
  }

  const Problem& p_;
  PaddingSummary padding_;
  PackedTiles<Parts> packed_;
  int64_t first_workspace_, workspace_bytes_;
};
