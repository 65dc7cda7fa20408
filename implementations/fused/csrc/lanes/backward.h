// Backward pass: gradients from the inputs, the output and its log-sum-exp; probabilities are
// computed again. With P the probabilities and delta_i = sum_c dO_ic O_ic:
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)      dQ = scale dS K      dK = scale dS^T Q
//
// Two kinds of work items, each the only writer of its part of the result, so that sums have a fixed
// order and no thread waits for another:
//
//   query block   W queries across the lanes; all keys stream past; gives dQ
//   key block     W keys across the lanes; all queries of the group's heads stream past; gives dK, dV
//
// Scores and dP are thus computed twice: 7 products instead of 5.

// One matrix of a head in the two packed forms (pack.h).
struct PackedMatrix {
  float *row_panels, *column_panels;
  int64_t rows, channels, row_size, column_size;

  PackedMatrix(int64_t rows_, int64_t channels_, int64_t slots, Arena& arena) : rows(rows_), channels(channels_) {
    row_size = padded_to_panel(rows) * channels;
    column_size = padded_to_panel(channels) * rows;
    row_panels = arena.take<float>(slots * row_size);
    column_panels = arena.take<float>(slots * column_size);
  }

  template <class Element>
  void pack(const Rows<Element>& source, int64_t slot, int64_t first, float* staging) {
    pack_row_panels(source, staging, row_panels + slot * row_size + first * channels);
    pack_column_panels(source, rows * kPanelRows, staging, column_panels + slot * column_size + first * kPanelRows);
  }

  // target [num_rows][W] = rows [first_row, + num_rows) times a lane block.
  void multiply_rows(int64_t slot, int64_t first_row, int64_t num_rows, const float* lane_block, float* target) const {
    multiply_panels<kMaxVectors>(row_panels + slot * row_size + first_row * channels, channels * kPanelRows,
                                 divide_up(num_rows, kPanelRows), lane_block, channels, target);
  }

  // target [channels][W] += transposed rows [first_row, + num_rows) times a block [num_rows][W].
  void add_columns(int64_t slot, int64_t first_row, int64_t num_rows, const float* block, float* target) const {
    add_panel_products<kMaxVectors>(column_panels + slot * column_size + first_row * kPanelRows, rows * kPanelRows,
                                    divide_up(channels, kPanelRows), block, num_rows, target);
  }
};

// Operands of the heads of one group; queries and their gradients by slot and head within the group.
struct PackedForGradients {
  PackedMatrix keys, values, queries, grad_outputs;
  float *base_2_lse, *delta;  // one number per query

  PackedForGradients(const Problem& p, int64_t slots, Arena& arena)
      : keys(p.kv_seq_len, p.qk_dim, slots, arena),
        values(p.kv_seq_len, p.v_dim, slots, arena),
        queries(p.seq_len, p.qk_dim, slots * p.group_size(), arena),
        grad_outputs(p.seq_len, p.v_dim, slots * p.group_size(), arena) {
    base_2_lse = arena.take<float>(slots * p.group_size() * p.seq_len);
    delta = arena.take<float>(slots * p.group_size() * p.seq_len);
  }

  static int64_t bytes_per_head(const Problem& p) {
    const int64_t rows = p.kv_seq_len + p.group_size() * p.seq_len;
    return 2 * rows * (p.qk_dim + p.v_dim) * int64_t(sizeof(float));
  }
};

// What one thread needs. lane_* hold the block's own operands, sum_* its gradients.
struct BackwardWorkspace {
  float *lane_qk, *lane_v, *scores, *grad_scores, *sum_qk, *sum_v, *staging, *lse, *delta, *factors;

  BackwardWorkspace(const Problem& p, int64_t block_rows, Arena& arena) {
    lane_qk = arena.take<float>(p.qk_dim * kBlockWidth);
    lane_v = arena.take<float>(p.v_dim * kBlockWidth);
    scores = arena.take<float>(block_rows * kBlockWidth);
    grad_scores = arena.take<float>(block_rows * kBlockWidth);
    sum_qk = arena.take<float>(padded_to_panel(p.qk_dim) * kBlockWidth);
    sum_v = arena.take<float>(padded_to_panel(p.v_dim) * kBlockWidth);
    staging = arena.take<float>(kLanes * padded_to_lanes(std::max({p.qk_dim, p.v_dim, block_rows, kBlockWidth})));
    lse = arena.take<float>(kBlockWidth);
    delta = arena.take<float>(kBlockWidth);
    factors = arena.take<float>(kBlockWidth);
  }
};

