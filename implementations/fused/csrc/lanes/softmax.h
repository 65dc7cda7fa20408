// Online softmax over blocks of keys, queries across the lanes, scores in base 2.
//
// Per query: maximum m, sum l of 2^(s - m), and the unnormalised output, all relative to m. m is
// raised only when a block exceeds it by more than kSlack; until then terms may grow to 2^kSlack,
// which float32 holds without loss, and nothing needs rescaling.
constexpr float kSlack = 8.0f;

// Natural logarithm of sum * 2^maximum, rounded once: what is lost here is lost to every probability of
// the gradients.
FUSED_INLINE float log_sum_exp(float maximum, float sum) {
  if (sum == 0.0f) return kMinusInfinity;
  return float((double(maximum) + __builtin_log2(double(sum))) * kLn2);
}

template <int Vectors>
struct SoftmaxState {
  Vec maximum[Vectors], sum[Vectors];

  void reset() {
    for (int j = 0; j < Vectors; ++j) {
      maximum[j] = broadcast(kMinusInfinity);
      sum[j] = Vec{};
    }
  }
};

template <int Vectors>
static void column_maxima(const float* scores, int64_t num_keys, Vec* maxima) {
  for (int j = 0; j < Vectors; ++j) maxima[j] = broadcast(kMinusInfinity);
  for (int64_t i = 0; i < num_keys; ++i)
    for (int j = 0; j < Vectors; ++j) maxima[j] = max(load(scores + (i * Vectors + j) * kLanes), maxima[j]);
}

// Raises the maxima where the block demands it. Returns whether any was raised; then factors holds
// what the sums so far are to be multiplied with (exactly 1 in lanes that were not raised).
template <int Vectors>
static bool raise_maxima(const Vec* block_maxima, SoftmaxState<Vectors>& state, Vec* factors) {
  bool raised = false;
  for (int j = 0; j < Vectors; ++j) {
    const IntVec higher = block_maxima[j] > state.maximum[j] + kSlack;
    const Vec maximum = higher ? block_maxima[j] : state.maximum[j];
    factors[j] = higher ? exp2(state.maximum[j] - maximum) : broadcast(1.0f);
    state.maximum[j] = maximum;
    state.sum[j] *= factors[j];
    raised |= any(higher);
  }
  return raised;
}

template <int Vectors>
static void rescale(float* output, int64_t channels, const Vec* factors) {
  for (int64_t c = 0; c < channels; ++c)
    for (int j = 0; j < Vectors; ++j) {
      float* o = output + (c * Vectors + j) * kLanes;
      store(o, load(o) * factors[j]);
    }
}

// scores become 2^(score - maximum), in place; their sums are added to the state. Sums of 16 keys
// are added up first, so that rounding errors grow with the logarithm of the length, not with it.
template <int Vectors>
__attribute__((noinline)) static void exponentiate(float* scores, int64_t num_keys, SoftmaxState<Vectors>& state) {
  constexpr int64_t kShortSum = 16;
  Vec maximum[Vectors], block_sum[Vectors];
  for (int j = 0; j < Vectors; ++j) {
    // A query that has seen no key yet has maximum -inf; -inf - -inf would be NaN.
    maximum[j] = state.maximum[j] == kMinusInfinity ? Vec{} : state.maximum[j];
    block_sum[j] = Vec{};
  }
  for (int64_t first = 0; first < num_keys; first += kShortSum) {
    const int64_t end = std::min(first + kShortSum, num_keys);
    Vec short_sum[Vectors] = {};
    for (int64_t i = first; i < end; ++i) {
      FUSED_UNROLL
      for (int j = 0; j < Vectors; ++j) {
        float* s = scores + (i * Vectors + j) * kLanes;
        const Vec term = exp2(load(s) - maximum[j]);
        short_sum[j] += term;
        store(s, term);
      }
    }
    for (int j = 0; j < Vectors; ++j) block_sum[j] += short_sum[j];
  }
  for (int j = 0; j < Vectors; ++j) state.sum[j] += block_sum[j];
}
