// Forward pass. One thread takes one block of queries through all its keys:
//
//   queries  Q^T  [D][W]     scaled, packed once, stays in L1
//   scores   S^T  [keys][W]  one key block at a time in L1; becomes P^T in place
//   output   O^T  [DV][W]    unnormalised, stays in L1 or L2, written out once at the end
//   keys, values             packed once per call for all query blocks (PackedKeysValues), streamed
//                            from L2 or further out
//
// with W = Vectors * kLanes queries across the vector lanes. A block's P V is summed in registers
// over its keys and then added to the output: two levels, so that errors stay flat in length.

constexpr int kMaxVectors = 3;  // vectors of queries in a full block
constexpr int64_t kBlockWidth = kMaxVectors * kLanes;

// Keys as row panels and values as column panels, for the heads of one group, by slot.
struct PackedKeysValues {
  float *keys, *values;
  int64_t keys_per_head, values_per_head, value_panel_stride, num_value_panels;

  static int64_t bytes_per_head(const Problem& p) {
    const int64_t values = divide_up(p.v_dim, kPanelRows) * column_panel_stride(p.kv_seq_len);
    return (padded_to_panel(p.kv_seq_len) * p.qk_dim + values) * int64_t(sizeof(float));
  }

  PackedKeysValues(const Problem& p, int64_t slots, Arena& arena) {
    value_panel_stride = column_panel_stride(p.kv_seq_len);
    num_value_panels = divide_up(p.v_dim, kPanelRows);
    keys_per_head = padded_to_panel(p.kv_seq_len) * p.qk_dim;
    values_per_head = num_value_panels * value_panel_stride;
    keys = arena.take<float>(slots * keys_per_head);
    values = arena.take<float>(slots * values_per_head);
  }

  template <class Element>
  void pack(const Problem& p, int64_t kv_head, int64_t slot, Range rows, float* staging) {
    const int64_t batch = kv_head / p.num_kv_heads, head = kv_head % p.num_kv_heads;
    const int64_t count = rows.end - rows.begin;
    pack_row_panels(rows_of<Element>(p.key, batch, head, rows.begin, count, p.qk_dim), staging,
                    keys + slot * keys_per_head + rows.begin * p.qk_dim);
    pack_column_panels(rows_of<Element>(p.value, batch, head, rows.begin, count, p.v_dim), value_panel_stride,
                       staging, values + slot * values_per_head + rows.begin * kPanelRows);
  }
};

// What one thread needs for a block of queries.
struct ForwardWorkspace {
  float *queries, *scores, *output, *staging;

  ForwardWorkspace(const Problem& p, int64_t block_keys, Arena& arena) {
    queries = arena.take<float>(p.qk_dim * kBlockWidth);
    scores = arena.take<float>(block_keys * kBlockWidth);
    output = arena.take<float>(padded_to_panel(p.v_dim) * kBlockWidth);
    staging = arena.take<float>(kLanes * padded_to_lanes(std::max(p.qk_dim, p.v_dim)));
  }
};

template <class Element, int Vectors>
class QueryBlock {
 public:
  QueryBlock(const Problem& p, const ForwardWorkspace& w, const PackedKeysValues& packed, int64_t slot,
             const BlockPlace& at)
      : p_(p), w_(w), at_(at) {
    keys_ = packed.keys + slot * packed.keys_per_head;
    values_ = packed.values + slot * packed.values_per_head;
    value_panel_stride_ = packed.value_panel_stride;
    num_value_panels_ = packed.num_value_panels;
  }

  void run(const KeptKeys& kept, int64_t block_keys) {
    load_queries();
    const Range keys = intersect(keys_seen_by_any(p_, at_.first_query, at_.num_queries), kept.range);
    for (int64_t first = keys.begin / kPanelRows * kPanelRows; first < keys.end; first += block_keys) {
      at_.first_key = first;
      at_.num_keys = std::min(block_keys, keys.end - first);
      if (keeps_any(p_, at_)) attend_to_block(mask_work(p_, at_, kept));
    }
    write_output();
    if (p_.log_sum_exp) write_log_sum_exp();
  }

 private:
  static constexpr int64_t kWidth = Vectors * kLanes;

  void load_queries() {
    state_.reset();
    __builtin_memset(w_.output, 0, padded_to_panel(p_.v_dim) * kWidth * sizeof(float));
    pack_lane_block(rows_of<Element>(p_.query, at_.batch, at_.head, at_.first_query, at_.num_queries, p_.qk_dim),
                    float(p_.scale) * kLog2E, kWidth, w_.staging, w_.queries);
  }

  void attend_to_block(MaskWork work) {
    Vec maxima[Vectors], factors[Vectors];
    score(maxima);
    const bool has_padding_rows = at_.num_keys % kPanelRows != 0;
    if (work.any()) apply_masks<Element, Vectors>(p_, at_, work, w_.scores);
    if (work.any() || has_padding_rows) column_maxima<Vectors>(w_.scores, at_.num_keys, maxima);
    if (raise_maxima<Vectors>(maxima, state_, factors)) rescale<Vectors>(w_.output, p_.v_dim, factors);
    exponentiate<Vectors>(w_.scores, at_.num_keys, state_);
    add_panel_products<Vectors>(values_ + at_.first_key * kPanelRows, value_panel_stride_, num_value_panels_,
                                w_.scores, at_.num_keys, w_.output);
  }