// A query without keys has log-sum-exp -inf; +inf in its place makes every probability 0.
FUSED_INLINE float to_base_2_lse(float lse) { return lse == kMinusInfinity ? __builtin_inff() : lse * kLog2E; }

template <class Element>
class Gradients {
 public:
  Gradients(const Problem& p, const PackedForGradients& packed, const BackwardWorkspace& w, const KeptKeys& kept,
            int64_t batch, int64_t kv_head, int64_t slot, int64_t block_rows)
      : p_(p), packed_(packed), w_(w), kept_(kept), batch_(batch), kv_head_(kv_head), slot_(slot),
        block_rows_(block_rows) {}

  void query_block(int64_t head_in_group, int64_t first) {
    const int64_t count = std::min(kBlockWidth, p_.seq_len - first);
    const int64_t head = kv_head_ * p_.group_size() + head_in_group;
    pack_lane_block(rows(p_.query, head, first, count, p_.qk_dim), score_factor(), kBlockWidth, w_.staging, w_.lane_qk);
    pack_lane_block(rows(p_.grad_output, head, first, count, p_.v_dim), 1.0f, kBlockWidth, w_.staging, w_.lane_v);
    load_row_numbers(head_in_group, first, count);
    clear(w_.sum_qk, p_.qk_dim);
    const Range keys = intersect(keys_seen_by_any(p_, first, count), kept_.range);
    for (int64_t key = keys.begin / kPanelRows * kPanelRows; key < keys.end; key += block_rows_) {
      const BlockPlace at{batch_, head, first, count, key, std::min(block_rows_, keys.end - key)};
      if (keeps_any(p_, at)) add_key_block(at);
    }
    write(w_.sum_qk, float(p_.scale), rows(p_.grad_query, head, first, count, p_.qk_dim));
  }

  void key_block(int64_t first) {
    const int64_t count = std::min(kBlockWidth, p_.kv_seq_len - first);
    pack_lane_block(rows(p_.key, kv_head_, first, count, p_.qk_dim), score_factor(), kBlockWidth, w_.staging, w_.lane_qk);
    pack_lane_block(rows(p_.value, kv_head_, first, count, p_.v_dim), 1.0f, kBlockWidth, w_.staging, w_.lane_v);
    clear(w_.sum_qk, p_.qk_dim);
    clear(w_.sum_v, p_.v_dim);
    const Range queries = queries_that_see(p_, first, count);
    for (int64_t g = 0; g < p_.group_size(); ++g)
      for (int64_t query = queries.begin / kPanelRows * kPanelRows; query < queries.end; query += block_rows_) {
        const int64_t num_queries = std::min(block_rows_, queries.end - query);
        const BlockPlace at{batch_, kv_head_ * p_.group_size() + g, query, num_queries, first, count};
        if (keeps_any(p_, at)) add_query_block(at, g);
      }
    write(w_.sum_qk, float(p_.scale), rows(p_.grad_key, kv_head_, first, count, p_.qk_dim));
    write(w_.sum_v, 1.0f, rows(p_.grad_value, kv_head_, first, count, p_.v_dim));
  }

 private:
  float score_factor() const { return float(p_.scale) * kLog2E; }

  Rows<Element> rows(const Tensor& t, int64_t head, int64_t first, int64_t count, int64_t channels) const {
    return rows_of<Element>(t, batch_, head, first, count, channels);
  }

  static void clear(float* sums, int64_t channels) {
    __builtin_memset(sums, 0, padded_to_panel(channels) * kBlockWidth * sizeof(float));
  }

  const float* numbers(const float* all, int64_t head_in_group) const {
    return all + (slot_ * p_.group_size() + head_in_group) * p_.seq_len;
  }

  void load_row_numbers(int64_t head_in_group, int64_t first, int64_t count) {
    for (int64_t i = 0; i < kBlockWidth; ++i) {
      w_.lse[i] = i < count ? numbers(packed_.base_2_lse, head_in_group)[first + i] : __builtin_inff();
      w_.delta[i] = i < count ? numbers(packed_.delta, head_in_group)[first + i] : 0.0f;
    }
  }

