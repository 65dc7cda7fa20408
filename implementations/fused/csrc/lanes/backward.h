// Backward pass: gradients from the inputs, the output and its log-sum-exp; probabilities are
// computed again. With P the probabilities and delta_i = sum_c dO_ic O_ic:
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)      dQ = scale dS K      dK = scale dS^T Q
//
// One item of work is a partition: kGradientRows keys, past which the queries of all heads of the
// group go, kGradientRows at a time, last ones first. Every pair's score is computed once:
//
//   scores, dP   [queries][W keys]   rows are queries, W keys across the lanes; become P and dS in place
//   dV^T, dK^T   [channels][W keys]  sums of the partition, by lane block; only this item adds to them
//   dS^T         [keys][W queries]   dS transposed, W queries across the lanes
//   dQ^T         [channels][W queries]  sums of all partitions, for the heads of one group
//
// The partitions of a head add to dQ^T in the order of their keys, whichever threads they run on: a
// partition waits until the one before it is done with a block of queries (GradientTurns). Since all
// go through the queries in the same order, the second thread is one block behind the first, and
// results have the same bits for any number of threads.

constexpr int64_t kGradientRows = 96;  // queries of a block, keys of a partition: whole lane blocks on every path
constexpr int64_t kGradientLaneBlocks = kGradientRows / kBlockWidth;
static_assert(kGradientRows % kBlockWidth == 0);

// Matrices of a group's heads as row panels (pack.h).
struct RowPanels {
  float* data;
  int64_t channels, size;

  RowPanels(int64_t rows, int64_t channels_, int64_t slots, Arena& arena)
      : channels(channels_), size(padded_to_panel(rows) * channels_) {
    data = arena.take<float>(slots * size);
  }

  template <class Element>
  void pack(const Rows<Element>& source, int64_t slot, int64_t first, float* staging) {
    pack_row_panels(source, staging, data + slot * size + first * channels);
  }

  // target [num_rows][W] = rows [first_row, + num_rows) times a lane block. In two halves of the channels,
  // each summed from 0: where few keys share a probability near 1, the rounding of one long sum of scores
  // shows in the gradients more than anything else.
  void multiply(int64_t slot, int64_t first_row, int64_t num_rows, const float* lane_block, float* target) const {
    const float* panels = data + slot * size + first_row * channels;
    const int64_t num_panels = divide_up(num_rows, kPanelRows), stride = channels * kPanelRows, half = channels / 2;
    multiply_panels<kMaxVectors>(panels, stride, num_panels, lane_block, half, target);
    add_panel_products<kMaxVectors>(panels + half * kPanelRows, stride, num_panels, lane_block + half * kBlockWidth,
                                    channels - half, target);
  }
};

// The same as column panels.
struct ColumnPanels {
  float* data;
  int64_t num_panels, stride, size;

  ColumnPanels(int64_t rows, int64_t channels, int64_t slots, Arena& arena)
      : num_panels(divide_up(channels, kPanelRows)), stride(column_panel_stride(rows)), size(num_panels * stride) {
    data = arena.take<float>(slots * size);
  }

  template <class Element>
  void pack(const Rows<Element>& source, int64_t slot, int64_t first, float* staging) {
    pack_column_panels(source, stride, staging, data + slot * size + first * kPanelRows);
  }

  // target [channels][W] += transposed rows [first_row, + num_rows) times a block [num_rows][W].
  void add_product(int64_t slot, int64_t first_row, int64_t num_rows, const float* block, float* target) const {
    add_panel_products<kMaxVectors>(data + slot * size + first_row * kPanelRows, stride, num_panels, block, num_rows, target);
  }
};

// Operands and gradients of the heads of one group: keys by slot, what belongs to queries by slot and
// head within the group ("query slot").
struct GradientOperands {
  ColumnPanels key_columns;
  RowPanels query_rows, grad_output_rows;
  ColumnPanels query_columns, grad_output_columns;
  float *exponent, *factor;        // one number per query: P = 2^(score - exponent) factor
  float* delta;                    // one number per query
  float* grad_queries;             // dQ^T by lane block
  std::atomic<int64_t>* turns;     // partitions that have added to dQ^T, by block of queries
  int64_t seq_len, lane_block_size, query_blocks;

