// Online softmax over score tiles. Rows of a tile are queries; a row's 16 keys fill one vector.
//
// A score slot holds two score tiles, 16 queries x 32 keys of float32, and becomes the left tiles of
// their probabilities in place: part 0 over the first score tile, part 1 over the second, part 2
// behind them.

constexpr int kRowGroups = 2;  // of 16 queries each, per block
constexpr int kBlockRows = kRowGroups * kTileRows;

template <int Parts>
constexpr int64_t kSlotFloats = (Parts > 2 ? Parts : 2) * kSumElements;

// Terms of the softmax beyond a rounding of the probabilities' parts would be lost.
template <int Parts>
constexpr int kExpDegree = Parts == 1 ? 3 : Parts == 2 ? 4 : 5;

// When no score of a row can leave [-kBoundedScore, kBoundedScore] (Cauchy-Schwarz: norms of queries
// and keys), no maximum is searched for. Instead of one, rows of one part take that bound: their terms
// then are at most 1, whatever the values. Rows of several parts take 0, for to subtract a number of 30
// would cost the scores two digits; their terms of up to 2^30 are why split.h limits the values.
constexpr float kBoundedScore = 30.0f;

struct TileSoftmaxState {
  alignas(64) float maximum[kBlockRows];      // in base 2, scaled
  alignas(64) float slack[kBlockRows];        // how far scores may exceed it before it is raised
  alignas(64) float sum[kBlockRows][kLanes];  // per row, 16 partial sums; of the keys that output has
  alignas(64) float settled_sum[kBlockRows][kLanes];  // of earlier keys, once has_settled
  float score_factor;                         // from stored to base-2 scores
  bool is_bounded;
  bool has_output, has_settled;

  void reset() {
    for (int group = 0; group < kRowGroups; ++group) store(maximum + group * kTileRows, broadcast(kMinusInfinity));
    std::memset(sum, 0, sizeof sum);
    has_output = has_settled = false;
  }

  // 16 rows' sums, one per lane.
  Vec row_sums(int group) const {
    Vec rows[kLanes];
    FUSED_UNROLL
    for (int i = 0; i < kLanes; ++i) rows[i] = load(sum[group * kTileRows + i]);
    return reduce_each(rows, [](Vec a, Vec b) __attribute__((always_inline)) { return a + b; });
  }
};

// Maxima of the 16 rows of a row group over its slots.
template <int Parts>
FUSED_INLINE Vec row_maxima(const float* slots, int64_t num_slots) {
  Vec rows[kLanes];
  FUSED_UNROLL
  for (int i = 0; i < kLanes; ++i) rows[i] = max(load(slots + i * 16), load(slots + kSumElements + i * 16));
  for (int64_t slot = 1; slot < num_slots; ++slot) {
    const float* s = slots + slot * kSlotFloats<Parts>;
    FUSED_UNROLL
    for (int i = 0; i < kLanes; ++i) rows[i] = max(load(s + i * 16), max(load(s + kSumElements + i * 16), rows[i]));
  }
  return reduce_each(rows, [](Vec a, Vec b) __attribute__((always_inline)) { return max(a, b); });
}

// Raises the maxima of a row group where this block exceeds them by more than the slack. True if any were
// raised; sums and output then have to be multiplied with factors.
template <int Parts>
static bool raise_row_maxima(const float* slots, int64_t num_slots, float factor, int group, TileSoftmaxState& state,
                             float* factors) {
  const Vec block = row_maxima<Parts>(slots, num_slots) * factor;
  const Vec before = load(state.maximum + group * kTileRows);
  const IntVec higher = block > before + load(state.slack + group * kTileRows);
  if (__builtin_expect(!any(higher), 1)) return false;
  store(factors, higher ? exp2(before - block) : broadcast(1.0f));
  store(state.maximum + group * kTileRows, higher ? block : before);
  return true;
}

// Rows of one row group times their factors: their sums, and output tiles [channel group][row group].
__attribute__((noinline)) static void rescale_rows(float (*sums)[kLanes], int group, const float* factors,
                                                   float* output, int64_t channel_groups) {
  for (int i = 0; i < kTileRows; ++i) {
    if (factors[i] == 1.0f) continue;
    const Vec factor = broadcast(factors[i]);
    float* sum = sums[group * kTileRows + i];
    store(sum, load(sum) * factor);
    for (int64_t g = 0; g < channel_groups; ++g) {
      float* o = output + (g * kRowGroups + group) * kSumElements + i * 16;
      store(o, load(o) * factor);
    }
  }
}

// One row of a slot: scores become parts of probabilities, in place. Returns sum plus their sums, which
// with SumsRounded are those of one part's rounded numbers: a query with one key then gets its value
// exactly. It costs more than the sum of all digits, and matters only to rows with very few keys.
template <int Parts, bool SumsRounded>
FUSED_INLINE Vec exponentiate_slot_row(float* row, Vec factor, Vec maximum, Vec sum) {
  constexpr int kDegree = kExpDegree<Parts>;
  const Vec low = exp2<kDegree>(load(row) * factor - maximum);
  const Vec high = exp2<kDegree>(load(row + kSumElements) * factor - maximum);
  __m512i parts[Parts];
  split_truncating<Parts>({(__m512)low, (__m512)high}, parts);
  FUSED_UNROLL
  for (int part = 0; part < Parts; ++part) _mm512_store_si512(row + part * kSumElements, parts[part]);
  if constexpr (Parts > 1 || !SumsRounded) return sum + (low + high);
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)parts[0], ones);
}

// The rows of a block of scores, first to last, a few at a time.
// Slots is 0 where their number is known at run time only.
template <int Parts, int Slots, bool SumsRounded>
class SoftmaxRows {
 public:
  SoftmaxRows(float* scores, int64_t slots_per_group, int64_t num_slots, float factor, TileSoftmaxState& state)
      : scores_(scores),
        group_stride_(slots_per_group * kSlotFloats<Parts>),
        num_slots_(Slots ? Slots : num_slots),
        factor_(broadcast(factor)),
        state_(state) {}

  void exponentiate_until(int end) {
    for (; row_ < end; ++row_) exponentiate(row_);
  }

 private:
  void exponentiate(int row) {
    // A query that has seen no key yet has maximum -inf; -inf - -inf would be NaN.
    const float maximum = state_.maximum[row] == kMinusInfinity ? 0.0f : state_.maximum[row];
    float* scores = scores_ + row / kTileRows * group_stride_ + row % kTileRows * 16;
    Vec sum = load(state_.sum[row]);
    FUSED_UNROLL
    for (int slot = 0; slot < (Slots ? Slots : num_slots_); ++slot)
      sum = exponentiate_slot_row<Parts, SumsRounded>(scores + slot * kSlotFloats<Parts>, factor_,
                                                      broadcast(maximum), sum);
    store(state_.sum[row], sum);
  }

  float* scores_;
  int64_t group_stride_, num_slots_;
  Vec factor_;
  TileSoftmaxState& state_;
  int row_ = 0;
};