  // Queries across the lanes: dQ^T += K^T dS^T.
  void add_key_block(const BlockPlace& at) {
    packed_.keys.multiply_rows(slot_, at.first_key, at.num_keys, w_.lane_qk, w_.scores);
    apply_masks<Element, kMaxVectors>(p_, at, mask_work(p_, at, kept_), w_.staging, w_.scores);
    packed_.values.multiply_rows(slot_, at.first_key, at.num_keys, w_.lane_v, w_.grad_scores);
    for (int64_t i = 0; i < at.num_keys; ++i)
      for (int j = 0; j < kMaxVectors; ++j) {
        const int64_t offset = (i * kMaxVectors + j) * kLanes;
        const Vec probability = exp2(load(w_.scores + offset) - load(w_.lse + j * kLanes));
        store(w_.grad_scores + offset, probability * (load(w_.grad_scores + offset) - load(w_.delta + j * kLanes)));
      }
    packed_.keys.add_columns(slot_, at.first_key, at.num_keys, w_.grad_scores, w_.sum_qk);
  }

  // Keys across the lanes: dV^T += dO^T P, dK^T += Q^T dS.
  void add_query_block(const BlockPlace& at, int64_t head_in_group) {
    const int64_t slot = slot_ * p_.group_size() + head_in_group;
    packed_.queries.multiply_rows(slot, at.first_query, at.num_queries, w_.lane_qk, w_.scores);
    mask_rows<Element, kMaxVectors>(p_, at, mask_work(p_, at, kept_), w_.staging, w_.scores);
    packed_.grad_outputs.multiply_rows(slot, at.first_query, at.num_queries, w_.lane_v, w_.grad_scores);
    const float* lse = numbers(packed_.base_2_lse, head_in_group) + at.first_query;
    const float* delta = numbers(packed_.delta, head_in_group) + at.first_query;
    for (int64_t i = 0; i < at.num_queries; ++i)
      for (int j = 0; j < kMaxVectors; ++j) {
        const int64_t offset = (i * kMaxVectors + j) * kLanes;
        const Vec probability = exp2(load(w_.scores + offset) - lse[i]);
        store(w_.scores + offset, probability);
        store(w_.grad_scores + offset, probability * (load(w_.grad_scores + offset) - delta[i]));
      }
    packed_.grad_outputs.add_columns(slot, at.first_query, at.num_queries, w_.scores, w_.sum_v);
    packed_.queries.add_columns(slot, at.first_query, at.num_queries, w_.grad_scores, w_.sum_qk);
  }

  void write(const float* sums, float factor, const Rows<Element>& target) {
    for (int64_t i = 0; i < kBlockWidth; ++i) w_.factors[i] = factor;
    unpack_lane_block(sums, kBlockWidth, w_.factors, w_.staging, target);
  }

  const Problem& p_;
  const PackedForGradients& packed_;
  const BackwardWorkspace& w_;
  const KeptKeys& kept_;
  int64_t batch_, kv_head_, slot_, block_rows_;
};

// All memory of a backward call, and its two phases: pack, then both kinds of blocks.
class Backward {
 public:
  Backward(const Problem& p, Arena arena)
      : p_(p),
        block_rows_(keys_per_block(2 * kBlockWidth)),  // scores and their gradients share L1
        padding_(p, arena),
        schedule_(p, PackedForGradients::bytes_per_head(p), arena),
        packed_(p, schedule_.slots(), arena) {
    first_workspace_ = round_up(arena.used_bytes(), kPageBytes);
    Arena one(nullptr);
    BackwardWorkspace(p, block_rows_, one);
    workspace_bytes_ = round_up(one.used_bytes(), kPageBytes);
  }

  int64_t scratch_bytes() const { return first_workspace_ + workspace_bytes_ * p_.threads; }