  GradientOperands(const Problem& p, int64_t slots, Arena& arena)
      : key_columns(p.kv_seq_len, p.qk_dim, slots, arena),
        query_rows(p.seq_len, p.qk_dim, slots * p.group_size(), arena),
        grad_output_rows(p.seq_len, p.v_dim, slots * p.group_size(), arena),
        query_columns(p.seq_len, p.qk_dim, slots * p.group_size(), arena),
        grad_output_columns(p.seq_len, p.v_dim, slots * p.group_size(), arena),
        seq_len(p.seq_len),
        lane_block_size(padded_to_panel(p.qk_dim) * kBlockWidth),
        query_blocks(divide_up(p.seq_len, kGradientRows)) {
    const int64_t query_slots = slots * p.group_size();
    exponent = arena.take<float>(query_slots * seq_len);
    factor = arena.take<float>(query_slots * seq_len);
    delta = arena.take<float>(query_slots * seq_len);
    grad_queries = arena.take<float>(query_slots * query_blocks * kGradientLaneBlocks * lane_block_size);
    turns = arena.take<std::atomic<int64_t>>(query_slots * query_blocks);
  }

  static int64_t bytes_per_head(const Problem& p) {
    const int64_t per_query = 2 * (p.qk_dim + p.v_dim) + p.qk_dim;
    return (p.kv_seq_len * p.qk_dim + p.group_size() * p.seq_len * per_query) * int64_t(sizeof(float));
  }

  int64_t number_of(int64_t query_slot, int64_t query) const { return query_slot * seq_len + query; }

  float* grad_query_of(int64_t query_slot, int64_t block, int64_t lane_block) const {
    return grad_queries + ((query_slot * query_blocks + block) * kGradientLaneBlocks + lane_block) * lane_block_size;
  }

  std::atomic<int64_t>& turn_of(int64_t query_slot, int64_t block) const {
    return turns[query_slot * query_blocks + block];
  }
};

// What one thread needs. keys to sum_values exist once per lane block of the partition.
struct BackwardWorkspace {
  float *keys, *values, *sum_keys, *sum_values, *scores, *grad_scores, *transposed, *staging;
  int64_t qk_size, v_size;

  BackwardWorkspace(const Problem& p, Arena& arena)
      : qk_size(padded_to_panel(p.qk_dim) * kBlockWidth), v_size(padded_to_panel(p.v_dim) * kBlockWidth) {
    keys = arena.take<float>(kGradientLaneBlocks * qk_size);
    values = arena.take<float>(kGradientLaneBlocks * v_size);
    sum_keys = arena.take<float>(kGradientLaneBlocks * qk_size);
    sum_values = arena.take<float>(kGradientLaneBlocks * v_size);
    scores = arena.take<float>(kGradientRows * kBlockWidth);
    grad_scores = arena.take<float>(kGradientRows * kBlockWidth);
    transposed = arena.take<float>(kGradientRows * kGradientRows);
    staging = arena.take<float>(kLanes * padded_to_lanes(std::max(p.qk_dim, p.v_dim)));
  }
};

// 1 / e^lse as 2^-exponent times a factor. The exponent is whole, and the factor has all digits; the
// log-sum-exp in base 2 as one float32 would cost every probability two bits.
FUSED_INLINE void split_reciprocal(float lse, float* exponent, float* factor) {
  const double base_2_lse = double(lse) * 1.4426950408889634074;
  const bool is_finite = __builtin_isfinite(base_2_lse);
  *exponent = is_finite ? float(__builtin_rint(base_2_lse)) : lse;
  *factor = is_finite ? float(__builtin_exp2(*exponent - base_2_lse)) : 1.0f;
  if (lse == kMinusInfinity) *exponent = -lse;  // a query without keys: every probability is 0
}

// Which partitions of the keys a block of queries sees: a contiguous range.
inline Range partitions_seen(const Problem& p, const KeptKeys& kept, int64_t first_query, int64_t num_queries) {
  const Range keys = intersect(keys_seen_by_any(p, first_query, num_queries), kept.range);
  if (keys.empty()) return {0, 0};
  return {keys.begin / kGradientRows, divide_up(keys.end, kGradientRows)};
}

// Where the heads of a key/value head stand.
struct HeadPlace {
  int64_t batch, kv_head, slot, group_size;

  HeadPlace(const Problem& p, int64_t index, int64_t slot_)
      : batch(index / p.num_kv_heads), kv_head(index % p.num_kv_heads), slot(slot_), group_size(p.group_size()) {}