  // S^T = K Q^T, and the maximum of every lane while the sums are still in registers.
  __attribute__((noinline)) void score(Vec* maxima) {
    for (int j = 0; j < Vectors; ++j) maxima[j] = broadcast(kMinusInfinity);
    for (int64_t i = 0; i < at_.num_keys; i += kPanelRows)
      panel_product<Vectors>(keys_ + (at_.first_key + i) * p_.qk_dim, w_.queries, p_.qk_dim,
                             [&](Sums<Vectors>& sums) __attribute__((always_inline)) {
                               store_sums<Vectors>(sums, w_.scores + i * kWidth);
                               FUSED_UNROLL
                               for (int j = 0; j < Vectors; ++j)
                                 FUSED_UNROLL
                                 for (int r = 0; r < kPanelRows; ++r) maxima[j] = max(sums[r][j], maxima[j]);
                             });
  }

  // A query that saw no key has sum 0, and its output is 0 by definition.
  void write_output() {
    const auto reciprocal = [&](int64_t lane) __attribute__((always_inline)) {
      const Vec sum = state_.sum[lane / kLanes];
      return sum == 0.0f ? Vec{} : 1.0f / sum;
    };
    unpack_lane_block(w_.output, kWidth, reciprocal, w_.staging,
                      rows_of<Element>(p_.output, at_.batch, at_.head, at_.first_query, at_.num_queries, p_.v_dim));
  }

  void write_log_sum_exp() {
    float* out = p_.log_sum_exp + (at_.batch * p_.num_heads + at_.head) * p_.seq_len + at_.first_query;
    for (int64_t i = 0; i < at_.num_queries; ++i) {
      const float sum = state_.sum[i / kLanes][i % kLanes], maximum = state_.maximum[i / kLanes][i % kLanes];
      out[i] = log_sum_exp(maximum, sum);
    }
  }

  const Problem& p_;
  const ForwardWorkspace& w_;
  BlockPlace at_;
  SoftmaxState<Vectors> state_;
  const float *keys_, *values_;
  int64_t value_panel_stride_, num_value_panels_;
};

// All memory of a forward call, and its two phases: pack, attend.
class Forward {
 public:
  Forward(const Problem& p, Arena arena)
      : p_(p),
        block_keys_(keys_per_block(kBlockWidth)),
        padding_(p, arena),
        schedule_(p, PackedKeysValues::bytes_per_head(p), arena),
        packed_(p, schedule_.slots(), arena),
        workspaces_(arena, p, block_keys_) {}

  int64_t scratch_bytes() const { return workspaces_.end_bytes(p_.threads); }

  template <class Element>
  void run() {
    padding_.fill(p_);
    schedule_.reset();
    const int64_t chunks = divide_up(p_.kv_seq_len, kRowsPerPackingItem);
    const int64_t blocks = divide_up(p_.seq_len, kBlockWidth);
    on_threads(p_.threads, [&](int64_t thread) {
      const ForwardWorkspace workspace = workspaces_.of(thread, p_.scratch, p_, block_keys_);
      schedule_.run(
          thread, chunks, blocks * p_.group_size(),
          [&](int64_t kv_head, int64_t slot, int64_t item) { pack_chunk<Element>(kv_head, slot, item, workspace); },
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            // Later blocks of a causal problem see more keys: they come first, short ones fill gaps.
            attend<Element>(kv_head, slot, item / blocks, blocks - 1 - item % blocks, workspace);
          });
    });
  }

 private:
  static constexpr int64_t kRowsPerPackingItem = 128;

  template <class Element>
  void pack_chunk(int64_t kv_head, int64_t slot, int64_t chunk, const ForwardWorkspace& w) {
    const int64_t begin = chunk * kRowsPerPackingItem;
    const int64_t end = std::min(begin + kRowsPerPackingItem, p_.kv_seq_len);
    packed_.pack<Element>(p_, kv_head, slot, {begin, end}, w.staging);
  }

  template <class Element>
  void attend(int64_t kv_head, int64_t slot, int64_t head_in_group, int64_t block, const ForwardWorkspace& w) {
    const int64_t batch = kv_head / p_.num_kv_heads;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + head_in_group;
    const int64_t first = block * kBlockWidth, count = std::min(kBlockWidth, p_.seq_len - first);
    const BlockPlace at{batch, head, first, count, 0, 0};
    if (count > 2 * kLanes) return attend_with<Element, 3>(at, slot, w);
    if (count > kLanes) return attend_with<Element, 2>(at, slot, w);
    attend_with<Element, 1>(at, slot, w);
  }

  template <class Element, int Vectors>
  void attend_with(const BlockPlace& at, int64_t slot, const ForwardWorkspace& w) {
    QueryBlock<Element, Vectors>(p_, w, packed_, slot, at).run(padding_.of(at.batch), block_keys_);
  }

  const Problem& p_;
  int64_t block_keys_;
  PaddingSummary padding_;
  HeadSchedule schedule_;
  PackedKeysValues packed_;
  WorkspacePerThread<ForwardWorkspace> workspaces_;
};