  template <class Element>
  void run() {
    padding_.fill(p_);
    schedule_.reset();
    const int64_t key_chunks = divide_up(p_.kv_seq_len, kRowsPerPackingItem);
    const int64_t query_chunks = divide_up(p_.seq_len, kRowsPerPackingItem);
    const int64_t key_blocks = divide_up(p_.kv_seq_len, kBlockWidth), query_blocks = divide_up(p_.seq_len, kBlockWidth);
    on_threads(p_.threads, [&](int64_t thread) {
      Arena arena(static_cast<char*>(p_.scratch) + first_workspace_ + thread * workspace_bytes_);
      const BackwardWorkspace w(p_, block_rows_, arena);
      schedule_.run(
          thread, key_chunks + query_chunks * p_.group_size(), key_blocks + query_blocks * p_.group_size(),
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            if (item < key_chunks) return pack_keys<Element>(kv_head, slot, item, w);
            pack_queries<Element>(kv_head, slot, (item - key_chunks) / query_chunks, (item - key_chunks) % query_chunks, w);
          },
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            const int64_t batch = kv_head / p_.num_kv_heads;
            Gradients<Element> work(p_, packed_, w, padding_.of(batch), batch, kv_head % p_.num_kv_heads, slot, block_rows_);
            if (item < key_blocks) return work.key_block(item * kBlockWidth);
            work.query_block((item - key_blocks) / query_blocks,
                             (query_blocks - 1 - (item - key_blocks) % query_blocks) * kBlockWidth);
          });
    });
  }

 private:
  static constexpr int64_t kRowsPerPackingItem = 128;
  static constexpr int64_t kPageBytes = 4096;  // workspaces of two threads never share a page

  template <class Element>
  void pack_keys(int64_t kv_head, int64_t slot, int64_t chunk, const BackwardWorkspace& w) {
    const int64_t batch = kv_head / p_.num_kv_heads, head = kv_head % p_.num_kv_heads;
    const int64_t first = chunk * kRowsPerPackingItem, count = std::min(kRowsPerPackingItem, p_.kv_seq_len - first);
    packed_.keys.pack(rows_of<Element>(p_.key, batch, head, first, count, p_.qk_dim), slot, first, w.staging);
    packed_.values.pack(rows_of<Element>(p_.value, batch, head, first, count, p_.v_dim), slot, first, w.staging);
  }

  template <class Element>
  void pack_queries(int64_t kv_head, int64_t kv_slot, int64_t head_in_group, int64_t chunk, const BackwardWorkspace& w) {
    const int64_t batch = kv_head / p_.num_kv_heads;
    const int64_t head = kv_head % p_.num_kv_heads * p_.group_size() + head_in_group;
    const int64_t slot = kv_slot * p_.group_size() + head_in_group;
    const int64_t first = chunk * kRowsPerPackingItem, count = std::min(kRowsPerPackingItem, p_.seq_len - first);
    const auto grad_outputs = rows_of<Element>(p_.grad_output, batch, head, first, count, p_.v_dim);
    packed_.queries.pack(rows_of<Element>(p_.query, batch, head, first, count, p_.qk_dim), slot, first, w.staging);
    packed_.grad_outputs.pack(grad_outputs, slot, first, w.staging);
    const float* lse = p_.log_sum_exp + (batch * p_.num_heads + head) * p_.seq_len;
    for (int64_t i = 0; i < count; ++i) packed_.base_2_lse[slot * p_.seq_len + first + i] = to_base_2_lse(lse[first + i]);
    write_delta(grad_outputs, rows_of<Element>(p_.output, batch, head, first, count, p_.v_dim), w.staging,
                packed_.delta + slot * p_.seq_len + first);
  }

  template <class Element>
  void write_delta(const Rows<Element>& grads, const Rows<Element>& outputs, float* staging, float* delta) {
    const int64_t width = padded_to_lanes(p_.v_dim);
    for (int64_t i = 0; i < grads.count; ++i) {
      load_row(grads.base + i * grads.row_stride, grads.column_stride, p_.v_dim, staging);
      load_row(outputs.base + i * outputs.row_stride, outputs.column_stride, p_.v_dim, staging + width);
      Vec sum = {};
      for (int64_t c = 0; c < width; c += kLanes) sum += load(staging + c) * load(staging + width + c);
      delta[i] = sum_of_lanes(sum);
    }
  }

  const Problem& p_;
  int64_t block_rows_;
  PaddingSummary padding_;
  HeadSchedule schedule_;
  PackedForGradients packed_;
  int64_t first_workspace_, workspace_bytes_;
};