  int64_t head(int64_t g) const { return kv_head * group_size + g; }
  int64_t query_slot(int64_t g) const { return slot * group_size + g; }
};

// Phase 1: packs keys and queries, and what else a head needs before its partitions.
template <class Element>
class GradientPacking {
 public:
  GradientPacking(const Problem& p, GradientOperands& operands, const BackwardWorkspace& w, const HeadPlace& place)
      : p_(p), operands_(operands), w_(w), place_(place) {}

  void keys(int64_t partition) {
    const int64_t first = partition * kGradientRows, count = std::min(kGradientRows, p_.kv_seq_len - first);
    operands_.key_columns.pack(rows_of<Element>(p_.key, place_.batch, place_.kv_head, first, count, p_.qk_dim),
                               place_.slot, first, w_.staging);
  }

  void queries(int64_t g, int64_t block, const KeptKeys& kept) {
    const int64_t first = block * kGradientRows, count = std::min(kGradientRows, p_.seq_len - first);
    const int64_t slot = place_.query_slot(g);
    const auto queries = rows(p_.query, g, first, count, p_.qk_dim);
    const auto grad_outputs = rows(p_.grad_output, g, first, count, p_.v_dim);
    operands_.query_rows.pack(queries, slot, first, w_.staging);
    operands_.query_columns.pack(queries, slot, first, w_.staging);
    operands_.grad_output_rows.pack(grad_outputs, slot, first, w_.staging);
    operands_.grad_output_columns.pack(grad_outputs, slot, first, w_.staging);
    write_row_numbers(grad_outputs, rows(p_.output, g, first, count, p_.v_dim), g, first);
    begin_grad_queries(slot, block);
    if (partitions_seen(p_, kept, first, count).empty()) write_zeros(rows(p_.grad_query, g, first, count, p_.qk_dim));
  }

 private:
  Rows<Element> rows(const Tensor& t, int64_t g, int64_t first, int64_t count, int64_t channels) const {
    return rows_of<Element>(t, place_.batch, place_.head(g), first, count, channels);
  }

  // Exponent, factor and delta.
  void write_row_numbers(const Rows<Element>& grads, const Rows<Element>& outputs, int64_t g, int64_t first) {
    const float* lse = p_.log_sum_exp + (place_.batch * p_.num_heads + place_.head(g)) * p_.seq_len + first;
    const int64_t number = operands_.number_of(place_.query_slot(g), first);
    const int64_t width = padded_to_lanes(p_.v_dim);
    for (int64_t i = 0; i < grads.count; ++i) {
      split_reciprocal(lse[i], operands_.exponent + number + i, operands_.factor + number + i);
      load_row(grads.base + i * grads.row_stride, grads.column_stride, p_.v_dim, w_.staging);
      load_row(outputs.base + i * outputs.row_stride, outputs.column_stride, p_.v_dim, w_.staging + width);
      Vec sum = {};
      for (int64_t c = 0; c < width; c += kLanes) sum += load(w_.staging + c) * load(w_.staging + width + c);
      operands_.delta[number + i] = sum_of_lanes(sum);
    }
  }

  void begin_grad_queries(int64_t slot, int64_t block) {
    __builtin_memset(operands_.grad_query_of(slot, block, 0), 0,
                     kGradientLaneBlocks * operands_.lane_block_size * sizeof(float));
    operands_.turn_of(slot, block).store(0, std::memory_order_relaxed);
  }

  void write_zeros(const Rows<Element>& target) {
    __builtin_memset(w_.staging, 0, padded_to_lanes(target.channels) * sizeof(float));
    for (int64_t i = 0; i < target.count; ++i)
      store_row(const_cast<Element*>(target.base) + i * target.row_stride, target.column_stride, target.channels,
                w_.staging);
  }

  const Problem& p_;
  GradientOperands& operands_;
  const BackwardWorkspace& w_;
  HeadPlace place_;
};

// Phase 2: one partition of a head's keys.
template <class Element>
class GradientPartition {
 public:
  GradientPartition(const Problem& p, const GradientOperands& operands, const BackwardWorkspace& w, const KeptKeys& kept,
                    const HeadPlace& place, int64_t partition)
      : p_(p), operands_(operands), w_(w), kept_(kept), place_(place), partition_(partition),
        first_key_(partition * kGradientRows), num_keys_(std::min(kGradientRows, p.kv_seq_len - first_key_)) {}

