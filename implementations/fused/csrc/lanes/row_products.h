// Products with rows read where they lie, channels across the lanes: for few queries, where packing
// would cost more than it brings. Every loaded row is used for up to kQueriesTogether queries.
//
// Queries and output are float32 [query][width] with the channels in the order of load_two<Source>.

// How far ahead rows are asked for. The hardware's own prefetching follows rows, but stops at the end
// of each page.
constexpr int64_t kRowsAhead = 16;

template <class Source>
FUSED_INLINE void prefetch_two(const Source* p) {
  constexpr int64_t kLineElements = 64 / int64_t(sizeof(Source));
  for (int64_t i = 0; i < 2 * kLanes; i += kLineElements) __builtin_prefetch(p + i, 0, 3);
}

constexpr int kQueriesTogether = kLanes < 16 ? 2 : 4;

// Scores of Queries queries with kLanes / Queries keys: sums in registers, then one joint reduction.
// Lane q * kKeys + k of the result is query q, key k; keys beyond the last count as the last.
template <int Queries, class Source>
FUSED_INLINE Vec score_tile(const Rows<Source>& keys, const float* queries, int64_t width) {
  constexpr int kKeys = kLanes / Queries;
  const int64_t last = std::min<int64_t>(keys.count, kKeys) - 1;
  const auto key_at = [&](int k, int64_t c) __attribute__((always_inline)) {
    return keys.base + std::min<int64_t>(k, last) * keys.row_stride + c;
  };
  Vec sums[kLanes] = {};
  int64_t c = 0;
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) {
    FUSED_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      const TwoVecs key = load_two(key_at(k, c));
      prefetch_two(keys.base + (k + kRowsAhead) * keys.row_stride + c);
      FUSED_UNROLL
      for (int q = 0; q < Queries; ++q) {
        sums[q * kKeys + k] += key.first * load(queries + q * width + c);
        sums[q * kKeys + k] += key.second * load(queries + q * width + c + kLanes);
      }
    }
  }
  if (c < width) {
    FUSED_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      const Vec key = load_vector(key_at(k, c));
      FUSED_UNROLL
      for (int q = 0; q < Queries; ++q) sums[q * kKeys + k] += key * load(queries + q * width + c);
    }
  }
  return reduce_each(sums, [](Vec a, Vec b) __attribute__((always_inline)) { return a + b; });
}

// scores[q][key] of all keys, score_stride apart.
template <int Queries, class Source>
__attribute__((noinline)) static void score_rows(const Rows<Source>& keys, const float* queries, int64_t width,
                                                 int64_t score_stride, float* scores) {
  constexpr int kKeys = kLanes / Queries;
  for (int64_t first = 0; first < keys.count; first += kKeys) {
    alignas(64) float tile[kLanes];
    store(tile, score_tile<Queries>(keys.from(first), queries, width));
    for (int q = 0; q < Queries; ++q)
      __builtin_memcpy(scores + q * score_stride + first, tile + q * kKeys, kKeys * sizeof(float));
  }
}

// output[q] += probabilities[q] times values, for Vectors (1 or an even number) vectors of channels.
template <int Queries, int Vectors, class Source>
FUSED_INLINE void add_channels(const Rows<Source>& values, const float* probabilities, int64_t probability_stride,
                               float* output, int64_t width) {
  Vec sums[Queries][Vectors];
  for (int q = 0; q < Queries; ++q)
    for (int j = 0; j < Vectors; ++j) sums[q][j] = load(output + q * width + j * kLanes);
  for (int64_t i = 0; i < values.count; ++i) {
    const Source* row = values.base + i * values.row_stride;
    Vec value[Vectors];
    if constexpr (Vectors == 1) {
      value[0] = load_vector(row);
    } else {
      FUSED_UNROLL
      for (int j = 0; j < Vectors; j += 2) {
        const TwoVecs two = load_two(row + j * kLanes);
        prefetch_two(row + kRowsAhead * values.row_stride + j * kLanes);
        value[j] = two.first;
        value[j + 1] = two.second;
      }
    }
    FUSED_UNROLL
    for (int q = 0; q < Queries; ++q) {
      const Vec probability = broadcast(probabilities[q * probability_stride + i]);
      FUSED_UNROLL
      for (int j = 0; j < Vectors; ++j) sums[q][j] += probability * value[j];
    }
  }
  for (int q = 0; q < Queries; ++q)
    for (int j = 0; j < Vectors; ++j) store(output + q * width + j * kLanes, sums[q][j]);
}

// The same for all channels.
template <int Queries, class Source>
__attribute__((noinline)) static void add_rows(Rows<Source> values, const float* probabilities,
                                               int64_t probability_stride, float* output, int64_t width) {
  const float* end = output + width;
  const auto add = [&](auto vectors) __attribute__((always_inline)) {
    constexpr int64_t kChannels = vectors * kLanes;
    for (; end - output >= kChannels; output += kChannels, values.base += kChannels)
      add_channels<Queries, vectors>(values, probabilities, probability_stride, output, width);
  };
  if constexpr (Queries == 1) {
    add(std::integral_constant<int, 8>{});
    add(std::integral_constant<int, 6>{});
  }
  add(std::integral_constant<int, 4>{});
  add(std::integral_constant<int, 2>{});
  add(std::integral_constant<int, 1>{});
}

// body(first, number) over queries [0, count) in steps of kQueriesTogether while they last, then one
// by one; the number is a compile-time constant.
template <class Body>
FUSED_INLINE void for_queries_together(int64_t count, Body body) {
  int64_t first = 0;
  for (; first + kQueriesTogether <= count; first += kQueriesTogether)
    body(first, std::integral_constant<int, kQueriesTogether>{});
  for (; first < count; ++first) body(first, std::integral_constant<int, 1>{});
}
