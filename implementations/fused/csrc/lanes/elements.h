// Loading and storing the three element types as float32, a vector or one element at a time.

struct Float32 { float value; };
struct BFloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

FUSED_INLINE float from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

FUSED_INLINE uint32_t to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

FUSED_INLINE float load_one(const Float32* p) { return p->value; }
FUSED_INLINE float load_one(const BFloat16* p) { return from_bits(uint32_t(p->bits) << 16); }

FUSED_INLINE float load_one(const Float16* p) {
  const uint32_t sign = uint32_t(p->bits & 0x8000) << 16, magnitude = p->bits & 0x7fff;
  if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Moves exponent and mantissa into place, then corrects the bias by a multiplication, which also
  // normalises subnormal numbers.
  const float scaled = from_bits(magnitude << 13) * 0x1p112f;
  return from_bits(sign | to_bits(scaled));
}

FUSED_INLINE void store_one(Float32* p, float x) { p->value = x; }

FUSED_INLINE void store_one(BFloat16* p, float x) {
  const uint32_t bits = to_bits(x);
  const uint32_t to_nearest_even = 0x7fff + (bits >> 16 & 1);
  p->bits = x != x ? uint16_t(bits >> 16 | 0x40) : uint16_t((bits + to_nearest_even) >> 16);
}

FUSED_INLINE void store_one(Float16* p, float x) {
  const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000;
  const float magnitude = from_bits(bits & 0x7fffffff);
  if (magnitude != magnitude) {
    p->bits = uint16_t(sign | 0x7e00);
  } else if (magnitude >= 65520.0f) {
    p->bits = uint16_t(sign | 0x7c00);
  } else if (magnitude < 0x1p-14f) {
    // Subnormal: adding 2^-1 aligns the mantissa so that the hardware rounds it to 2^-24.
    p->bits = uint16_t(sign | (to_bits(magnitude + 0.5f) - to_bits(0.5f)));
  } else {
    const uint32_t rebiased = to_bits(magnitude) - (112u << 23);
    p->bits = uint16_t(sign | ((rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13));
  }
}

FUSED_INLINE Vec load_vector(const Float32* p) { return load_unaligned(&p->value); }

FUSED_INLINE Vec load_vector(const BFloat16* p) {
  HalfVec bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return (Vec)(__builtin_convertvector(bits, UintVec) << 16);
}

FUSED_INLINE Vec load_vector(const Float16* p) {
#if FUSED_LANES == 16
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif FUSED_LANES == 8
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Vec x;
  for (int i = 0; i < kLanes; ++i) x[i] = load_one(p + i);
  return x;
#endif
}

// Two vectors of consecutive elements, in the order that is quickest to load: as they are, except for
// bfloat16, which gives the even ones, then the odd ones.
struct TwoVecs {
  Vec first, second;
};

template <class Element>
FUSED_INLINE TwoVecs load_two(const Element* p) {
  return {load_vector(p), load_vector(p + kLanes)};
}

FUSED_INLINE TwoVecs load_two(const BFloat16* p) {
  UintVec bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return {(Vec)(bits << 16), (Vec)(bits & 0xffff0000u)};
}

// Brings float32 channels into the order of load_two of Element, and back. A last vector without a
// partner stays as it is.
template <class Element>
static void to_order_of_two(float* row, int64_t width) {
  if (!std::is_same_v<Element, BFloat16>) return;
  for (int64_t c = 0; c + 2 * kLanes <= width; c += 2 * kLanes) {
    float even[kLanes], odd[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      even[i] = row[c + 2 * i];
      odd[i] = row[c + 2 * i + 1];
    }
    __builtin_memcpy(row + c, even, sizeof even);
    __builtin_memcpy(row + c + kLanes, odd, sizeof odd);
  }
}

template <class Element>
static void from_order_of_two(float* row, int64_t width) {
  if (!std::is_same_v<Element, BFloat16>) return;
  for (int64_t c = 0; c + 2 * kLanes <= width; c += 2 * kLanes) {
    float whole[2 * kLanes];
    for (int i = 0; i < kLanes; ++i) {
      whole[2 * i] = row[c + i];
      whole[2 * i + 1] = row[c + kLanes + i];
    }
    __builtin_memcpy(row + c, whole, sizeof whole);
  }
}

FUSED_INLINE void store_vector(Float32* p, Vec x) { store_unaligned(&p->value, x); }

FUSED_INLINE void store_vector(BFloat16* p, Vec x) {
  const UintVec bits = (UintVec)x;
  const UintVec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const UintVec quiet_nan = bits >> 16 | 0x40;
  const HalfVec halves = __builtin_convertvector(x != x ? quiet_nan : rounded, HalfVec);
  __builtin_memcpy(p, &halves, sizeof halves);
}

FUSED_INLINE void store_vector(Float16* p, Vec x) {
#if FUSED_LANES == 16
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)x, 0));
#elif FUSED_LANES == 8
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)x, 0));
#else
  for (int i = 0; i < kLanes; ++i) store_one(p + i, x[i]);
#endif
}

// count elements, column_stride apart, as float32 into row; the rest up to a whole vector is 0.
template <class Element>
FUSED_INLINE void load_row(const Element* source, int64_t column_stride, int64_t count, float* row) {
  int64_t i = 0;
  if (column_stride == 1) {
    for (; i + kLanes <= count; i += kLanes) store(row + i, load_vector(source + i));
  }
  for (; i < count; ++i) row[i] = load_one(source + i * column_stride);
  for (; i % kLanes; ++i) row[i] = 0.0f;
}

template <class Element>
FUSED_INLINE void store_row(Element* target, int64_t column_stride, int64_t count, const float* row) {
  int64_t i = 0;
  if (column_stride == 1) {
    for (; i + kLanes <= count; i += kLanes) store_vector(target + i, load(row + i));
  }
  for (; i < count; ++i) store_one(target + i * column_stride, row[i]);
}