  void run() {
    for (int64_t j = 0; j < num_lane_blocks(); ++j) begin_lane_block(j);
    for (int64_t g = 0; g < p_.group_size(); ++g)
      for (int64_t block = operands_.query_blocks - 1; block >= 0; --block) {
        const int64_t first = block * kGradientRows, count = std::min(kGradientRows, p_.seq_len - first);
        const Range partitions = partitions_seen(p_, kept_, first, count);
        if (partitions.begin <= partition_ && partition_ < partitions.end) pass_queries(g, block, first, count, partitions);
      }
    for (int64_t j = 0; j < num_lane_blocks(); ++j) finish_lane_block(j);
  }

 private:
  int64_t num_lane_blocks() const { return divide_up(num_keys_, kBlockWidth); }
  int64_t first_key(int64_t j) const { return first_key_ + j * kBlockWidth; }
  int64_t keys_in(int64_t j) const { return std::min(kBlockWidth, num_keys_ - j * kBlockWidth); }

  Rows<Element> key_rows(const Tensor& t, int64_t j, int64_t channels) const {
    return rows_of<Element>(t, place_.batch, place_.kv_head, first_key(j), keys_in(j), channels);
  }

  void begin_lane_block(int64_t j) {
    pack_lane_block(key_rows(p_.key, j, p_.qk_dim), float(p_.scale) * kLog2E, kBlockWidth, w_.staging,
                    w_.keys + j * w_.qk_size);
    pack_lane_block(key_rows(p_.value, j, p_.v_dim), 1.0f, kBlockWidth, w_.staging, w_.values + j * w_.v_size);
    __builtin_memset(w_.sum_keys + j * w_.qk_size, 0, w_.qk_size * sizeof(float));
    __builtin_memset(w_.sum_values + j * w_.v_size, 0, w_.v_size * sizeof(float));
  }

  void pass_queries(int64_t g, int64_t block, int64_t first, int64_t count, Range partitions) {
    const bool has_pairs = keeps_any(p_, {place_.batch, place_.head(g), first, count, first_key_, num_keys_});
    if (has_pairs)
      for (int64_t j = 0; j < num_lane_blocks(); ++j) {
        score({place_.batch, place_.head(g), first, count, first_key(j), keys_in(j)}, place_.query_slot(g), j);
        add_to_keys_and_values(place_.query_slot(g), first, count, j);
        transpose_grad_scores(j);
      }
    wait_for_turn(operands_.turn_of(place_.query_slot(g), block), partition_ - partitions.begin);
    if (has_pairs) add_to_queries(place_.query_slot(g), block, count);
    if (partition_ + 1 == partitions.end) write_queries(g, block, first, count);
    operands_.turn_of(place_.query_slot(g), block).store(partition_ + 1 - partitions.begin, std::memory_order_release);
  }

  // P and dS of the block, rows beyond the last query 0.
  void score(const BlockPlace& at, int64_t slot, int64_t j) {
    operands_.query_rows.multiply(slot, at.first_query, at.num_queries, w_.keys + j * w_.qk_size, w_.scores);
    mask_rows<Element, kMaxVectors>(p_, at, mask_work(p_, at, kept_), w_.scores);
    operands_.grad_output_rows.multiply(slot, at.first_query, at.num_queries, w_.values + j * w_.v_size, w_.grad_scores);
    const int64_t number = operands_.number_of(slot, at.first_query);
    const float *exponent = operands_.exponent + number, *factor = operands_.factor + number;
    const float* delta = operands_.delta + number;
    for (int64_t i = 0; i < at.num_queries; ++i)
      for (int v = 0; v < kMaxVectors; ++v) {
        const int64_t offset = i * kBlockWidth + v * kLanes;
        const Vec probability = exp2(load(w_.scores + offset) - exponent[i]) * factor[i];
        store(w_.scores + offset, probability);
        store(w_.grad_scores + offset, probability * (load(w_.grad_scores + offset) - delta[i]));
      }
    __builtin_memset(w_.grad_scores + at.num_queries * kBlockWidth, 0,
                     (kGradientRows - at.num_queries) * kBlockWidth * sizeof(float));
  }

