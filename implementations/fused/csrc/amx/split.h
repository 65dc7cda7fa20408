// A float32 as the sum of Parts bfloat16 numbers, largest first: 1 part has 8 bits of mantissa, 2
// parts 16, 3 parts all 24. A product of two split numbers is the sum of the products of their
// parts; those beyond the accuracy of the parts are left out:
//
//   Parts 1: 1 product    Parts 2: 3 of 4, or all for float16    Parts 3: 6 of 9

// Whether parts hold every digit of the elements, so that their products are exact.
template <class Element, int Parts>
constexpr bool kSplitsExactly = std::is_same_v<Element, BFloat16> || (std::is_same_v<Element, Float16> && Parts > 1);

// 32 numbers, in the order of a row of a left tile.
struct Pair {
  __m512 low, high;
};

FUSED_INLINE __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

FUSED_INLINE __mmask32 first_halves(int64_t count) {
  return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (1u << count) - 1;
}

FUSED_INLINE __m512i round_to_bfloat16(Pair x) {
  return (__m512i)_mm512_cvtne2ps_pbh(x.high, x.low);
}

FUSED_INLINE Pair widen(__m512i halves) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1));
  return {(__m512)_mm512_slli_epi32(low, 16), (__m512)_mm512_slli_epi32(high, 16)};
}

// Each part rounded to nearest: for operands that are packed once.
template <int Parts>
FUSED_INLINE void split(Pair x, __m512i* parts) {
  FUSED_UNROLL
  for (int i = 0; i < Parts; ++i) {
    parts[i] = round_to_bfloat16(x);
    if (i == Parts - 1) break;
    const Pair taken = widen(parts[i]);
    x = {_mm512_sub_ps(x.low, taken.low), _mm512_sub_ps(x.high, taken.high)};
  }
}

// Leading parts truncated, which takes fewer instructions: for the probabilities, split in the
// innermost loop.
template <int Parts>
FUSED_INLINE void split_truncating(Pair x, __m512i* parts) {
  const __m512i upper_half = _mm512_set1_epi32((int)0xffff0000);
  FUSED_UNROLL
  for (int i = 0; i < Parts - 1; ++i) {
    const Pair taken = {(__m512)_mm512_and_si512((__m512i)x.low, upper_half),
                        (__m512)_mm512_and_si512((__m512i)x.high, upper_half)};
    parts[i] = round_to_bfloat16(taken);
    x = {_mm512_sub_ps(x.low, taken.low), _mm512_sub_ps(x.high, taken.high)};
  }
  parts[Parts - 1] = round_to_bfloat16(x);
}

// Tile arithmetic flushes subnormal numbers, and an infinity has no remainder to split off. Input
// with such values is left to the vector path, which treats every float as IEEE says.
// 2^-80: products with small probabilities stay normal. 2^80: sums of products with terms of up to 2^30
// (kBoundedScore) stay finite.
constexpr int kSmallestExponent = 127 - 80, kLargestExponent = 127 + 80;

// Whether all numbers that were seen fit tiles. Only extremes are kept, and judged at the end: three
// instructions a vector.
template <int Parts>
class FitCheck {
 public:
  // Written out, as that of TileRowLoader: what the compiler provides has none of the target's options.
  FUSED_MEMBER FitCheck() : smallest_(one_less()), smallest_halves_(one_less()), largest_(_mm512_setzero_si512()) {}

  FUSED_MEMBER void see(Pair x) {
    see(x.low);
    see(x.high);
  }

  // 32 bfloat16 that need no splitting: only tiny ones are a trouble.
  FUSED_MEMBER void see_halves(__m512i x) {
    const __m512i magnitudes = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    smallest_halves_ = _mm512_min_epu16(smallest_halves_, _mm512_add_epi16(magnitudes, one_less()));
  }

  bool fits() const {
    constexpr int kSmallestHalf = kSmallestExponent << 7, kSmallest = kSmallestExponent << 23,
                  kLargest = kLargestExponent << 23;
    return !_mm512_cmplt_epu16_mask(smallest_halves_, _mm512_set1_epi16(kSmallestHalf - 1)) &&
           !_mm512_cmplt_epu32_mask(smallest_, _mm512_set1_epi32(kSmallest - 1)) &&
           (Parts == 1 || !_mm512_cmpge_epu32_mask(largest_, _mm512_set1_epi32(kLargest)));
  }

 private:
  FUSED_MEMBER void see(__m512 x) {
    const __m512i magnitudes = _mm512_and_si512((__m512i)x, _mm512_set1_epi32(0x7fffffff));
    smallest_ = _mm512_min_epu32(smallest_, _mm512_add_epi32(magnitudes, one_less()));
    if (Parts > 1) largest_ = _mm512_max_epu32(largest_, magnitudes);
  }

  static FUSED_MEMBER __m512i one_less() { return _mm512_set1_epi32(-1); }

  // The smallest magnitudes less one, by which 0, which fits, becomes the largest of all.
  __m512i smallest_, smallest_halves_, largest_;
};

// Up to 32 numbers of one row; the rest is 0.
FUSED_INLINE Pair load_pair(const Float32* p, int64_t count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), p), _mm512_maskz_loadu_ps(first_lanes(count - 16), p + 16)};
}

FUSED_INLINE Pair load_pair(const BFloat16* p, int64_t count) {
  return widen(_mm512_maskz_loadu_epi16(first_halves(count), p));
}

FUSED_INLINE Pair load_pair(const Float16* p, int64_t count) {
  const __m512i halves = _mm512_maskz_loadu_epi16(first_halves(count), p);
  return {_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))};
}

template <class Element>
FUSED_INLINE Pair load_pair(const Element* p, int64_t column_stride, int64_t count) {
  if (column_stride == 1) return load_pair(p, count);
  alignas(64) float row[32] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, 32); ++i) row[i] = load_one(p + i * column_stride);
  return {_mm512_load_ps(row), _mm512_load_ps(row + 16)};
}
