// 2^x by splitting x = n + r, r in [0, 1]: a polynomial for 2^r, the exponent field for 2^n.
//
// The polynomials are minimax in relative error under the constraint p(0) = 1: 2^0 must be exactly
// 1, or factors that should change nothing drift with the number of key blocks. NaN stays NaN, -inf
// gives 0, results under 2^-126 are flushed to 0.
//
//   degree 5: 8.2e-8, with rounding 1.4e-7, for float32
//   degree 4: 2.9e-6, where products are exact to 2^-16
//   degree 3: 8.6e-5, where the result is rounded to bfloat16

template <int Degree>
FUSED_INLINE Vec exp2_fraction(Vec r) {
  if constexpr (Degree == 3) {
    Vec y = broadcast(7.706704363e-2f);
    y = y * r + 2.276449889e-1f;
    y = y * r + 6.951167872e-1f;
    return y * r + 1.0f;
  } else if constexpr (Degree == 4) {
    Vec y = broadcast(1.342668492e-2f);
    y = y * r + 5.224247271e-2f;
    y = y * r + 2.412802059e-1f;
    y = y * r + 6.930448046e-1f;
    return y * r + 1.0f;
  } else {
    Vec y = broadcast(1.867131478e-3f);
    y = y * r + 9.01702466e-3f;
    y = y * r + 5.579992042e-2f;
    y = y * r + 2.401644466e-1f;
    y = y * r + 6.931513124e-1f;
    return y * r + 1.0f;
  }
}

template <int Degree = 5>
FUSED_INLINE Vec exp2(Vec x) {
#if FUSED_LANES == 16
  constexpr int kFractionAboveFloor = 1;
  const Vec r = (Vec)_mm512_reduce_ps((__m512)x, kFractionAboveFloor);
  // Left out where the result is under 2^-126: scalef takes 200 cycles for such a number.
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return (Vec)_mm512_maskz_scalef_ps(normal, (__m512)exp2_fraction<Degree>(r), (__m512)x);
#else
  const Vec lowest = broadcast(-126.5f);  // n = -127, whose exponent field makes the result 0
  x = x < lowest ? lowest : x;  // in this order NaN passes
  // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits of the mantissa.
  const float shifter = 12582912.0f;
  const Vec shifted = (x - 0.5f) + shifter;
  const Vec r = x - (shifted - shifter);
  const IntVec n = (IntVec)shifted - 0x4B400000;
  return exp2_fraction<Degree>(r) * (Vec)((n + 127) << 23);
#endif
}