  // dV^T += dO^T P, dK^T += Q^T dS.
  void add_to_keys_and_values(int64_t slot, int64_t first, int64_t count, int64_t j) {
    operands_.grad_output_columns.add_product(slot, first, count, w_.scores, w_.sum_values + j * w_.v_size);
    operands_.query_columns.add_product(slot, first, count, w_.grad_scores, w_.sum_keys + j * w_.qk_size);
  }

  float* transposed_block(int64_t lane_block) const { return w_.transposed + lane_block * kGradientRows * kBlockWidth; }

  // Squares of dS to their place in dS^T: key rows [j * W, + W), by lane block of queries.
  void transpose_grad_scores(int64_t j) {
    for (int64_t query = 0; query < kGradientRows; query += kLanes)
      for (int64_t key = 0; key < kBlockWidth; key += kLanes) {
        Vec square[kLanes];
        load_transposed(w_.grad_scores + query * kBlockWidth, kBlockWidth, key, square);
        float* target = transposed_block(query / kBlockWidth) + (j * kBlockWidth + key) * kBlockWidth + query % kBlockWidth;
        FUSED_UNROLL
        for (int i = 0; i < kLanes; ++i) store(target + i * kBlockWidth, square[i]);
      }
  }

  // dQ^T += K^T dS^T.
  void add_to_queries(int64_t slot, int64_t block, int64_t count) {
    for (int64_t b = 0; b * kBlockWidth < count; ++b)
      operands_.key_columns.add_product(place_.slot, first_key_, num_keys_, transposed_block(b),
                                        operands_.grad_query_of(slot, block, b));
  }

  void write_queries(int64_t g, int64_t block, int64_t first, int64_t count) {
    for (int64_t b = 0; b * kBlockWidth < count; ++b) {
      const int64_t lane = b * kBlockWidth;
      write(operands_.grad_query_of(place_.query_slot(g), block, b), float(p_.scale),
            rows_of<Element>(p_.grad_query, place_.batch, place_.head(g), first + lane,
                             std::min(kBlockWidth, count - lane), p_.qk_dim));
    }
  }

  void finish_lane_block(int64_t j) {
    write(w_.sum_keys + j * w_.qk_size, float(p_.scale), key_rows(p_.grad_key, j, p_.qk_dim));
    write(w_.sum_values + j * w_.v_size, 1.0f, key_rows(p_.grad_value, j, p_.v_dim));
  }

  void write(const float* sums, float factor, const Rows<Element>& target) {
    unpack_lane_block(sums, kBlockWidth, [&](int64_t) { return broadcast(factor); }, w_.staging, target);
  }

  const Problem& p_;
  const GradientOperands& operands_;
  const BackwardWorkspace& w_;
  const KeptKeys& kept_;
  HeadPlace place_;
  int64_t partition_, first_key_, num_keys_;
};

// All memory of a backward call, and its two phases: pack, then the partitions.
class Backward {
 public:
  Backward(const Problem& p, Arena arena)
      : p_(p),
        padding_(p, arena),
        schedule_(p, GradientOperands::bytes_per_head(p), arena),
        operands_(p, schedule_.slots(), arena),
        workspaces_(arena, p) {}

  int64_t scratch_bytes() const { return workspaces_.end_bytes(p_.threads); }

  template <class Element>
  void run() {
    padding_.fill(p_);
    schedule_.reset();
    const int64_t partitions = divide_up(p_.kv_seq_len, kGradientRows), query_blocks = operands_.query_blocks;
    on_threads(p_.threads, [&](int64_t thread) {
      const BackwardWorkspace w = workspaces_.of(thread, p_.scratch, p_);
      schedule_.run(
          thread, partitions + query_blocks * p_.group_size(), partitions,
          [&](int64_t kv_head, int64_t slot, int64_t item) {
            const HeadPlace place(p_, kv_head, slot);
            GradientPacking<Element> packing(p_, operands_, w, place);
            if (item < partitions) return packing.keys(item);
            const int64_t block = item - partitions;
            packing.queries(block / query_blocks, block % query_blocks, padding_.of(place.batch));
          },
          [&](int64_t kv_head, int64_t slot, int64_t partition) {
            const HeadPlace place(p_, kv_head, slot);
            GradientPartition<Element>(p_, operands_, w, padding_.of(place.batch), place, partition).run();
          });
    });
  }

 private:
  const Problem& p_;
  PaddingSummary padding_;
  HeadSchedule schedule_;
  GradientOperands operands_;
  WorkspacePerThread<BackwardWorkspace> workspaces_;
};
